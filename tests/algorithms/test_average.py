from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stratagem.algorithms.average import WeightAverage


class Weights:
    """One parameter of two numbers that count how often they were changed."""

    def __init__(self) -> None:
        self.parameter = torch.nn.Parameter(torch.tensor([8.0, -8.0]))
        self.changes = 0

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        return {"w": self.parameter}

    def weights_changed(self) -> None:
        self.changes += 1

    def set(self, *values: float) -> None:
        with torch.no_grad():
            self.parameter.copy_(torch.tensor(values))


def after(weights: Weights, average: WeightAverage, *values: float) -> list[float]:
    weights.set(*values)
    average.update()
    return average.state()["w"].tolist()


def test_golden_values() -> None:
    weights: Any = Weights()
    average = WeightAverage(weights, decay=0.75)
    assert after(weights, average, 1.0, 0.0) == [1.0, 0.0]  # d = min(0.75, 0): the start is forgotten
    assert after(weights, average, 3.0, 4.0) == [2.0, 2.0]  # d = 1/2
    assert after(weights, average, 5.0, 8.0) == pytest.approx([3.0, 4.0])  # d = 2/3
    assert after(weights, average, 7.0, 0.0) == pytest.approx([4.0, 3.0])  # d = 3/4, here and from now on
    assert after(weights, average, 0.0, 11.0) == pytest.approx([3.0, 5.0])


def test_the_average_is_in_the_model_inside_the_block_only_also_after_an_error() -> None:
    weights: Any = Weights()
    average = WeightAverage(weights, decay=0.5)
    after(weights, average, 1.0, 1.0)
    after(weights, average, 3.0, 3.0)
    with pytest.raises(ValueError), average.applied():
        assert weights.parameter.tolist() == [2.0, 2.0]
        assert weights.changes == 1  # samplers forget what they computed with other weights
        raise ValueError
    assert weights.parameter.tolist() == [3.0, 3.0]
    assert average.state()["w"].tolist() == [2.0, 2.0]
    assert weights.changes == 2


def test_the_optimizer_still_moves_the_parameter_that_it_was_made_with() -> None:
    weights: Any = Weights()
    average = WeightAverage(weights, decay=0.5)
    optimizer = torch.optim.SGD([weights.parameter], lr=1.0)
    with average.applied():
        pass
    weights.parameter.sum().backward()
    optimizer.step()
    assert weights.named_parameters()["w"].tolist() == [7.0, -9.0]


def test_small_steps_are_not_lost_in_bfloat16() -> None:
    weights: Any = Weights()
    weights.parameter = torch.nn.Parameter(torch.tensor([8.0, -8.0], dtype=torch.bfloat16))
    average = WeightAverage(weights, decay=0.9)
    after(weights, average, 1.0, 1.0)
    moved = [after(weights, average, 1.0078125, 1.0)[0] for _ in range(20)]  # the next number after 1 in bfloat16
    assert moved == sorted(moved) and moved[0] > 1.003 and moved[-1] > 1.006
    with average.applied():
        assert weights.parameter.dtype == torch.bfloat16
    assert weights.parameter.tolist() == [1.0078125, 1.0]


def test_a_saved_average_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    values = [(1.0, 2.0), (3.0, -1.0), (0.5, 0.25), (9.0, 1.0)]
    whole: Any = Weights()
    average = WeightAverage(whole, decay=0.6)
    expected = [after(whole, average, *pair) for pair in values]
    parts: Any = Weights()
    first = WeightAverage(parts, decay=0.6)
    for pair in values[:2]:
        after(parts, first, *pair)
    save_file(first.state(), tmp_path / "a.safetensors")
    second = WeightAverage(parts, decay=0.6)
    second.load_state(load_file(tmp_path / "a.safetensors"), 2)
    assert [after(parts, second, *pair) for pair in values[2:]] == expected[2:]


def test_a_parameter_that_is_missing_is_not_passed_over() -> None:
    weights: Any = SimpleNamespace(named_parameters=Weights().named_parameters, weights_changed=lambda: None)
    with pytest.raises(KeyError):
        WeightAverage(weights, decay=0.5).load_state({}, 1)
