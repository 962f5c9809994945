"""Products in bfloat16 against products in float32, weights in float32 on both sides: the tree in both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from measure import Timing, alternate
from sampling import EndlessModel
from training import tree_pass
from workloads import Workload

from stratagem.models.catalog import ModelConfig

__all__ = ["PrecisionResult", "Sides", "compare_sampling", "compare_training"]


class Sides:
    """The same weights twice."""

    def __init__(self, name: str) -> None:
        """Load both."""
        self.mixed = EndlessModel.load(ModelConfig(name=name, matmul_dtype="bfloat16"))
        self.exact = EndlessModel.load(ModelConfig(name=name))


@dataclass(frozen=True)
class PrecisionResult:
    """One comparison."""

    workload: Workload
    timing: Timing
    gap: float
    """Mean distance of a log-probability from that of float32."""


def compare_training(sides: Sides, workload: Workload, repeats: int) -> PrecisionResult:
    """Time forward and backward of both."""
    with torch.no_grad():
        found, expected = (side.logprobs(workload.rows).logprobs for side in (sides.mixed, sides.exact))

    def run(model: EndlessModel) -> None:
        tree_pass(model, workload.rows)
        model.module.zero_grad(set_to_none=True)

    timing = alternate(lambda: run(sides.mixed), lambda: run(sides.exact), repeats)
    return PrecisionResult(workload, timing, float((found - expected).abs().mean()))


def compare_sampling(sides: Sides, workload: Workload, repeats: int) -> PrecisionResult:
    """Time sampling of both; the draws differ where rounding decides."""

    def run(model: EndlessModel) -> None:
        model.draw(workload, 0)

    return PrecisionResult(workload, alternate(lambda: run(sides.mixed), lambda: run(sides.exact), repeats), 0.0)
