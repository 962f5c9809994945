"""Log-probabilities of labels without a [T, V] table.

Logits are made only where a label is, a chunk of rows at a time, and made again in the backward pass, so the memory is
one chunk whatever the batch. Entropy comes from the same chunk.

Notation: L rows that have a label, M labels (several may share a row), V vocabulary, C hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stratagem.models.mixed import pad_rows, rounded_products

__all__ = ["label_logprobs"]

_CHUNK_FLOATS = 16_777_216  # 64 MiB of float32 logits at a time


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float, softcap: float | None, rounded: bool
) -> Tensor:
    with rounded_products(rounded):
        rows = pad_rows(hidden, hidden.dtype) if rounded else hidden
        logits = torch.nn.functional.linear(rows, weight, bias)[: len(hidden)].float()
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    return logits.mul_(scale) if scale != 1.0 else logits


class _LabelLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Tensor,
        tokens: Tensor,
        scale: float,
        softcap: float | None,
        rounded: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return [M] log-probabilities and [L] entropies; ``rows`` must be sorted."""
        chunk = max(1, _CHUNK_FLOATS // weight.shape[0])
        logprobs = torch.empty(len(tokens), dtype=torch.float32, device=hidden.device)
        entropy = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        normaliser = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        bounds = torch.searchsorted(rows, torch.arange(0, len(hidden) + chunk, chunk, device=rows.device)).tolist()
        for number, start in enumerate(range(0, len(hidden), chunk)):
            stop = min(start + chunk, len(hidden))
            labels = slice(bounds[number], bounds[number + 1])
            logits = _logits(hidden[start:stop], weight, bias, scale, softcap, rounded)
            lse = torch.logsumexp(logits, dim=-1)
            normaliser[start:stop] = lse
            log_p = logits.sub_(lse[:, None])
            logprobs[labels] = log_p[rows[labels] - start, tokens[labels]]
            entropy[start:stop] = -torch.einsum("lv,lv->l", torch.exp(log_p), log_p)
        ctx.save_for_backward(hidden, weight, bias, rows, tokens, normaliser, entropy)
        ctx.chunk, ctx.bounds, ctx.scale, ctx.softcap, ctx.rounded = chunk, bounds, scale, softcap, rounded
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        """Apply d logp_i / dz = onehot(i) - p and dH / dz = -p (log p + H)."""
        hidden, weight, bias, rows, tokens, normaliser, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        total = torch.zeros_like(normaliser).index_add_(0, rows, grad_logprobs)
        with_entropy = bool((grad_entropy != 0).any())
        for number, start in enumerate(range(0, len(hidden), ctx.chunk)):
            stop = min(start + ctx.chunk, len(hidden))
            labels = slice(ctx.bounds[number], ctx.bounds[number + 1])
            logits = _logits(hidden[start:stop], weight, bias, ctx.scale, ctx.softcap, ctx.rounded)
            log_p = logits - normaliser[start:stop, None]
            p = torch.exp(log_p)
            if with_entropy:
                factor = (log_p + entropy[start:stop, None]).mul_(grad_entropy[start:stop, None])
                factor.add_(total[start:stop, None]).mul_(p).neg_()
                grad = factor
            else:
                grad = p.mul_(-total[start:stop, None])
            grad.index_put_((rows[labels] - start, tokens[labels]), grad_logprobs[labels], accumulate=True)
            if ctx.softcap is not None:
                # d tanh(z/c)*c / dz = 1 - tanh^2; ``logits`` already carries the scale.
                grad.mul_(1 - (logits / ctx.scale / ctx.softcap) ** 2)
            grad.mul_(ctx.scale)
            grad = grad.to(weight.dtype)
            with rounded_products(ctx.rounded):
                padded_grad = pad_rows(grad, grad.dtype) if ctx.rounded else grad
                grad_hidden[start:stop] = (padded_grad @ weight)[: len(grad)]
                if grad_weight is not None:
                    grad_weight.addmm_(grad.float().t(), hidden[start:stop].float())
            if grad_bias is not None:
                grad_bias += grad.float().sum(0)
        return grad_hidden, _cast(grad_weight, weight), _cast(grad_bias, bias), None, None, None, None, None


def _cast(grad: Tensor | None, like: Tensor | None) -> Tensor | None:
    return None if grad is None or like is None else grad.to(like.dtype)


def label_logprobs(
    hidden: Tensor,
    weight: Tensor,
    *,
    rows: Tensor,
    tokens: Tensor,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    rounded: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return log softmax(hidden W^T / temperature) at given labels, and the entropy of each row.

    Args:
        hidden: [L, C] final hidden states.
        weight: [V, C] of the output layer.
        rows: [M] int64, ascending: the row of each label.
        tokens: [M] int64 the label.
        bias: [V] of the output layer, or None.
        temperature: > 0.
        softcap: c of logits = c tanh(logits / c), or None.
        rounded: multiply in bfloat16, where the processor is quick at that, with logits in float32.

    Returns:
        [M] float32 log-probabilities, [L] float32 entropies in nats.
    """
    result: tuple[Tensor, Tensor] = _LabelLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, rows, tokens, 1.0 / temperature, softcap, rounded
    )
    return result
