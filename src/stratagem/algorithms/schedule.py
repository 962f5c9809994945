"""The learning rate as a function of the iteration alone, so that a resumed run needs no schedule state."""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["Decay", "rate_factor"]

Decay = Literal["constant", "linear", "cosine"]


def rate_factor(done: int, *, total: int, warmup: int, decay: Decay) -> float:
    """Return what the learning rate is multiplied with: up linearly during the warm-up, then the decay towards zero.

    Args:
        done: iterations before this one.
        total: iterations of the whole run.
        warmup: iterations of the warm-up.
        decay: over the iterations after the warm-up.

    >>> [rate_factor(done, total=6, warmup=2, decay="linear") for done in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if done < warmup:
        return (done + 1) / warmup
    share = (done - warmup) / max(1, total - warmup)
    if decay == "linear":
        return 1 - share
    if decay == "cosine":
        return 0.5 * (1 + math.cos(math.pi * share))
    return 1.0
