"""Settings of STEP-HRL: the paper's, and beside them what :mod:`stratagem.algorithms.step_hrl` adds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from stratagem.algorithms.checks import check_at_least_one, check_max_steps, check_positive
from stratagem.algorithms.schedule import Decay
from stratagem.errors import ConfigError
from stratagem.models.head_config import HeadConfig

__all__ = ["StepHRLConfig", "Variant"]

Variant = Literal["paper", "authors_code"]


@dataclass(frozen=True)
class StepHRLConfig:
    """Settings of STEP-HRL. "Paper" is Zhen et al. 2026, arXiv:2604.05808, table 5."""

    num_iterations: int = 80
    """Slices of the run; after each one it can be saved and evaluated."""
    bc_iterations: int = 50
    """The first so many clone the expert; the others are offline RL. With ``num_iterations`` there is no RL."""
    steps_per_iteration: int = 10
    """Optimizer steps in an iteration."""
    batch_episodes: int = 4
    """Whole episodes in a step, about 130 decisions on ALFWorld; the paper's batch is 128 decisions."""
    num_expert_episodes: int = 3211
    """Expert episodes to clone; the paper's 3,211 on ALFWorld."""
    annotations: str | None = None
    """A file of annotated expert episodes; None plays the expert and annotates by rule, which is for ALFWorld only."""
    variant: Variant = "paper"
    """The losses of the paper, or those of the authors' code, which differ; docs/algorithms/step_hrl.md has both."""
    bc_learning_rate: float = 1e-4
    """AdamW while cloning; 1e-4."""
    bc_decay: Decay = "constant"
    """Of that rate to zero over ``bc_iterations``; ours."""
    learning_rate: float = 1e-5
    """AdamW of the policy in offline RL; 1e-5."""
    critic_learning_rate: float = 1e-4
    """Of the critics; 1e-4."""
    weight_decay: float = 0.01
    """0.01 from the authors' code."""
    max_grad_norm: float = 1.0
    """Gradients of the policy, and those of the critics, are scaled down to this norm; 1 from the authors' code."""
    collected_ratio: float = 2.0
    """Episodes that the cloned policies play for one of the expert; 2. 0 learns from the expert alone."""
    collect_temperature: float = 1.0
    """Of ``high`` and ``progress`` while they play; 1 in appendix A.2, 0.7 in table 5."""
    collect_low_temperature: float = 0.0
    """Of ``low`` while it plays; 0."""
    gamma: float = 0.99
    """Discount between the decisions of a role; 0.99."""
    expectile: float = 0.95
    """tau_2; 0.95."""
    awr_temperature: float = 0.95
    """beta; 0.95 in the text, 1 in table 5."""
    max_weight: float = 20.0
    """Bounds exp(A / beta); 20 from the authors' code."""
    tau: float = 0.2
    """tau_1: how far the slow copies of the critics move in a step; 0.2."""
    critic_warmup: int = 100
    """Steps of offline RL in which only the critics learn; 100."""
    max_tokens_per_pass: int = 2048
    """Distinct tokens in one forward and backward pass; bounds memory, never changes the gradient."""
    max_steps: int | None = None
    """Step limit of a collected episode besides the game's own."""
    critic: HeadConfig = field(default_factory=HeadConfig)
    """V and Q of each role. The authors' have layers as wide as the model."""

    def __post_init__(self) -> None:
        """Refuse values and combinations that cannot learn."""
        check_at_least_one(self, "num_iterations", "steps_per_iteration", "batch_episodes", "num_expert_episodes")
        check_at_least_one(self, "max_tokens_per_pass")
        if not 0 <= self.bc_iterations <= self.num_iterations:
            raise ConfigError(
                f"bc_iterations={self.bc_iterations!r} is not in 0..num_iterations={self.num_iterations!r}; choose one "
                "that is."
            )
        check_positive(self, "bc_learning_rate", "learning_rate", "critic_learning_rate")
        check_positive(self, "max_grad_norm", "awr_temperature", "max_weight")
        for name in ("gamma", "tau"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not in (0, 1].")
        if not 0 < self.expectile < 1:
            raise ConfigError(f"expectile={self.expectile!r} is not between 0 and 1; the paper uses 0.95.")
        for name in ("weight_decay", "collected_ratio", "collect_temperature", "collect_low_temperature"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be 0 or more, and finite.")
        if self.critic_warmup < 0:
            raise ConfigError(f"critic_warmup={self.critic_warmup!r} must be 0 or more.")
        check_max_steps(self.max_steps)

    @property
    def num_collected(self) -> int:
        """Episodes that the cloned policies play."""
        if self.bc_iterations == self.num_iterations:
            return 0
        return round(self.collected_ratio * self.num_expert_episodes)

    @property
    def num_groups(self) -> int:
        """Episodes of an iteration on average, for the plan of a run."""
        return -(-self.num_collected // self.num_iterations)

    @property
    def group_size(self) -> int:
        """1: no two episodes share their start."""
        return 1
