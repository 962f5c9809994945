"""Adaptive sampling temperature: raised where answers became too certain, lowered where they are not.

After each iteration the temperature of the next one is

    T <- clip(T (H* / H)^gain, lowest, highest)

with H the entropy per token that was just seen and H* a share of that of the first iteration.

Dilkes et al. 2025 (arXiv:2508.10839, discussion) propose to raise the temperature when responses stagnate, as a remedy
for the inconsistency between runs, and give no rule. The rule is that of Liao et al. 2025, "Enhancing Efficiency and
Exploration in Reinforcement Learning for LLMs", arXiv:2505.18573, who hold the entropy at a target: their code
multiplies T by 1 + T ln(H* / H) / (ln V + ln ln V), V the size of the vocabulary.

Departures, ours:

- exp(x) for 1 + x, so that T stays positive, and bounds: far above 1 the tail of a vocabulary outweighs the answer.
- The gain is a setting; theirs is about T / 13 for V = 49,152.
- H* is a share of the first entropy instead of all of it, as a game that is learnt needs less of it.
- H is the mean of -log p over the tokens that were sampled: an unbiased estimate that costs nothing and is there even
  where no group has a signal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratagem.errors import ConfigError
from stratagem.types import TrajectoryGroup

if TYPE_CHECKING:  # a recipe is checked without loading torch
    from torch import Tensor

__all__ = ["AdaptiveTemperatureConfig", "Thermostat", "next_temperature", "sampled_entropy"]

_LEAST_ENTROPY = 1e-6
"""In nats per token; below it answers are certain to rounding, and a ratio of two such numbers says nothing."""


@dataclass(frozen=True)
class AdaptiveTemperatureConfig:
    """Settings of the adaptive sampling temperature; ``agent.temperature`` is that of the first iteration."""

    entropy_share: float = 0.5
    """The entropy that is aimed at, as a share of that of the first iteration; ours, Liao et al. aim at all of it."""
    gain: float = 0.1
    """How fast the temperature follows: at half the entropy that is aimed at it grows by 2^gain - 1, 7%. Ours."""
    lowest: float = 1.0
    """The temperature never falls below; 1 lets it rise from there and come back. Ours."""
    highest: float = 1.3
    """The temperature never rises above; ours."""

    def __post_init__(self) -> None:
        """Refuse values that control nothing."""
        for name in ("entropy_share", "gain"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be above 0 and finite.")
        if not 0 < self.lowest < self.highest < math.inf:
            raise ConfigError(
                f"lowest={self.lowest!r} and highest={self.highest!r} leave no room; set 0 < lowest < highest."
            )

    def check(self, temperature: float) -> None:
        """Refuse bounds that the first iteration is outside of.

        Args:
            temperature: of the first iteration.

        Raises:
            ConfigError: it is not within the bounds.
        """
        if not self.lowest <= temperature <= self.highest:
            raise ConfigError(
                f"agent.temperature={temperature!r} is not in algorithm.adaptive_temperature's lowest={self.lowest!r}.."
                f"highest={self.highest!r}, between which it moves; change one of them."
            )


def sampled_entropy(groups: Sequence[TrajectoryGroup]) -> float | None:
    """Return the mean of -log p over all sampled tokens, in nats; None where there is no token.

    Its expectation is the entropy of the distribution that the tokens were drawn from.
    """
    logprobs = [x for group in groups for t in group.trajectories for step in t.steps for x in step.logprobs]
    return -math.fsum(logprobs) / len(logprobs) if logprobs else None


def next_temperature(
    temperature: float, entropy: float, target: float, *, gain: float, lowest: float, highest: float
) -> float:
    """Return clip(T (H* / H)^gain, lowest, highest).

    Source: after Liao et al. 2025, arXiv:2505.18573; see the module for the departures.

    Args:
        temperature: T, at which the tokens were sampled.
        entropy: H, what was seen at it.
        target: H*.
        gain: how fast T follows.
        lowest: bound of T.
        highest: bound of T.

    >>> next_temperature(1.0, 0.1, 0.4, gain=0.5, lowest=0.5, highest=3.0)
    2.0
    """
    ratio = max(target, _LEAST_ENTROPY) / max(entropy, _LEAST_ENTROPY)
    return float(min(max(temperature * ratio**gain, lowest), highest))


class Thermostat:
    """The temperature of the next iteration, and what it is measured against.

    Both are saved with a checkpoint (:meth:`state`), so that a resumed run goes on with the same numbers.
    """

    def __init__(self, config: AdaptiveTemperatureConfig) -> None:
        """Begin without having seen anything."""
        self.config = config
        self.temperature: float | None = None
        """Of the next iteration; None before the first, which takes the agent's."""
        self.first_entropy: float | None = None

    def observe(self, temperature: float, entropy: float | None) -> None:
        """Set the temperature of the next iteration.

        Args:
            temperature: of the iteration that was played.
            entropy: per token in it; None changes nothing, as nothing was said.
        """
        self.temperature = temperature
        if entropy is None:
            return
        if self.first_entropy is None:
            self.first_entropy = entropy
        config = self.config
        self.temperature = next_temperature(
            temperature,
            entropy,
            config.entropy_share * self.first_entropy,
            gain=config.gain,
            lowest=config.lowest,
            highest=config.highest,
        )

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps: float64, NaN for what is not known yet."""
        import torch

        known = {"temperature": self.temperature, "first_entropy": self.first_entropy}
        return {
            name: torch.tensor([math.nan if value is None else value], dtype=torch.float64)
            for name, value in known.items()
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`state` returned."""
        values = [float(tensors[name][0]) for name in ("temperature", "first_entropy")]
        self.temperature, self.first_entropy = (None if math.isnan(value) else value for value in values)
