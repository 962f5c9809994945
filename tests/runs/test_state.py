from __future__ import annotations

import json
import math
import random
import re
from typing import Any

import numpy as np
import pytest
import torch

from stratagem.runs.state import flatten_optimizer, flatten_scheduler, flatten_state, unflatten_state


def through_json(state: Any) -> Any:
    tensors, encoded = flatten_state(state)
    return unflatten_state(tensors, json.loads(json.dumps(encoded, allow_nan=False)))


@pytest.mark.parametrize(
    "state",
    [
        {"a": 1, "b": [1.5, "x", None, True]},
        (1, (2, [3])),
        {0: "int key", (1, 2): "tuple key"},
        {"$tensor": "not a tensor", "$float": 1},
        b"\x00\xff",
        [math.inf, -math.inf, 0.1, -0.0],
        random.Random(3).getstate(),
        np.random.Generator(np.random.Philox(key=2**127 + 5)).bit_generator.state["state"]["key"].tolist(),
    ],
)
def test_python_values_survive_json(state: Any) -> None:
    back = through_json(state)
    assert back == state
    assert repr(back) == repr(state)


def test_nan_survives_json() -> None:
    assert math.isnan(through_json([math.nan])[0])


@pytest.mark.parametrize("dtype", ["<f4", "<u8", "|b1", ">i2"])
def test_arrays_keep_type_shape_and_bits(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    back = through_json({"a": array})["a"]
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)
    back[0, 0] = 1  # writable


def test_a_generator_continues_where_it_was() -> None:
    rng = np.random.default_rng(5)
    rng.random(3)
    state = through_json(rng.bit_generator.state)
    expected = rng.random(4)
    other = np.random.default_rng(0)
    other.bit_generator.state = state
    assert np.array_equal(other.random(4), expected)


def test_tensors_at_equal_paths_stay_apart() -> None:
    state = {"a.b": torch.tensor(1), "a": {"b": torch.tensor(2)}}
    back = through_json(state)
    assert (int(back["a.b"]), int(back["a"]["b"])) == (1, 2)


def test_a_function_is_refused_rather_than_pickled() -> None:
    message = (
        "a.f is a builtin_function_or_method, which a checkpoint cannot hold without pickle; "
        "store plain numbers, texts, arrays or tensors instead."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        flatten_state({"a": {"f": len}})


def _train(steps: int, model: torch.nn.Module, optimizer: Any, scheduler: Any, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        loss = model(torch.randn(4, 3, generator=rng)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()


def _make() -> tuple[torch.nn.Module, torch.optim.AdamW, torch.optim.lr_scheduler.LRScheduler]:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) / 10 + index)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.95), weight_decay=0.1, amsgrad=True)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)


def test_adamw_and_its_schedule_continue_bit_for_bit() -> None:
    model, optimizer, scheduler = _make()
    _train(3, model, optimizer, scheduler, seed=1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    saved = [
        ({name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(encoded, allow_nan=False)))
        for tensors, encoded in (flatten_optimizer(optimizer), flatten_scheduler(scheduler))
    ]
    _train(3, model, optimizer, scheduler, seed=2)

    other, other_optimizer, other_scheduler = _make()
    other.load_state_dict(weights)
    other_optimizer.load_state_dict(unflatten_state(*saved[0]))
    other_scheduler.load_state_dict(unflatten_state(*saved[1]))
    _train(3, other, other_optimizer, other_scheduler, seed=2)

    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert other_scheduler.get_last_lr() == scheduler.get_last_lr()


def test_the_optimizer_state_is_equal_down_to_types() -> None:
    model, optimizer, scheduler = _make()
    _train(2, model, optimizer, scheduler, seed=1)
    tensors, encoded = flatten_optimizer(optimizer)
    back = unflatten_state(tensors, json.loads(json.dumps(encoded, allow_nan=False)))
    assert repr(back) == repr(optimizer.state_dict())
