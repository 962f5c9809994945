"""Settings of ETO: the paper's, and beside them what :mod:`stratagem.algorithms.eto` adds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stratagem.algorithms.checks import check_at_least_one, check_max_steps, check_positive
from stratagem.algorithms.schedule import Decay
from stratagem.errors import ConfigError

__all__ = ["ETOConfig"]


@dataclass(frozen=True)
class ETOConfig:
    """Settings of ETO. "Paper" is Song et al. 2024, arXiv:2403.02502."""

    num_iterations: int = 80
    """Slices of the run; after each one it can be saved and evaluated."""
    bc_iterations: int = 50
    """The first so many clone the expert; the others are rounds of trial and learning."""
    round_iterations: int = 15
    """Iterations of a round: play once, then learn from the pairs. They must fill the rest of the run."""
    steps_per_iteration: int = 10
    """Optimizer steps in an iteration."""
    batch_episodes: int = 4
    """Expert episodes in a step of cloning; the paper's is 64."""
    batch_pairs: int = 4
    """Pairs in a step of learning; the paper's is 32."""
    num_expert_episodes: int = 3119
    """Expert episodes to clone and to try; the paper's 3,119 on ALFWorld."""
    annotations: str | None = None
    """A file of expert episodes; None plays the expert of a game that has rules for it."""
    bc_learning_rate: float = 2e-5
    """AdamW while cloning; 2e-5."""
    bc_decay: Decay = "cosine"
    """Of that rate to zero over ``bc_iterations``; the paper's, which warms up for 3% before."""
    learning_rates: tuple[float, ...] = (1e-6, 5e-7)
    """AdamW in each round; the last one stands for further rounds. 1e-6, then 5e-7."""
    betas: tuple[float, ...] = (0.1, 0.5)
    """beta of DPO in each round; the last one stands for further rounds. 0.1, then 0.5."""
    explore_temperature: float = 1.0
    """At which the policy plays the expert's starts; ours."""
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; ours."""
    max_tokens_per_pass: int = 2048
    """Distinct tokens in one pass of cloning; a pair is always learnt from in one pass."""
    max_steps: int | None = None
    """Step limit of an episode that is tried besides the game's own; the paper's 40 on ALFWorld."""

    def __post_init__(self) -> None:
        """Refuse values and combinations that cannot learn."""
        check_at_least_one(self, "num_iterations", "round_iterations", "steps_per_iteration", "batch_episodes")
        check_at_least_one(self, "batch_pairs", "num_expert_episodes", "max_tokens_per_pass")
        check_positive(self, "bc_learning_rate", "max_grad_norm")
        rest = self.num_iterations - self.bc_iterations
        if self.bc_iterations < 0 or rest < 0 or rest % self.round_iterations:
            raise ConfigError(
                f"round_iterations={self.round_iterations!r} does not divide the {rest} iterations that "
                f"bc_iterations={self.bc_iterations!r} leaves of num_iterations={self.num_iterations!r}; choose "
                "numbers that go together."
            )
        for name in ("learning_rates", "betas"):
            values = getattr(self, name)
            if not values or not all(0 < value < math.inf for value in values):
                raise ConfigError(f"{name}={list(values)!r} must hold one number or more, each above 0 and finite.")
        for name in ("weight_decay", "explore_temperature"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be 0 or more, and finite.")
        check_max_steps(self.max_steps)

    @property
    def num_rounds(self) -> int:
        """Rounds of trial and learning."""
        return (self.num_iterations - self.bc_iterations) // self.round_iterations

    def of_round(self, values: tuple[float, ...], number: int) -> float:
        """Return the value of a round, from 0; the last one stands for further rounds."""
        return values[min(number, len(values) - 1)]

    @property
    def num_groups(self) -> int:
        """Episodes of an iteration on average, for the plan of a run."""
        return -(-self.num_rounds * self.num_expert_episodes // self.num_iterations)

    @property
    def group_size(self) -> int:
        """1: no two episodes share their start."""
        return 1
