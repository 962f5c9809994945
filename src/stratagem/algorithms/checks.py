"""What the settings of several algorithms refuse, in the same words."""

from __future__ import annotations

import math

from stratagem.errors import ConfigError

__all__ = ["check_at_least_one", "check_max_steps", "check_positive"]


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
