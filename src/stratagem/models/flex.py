"""The tree's attention as one fused kernel, for training on a GPU: PyTorch's FlexAttention (arXiv:2412.05496).

In depth-first order the subtree of node j is the interval [j, end_j), so node i attends to node j if and only if
j <= i < end_j. The kernel visits the pairs of blocks in which :func:`stratagem.models.tree.attention_blocks` has a key,
and applies this rule inside them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from stratagem.models.tree import TokenTree, attention_blocks

__all__ = ["MIN_WIDTH", "flex_tree_attention", "tree_block_mask"]

MIN_WIDTH = 16
"""Smallest head width that the kernel takes."""


def tree_block_mask(
    tree: TokenTree, *, window: int | None, device: torch.device | str, block_size: int = 128
) -> BlockMask:
    """Return who attends to whom, for :func:`flex_tree_attention`.

    Args:
        tree: the tree.
        window: sliding window of the layer, itself included; None is full attention.
        device: of the queries.
        block_size: nodes in a block of the kernel.
    """
    size = np.ones(tree.num_nodes, dtype=np.int64)
    for node in range(tree.num_nodes - 1, -1, -1):  # children come after their parents
        if tree.parents[node] >= 0:
            size[tree.parents[node]] += size[node]
    ends = torch.from_numpy(np.arange(tree.num_nodes) + size).to(device)
    depths = torch.from_numpy(tree.depths).to(device)
    # A tensor rather than a number inside the rule, so that one compiled kernel serves every window.
    above = depths - window if window is not None else torch.full_like(depths, -1)

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key]) & (depths[key] > above[query])

    visited = [
        np.unique(block.keys[block.mask.any(0)] // block_size)
        for block in attention_blocks(tree.parents, tree.depths, block_size=block_size, window=window)
    ]
    indices = np.zeros((len(visited), len(visited)), dtype=np.int32)
    for number, keys in enumerate(visited):
        indices[number, : len(keys)] = keys
    counts = np.array([len(keys) for keys in visited], dtype=np.int32)
    return BlockMask.from_kv_blocks(
        torch.from_numpy(counts)[None, None].to(device),
        torch.from_numpy(indices)[None, None].to(device),
        BLOCK_SIZE=block_size,
        mask_mod=attends,
        seq_lengths=(tree.num_nodes, tree.num_nodes),
    )


@functools.cache
def _kernel() -> Callable[..., Tensor]:
    # Trees differ in size from batch to batch; without ``dynamic`` each of the first ones would be compiled anew.
    kernel: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=True)
    return kernel


def flex_tree_attention(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """Attend; query [1, H, N, D], key and value [1, h, N, D], result [1, H, N, D].

    On a CPU, where it serves tests, nothing is compiled and there is no backward pass.
    """
    attend: Any = _kernel() if query.device.type == "cuda" else flex_attention
    grouped = query.shape[1] != key.shape[1]
    output: Tensor = attend(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)
    return output
