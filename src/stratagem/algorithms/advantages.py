"""Advantages of a group, and which episodes of it to learn from.

Pure functions on numpy arrays. Notation: G episodes of one group, all from the same start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

__all__ = [
    "BASELINES",
    "Baseline",
    "aaw_probabilities",
    "aaw_sample",
    "anchor_state_advantages",
    "balance_states",
    "best_targets",
    "group_normalised",
    "leave_one_out",
    "matching_advantages",
    "pooled_targets",
    "returns_to_go",
]


def group_normalised(returns: np.ndarray) -> np.ndarray:
    """Return (C_j - mean C) / std C, exactly 0 where all returns are equal.

    Source: Dilkes et al. 2025, arXiv:2508.10839, eq. 4. The paper does not say which standard deviation; this is that
    of the population (division by G).

    Args:
        returns: [G] composite returns C_j, G >= 2.

    Raises:
        ValueError: fewer than two episodes: there is nothing to compare with.

    >>> group_normalised(np.array([1.0, 0.0, 0.0, 1.0])).tolist()
    [1.0, -1.0, -1.0, 1.0]
    """
    values = _comparable(returns)
    if _all_equal(values):
        return np.zeros_like(values)
    normalised: np.ndarray = (values - values.mean()) / values.std()
    return normalised


def leave_one_out(returns: np.ndarray) -> np.ndarray:
    """Return C_j - mean of the other returns, exactly 0 where all are equal.

    It is G / (G - 1) (C_j - mean C): eq. 4 without the division by the standard deviation. The baseline does not hold
    C_j itself, so it does not bias the gradient, and a group whose returns hardly differ is not blown up to the size of
    one whose returns do. The step of ascent then grows with the rewards of the game.

    Source: Kool et al. 2019, "Buy 4 REINFORCE Samples, Get a Baseline for Free!", ICLR workshop on deep reinforcement
    learning meets structured prediction; Ahmadian et al. 2024, "Back to Basics", arXiv:2402.14740 (RLOO).

    Args:
        returns: [G] composite returns C_j, G >= 2.

    Raises:
        ValueError: fewer than two episodes: there is nothing to compare with.

    >>> leave_one_out(np.array([3.0, 0.0, 0.0, 1.0])).round(3).tolist()
    [2.667, -1.333, -1.333, 0.0]
    """
    values = _comparable(returns)
    if _all_equal(values):
        return np.zeros_like(values)
    advantages: np.ndarray = len(values) / (len(values) - 1) * (values - values.mean())
    return advantages


Baseline = Literal["group", "leave_one_out"]
"""What the return of an episode is compared with."""

BASELINES: dict[Baseline, Callable[[np.ndarray], np.ndarray]] = {
    "group": group_normalised,
    "leave_one_out": leave_one_out,
}


def _comparable(returns: np.ndarray) -> np.ndarray:
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"returns has shape {values.shape}; a group needs two or more episodes to compare. Raise G.")
    return values


def _all_equal(values: np.ndarray) -> bool:
    # Sums of equal rewards in another order differ by rounding, which must not become a signal of size 1.
    return bool(values.max() - values.min() <= 1e-9 * max(1.0, np.abs(values).max()))


def aaw_probabilities(advantages: np.ndarray, *, temperature: float) -> np.ndarray:
    """Return p_j = exp(|A_j| / T_ep) / sum_i exp(|A_i| / T_ep).

    Source: Dilkes et al. 2025, arXiv:2508.10839, eq. 5.

    Args:
        advantages: [G] A_j.
        temperature: T_ep > 0; small values prefer extreme episodes, large ones approach uniform.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature!r} must be above 0; AAW sampling is switched off with None.")
    scaled = np.abs(np.asarray(advantages, dtype=np.float64)) / temperature
    weights = np.exp(scaled - scaled.max())
    probabilities: np.ndarray = weights / weights.sum()
    return probabilities


def aaw_sample(advantages: np.ndarray, size: int, *, temperature: float, rng: np.random.Generator) -> np.ndarray:
    """Draw ``size`` of G episodes without replacement, one after the other with probabilities p_j of those left.

    Adding Gumbel noise to log p_j and taking the largest draws from exactly that law (Kool et al. 2019,
    arXiv:1903.06059). |A_j| / T_ep stands for log p_j, from which it differs by a constant; it never underflows.

    Args:
        advantages: [G] A_j over the whole group.
        size: G' <= G.
        temperature: T_ep > 0.
        rng: one number is drawn for each episode.

    Returns:
        [size] indices, ascending.
    """
    count = len(advantages)
    if not 1 <= size <= count:
        raise ValueError(f"size={size!r} cannot be drawn from {count} episodes; choose 1 to {count}.")
    if not temperature > 0:
        raise ValueError(f"temperature={temperature!r} must be above 0; AAW sampling is switched off with None.")
    keys = np.abs(np.asarray(advantages, dtype=np.float64)) / temperature + rng.gumbel(size=count)
    return np.sort(np.argsort(-keys, kind="stable")[:size])


def returns_to_go(rewards: Sequence[float], *, gamma: float) -> np.ndarray:
    """Return sum_{k >= t} gamma^(k - t) r_k for each step t.

    >>> returns_to_go([0.0, 0.0, 1.0], gamma=0.5).tolist()
    [0.25, 0.5, 1.0]
    """
    result = np.zeros(len(rewards))
    following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        following = rewards[t] + gamma * following
        result[t] = following
    return result


def anchor_state_advantages(state_keys: Sequence[str], returns: np.ndarray) -> np.ndarray:
    """Return the advantage of each step over the other steps that a group took from the very same state.

    Steps are grouped by state; within each, returns-to-go are normalised as in :func:`group_normalised`. A state that
    was visited once has nothing to compare with and gives exactly 0.

    Source: Feng et al. 2025, "Group-in-Group Policy Optimization for LLM Agent Training", arXiv:2505.10978, step-level
    advantages. There states are matched by the text of the observation; here the game names its state, so the match is
    exact and step counters cannot split it.

    Args:
        state_keys: [S] the state before each step, all steps of all G episodes one after the other.
        returns: [S] discounted return-to-go of each step.

    >>> anchor_state_advantages(["a", "b", "a"], np.array([1.0, 5.0, 0.0])).tolist()
    [1.0, 0.0, -1.0]
    """
    if len(state_keys) != len(returns):
        raise ValueError(f"{len(state_keys)} state keys for {len(returns)} returns; give one of each for every step.")
    visits: dict[str, list[int]] = {}
    for step, key in enumerate(state_keys):
        visits.setdefault(key, []).append(step)
    advantages = np.zeros(len(returns))
    for steps in visits.values():
        if len(steps) > 1:
            advantages[steps] = group_normalised(np.asarray(returns)[steps])
    return advantages


def pooled_targets(
    state_keys: Sequence[Sequence[str]], rewards: Sequence[Sequence[float]], *, gamma: float
) -> list[np.ndarray]:
    r"""Return one-step targets r_t + gamma V(s_{t+1}) for each episode, V pooled over all visits of the group.

    V(s) is the mean return-to-go over every step of every episode that was at s, whatever led there, so that the luck
    after a step is averaged out instead of being credited to it. The value after the last step of an episode is 0, as
    in :func:`returns_to_go`. Ours: the group serves as its own tabular critic.

    Args:
        state_keys: for each episode, the state before each step.
        rewards: for each episode, the reward of each step.
        gamma: discount.

    >>> pooled_targets([["a", "b"], ["a", "b"]], [[0.0, 1.0], [0.0, 0.0]], gamma=0.5)[0].tolist()
    [0.25, 1.0]
    """
    visits: dict[str, list[float]] = {}
    for keys, earned in zip(state_keys, rewards, strict=True):
        for key, value in zip(keys, returns_to_go(earned, gamma=gamma), strict=True):
            visits.setdefault(key, []).append(float(value))
    values = {key: float(np.mean(seen)) for key, seen in visits.items()}
    return [
        np.array([r + gamma * v for r, v in zip(earned, [*(values[key] for key in keys[1:]), 0.0], strict=True)])
        for keys, earned in zip(state_keys, rewards, strict=True)
    ]


def best_targets(
    state_keys: Sequence[Sequence[str]],
    actions: Sequence[Sequence[str | None]],
    rewards: Sequence[Sequence[float]],
    cut_off: Sequence[bool],
    *,
    gamma: float,
) -> list[np.ndarray]:
    r"""Return one-step targets r_t + gamma V*(s_{t+1}) for each episode, V* the best that the group has found out.

    The group's own transitions are a small model of the game: P(s' | s, a) and r(s, a) as they were seen. V* is its
    optimal value, by value iteration over the actions that were tried:

        Q(s, a) = mean over visits of (r + gamma V*(s')),    V*(s) = max_a Q(s, a)

    so that a step is credited with what could be made of the state it led to, not with what a policy that does not play
    well yet made of it. One episode that reaches the goal tells every state on its way, and all that lead there, where
    to go. In a game of chance the maximum of a few noisy means is too high; more episodes in a group make it less so.

    Source: certainty equivalence, as in Sutton and Barto 2018, "Reinforcement Learning", 6.3 and 8; that it is done on
    the episodes of one group is ours.

    Args:
        state_keys: for each episode, the state before each step.
        actions: for each episode, what was done; None is an answer without an action.
        rewards: for each episode, the reward of each step.
        cut_off: for each episode, whether it ended in a state that is not terminal. What follows its last step was not
            seen: other visits that did the same tell it, and where there are none it is 0.
        gamma: discount.

    >>> way, dead_end = (["a", "b"], ["left", "up"], [0.0, 1.0]), (["a", "b"], ["left", "down"], [0.0, 0.0])
    >>> best_targets(*zip(way, dead_end, strict=True), [False, False], gamma=0.5)[1].tolist()
    [0.5, 0.0]
    """
    seen: dict[str, dict[str | None, Counter[_Seen]]] = {}
    for keys, done, earned, cut in zip(state_keys, actions, rewards, cut_off, strict=True):
        last = len(keys) - 1
        for t, (key, action, reward) in enumerate(zip(keys, done, earned, strict=True)):
            visits = seen.setdefault(key, {}).setdefault(action, Counter())
            if t < last or not cut:
                visits[float(reward), keys[t + 1] if t < last else None] += 1
    for keys, done, earned, cut in zip(state_keys, actions, rewards, cut_off, strict=True):
        if cut and keys and not seen[keys[-1]][done[-1]]:
            seen[keys[-1]][done[-1]][float(earned[-1]), None] += 1  # nobody saw more of it: what it earned at least
    values = dict.fromkeys(seen, 0.0)
    for _ in range(len(seen)):  # as many moves ahead as there are states
        before = values
        values = {
            key: max(
                sum(n * r for (r, _), n in visits.items()) / visits.total() + gamma * _mean_next(visits, before)
                for visits in tried.values()
            )
            for key, tried in seen.items()
        }
        if max(abs(values[key] - before[key]) for key in values) < 1e-9:
            break
    targets = []
    for keys, done, earned, cut in zip(state_keys, actions, rewards, cut_off, strict=True):
        following = [values[key] for key in keys[1:]]
        if keys:
            following.append(_mean_next(seen[keys[-1]][done[-1]], values) if cut else 0.0)
        targets.append(np.array([r + gamma * v for r, v in zip(earned, following, strict=True)]))
    return targets


_Seen = tuple[float, str | None]
"""Reward and next state of a step; None is the end of the episode."""


def _mean_next(visits: Counter[_Seen], values: Mapping[str, float]) -> float:
    return sum(n * values[s] for (_, s), n in visits.items() if s is not None) / visits.total()


def matching_advantages(
    state_keys: Sequence[str], actions: Sequence[str | None], targets: np.ndarray, *, temperature: float
) -> np.ndarray:
    r"""Return the credit under which the policy gradient moves the policy towards a better one, and no further.

    In each state the actions that were tried get a distribution by their mean target,

        q(a | s) ~ exp(Q(s, a) / (temperature * (max_b Q - min_b Q))),    A = q(a | s) / p(a | s) - 1

    with b over the real actions among them (all, where there are not two), and p the share of the visits in which the
    action was tried. In expectation sum_a p A grad log pi is then
    sum_a q grad log pi: the gradient of the cross-entropy from q. It vanishes where pi = q, it is large where a good
    action is hardly tried, and a policy that cannot yet tell two states apart comes to rest at the mean of their q;
    with normalised returns it goes on to the one action that is best on average, and stops exploring. Actions that are
    all worth the same are kept equal.

    Source: the improved policy is that of Abdolmaleki et al. 2018, "Maximum a Posteriori Policy Optimisation",
    arXiv:1806.06920. Ours: it is not weighted by the old policy, which would only repeat what that prefers; values are
    scaled by the range of those of real actions, as the size of rewards means nothing here; and it enters as an
    advantage.

    Args:
        state_keys: [S] the state before each step.
        actions: [S] what was done; None is an answer without an action.
        targets: [S] what each step turned out to be worth.
        temperature: small values prefer the best action, large ones approach an equal share for all.

    >>> matching_advantages(["a"] * 4, ["x", "y", "y", "y"], np.array([1.0, 0.0, 0.0, 0.0]), temperature=1e-3).tolist()
    [3.0, -1.0, -1.0, -1.0]

    Raises:
        ValueError: the temperature is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature!r} must be above 0.")
    visits: dict[str, dict[str | None, list[int]]] = {}
    for step, (key, action) in enumerate(zip(state_keys, actions, strict=True)):
        visits.setdefault(key, {}).setdefault(action, []).append(step)
    targets = np.asarray(targets, dtype=np.float64)
    advantages = np.zeros(len(targets))
    for tried in visits.values():
        if len(tried) < 2:
            continue  # one action has nothing to be better than
        worth = np.array([targets[steps].mean() for steps in tried.values()])
        actual = np.array([action is not None for action in tried])
        # An answer without an action must not set the scale: its penalty would make all actions look alike.
        ruler = worth[actual] if actual.sum() > 1 else worth
        spread = 0.0 if _all_equal(ruler) else ruler.max() - ruler.min()
        below = np.where(np.isclose(worth, worth.max(), rtol=1e-9, atol=1e-12), 0.0, worth - worth.max())
        scaled = below / (temperature * spread) if spread else np.where(below < 0, -np.inf, 0.0)
        better = np.exp(scaled) / np.exp(scaled).sum()
        counts = np.array([len(steps) for steps in tried.values()])
        for steps, credit in zip(tried.values(), better * counts.sum() / counts - 1.0, strict=True):
            advantages[steps] = credit
    return advantages


def balance_states(state_keys: Sequence[str], advantages: np.ndarray) -> np.ndarray:
    """Scale the advantage of each step by (mean visits of a state) / (visits of its state).

    Every state of a group then counts the same, while a plain sum is dominated by the start, which all episodes visit.
    Ours.

    Args:
        state_keys: [S] the state before each step.
        advantages: [S].

    >>> balance_states(["a", "a", "a", "b"], np.array([1.0, 1.0, -2.0, 3.0])).round(3).tolist()
    [0.667, 0.667, -1.333, 6.0]
    """
    _, places, visits = np.unique(np.asarray(state_keys), return_inverse=True, return_counts=True)
    scaled: np.ndarray = np.asarray(advantages) * (visits.mean() / visits)[places]
    return scaled
