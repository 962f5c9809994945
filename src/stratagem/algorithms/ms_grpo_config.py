"""Settings of MS-GRPO: the paper's, and beside them what :mod:`stratagem.algorithms.ms_grpo` adds, off by default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stratagem.algorithms.advantages import Baseline
from stratagem.algorithms.schedule import Decay
from stratagem.algorithms.temperature import AdaptiveTemperatureConfig
from stratagem.errors import ConfigError

__all__ = ["MSGRPOConfig", "without_idle_settings"]

_STEP_LEVEL = {"step_target": "return", "step_credit": "normalised"}
"""Setting without effect where ``step_coef`` is 0 -> its value there."""


def without_idle_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe of a run, as a table, with nothing set that has no effect.

    A recipe that sets it is refused, but a run may be older than the refusal, and is the same run without it.

    >>> without_idle_settings({"algorithm": {"name": "ms_grpo", "step_coef": 0.0, "step_target": "best"}})
    {'algorithm': {'name': 'ms_grpo', 'step_coef': 0.0, 'step_target': 'return'}}
    """
    found, algorithm = dict(recipe), recipe.get("algorithm")
    if isinstance(algorithm, Mapping) and algorithm.get("name") == "ms_grpo" and algorithm.get("step_coef") == 0:
        found["algorithm"] = {key: _STEP_LEVEL.get(key, value) for key, value in algorithm.items()}
    return found


@dataclass(frozen=True)
class MSGRPOConfig:
    """Settings of MS-GRPO."""

    num_iterations: int = 700
    """M; the paper's 700."""
    num_groups: int = 1
    """Different starts in an iteration; the paper's 1."""
    dynamic_groups: int = 0
    """Groups that are drawn at most in an iteration in place of groups without a signal; 0 is off, as in the paper.
    From DAPO, see :mod:`stratagem.algorithms.dynamic`."""
    group_size: int = 100
    """G; the paper's best runs use 100."""
    sampled_group_size: int | None = 25
    """G'; the paper's best is 25. None learns from all G episodes."""
    episode_temperature: float | None = 1.0
    """T_ep of eq. 5; ours, the paper does not give it. None is off (the paper's T_ep = 0)."""
    baseline: Baseline = "group"
    """What a return is compared with: mean and spread of the group (eq. 4), or the mean of the others (RLOO),
    :func:`stratagem.algorithms.advantages.leave_one_out`."""
    clip_low: float = 0.2
    """eps_low of eq. 2; 0.2 from the first author's later code."""
    clip_high: float = 0.2
    """eps_up of eq. 2; 0.2 from the first author's later code."""
    kl_coef: float = 0.0
    """beta of eq. 1; 0 from the first author's later code. 0 needs no reference model."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """See :mod:`stratagem.algorithms.kl`."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus; ours, 0 is the paper's objective."""
    step_coef: float = 0.0
    """Weight of step-level credit added to A_j; not in the paper, 0 is its objective. See
    :func:`stratagem.algorithms.advantages.anchor_state_advantages`."""
    step_gamma: float = 0.95
    """Discount of the returns-to-go that step-level credit compares; 0.95 as in GiGPO."""
    step_target: Literal["return", "value", "best"] = "return"
    """What step-level credit compares: the episode's own return-to-go as in GiGPO; the reward plus the mean
    return-to-go of all visits to the next state (:func:`stratagem.algorithms.advantages.pooled_targets`; ours); or the
    reward plus the best that the group found out from the next state
    (:func:`stratagem.algorithms.advantages.best_targets`; ours)."""
    step_anchor: Literal["state", "group"] = "state"
    """Which steps are compared: those from the very same state as in GiGPO, or all of the group, for games whose states
    hardly repeat (ours; a low ``step_gamma`` then credits what a step earned soon after)."""
    step_credit: Literal["normalised", "matching"] = "normalised"
    """What becomes of the targets of a state: normalised as in GiGPO, which the policy follows until it is certain, or
    the advantage that moves it towards a distribution over the actions that were tried, and no further
    (:func:`stratagem.algorithms.advantages.matching_advantages`; ours, after MPO)."""
    step_temperature: float = 0.2
    """Of that distribution: targets as shares of their range in a state are divided by it. Ours."""
    step_balance: bool = False
    """Whether every state of a group counts the same in step-level credit, however often it was visited; ours."""
    adaptive_temperature: AdaptiveTemperatureConfig | None = None
    """Lets the sampling temperature follow the entropy; None keeps ``agent.temperature``, as in the paper. See
    :mod:`stratagem.algorithms.temperature`."""
    learning_rate: float = 1e-6
    """AdamW; 1e-6 from the first author's later code, for a 3B model."""
    weight_decay: float = 0.0
    """AdamW's; ours."""
    warmup_iterations: int = 0
    """Linear warm-up of the learning rate; ours."""
    decay: Decay = "constant"
    """Of the learning rate to zero over ``num_iterations``; ours."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; ours."""
    max_kl: float | None = None
    """Trust region; ours. An iteration moves the policy about so far at most: after a step, KL(theta_old || theta) of a
    completion is estimated on a few samples from all groups, and the step is shortened until it is at most its part of
    this (the first of four steps may use up a quarter). None takes every step whole, as the paper does."""
    average_decay: float = 0.0
    """Panels are played and the model is saved with a moving average of the weights; 0 is off, as in the paper. 0.8
    averages over about five iterations. See :mod:`stratagem.algorithms.average`."""
    num_epochs: int = 1
    """Passes over the episodes of an iteration; the paper's 1."""
    minibatch_groups: int | None = None
    """Groups for one optimizer step; None takes all, the paper's single step."""
    minibatch_prompts: int | None = None
    """Different prompts for one optimizer step, drawn from all groups, in place of ``minibatch_groups``; ours. Steps of
    one group each pull the policy towards what is right from its start, and many small steps learn faster than few."""
    max_tokens_per_pass: int = 2048
    """Distinct tokens in one forward and backward pass; bounds memory, never changes the gradient."""
    max_steps: int | None = None
    """Step limit of an episode besides the game's own."""

    def __post_init__(self) -> None:
        """Refuse values and combinations that cannot learn."""
        if self.group_size < 1:
            raise ConfigError(f"group_size={self.group_size!r} plays no episode; set group_size >= 2.")
        if self.group_size == 1:
            raise ConfigError(
                f"group_size={self.group_size!r} gives zero advantage for every episode; set group_size >= 2."
            )
        if (self.sampled_group_size is None) != (self.episode_temperature is None):
            raise ConfigError(
                f"sampled_group_size={self.sampled_group_size!r} and episode_temperature={self.episode_temperature!r} "
                "go together: set both for absolute-advantage-weighted sampling, or switch both off."
            )
        if self.sampled_group_size is not None and not 2 <= self.sampled_group_size <= self.group_size:
            raise ConfigError(
                f"sampled_group_size={self.sampled_group_size!r} is not in 2..group_size={self.group_size!r}; "
                "choose one that is, or switch sampling off."
            )
        if self.episode_temperature is not None and self.episode_temperature <= 0:
            raise ConfigError(f"episode_temperature={self.episode_temperature!r} must be above 0; or switch it off.")
        for name in ("num_iterations", "num_groups", "num_epochs", "max_tokens_per_pass"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be 1 or more.")
        if self.minibatch_groups is not None and self.minibatch_groups < 1:
            raise ConfigError(f"minibatch_groups={self.minibatch_groups!r} must be 1 or more; leave it out for all.")
        if self.minibatch_prompts is not None and self.minibatch_prompts < 1:
            raise ConfigError(f"minibatch_prompts={self.minibatch_prompts!r} must be 1 or more; leave it out for all.")
        if self.minibatch_prompts is not None and self.minibatch_groups is not None:
            raise ConfigError(
                f"minibatch_prompts={self.minibatch_prompts!r} and minibatch_groups={self.minibatch_groups!r} both say "
                "what a step is made of; leave one of them out."
            )
        for name in ("clip_low", "clip_high", "learning_rate", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be above 0.")
        if self.max_kl is not None and not self.max_kl > 0:
            raise ConfigError(f"max_kl={self.max_kl!r} lets no step through; set it above 0, or leave it out.")
        if math.isinf(self.learning_rate):
            raise ConfigError(f"learning_rate={self.learning_rate!r} is no step size; use a finite number.")
        if self.max_steps is not None and self.max_steps < 1:
            raise ConfigError(f"max_steps={self.max_steps!r} plays nothing; set it to 1 or more, or leave it out.")
        if not self.step_temperature > 0:
            raise ConfigError(f"step_temperature={self.step_temperature!r} must be above 0.")
        if self.step_credit == "matching" and self.step_anchor != "state":
            raise ConfigError(
                f"step_credit='matching' compares the actions of one state, and step_anchor={self.step_anchor!r} does "
                "not; set step_anchor = 'state'."
            )
        for name, off in _STEP_LEVEL.items():
            if self.step_coef == 0 and getattr(self, name) != off:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} has no effect with step_coef=0, which gives no step-level credit; "
                    f"set step_coef above 0, or {name} = {off!r}."
                )
        if not 0 < self.step_gamma <= 1:
            raise ConfigError(f"step_gamma={self.step_gamma!r} is not in (0, 1]; use 1 for no discount.")
        if not 0 <= self.average_decay < 1:
            raise ConfigError(f"average_decay={self.average_decay!r} is not in [0, 1); use 0 for no average.")
        for name in ("kl_coef", "ent_coef", "step_coef", "weight_decay", "warmup_iterations", "dynamic_groups"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be 0 or more.")
