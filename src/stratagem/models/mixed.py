r"""Linear layers that multiply in bfloat16 and keep everything else in float32.

Recent processors (AMX, AVX-512 with bfloat16) and all recent GPUs multiply matrices in bfloat16 several times as fast
as in float32 and add up in float32. So weights, the sum of their gradients, the optimiser, the residual stream, norms,
attention and softmax stay in float32; the two matrices of each product of a linear layer are rounded, and so is its
result. The output layer's result is not. That is mixed precision as in Micikevicius et al. 2017 (arXiv:1710.03740),
without loss scaling, which bfloat16 does not need.

``torch.autocast`` does the same and rounds all weights again in every pass, which in a pass of some tens of rows costs
more than the products. Here a rounded copy is kept until the weights change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stratagem.models.thin import ThinLinear

__all__ = ["MixedLinear", "pad_rows", "padded", "rounded_products", "use_mixed_products"]

_THIN_ROWS = 512
"""Up to so many rows (W X^T)^T takes less time than X W^T on a CPU, as in :mod:`stratagem.models.thin`."""
_MIN_ROWS = 8


def padded(count: int) -> int:
    """Return how many rows are multiplied for ``count``: a quarter more at most, in four sizes for each power of two.

    A kernel is made for every new shape, which takes ten milliseconds and keeps two megabytes; a tree has another
    number of nodes in every pass.

    >>> [padded(count) for count in (1, 8, 9, 17, 600, 2048)]
    [8, 8, 10, 20, 640, 2048]
    """
    if count <= _MIN_ROWS:
        return _MIN_ROWS
    step = (1 << ((count - 1).bit_length() - 1)) // 4
    return -(-count // step) * step


def pad_rows(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return [M, C] rows in a type, with as many rows of zeros below as :func:`padded` says."""
    if rows.device.type != "cpu" or padded(len(rows)) == len(rows):
        return rows.to(dtype)
    made = rows.new_zeros((padded(len(rows)), rows.shape[1]), dtype=dtype)
    made[: len(rows)] = rows
    return made


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """[M, C], [N, C] -> rows weight^T [M, N]."""
    if len(rows) <= _THIN_ROWS and rows.device.type == "cpu":
        return torch.mm(weight, rows.t()).t()
    return torch.mm(rows, weight.t())


class _MixedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, low: Tensor) -> Tensor:
        """Return rows low^T in float32; the gradient is that of ``weight``, of which ``low`` is the rounded copy."""
        low_rows = pad_rows(rows, low.dtype)
        ctx.save_for_backward(low_rows if ctx.needs_input_grad[1] else None, low if ctx.needs_input_grad[0] else None)
        return _product(low_rows, low)[: len(rows)].to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Multiply in bfloat16 again; the result of a pass is rounded, the sum over passes is not."""
        low_rows, low = ctx.saved_tensors
        low_grad = pad_rows(grad, torch.bfloat16)
        grad_rows = grad_weight = None
        if low is not None:
            grad_rows = torch.mm(low_grad, low)[: len(grad)].to(grad.dtype)
        if low_rows is not None:
            grad_weight = torch.mm(low_grad.t(), low_rows).to(grad.dtype)
        return grad_rows, grad_weight, None


class MixedLinear(nn.Linear):
    """A linear layer with float32 weights that multiplies in bfloat16."""

    def low(self) -> Tensor:
        """Return the weights in bfloat16, rounded once until they change.

        A change that PyTorch does not count (through ``.data``, or a fused optimiser) needs :meth:`forget`.
        """
        copies: dict[int, tuple[int, Tensor]] = self.__dict__.setdefault("_copies", {})
        address, version = self.weight.data_ptr(), self.weight._version
        found = copies.get(address)
        if found is None or found[0] != version:
            if len(copies) > 1:  # the policy's and the reference's take turns at most
                copies.clear()
            # A normal tensor even where a pass without gradients makes it: the next pass may need its gradient.
            with torch.inference_mode(False), torch.no_grad():
                found = copies[address] = (version, self.weight.detach().to(torch.bfloat16))
        return found[1]

    def forget(self) -> None:
        """Drop the rounded weights of a layer that trains."""
        if self.weight.requires_grad:
            self.__dict__.pop("_copies", None)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to [..., C]."""
        rows = input.reshape(-1, input.shape[-1])
        if torch.is_grad_enabled():
            product: Tensor = _MixedProduct.apply(rows, self.weight, self.low())  # type: ignore[no-untyped-call]
        else:
            product = _product(pad_rows(rows, torch.bfloat16), self.low())[: len(rows)].to(input.dtype)
        if self.bias is not None:
            product = product + self.bias
        return product.view(*input.shape[:-1], self.weight.shape[0])

    def __getstate__(self) -> dict[str, Any]:
        """Leave the rounded weights out of copies of the layer: they belong to these weights at their address."""
        return {name: value for name, value in self.__dict__.items() if name != "_copies"}


def use_mixed_products(model: nn.Module) -> None:
    """Make every plain linear layer of a model multiply in bfloat16; weights and names stay.

    The output layer is left out: its logits would be rounded to two or three digits. See :func:`rounded_products`.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for module in model.modules():
        if type(module) in (nn.Linear, ThinLinear) and module is not head:
            module.__class__ = MixedLinear


@contextmanager
def rounded_products(enabled: bool) -> Iterator[None]:
    """Round the matrices of float32 products to bfloat16 but not their result, where the processor is quick at that.

    Sets PyTorch's ``float32_matmul_precision`` to ``medium`` for the time of the block; on CUDA that is TF32. Not
    enabled, it touches nothing.
    """
    if not enabled:
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
