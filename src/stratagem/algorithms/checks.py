"""What the settings of several algorithms refuse, in the same words."""

from __future__ import annotations

import math

from stratagem.errors import ConfigError

__all__ = ["check_at_least_one", "check_max_steps", "check_positive", "check_ratio_gap"]

_MAX_RATIO_GAP = 0.1
"""More than rounding, which is near 1e-4 in float32 and a few percent in bfloat16."""
_MAX_ROUNDED_KL = 0.02
"""More than rounded products explain: log-probabilities are off by 0.03 nats in the mean, a KL below 0.001, and single
tokens of many by more than 0.1."""


def check_at_least_one(settings: object, *names: str) -> None:
    """Refuse a count below 1.

    Raises:
        ConfigError: with the setting's name.
    """
    for name in names:
        if getattr(settings, name) < 1:
            raise ConfigError(f"{name}={getattr(settings, name)!r} must be 1 or more.")


def check_positive(settings: object, *names: str) -> None:
    """Refuse what is not above 0 and finite, as a rate or a norm must be.

    Raises:
        ConfigError: with the setting's name.
    """
    for name in names:
        if not 0 < getattr(settings, name) < math.inf:
            raise ConfigError(f"{name}={getattr(settings, name)!r} must be above 0 and finite.")


def check_max_steps(max_steps: int | None) -> None:
    """Refuse a step limit that plays nothing.

    Raises:
        ConfigError: it is below 1.
    """
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"max_steps={max_steps!r} plays nothing; set it to 1 or more, or leave it out.")


def check_ratio_gap(model: object, gap: float, approx_kl: float) -> None:
    """Stop where sampler and learner disagree before the first update, when every importance ratio is 1.

    Args:
        model: whether it is ``rounded`` decides what counts as rounding.
        gap: the largest distance of a ratio from 1.
        approx_kl: the mean KL of the tokens, in nats.

    Raises:
        RuntimeError: they disagree on the probabilities of the very same weights.
    """
    if approx_kl > _MAX_ROUNDED_KL if getattr(model, "rounded", False) else gap > _MAX_RATIO_GAP:
        raise RuntimeError(
            f"Before any update the importance ratio is off by {gap:.3f}; expected 1. The sampler used other weights "
            "or another distribution than the learner; this is a bug, please report it."
        )
