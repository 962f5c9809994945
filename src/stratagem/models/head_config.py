"""Settings of the heads on a model (:mod:`stratagem.models.heads`), apart so that a recipe is read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stratagem.errors import ConfigError

__all__ = ["HeadConfig", "Trunk"]

Trunk = Literal["shared", "detached", "base"]
"""Whose hidden states the heads read."""


@dataclass(frozen=True)
class HeadConfig:
    """Settings of the heads on a model."""

    trunk: Trunk = "detached"
    """The trained model with ("shared") or without ("detached") the value loss's gradient, or the model without its
    adapter ("base"), as the papers do with LoRA."""
    layers: tuple[int, ...] = (1024, 512)
    """Widths between the hidden state and the value; the papers' 1024 and 512. Empty is a linear head."""
    seed: int = 0
    """Of the random start of the inner layers."""

    def __post_init__(self) -> None:
        """Refuse layers that hold nothing."""
        if any(width < 1 for width in self.layers):
            raise ConfigError(f"layers={list(self.layers)!r} has a width below 1; use widths of 1 or more.")
