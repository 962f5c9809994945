"""Losses of implicit Q-learning and advantage-weighted regression, one number for each decision.

Notation: N decisions (s, u, r, s'). The reduction is a separate, named step, as in
:mod:`stratagem.algorithms.losses`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stratagem.algorithms.losses import check_same_shape

__all__ = ["awr_weights", "expectile_loss", "policy_loss", "q_loss"]


def expectile_loss(values: Tensor, targets: Tensor, *, expectile: float) -> Tensor:
    r"""Return the asymmetric squared error of each value.

    .. math:: L = |\tau - 1(d < 0)|\, d^2, \qquad d = target - V(s)

    With tau above 1/2 a value below its target costs more than one above it, so V tends to the best of what the data
    hold. tau = 1/2 is half the squared error.

    Source: Kostrikov et al. 2021 (IQL), arXiv:2110.06169, eq. 5.

    Args:
        values: [N] V(s); gradients flow through this one only.
        targets: [N] slow copy of Q at (s, u).
        expectile: tau in (0, 1).
    """
    check_same_shape(values=values, targets=targets)
    difference = targets.detach() - values
    weight = torch.where(difference < 0, 1 - expectile, expectile)
    return weight * difference.square()


def q_loss(q_values: Tensor, rewards: Tensor, next_values: Tensor, continues: Tensor, *, gamma: float) -> Tensor:
    r"""Return the squared error of each Q.

    .. math:: L = (r + \gamma\, \bar V(s') - Q(s, u))^2

    Source: Zhen et al. 2026, arXiv:2604.05808, section 3.3; IQL eq. 6.

    Args:
        q_values: [N] Q(s, u); gradients flow through this one only.
        rewards: [N] r.
        next_values: [N] slow copy of V at s'; anything where nothing comes after.
        continues: [N] bool, False where nothing comes after.
        gamma: discount.
    """
    check_same_shape(q_values=q_values, rewards=rewards, next_values=next_values, continues=continues)
    after = torch.where(continues, next_values.detach(), torch.zeros_like(next_values))
    return (rewards + gamma * after - q_values).square()


def awr_weights(advantages: Tensor, *, temperature: float, max_weight: float) -> Tensor:
    r"""Return min(exp(A / beta), max_weight) of each decision, without gradients.

    Source: Peng et al. 2019 (AWR), arXiv:1910.00177; Zhen et al. 2026, arXiv:2604.05808, section 3.3.

    Args:
        advantages: [N] A = Q(s, u) - V(s).
        temperature: beta > 0.
        max_weight: bounds a weight.
    """
    # Clamped before exp, so that a large advantage is no infinity on the way.
    limit = torch.log(torch.tensor(max_weight, dtype=advantages.dtype, device=advantages.device))
    return torch.exp(torch.minimum(advantages.detach() / temperature, limit))


def policy_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Return -w log pi(u | s) of each decision; with all weights 1 this is behaviour cloning.

    Args:
        logprobs: [N] log pi(u | s); gradients flow through this one only.
        weights: [N] :func:`awr_weights`, or the bare advantages (the authors' code).
    """
    check_same_shape(logprobs=logprobs, weights=weights)
    return -weights.detach() * logprobs
