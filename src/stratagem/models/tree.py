"""A batch as a token tree: every distinct token once.

Rows of a step-conditioned agent repeat almost all of their tokens: the template and the rules stand before every step,
equal states give equal prompts, and often the completions are equal too. A :class:`TokenTree` is the trie of all rows
over *tokens*. One forward and backward pass over its nodes gives exactly what a pass over the rows would give, because
a causal model's output at a token depends on its ancestors only::

    rows                      nodes (depth-first)          parent  depth
    A B C | x y               0 A                          -1      0
    A B C | x z               1 B                           0      1
    A B D | x                 2 C                           1      2
                              3 x                           2      3
                              4 D                           1      2

The last token of a row is a *label*, not a node: nothing is predicted after it (``y`` and ``z`` are labels of node 3,
``x`` of nodes 2 and 4). Only if another row goes on from it does it become a node too.

Notation: N nodes, M distinct labels (node, next token), R rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

__all__ = ["AttentionBlock", "Row", "TokenTree", "attention_blocks", "build_tree", "split_rows"]

Row = tuple[Sequence[int], Sequence[int]]
"""(prompt ids, completion ids); both must hold at least one token."""


@dataclass(frozen=True)
class TokenTree:
    """The trie of a list of rows, nodes in depth-first order."""

    tokens: np.ndarray
    """[N] int64 token of each node."""
    parents: np.ndarray
    """[N] int64 parent of each node, -1 for a root; always smaller than the node itself."""
    depths: np.ndarray
    """[N] int64 position of each node in its row; the position id."""
    label_nodes: np.ndarray
    """[M] int64 the node whose output predicts the label."""
    label_tokens: np.ndarray
    """[M] int64 the predicted token."""
    row_labels: tuple[np.ndarray, ...]
    """R arrays: the label of each completion token of each row."""
    num_row_tokens: int
    """Tokens that a row-by-row pass would compute (last token of each row left out), without padding."""

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.tokens)

    @property
    def num_labels(self) -> int:
        """M."""
        return len(self.label_tokens)

    @cached_property
    def row_index(self) -> np.ndarray:
        """[sum of completion lengths] the labels of all rows, one row after the other."""
        return np.concatenate(self.row_labels)


def build_tree(rows: Sequence[Row]) -> TokenTree:
    """Merge rows into a tree.

    Args:
        rows: (prompt ids, completion ids) pairs, each part non-empty. Equal rows share all nodes and labels.

    Raises:
        ValueError: no rows, or a row with an empty part.
    """
    if not rows:
        raise ValueError("rows is empty; a tree needs at least one (prompt ids, completion ids) pair.")
    # Nodes in order of arrival. children[i] maps a token to a node; -1 is the virtual root above all first tokens.
    tokens: list[int] = []
    parents: list[int] = []
    children: list[dict[int, int]] = []
    roots: dict[int, int] = {}
    prompt_ends: dict[tuple[int, ...], int] = {}
    labels: dict[tuple[int, int], int] = {}
    row_labels: list[list[int]] = []

    def descend(node: int, token: int) -> int:
        table = roots if node < 0 else children[node]
        found = table.get(token)
        if found is None:
            found = table[token] = len(tokens)
            tokens.append(token)
            parents.append(node)
            children.append({})
        return found

    num_row_tokens = 0
    for number, (prompt, completion) in enumerate(rows):
        if not len(prompt) or not len(completion):
            part = "prompt" if not len(prompt) else "completion"
            raise ValueError(f"Row {number} has an empty {part}; both parts need at least one token.")
        key = tuple(prompt)
        end = prompt_ends.get(key)
        if end is None:
            end = -1
            for token in key:
                end = descend(end, token)
            prompt_ends[key] = end
        mine: list[int] = []
        last = len(completion) - 1
        for position, token in enumerate(completion):
            mine.append(labels.setdefault((end, token), len(labels)))
            if position < last:
                end = descend(end, token)
        row_labels.append(mine)
        num_row_tokens += len(prompt) + last

    order = _depth_first(roots, children)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    parent_of = np.asarray(parents, dtype=np.int64)[order]
    parent_of[parent_of >= 0] = rank[parent_of[parent_of >= 0]]
    depths = np.zeros(len(order), dtype=np.int64)
    for node in range(len(order)):  # parents come first
        if parent_of[node] >= 0:
            depths[node] = depths[parent_of[node]] + 1
    pairs = np.asarray(list(labels), dtype=np.int64).reshape(-1, 2)
    return TokenTree(
        tokens=np.asarray(tokens, dtype=np.int64)[order],
        parents=parent_of,
        depths=depths,
        label_nodes=rank[pairs[:, 0]],
        label_tokens=pairs[:, 1].copy(),
        row_labels=tuple(np.asarray(mine, dtype=np.int64) for mine in row_labels),
        num_row_tokens=num_row_tokens,
    )


def _depth_first(roots: dict[int, int], children: list[dict[int, int]]) -> np.ndarray:
    order: list[int] = []
    stack = list(reversed(roots.values()))
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(reversed(children[node].values()))
    return np.asarray(order, dtype=np.int64)


def split_rows(rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
    """Cut rows into micro-batches whose trees have at most ``max_tokens`` nodes.

    Rows are taken in lexicographic order, so that those which share a long prefix stay together; ancestors that two
    parts share are computed in both. A sum over labels is the same however the rows are cut.

    Args:
        rows: (prompt ids, completion ids) pairs.
        max_tokens: the budget; a single row that is longer gets a part of its own.

    Returns:
        Lists of row numbers; together every row once.
    """
    order = sorted(range(len(rows)), key=lambda r: (*rows[r][0], *rows[r][1]))
    parts: list[list[int]] = []
    size = 0
    previous: tuple[int, ...] = ()
    for number in order:
        full = (*rows[number][0], *rows[number][1][:-1])
        # In sorted order the new nodes of a row are what it does not share with the row before it.
        new = len(full) - _common_prefix(previous, full)
        if parts and size + new <= max_tokens:
            parts[-1].append(number)
            size += new
        else:
            parts.append([number])
            size = len(full)
        previous = full
    return parts


def _common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    low, high = 0, length  # left[:low] == right[:low], left[:high] != right[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class AttentionBlock:
    """Consecutive nodes in depth-first order and the keys that any of them attends to.

    Every ancestor of a node in the block is either in the block or an ancestor of the block's first node, since a
    subtree is an interval of the depth-first order. So the keys are one path and the block itself: no [N, N] mask.
    """

    start: int
    stop: int
    keys: np.ndarray
    """[K] int64: ancestors of node ``start`` from the root down, then ``start .. stop - 1``."""
    mask: np.ndarray
    """[stop - start, K] bool: True where the node attends to the key (its ancestors and itself)."""


def attention_blocks(
    parents: np.ndarray, depths: np.ndarray, *, block_size: int = 128, window: int | None = None
) -> Iterator[AttentionBlock]:
    """Cut the nodes of a tree into blocks for attention.

    Args:
        parents: [N] as in :class:`TokenTree`.
        depths: [N] as in :class:`TokenTree`.
        block_size: nodes in a block.
        window: sliding window of the layer: a node attends to at most this many tokens, itself included.
    """
    total = len(parents)
    for start in range(0, total, block_size):
        stop = min(start + block_size, total)
        path: list[int] = []
        node = int(parents[start])
        while node >= 0:
            path.append(node)
            node = int(parents[node])
        path.reverse()
        size, outside = stop - start, len(path)
        mask = np.zeros((size, outside + size), dtype=bool)
        for offset in range(size):
            parent = int(parents[start + offset])
            if parent >= start:
                mask[offset] = mask[parent - start]
            else:
                mask[offset, : depths[start + offset]] = True  # all its ancestors are on the path
            mask[offset, outside + offset] = True
        if window is not None:
            key_depths = np.concatenate([np.arange(outside), depths[start:stop]])
            mask &= key_depths[None, :] > depths[start:stop, None] - window
        yield AttentionBlock(start, stop, np.asarray([*path, *range(start, stop)], dtype=np.int64), mask)
