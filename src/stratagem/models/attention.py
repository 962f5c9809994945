"""Attention on a token tree, plugged into transformers' attention interface.

``model.set_attn_implementation(TREE_ATTENTION)`` makes every layer call :func:`tree_attention_forward`. Without a
``tree`` argument in the forward call it is plain scaled-dot-product attention, so the model still works as usual. With
one, the batch is one packed row of nodes, and each node attends to its ancestors and itself, block by block
(:class:`stratagem.models.tree.AttentionBlock`).

The kernel is written out as matrix products with its own backward pass: per block it needs one [heads, block, keys]
score matrix, and gradients of keys and values are added in place, where automatic differentiation of a gather would
make a full-size tensor for every block. Query heads that share a key head are folded into the rows of one product.
Training on a GPU may use one fused kernel instead (:mod:`stratagem.models.flex`).

Notation: N nodes, H query heads, h key heads, D head width, B block rows, K block keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from stratagem.models.flex import MIN_WIDTH, flex_tree_attention, tree_block_mask
from stratagem.models.tree import TokenTree, attention_blocks

__all__ = [
    "TREE_ATTENTION",
    "TREE_MODELS",
    "KeyValueStore",
    "TreeLayout",
    "tree_attention_forward",
    "why_no_tree",
]

TREE_ATTENTION = "stratagem_tree"
TREE_MODELS = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma3_text", "smollm3"})
"""``model_type`` of the architectures whose equality with row-by-row is tested."""


@dataclass(frozen=True)
class Block:
    """An attention block as tensors."""

    start: int
    stop: int
    keys: Tensor
    """[K] int64 rows of the key tensor."""
    bias: Tensor
    """[B, K] 0 where a node attends, -inf elsewhere."""


@dataclass(frozen=True)
class Fork:
    """Queries that share a beginning and then have keys of their own, as many as the longest: W, the rest masked."""

    start: int
    stop: int
    trunk: Tensor
    """[h * S] the S shared keys in each key head: row numbers of the keys seen as [capacity * h, D]."""
    own: Tensor
    """[h * B * W] the same of the others."""
    bias: Tensor
    """[B, W] 0 where a query attends to its own key, -inf where there is none."""


class TreeLayout:
    """Who attends to whom in a tree, made once for a batch and used by all layers."""

    def __init__(
        self, tree: TokenTree, *, block_size: int = 64, device: torch.device | str = "cpu", fused: bool = False
    ) -> None:
        """Prepare a layout; blocks are made when the first layer asks for its window.

        Args:
            tree: the tree.
            block_size: nodes in a block.
            device: of the model.
            fused: attend in one kernel (:mod:`stratagem.models.flex`).
        """
        self._tree = tree
        self._block_size = block_size
        self._device = torch.device(device)
        self._blocks: dict[int | None, list[Block]] = {}
        self._masks: dict[int | None, BlockMask] = {}
        self.fused = fused

    def blocks(self, window: int | None) -> list[Block]:
        """Return the blocks of a layer with this sliding window (None: full attention)."""
        window = self._felt(window)
        if window not in self._blocks:
            self._blocks[window] = [
                make_block(block.start, block.stop, block.keys, block.mask, self._device)
                for block in attention_blocks(
                    self._tree.parents, self._tree.depths, block_size=self._block_size, window=window
                )
            ]
        return self._blocks[window]

    def block_mask(self, window: int | None) -> BlockMask:
        """Return the same for the fused kernel."""
        window = self._felt(window)
        if window not in self._masks:
            self._masks[window] = tree_block_mask(self._tree, window=window, device=self._device)
        return self._masks[window]

    def _felt(self, window: int | None) -> int | None:
        """Return None for a window that no row is long enough to feel."""
        return None if window is not None and window > int(self._tree.depths.max()) else window


class KeyValueStore:
    """Keys and values of earlier tokens, and where this batch writes its own; see :mod:`stratagem.models.decoding`."""

    def __init__(self, keys: list[Tensor], values: list[Tensor]) -> None:
        """Wrap preallocated [capacity, h, D] tensors, one for each layer."""
        self.keys = keys
        self.values = values
        self.slots: Tensor = torch.empty(0, dtype=torch.int64)
        self._blocks: dict[int | None, Sequence[Block | Fork]] = {}

    def set_batch(
        self, slots: Tensor, make_blocks: Callable[[int | None], Sequence[Block | Fork]], max_depth: int
    ) -> None:
        """Describe the next forward pass.

        Args:
            slots: where it writes.
            make_blocks: window -> its blocks, whose ``keys`` are slots; called when the first layer asks.
            max_depth: the largest position in it.
        """
        self.slots = slots
        self._make_blocks, self._max_depth = make_blocks, max_depth
        self._blocks = {}

    def blocks(self, window: int | None) -> Sequence[Block | Fork]:
        """Return the blocks for a layer with this sliding window (None: full attention)."""
        if window is not None and window > self._max_depth:
            window = None  # no row is long enough to feel it
        if window not in self._blocks:
            self._blocks[window] = self._make_blocks(window)
        return self._blocks[window]


def make_block(start: int, stop: int, keys: Any, mask: Any, device: torch.device | str) -> Block:
    """Turn index and mask arrays into tensors."""
    bias = torch.zeros(mask.shape, dtype=torch.float32)
    bias.masked_fill_(~torch.from_numpy(mask), float("-inf"))
    return Block(start, stop, torch.from_numpy(keys).to(device), bias.to(device))


def _fold(rows: Tensor, num_key_heads: int) -> Tensor:
    """[B, H, D] -> [h, (H/h)*B, D]: query heads of one key head become rows."""
    count, heads, width = rows.shape
    share = heads // num_key_heads
    grouped = rows.view(count, num_key_heads, share, width).permute(1, 2, 0, 3)
    return grouped.reshape(num_key_heads, share * count, width)


def _unfold(folded: Tensor, count: int) -> Tensor:
    """[h, (H/h)*B, D] -> [B, H, D]; inverse of :func:`_fold`."""
    key_heads, rows, width = folded.shape
    share = rows // count
    return folded.view(key_heads, share, count, width).permute(2, 0, 1, 3).reshape(count, key_heads * share, width)


def _probabilities(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """Softmax over keys, [h, (H/h)*B, K], in the dtype of the query, which carries the scale already."""
    scores = torch.bmm(query, key.transpose(1, 2))
    scores = scores.view(scores.shape[0], -1, *bias.shape)
    scores = scores.add_(bias) if scores.dtype == torch.float32 else scores + bias
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype).flatten(1, 2)


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: list[Block], scale: float) -> Tensor:
        """Attend; query [N, H, D], key and value [N, h, D]."""
        query = query * scale
        output = _attend(query, key, value, blocks)
        ctx.save_for_backward(query, key, value, output)
        ctx.blocks, ctx.scale = blocks, scale
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Recompute the probabilities of each block, then the five products of attention's derivative."""
        query, key, value, output = ctx.saved_tensors
        num_key_heads = key.shape[1]
        grad_query = torch.empty_like(query)
        # Shared keys get contributions from many blocks: add them up in float32.
        grad_key = torch.zeros(key.shape, dtype=torch.float32, device=key.device)
        grad_value = torch.zeros(value.shape, dtype=torch.float32, device=value.device)
        # sum_k p_k dp_k of each query is the product of its output with the output's gradient: no pass over the keys.
        inner = (grad_output * output).sum(-1, keepdim=True)
        for block in ctx.blocks:
            rows = slice(block.start, block.stop)
            folded_query = _fold(query[rows], num_key_heads)
            folded_grad = _fold(grad_output[rows], num_key_heads)
            block_key = key.index_select(0, block.keys).transpose(0, 1)
            block_value = value.index_select(0, block.keys).transpose(0, 1)
            p = _probabilities(folded_query, block_key, block.bias)
            grad_value.index_add_(0, block.keys, torch.bmm(p.transpose(1, 2), folded_grad).transpose(0, 1).float())
            grad_scores = torch.bmm(folded_grad, block_value.transpose(1, 2))
            grad_scores = grad_scores.sub_(_fold(inner[rows], num_key_heads)).mul_(p)
            grad_query[rows] = _unfold(torch.bmm(grad_scores, block_key), block.stop - block.start)
            grad_block_key = torch.bmm(grad_scores.transpose(1, 2), folded_query)
            grad_key.index_add_(0, block.keys, grad_block_key.transpose(0, 1).float())
        return grad_query.mul_(ctx.scale), grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def _attend(query: Tensor, key: Tensor, value: Tensor, blocks: Sequence[Block | Fork]) -> Tensor:
    """Attend with a query that carries the scale already."""
    num_key_heads = key.shape[1]
    output = torch.empty_like(query)
    for block in blocks:
        rows = slice(block.start, block.stop)
        if isinstance(block, Fork):
            output[rows] = _attend_fork(query[rows], key, value, block)
            continue
        block_key = key.index_select(0, block.keys).transpose(0, 1)
        block_value = value.index_select(0, block.keys).transpose(0, 1)
        p = _probabilities(_fold(query[rows], num_key_heads), block_key, block.bias)
        output[rows] = _unfold(torch.bmm(p, block_value), block.stop - block.start)
    return output


def _attend_fork(query: Tensor, key: Tensor, value: Tensor, fork: Fork) -> Tensor:
    """Attend with the queries of a fork, [B, H, D]: two products for each of its parts, one softmax over both."""
    count, heads, size = query.shape
    num_key_heads = key.shape[1]
    share, shared, width = heads // num_key_heads, len(fork.trunk) // num_key_heads, fork.bias.shape[1]

    def parts(table: Tensor) -> tuple[Tensor, Tensor]:
        flat = table.view(-1, size)
        trunk = flat.index_select(0, fork.trunk).view(num_key_heads, shared, size)
        return trunk, flat.index_select(0, fork.own).view(num_key_heads * count, width, size)

    folded = query.view(count, num_key_heads, share, size).transpose(0, 1).reshape(num_key_heads * count, share, size)
    trunk_key, own_key = parts(key)
    trunk_scores = torch.bmm(folded.view(num_key_heads, count * share, size), trunk_key.transpose(1, 2))
    own_scores = torch.bmm(folded, own_key.transpose(1, 2)).view(num_key_heads, count, share, width)
    scores = torch.cat(
        (trunk_scores.view(num_key_heads, count, share, shared), own_scores + fork.bias[:, None]), dim=-1
    )
    p = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    trunk_value, own_value = parts(value)
    mixed = torch.bmm(p[..., :shared].flatten(1, 2), trunk_value).view(num_key_heads * count, share, size)
    mixed = mixed + torch.bmm(p[..., shared:].flatten(0, 1), own_value)
    return mixed.view(num_key_heads, count, share, size).transpose(0, 1).reshape(count, heads, size)


def tree_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    tree: TreeLayout | KeyValueStore | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend on the tree; the signature that transformers calls.

    Args:
        module: the attention layer; ``layer_idx`` is read for the store.
        query: [1, H, N, D] after position embedding.
        key: [1, h, N, D].
        value: [1, h, N, D].
        attention_mask: only without a tree.
        scaling: factor of the scores; 1/sqrt(D) if None.
        dropout: must be 0 with a tree.
        sliding_window: the layer's window, itself included; None is full attention.
        tree: layout of the packed row (training) or store (sampling); None is plain attention.
        kwargs: passed on without a tree.

    Returns:
        [1, N, H, D] and None.
    """
    if tree is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            sliding_window=sliding_window,
            **kwargs,
        )
        return plain
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(tree, TreeLayout) and tree.fused and query.shape[-1] >= MIN_WIDTH:
        attended = flex_tree_attention(query, key, value, tree.block_mask(sliding_window), scale)
        return attended.transpose(1, 2), None
    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    blocks = tree.blocks(sliding_window)
    if isinstance(tree, KeyValueStore):
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        tree.keys[layer].index_copy_(0, tree.slots, k)
        tree.values[layer].index_copy_(0, tree.slots, v)
        return _attend(q * scale, tree.keys[layer], tree.values[layer], blocks).unsqueeze(0), None
    output: Tensor = _TreeAttention.apply(q, k, v, blocks, scale)  # type: ignore[no-untyped-call]
    return output.unsqueeze(0), None


def why_no_tree(model: PreTrainedModel) -> str | None:
    """Return why a model cannot compute on the token tree; None if it can."""
    config = model.config.get_text_config()
    kind = config.model_type
    if kind not in TREE_MODELS:
        known = ", ".join(sorted(TREE_MODELS))
        return f"Architecture {kind!r} is not known to compute the same on a token tree (known: {known})."
    if getattr(config, "attn_logit_softcapping", None):
        return f"Architecture {kind!r} caps its attention scores, which the token tree does not."
    positions = str(getattr(config, "rope_parameters", None))  # one table, or one for each kind of layer
    if "dynamic" in positions or "longrope" in positions:
        return f"Architecture {kind!r} scales its positions by sequence length, which differs between rows of a tree."
    return None


# Registration is the one thing that importing this module does: transformers looks implementations up by name.
AttentionInterface.register(TREE_ATTENTION, tree_attention_forward)
AttentionMaskInterface.register(TREE_ATTENTION, sdpa_mask)
