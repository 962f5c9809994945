"""Cut what one sampling pass computes into attention blocks, whose keys are slots of the store.

A piece of a prompt is many tokens on nearly one path: their keys together are hardly more than the path, and a block is
one product of all with all. Rows that advance by a token each are the opposite: they share a beginning, then each has
keys of its own. A :class:`~stratagem.models.attention.Fork` computes the shared beginning once for all of them and the
rest for each alone, where a block would compare every row with the keys of all others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from stratagem.models.attention import Block, Fork, make_block

__all__ = ["fork_blocks", "union_blocks"]

_BLOCK_ROWS = 128
# Costs in (query, key) pairs; measured on 2 cores.
_BLOCK_OVERHEAD = 2000  # of one more block
_KEY_COST = 4  # of fetching one more key


def union_blocks(
    paths: Sequence[np.ndarray], start: int, capacity: int, device: torch.device | str = "cpu"
) -> list[Block]:
    """Cut tokens into blocks of those whose paths have most in common.

    Args:
        paths: the slots that each token attends to, its own last; relatives side by side.
        start: number of the first of them in the pass.
        capacity: of the store.
        device: of the store.
    """
    column = np.full(capacity, -1, dtype=np.int64)
    blocks: list[Block] = []
    keys: list[np.ndarray] = []
    queries: list[np.ndarray] = []
    width = 0

    def close() -> None:
        nonlocal width, start
        everything = np.concatenate(keys)
        mask = np.zeros((len(queries), width), dtype=bool)
        for number, path in enumerate(queries):
            mask[number, column[path]] = True
        blocks.append(make_block(start, start + len(queries), everything, mask, device))
        start += len(queries)
        column[everything] = -1
        keys.clear()
        queries.clear()
        width = 0

    for path in paths:
        new = path[column[path] < 0]
        count = len(queries)
        if count and (count >= _BLOCK_ROWS or (count + 1) * len(new) + width > len(path) + _BLOCK_OVERHEAD):
            close()
            new = path
        column[new] = np.arange(width, width + len(new))
        width += len(new)
        keys.append(new)
        queries.append(path)
    if queries:
        close()
    return blocks


def fork_blocks(
    paths: Sequence[np.ndarray], start: int, num_key_heads: int, device: torch.device | str = "cpu"
) -> list[Fork]:
    """Cut tokens that each lead a row of their own into forks.

    Args:
        paths: the slots that each token attends to, its own last, in an order in which equal beginnings stand together.
        start: number of the first of them in the pass.
        num_key_heads: h.
        device: of the store.
    """
    forks: list[Fork] = []
    first = trunk = longest = 0
    for number, path in enumerate(paths):
        if number > first:
            shared, length = min(trunk, _common(paths[number - 1], path)), max(longest, len(path))
            together = _cost(number + 1 - first, shared, length - shared)
            apart = _cost(number - first, trunk, longest - trunk) + _cost(1, len(path), 0)
            if together <= apart:
                trunk, longest = shared, length
                continue
            forks.append(_fork(paths[first:number], start + first, trunk, num_key_heads, device))
        first, trunk, longest = number, len(path), len(path)
    if paths:
        forks.append(_fork(paths[first:], start + first, trunk, num_key_heads, device))
    return forks


def _common(left: np.ndarray, right: np.ndarray) -> int:
    """Return the length of the common beginning."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length


def _cost(rows: int, trunk: int, width: int) -> int:
    return _BLOCK_OVERHEAD + _KEY_COST * (trunk + rows * width) + rows * (trunk + width)


def _fork(paths: Sequence[np.ndarray], start: int, trunk: int, num_key_heads: int, device: torch.device | str) -> Fork:
    width = max(map(len, paths)) - trunk
    own = np.empty((len(paths), width), dtype=np.int64)
    bias = np.zeros((len(paths), width), dtype=np.float32)
    for number, path in enumerate(paths):
        length = len(path) - trunk
        own[number, :length] = path[trunk:]
        own[number, length:] = path[-1]  # any slot that holds numbers: 0 times NaN would be NaN
        bias[number, length:] = -np.inf
    heads = np.arange(num_key_heads)[:, None]

    def rows(slots: np.ndarray) -> torch.Tensor:
        return torch.from_numpy((slots.reshape(1, -1) * num_key_heads + heads).reshape(-1)).to(device)

    return Fork(start, start + len(paths), rows(paths[0][:trunk]), rows(own), torch.from_numpy(bias).to(device))
