r"""Linear layers that multiply in bfloat16 and keep everything else in float32.

Recent processors (AMX, AVX-512 with bfloat16) and all recent GPUs multiply matrices in bfloat16 several times as fast
as in float32 and add up in float32. So weights, their gradients, the optimiser, the residual stream, norms and softmax
stay in float32, and the two matrices of each product are rounded: mixed precision as in Micikevicius et al. 2017
(arXiv:1710.03740), without loss scaling, which bfloat16 does not need.

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

__all__ = ["MixedLinear", "rounded_products", "use_mixed_products"]

_THIN_ROWS = 512
"""Up to so many rows (W X^T)^T takes less time than X W^T on a CPU, as in :mod:`stratagem.models.thin`."""


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """[M, C], [N, C] -> rows weight^T [M, N]."""
    if len(rows) <= _THIN_ROWS and rows.device.type == "cpu":
        return torch.mm(weight, rows.t()).t()
    return torch.mm(rows, weight.t())


class _MixedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, low: Tensor) -> Tensor:
        """Return rows low^T in float32; the gradient is that of ``weight``, of which ``low`` is the rounded copy."""
        low_rows = rows.to(low.dtype)
        ctx.save_for_backward(low_rows, low)
        return _product(low_rows, low).to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Multiply in bfloat16 again; the result of a whole pass is rounded once, sums of passes are not."""
        low_rows, low = ctx.saved_tensors
        low_grad = grad.to(low.dtype)
        grad_rows = torch.mm(low_grad, low).to(grad.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = torch.mm(low_grad.t(), low_rows).to(grad.dtype) if ctx.needs_input_grad[1] else None
        return grad_rows, grad_weight, None


class MixedLinear(nn.Linear):
    """A linear layer with float32 weights that multiplies in bfloat16."""

    _copy: tuple[int, int, Tensor] | None = None

    def low(self) -> Tensor:
        """Return the weights in bfloat16; rounded anew after every change of them in place or of their storage."""
        address, version = self.weight.data_ptr(), self.weight._version
        if self._copy is None or self._copy[:2] != (address, version):
            # A normal tensor even where a pass without gradients makes it: the next pass may need its gradient.
            with torch.inference_mode(False), torch.no_grad():
                self._copy = (address, version, self.weight.detach().to(torch.bfloat16))
        return self._copy[2]

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to [..., C]."""
        rows = input.reshape(-1, input.shape[-1])
        if torch.is_grad_enabled():
            product: Tensor = _MixedProduct.apply(rows, self.weight, self.low())  # type: ignore[no-untyped-call]
        else:
            product = _product(rows.to(torch.bfloat16), self.low()).to(input.dtype)
        if self.bias is not None:
            product = product + self.bias
        return product.view(*input.shape[:-1], self.weight.shape[0])

    def __getstate__(self) -> dict[str, Any]:
        """Leave the rounded copy out of copies of the layer: it belongs to these weights at their address."""
        state = dict(self.__dict__)
        state.pop("_copy", None)
        return state


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

    Sets PyTorch's ``float32_matmul_precision`` for the time of the block.
    """
    before = torch.get_float32_matmul_precision()
    if enabled:
        torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
