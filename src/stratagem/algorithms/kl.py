"""Estimators of KL(p_theta || p_ref) at a token drawn from p_theta (Schulman 2020, "Approximating KL divergence").

With r = p_ref / p_theta at the drawn token: k1 = -log r is unbiased and may be negative; k2 = (log r)^2 / 2 is biased
and has the right gradient when differentiated; k3 = r - 1 - log r is unbiased and never negative. As a *loss*, the
gradient of k1 has zero expectation and that of k3 is that of the reverse direction, KL(p_ref || p_theta); only k2 gives
the gradient of KL(p_theta || p_ref). GRPO uses k3.

All take [T] log-probabilities and return [T]; gradients flow through ``logprobs`` only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["KL_ESTIMATORS", "kl_k1", "kl_k2", "kl_k3"]


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return log p_theta - log p_ref."""
    return logprobs - ref_logprobs.detach()


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return (log p_theta - log p_ref)^2 / 2."""
    return 0.5 * (logprobs - ref_logprobs.detach()).square()


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return r - 1 - log r with r = p_ref / p_theta."""
    log_r = ref_logprobs.detach() - logprobs
    return torch.expm1(log_r) - log_r


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
