"""A moving average of the trained weights, which plays the panels and is what a run saves.

After each iteration

    theta_avg <- d theta_avg + (1 - d) theta,    d = min(decay, (n - 1) / n) at iteration n

so that the first iterations are averaged evenly and the warm-started weights are forgotten. Training goes on from
theta. Many small steps at a high rate leave a policy that is better on some boards today and on others tomorrow; the
average keeps what these have in common.

Source: Polyak and Juditsky 1992, "Acceleration of stochastic approximation by averaging"; not in Dilkes et al. 2025,
a remedy for the inconsistency between runs that they report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from stratagem.models.base import TrainableModel

__all__ = ["WeightAverage"]


class WeightAverage:
    """The average, and how many iterations are in it."""

    def __init__(self, model: TrainableModel, decay: float) -> None:
        """Start from the present weights; they count only until the first :meth:`update`."""
        self.model = model
        self.decay = decay
        self.number = 0
        self.values = {name: p.detach().float().clone() for name, p in model.named_parameters().items()}
        """In float32 whatever the dtype of the model: a small part of a difference would be lost in bfloat16."""

    @torch.no_grad()
    def update(self) -> None:
        """Take in the present weights."""
        self.number += 1
        decay = min(self.decay, (self.number - 1) / self.number)
        parameters = self.model.named_parameters()
        for name, value in self.values.items():
            value.lerp_(parameters[name].detach().float(), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average into the model, and the trained weights back at the end."""
        trained = {name: p.detach().clone() for name, p in self.model.named_parameters().items()}
        self._put(self.values)
        try:
            yield
        finally:
            self._put(trained)

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters().items():
            parameter.copy_(values[name])
        self.model.weights_changed()

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds: the values by the names of the parameters (not copies)."""
        return dict(self.values)

    def load_state(self, tensors: Mapping[str, Tensor], number: int) -> None:
        """Put back what :meth:`state` gave after ``number`` iterations.

        Raises:
            KeyError: a parameter is missing.
        """
        self.number = number
        for name, value in self.values.items():
            value.copy_(tensors[name])
