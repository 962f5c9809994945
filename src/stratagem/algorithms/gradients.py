"""Gradients of a policy and its critics just before a step: who learns, how long they may be, that they are numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

__all__ = ["bound_gradients"]


def bound_gradients(
    policy: Mapping[str, nn.Parameter],
    critic: Mapping[str, nn.Parameter],
    *,
    max_norm: float,
    learns: bool,
    iteration: int,
) -> dict[str, float]:
    """Scale the gradients of policy and critic down, each on its own, and return their norms before that.

    Args:
        policy: parameters by name.
        critic: parameters by name.
        max_norm: what is longer is scaled down to this norm.
        learns: False takes the policy's gradients away, so that an optimizer leaves it as it is.
        iteration: number of the iteration, for the message.

    Raises:
        FloatingPointError: a norm is no finite number.
    """
    if not learns:
        for parameter in policy.values():
            parameter.grad = None
    norms = {
        "grad_norm": torch.nn.utils.clip_grad_norm_(policy.values(), max_norm),
        "critic_grad_norm": torch.nn.utils.clip_grad_norm_(critic.values(), max_norm),
    }
    for name, norm in norms.items():
        if not torch.isfinite(norm):
            raise FloatingPointError(
                f"The {name} is {float(norm)} at iteration {iteration}; expected a finite number. Lower the learning "
                'rates of the algorithm, or use model.dtype = "float32".'
            )
    return {name: float(norm) for name, norm in norms.items()}
