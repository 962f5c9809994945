"""What MS-GRPO learns from a group of episodes: eq. 4 and 5 of Dilkes et al. 2025, and what stands in for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stratagem.algorithms.advantages import (
    BASELINES,
    aaw_sample,
    anchor_state_advantages,
    balance_states,
    best_targets,
    group_normalised,
    matching_advantages,
    pooled_targets,
    returns_to_go,
)
from stratagem.algorithms.ms_grpo_config import MSGRPOConfig
from stratagem.types import Trajectory, TrajectoryGroup

__all__ = ["GroupSamples", "Sample", "make_samples"]


@dataclass(frozen=True)
class Sample:
    """One step of one episode, as the loss needs it."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...]
    advantage: float
    """A_j of the episode, plus step-level credit where there is any."""
    weight: float
    """1 / (G' |y_j|): the factor of eq. 1 before each token of this episode."""


@dataclass(frozen=True)
class GroupSamples:
    """What is learnt from one group."""

    samples: tuple[Sample, ...]
    """Episodes with A_j = 0 are left out where neither KL nor entropy is in the objective: their gradient is zero."""
    advantages: dict[int, float]
    """A_j by the episode's place in its group, for those that were chosen."""
    has_signal: bool
    """False where there is nothing to tell one episode from another, nor one action of a state."""


def make_samples(group: TrajectoryGroup, config: MSGRPOConfig, rng: np.random.Generator) -> GroupSamples:
    """Return what eq. 4 and 5 make of a group: advantages, and the episodes to learn from.

    Eq. 5 draws by the advantages of eq. 4 whatever ``config.baseline`` is: they are in units of the group's spread, so
    ``episode_temperature`` means the same for every game. On the episodes drawn the baseline is computed anew.
    """
    trajectories = group.trajectories
    returns = np.array([t.composite_return for t in trajectories])
    relative = BASELINES[config.baseline]
    advantages = relative(returns)
    chosen = np.arange(len(trajectories))
    if config.episode_temperature is not None and config.sampled_group_size is not None:
        size = min(config.sampled_group_size, len(trajectories))
        chosen = aaw_sample(group_normalised(returns), size, temperature=config.episode_temperature, rng=rng)
        advantages = np.zeros(len(trajectories))
        advantages[chosen] = relative(returns[chosen])
    step_advantages, steps_have_signal = _step_advantages([trajectories[j] for j in chosen], config)
    samples = []
    for j, credits in zip(chosen, step_advantages, strict=True):
        num_tokens = trajectories[j].num_tokens  # |y_j|
        for step, credit in zip(trajectories[j].steps, credits, strict=True):
            advantage = float(advantages[j] + config.step_coef * credit)
            if advantage == 0.0 and config.kl_coef == 0.0 and config.ent_coef == 0.0:
                continue  # its gradient is zero
            samples.append(
                Sample(
                    prompt_ids=step.prompt_ids,
                    completion_ids=step.completion_ids,
                    old_logprobs=step.logprobs,
                    advantage=advantage,
                    weight=1.0 / (len(chosen) * num_tokens),
                )
            )
    has_signal = steps_have_signal or bool(advantages[chosen].any())
    return GroupSamples(tuple(samples), {int(j): float(advantages[j]) for j in chosen}, has_signal)


def _step_advantages(trajectories: Sequence[Trajectory], config: MSGRPOConfig) -> tuple[list[np.ndarray], bool]:
    """Return step-level credit for each step of each episode, zeros where it is off, and whether it has a signal."""
    if config.step_coef == 0.0:
        return [np.zeros(len(t.steps)) for t in trajectories], False
    keys = [[step.state_key for step in t.steps] for t in trajectories]
    actions = [[step.action for step in t.steps] for t in trajectories]
    rewards = [[s.reward + s.invalid_penalty + s.shaping for s in t.steps] for t in trajectories]
    if config.step_target == "best":
        cut_off = [not t.terminated for t in trajectories]
        targets = np.concatenate(best_targets(keys, actions, rewards, cut_off, gamma=config.step_gamma))
    elif config.step_target == "value":
        targets = np.concatenate(pooled_targets(keys, rewards, gamma=config.step_gamma))
    else:
        targets = np.concatenate([returns_to_go(earned, gamma=config.step_gamma) for earned in rewards])
    visited = [key for episode in keys for key in episode]
    done = [action for episode in actions for action in episode]
    if config.step_credit == "matching":
        credits = matching_advantages(visited, done, targets, temperature=config.step_temperature)
        # It keeps actions equal that are worth the same: credit that is not zero and tells none from another.
        acted = np.array([action is not None for action in done])
        states = [key for key, counts in zip(visited, acted, strict=True) if counts]
        has_signal = bool(anchor_state_advantages(states, targets[acted]).any())
    else:
        anchors = visited if config.step_anchor == "state" else [""] * len(visited)
        credits = anchor_state_advantages(anchors, targets)
        has_signal = bool(credits.any())
    if config.step_balance:
        credits = balance_states(visited, credits)
    return np.split(credits, np.cumsum([len(t.steps) for t in trajectories])[:-1]), has_signal
