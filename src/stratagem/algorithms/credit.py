r"""Which token of which action earned the reward: backups and advantages of POAD, NTPO and TWOSOME.

Papers: Wen et al. 2024, "Reinforcing LLM Agents via Policy Optimization with Action Decomposition", arXiv:2405.15821
(BAD, POAD, NTPO); Tan et al. 2024, "True Knowledge Comes from Practice", arXiv:2401.14151 (TWOSOME).

An action :math:`a = (w_1, \ldots, w_n)` is a sequence of tokens, so a decision is n decisions of one token each. Only
the last one meets the game. Bellman backup with action decomposition (BAD):

.. math::
    Q(o, w_{1:j-1}, w_j) = \begin{cases}
        \gamma_w \max_{w} Q(o, w_{1:j}, w) & j < n \\
        r + \gamma_a \max_{w} Q(o', w) & j = n \end{cases}

with :math:`\gamma_w = 1`: then the value of the last token is the value of the action, and acting greedily token by
token is acting greedily among actions. The naive token MDP discounts every token, :math:`\gamma_w < 1`. It undervalues
a token with n - j tokens still to come by :math:`(1 - \gamma_w^{n-j}) Q`, and so prefers short actions.

Pure functions on numpy arrays. Notation: S actions of one episode; action t has n_t units. A unit is a token for POAD
and NTPO, and the whole action for TWOSOME. V_j is the value before unit j.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

__all__ = ["NextValue", "discounts", "token_advantages", "token_backup"]

NextValue = Literal["first", "last"]
"""Which value of the next action the last token looks at."""


def token_backup(
    action_values: Mapping[tuple[int, ...], float], *, gamma_w: float = 1.0
) -> dict[tuple[int, ...], float]:
    """Return Q of every token of every action, from the values of whole actions in one state.

    Args:
        action_values: r + gamma_a max Q(o', .) of each action, by its tokens; no action is the beginning of another.
        gamma_w: 1 is BAD; below 1 is the naive token MDP.

    Returns:
        Q(o, w_1 .. w_(j-1), w_j) by (w_1, ..., w_j); the key ``()`` holds the value of the state itself, the largest
        first token.

    Raises:
        ValueError: there is no action, or one is empty or the beginning of another, so that its end is not known.

    >>> q = token_backup({(1, 2): 1.0, (1, 3): 2.0, (4,): 1.5}, gamma_w=0.5)
    >>> q[1,], q[4,], q[()]
    (1.0, 1.5, 1.5)
    """
    values = {tuple(action): float(value) for action, value in action_values.items()}
    prefixes = {action[:j] for action in values for j in range(len(action))}
    for action in values:
        if not action or action in prefixes:
            raise ValueError(f"Action {action} is empty or the beginning of another; end each with a token of its own.")
    if not values:
        raise ValueError("action_values is empty; a state needs at least one action.")
    found = dict(values)
    for prefix in sorted(prefixes, key=len, reverse=True):
        best = max(value for tokens, value in found.items() if len(tokens) > len(prefix) and tokens[:-1] == prefix)
        found[prefix] = gamma_w * best if prefix else best
    return found


def discounts(durations: Sequence[int], *, gamma_a: float, macro: bool) -> np.ndarray:
    """Return the discount after each action: gamma_a, or gamma_a^duration where time counts (TWOSOME on Overcooked).

    >>> discounts([1, 3], gamma_a=0.5, macro=True).tolist()
    [0.5, 0.125]
    """
    return gamma_a ** np.asarray(durations if macro else np.ones(len(durations)), dtype=np.float64)


def token_advantages(
    values: Sequence[np.ndarray],
    rewards: Sequence[float],
    *,
    gamma_a: Sequence[float] | np.ndarray,
    gamma_w: float,
    gae_lambda: float,
    bootstrap: float = 0.0,
    next_value: NextValue = "first",
) -> list[np.ndarray]:
    r"""Return the generalised advantage of every unit.

    POAD with gamma_w = 1, NTPO with a smaller one, TWOSOME with one unit in each action.

    .. math::
        j = n_t:&\quad \delta = r_t + \gamma_a V_1(t+1) - V_n, \quad A_n = \delta + \gamma_a \lambda A_1(t+1) \\
        j < n_t:&\quad \delta = \gamma_w V_{j+1} - V_j, \quad A_j = \delta + \gamma_w \lambda A_{j+1}

    With gamma_w = 1 and exact values the deltas of an action add up to r_t + gamma_a V(o') - V(o): the advantage of the
    action, shared out among its tokens.

    Args:
        values: S arrays, V_1 .. V_n of each action.
        rewards: S rewards.
        gamma_a: S discounts, :func:`discounts`.
        gamma_w: discount between two units of one action.
        gae_lambda: lambda.
        bootstrap: the value after the last action; 0 where the game is over.
        next_value: "first" is the equation above. "last" takes the value before the *last* token of the next action
            instead of V_1, a variant in the authors' code.

    Returns:
        S arrays of the shapes of ``values``.
    """
    if not len(values) == len(rewards) == len(gamma_a):
        raise ValueError(
            f"{len(values)} actions with {len(rewards)} rewards and {len(gamma_a)} discounts; give one of each."
        )
    found: list[np.ndarray] = []
    following_value, following_advantage = float(bootstrap), 0.0
    for mine, reward, gamma in zip(reversed(values), reversed(rewards), reversed(np.asarray(gamma_a)), strict=True):
        result = np.zeros(len(mine))
        for j in range(len(mine) - 1, -1, -1):
            if j == len(mine) - 1:
                delta = reward + gamma * following_value - mine[j]
                result[j] = delta + gamma * gae_lambda * following_advantage
            else:
                delta = gamma_w * mine[j + 1] - mine[j]
                result[j] = delta + gamma_w * gae_lambda * result[j + 1]
        following_value, following_advantage = float(mine[0 if next_value == "first" else -1]), float(result[0])
        found.append(result)
    return found[::-1]
