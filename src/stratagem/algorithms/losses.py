"""Losses of each token, shared by the policy-gradient algorithms. The reduction is a separate, named step.

Notation: T tokens, the completions of a batch one after the other; no padding anywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["check_same_shape", "clipped_surrogate", "clipped_value_loss"]


def check_same_shape(**tensors: Tensor) -> None:
    """Refuse tensors that are not all [T] of one length.

    Raises:
        ValueError: naming every shape.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(f"Shapes differ or are not one-dimensional: {listed}; expected one number for each token.")


def clipped_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    r"""Return minus the clipped objective of each token.

    .. math:: L_k = -\min(w_k A_k, \operatorname{clip}(w_k, 1-\epsilon_{low}, 1+\epsilon_{up}) A_k),
              \quad w_k = p_\theta(y_k) / p_{\theta_{old}}(y_k)

    Source: Dilkes et al. 2025, arXiv:2508.10839, eq. 2 and 3; with equal bounds Schulman et al. 2017, arXiv:1707.06347,
    eq. 7.

    Args:
        logprobs: [T] log p_theta; gradients flow through this one only.
        old_logprobs: [T] log p_theta_old as sampled.
        advantages: [T] A of the token's episode.
        clip_low: epsilon_low > 0.
        clip_high: epsilon_up > 0.
    """
    check_same_shape(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    ratio = torch.exp(logprobs - old_logprobs.detach())
    advantages = advantages.detach()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip_range: float | None) -> Tensor:
    r"""Return the larger of the clipped and the plain squared error of each value.

    .. math:: L_k = \max\big((V_k - R_k)^2,\ (V^{old}_k + \operatorname{clip}(V_k - V^{old}_k, -\epsilon, \epsilon)
              - R_k)^2\big)

    Source: PPO's public implementation (Schulman et al. 2017, arXiv:1707.06347), as POAD's and TWOSOME's code use it.

    Args:
        values: [T] V now; gradients flow through this one only.
        old_values: [T] V when the batch was collected.
        returns: [T] targets.
        clip_range: epsilon > 0; None is the plain squared error.
    """
    check_same_shape(values=values, old_values=old_values, returns=returns)
    returns, old_values = returns.detach(), old_values.detach()
    plain = (values - returns).square()
    if clip_range is None:
        return plain
    near = old_values + (values - old_values).clamp(-clip_range, clip_range)
    return torch.maximum(plain, (near - returns).square())
