"""The distribution of the next token, and a draw from it.

Drawing: token = first t with CDF(t) > u * CDF(V), in vocabulary order, with sums in float64. Log-probabilities are
those of the distribution that was drawn from: softmax(logits / temperature), then top-k, top-p, min-p, renormalised.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from stratagem.models.base import GenerationConfig

__all__ = ["Distribution", "Key", "distributions", "key_of"]

_CHUNK = 256  # tokens summed at once when a draw is looked up

Key = tuple[float | None, ...]
"""The settings that a distribution depends on."""


class Distribution:
    """Probabilities of the next token, ready to be looked up."""

    __slots__ = ("chunks", "greedy", "key", "probabilities")

    def __init__(self, key: Key, probabilities: np.ndarray, chunks: np.ndarray, greedy: int) -> None:
        """Wrap [V] probabilities with running sums over chunks of them; ``greedy`` is the token if it is certain."""
        self.key = key
        self.probabilities = probabilities
        self.chunks = chunks
        self.greedy = greedy

    def draw(self, uniform: float) -> tuple[int, float]:
        """Return a token and its log-probability, for one number in [0, 1)."""
        if self.greedy >= 0:
            return self.greedy, 0.0
        target = uniform * self.chunks[-1]
        chunk = min(int(np.searchsorted(self.chunks, target, side="right")), len(self.chunks) - 1)
        below = self.chunks[chunk - 1] if chunk else 0.0
        inside = self.probabilities[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        sums = below + np.cumsum(inside, dtype=np.float64)
        offset = int(np.searchsorted(sums, target, side="right"))
        if offset >= len(inside) or inside[offset] == 0.0:  # rounding at the upper edge: take the last possible token
            offset = int(np.flatnonzero(inside)[-1])
        return chunk * _CHUNK + offset, math.log(float(inside[offset]))


def key_of(config: GenerationConfig) -> Key:
    """Return what two configurations must share to share a distribution."""
    return (config.temperature, config.top_k, config.top_p, config.min_p)


def distributions(logits: Tensor, config: GenerationConfig) -> list[Distribution]:
    """Turn logits [r, V] into distributions that can be drawn from."""
    key = key_of(config)
    if config.temperature == 0:
        empty = np.empty(0, dtype=np.float32)
        return [Distribution(key, empty, empty, token) for token in logits.argmax(-1).tolist()]
    p = torch.softmax(logits.float() / config.temperature, dim=-1)
    if config.truncates:
        p = torch.stack([_truncate(row, config) for row in p])
    padded = torch.nn.functional.pad(p, (0, -p.shape[1] % _CHUNK))
    chunks = padded.view(len(p), -1, _CHUNK).sum(-1, dtype=torch.float64).cumsum(-1).cpu().numpy()
    # Copies of their own, so that dropping one distribution frees its memory.
    return [Distribution(key, row.copy(), sums, -1) for row, sums in zip(p.cpu().numpy(), chunks, strict=True)]


def _truncate(p: Tensor, config: GenerationConfig) -> Tensor:
    """Apply top-k, then top-p, then min-p to probabilities [V], each on the renormalised rest of the one before."""
    if config.top_k is not None and config.top_k < len(p):
        kept = torch.topk(p, config.top_k).indices
        p = torch.zeros_like(p).index_copy_(0, kept, p[kept])
        p = p / p.sum()
    if config.top_p is not None and config.top_p < 1:
        ordered, index = torch.sort(p, descending=True, stable=True)
        before = torch.cumsum(ordered, 0) - ordered
        p = p.index_fill(0, index[before >= config.top_p], 0.0)
        p = p / p.sum()
    if config.min_p is not None:
        p = torch.where(p >= config.min_p * p.max(), p, torch.zeros_like(p))
        p = p / p.sum()
    return p
