"""Products of few rows, the other way around."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from stratagem.models.catalog import LoraSettings, ModelConfig, build_tiny
from stratagem.models.local import LocalModel
from stratagem.models.thin import ThinLinear, thin_linear, use_thin_products


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 8, 9, 12, 15, 16, 17, 64, 256, 257])
def test_the_product_is_that_of_a_linear_layer(rows: int, bias: bool) -> None:
    rng = torch.Generator().manual_seed(rows)
    x, w = torch.randn(1, rows, 24, generator=rng), torch.randn(40, 24, generator=rng)
    b = torch.randn(40, generator=rng) if bias else None
    found = thin_linear(x, w, b)
    assert found.shape == (1, rows, 40)
    torch.testing.assert_close(found, nn.functional.linear(x, w, b), rtol=1e-5, atol=1e-5)


def test_rows_in_several_dimensions_and_none_at_all() -> None:
    x, w = torch.randn(2, 3, 5), torch.randn(7, 5)
    torch.testing.assert_close(thin_linear(x, w), x @ w.T)
    assert thin_linear(torch.empty(0, 5), w).shape == (0, 7)


def test_other_types_take_the_usual_way() -> None:
    x, w = torch.randn(3, 8, dtype=torch.bfloat16), torch.randn(4, 8, dtype=torch.bfloat16)
    assert torch.equal(thin_linear(x, w), nn.functional.linear(x, w))


def test_a_layer_keeps_its_weights_names_and_gradients() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2, bias=False))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(3, 6)
    expected = model(x)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    use_thin_products(model)
    assert [type(layer) for layer in model] == [ThinLinear, nn.ReLU, ThinLinear]
    assert list(model.state_dict()) == list(before)
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected.detach())
        torch.testing.assert_close(copy.deepcopy(model)(x), expected.detach())
    model(x).sum().backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_models_use_it_below_an_adapter_too() -> None:
    for lora in (None, LoraSettings(rank=2)):
        model, tokenizer = build_tiny()
        local = LocalModel(model, tokenizer, ModelConfig("tiny", lora=lora))
        plain = [name for name, m in local.module.named_modules() if type(m) is nn.Linear]
        assert not [name for name in plain if "lora_" not in name]
        assert any(isinstance(m, ThinLinear) for m in local.module.modules())
