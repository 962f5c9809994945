"""What the settings of several algorithms refuse, in the same words."""

from __future__ import annotations

import math

from stratagem.errors import ConfigError

__all__ = ["check_at_least_one", "check_max_steps", "check_positive", "check_ratio_gap"]

_MAX_RATIO_GAP, _MAX_ROUNDED_GAP = 0.1, 0.5
"""More than rounding: errors are near 1e-4 in float32, and near 0.02 in bfloat16, where the rarest tokens reach 0.1."""


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


def check_ratio_gap(model: object, gap: float) -> None:
    """Stop where sampler and learner disagree before the first update, when every importance ratio is 1.

    Args:
        model: whether it is ``rounded`` decides what counts as rounding.
        gap: the largest distance of a ratio from 1.

    Raises:
        RuntimeError: they disagree on the probabilities of the very same weights.
    """
    if gap > (_MAX_ROUNDED_GAP if getattr(model, "rounded", False) else _MAX_RATIO_GAP):
        raise RuntimeError(
            f"Before any update the importance ratio is off by {gap:.3f}; expected 1. The sampler used other weights "
            "or another distribution than the learner; this is a bug, please report it."
        )
