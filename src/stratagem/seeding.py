"""Counter-based randomness: every random number is a function of where it is used.

A draw is addressed by a key (the run seed and what the draw is for) and counters (iteration, group, episode, step,
token). Nothing is consumed from a stream, so an episode does not depend on the batch it was played in, on the number of
workers, or on whether the run was resumed. The generator is Philox 4x64 (Salmon et al. 2011, "Parallel random numbers:
as easy as 1, 2, 3") through numpy, keyed by a BLAKE2b hash of the address.
"""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["derive_seed", "generator", "uniforms"]

Part = int | str


def _digest(parts: tuple[Part, ...], size: int) -> bytes:
    # The kind is part of the text so that 1 and "1" are different addresses; a numpy integer is the number it holds.
    text = "\x1f".join(f"str:{part}" if isinstance(part, str) else f"int:{int(part)}" for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


def derive_seed(*parts: Part) -> int:
    """Return a non-negative 63-bit seed that depends on every part and their order.

    >>> derive_seed(0, "game", 3) == derive_seed(0, "game", 3) != derive_seed(0, "game", 4)
    True
    """
    return int.from_bytes(_digest(parts, 8), "little") >> 1


def generator(*parts: Part) -> np.random.Generator:
    """Return a fresh generator for the address ``parts``; equal addresses give equal streams in any process."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(parts, 16), "little")))


def uniforms(count: int, *parts: Part) -> np.ndarray:
    """Return ``count`` float64 numbers in [0, 1) for the address ``parts``.

    The first ``n`` numbers do not depend on ``count``, so a longer token limit keeps the earlier draws.
    """
    return generator(*parts).random(count)
