"""Products in bfloat16 with everything else in float32."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from stratagem.algorithms.checks import check_ratio_gap
from stratagem.errors import ConfigError
from stratagem.models.base import GenerationConfig
from stratagem.models.catalog import LoraSettings, ModelConfig, build_tiny
from stratagem.models.local import LocalModel
from stratagem.models.mixed import MixedLinear, padded, rounded_products, use_mixed_products

ROWS = [((1, 5, 9, 12), (7, 3)), ((1, 5, 9, 13), (7, 4, 8)), ((1, 5, 9, 12), (6,))]


def tiny(**settings: object) -> LocalModel:
    model, tokenizer = build_tiny()
    return LocalModel(model, tokenizer, ModelConfig("tiny", **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [1, 3, 600])
@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_that_of_rounded_matrices(rows: int, bias: bool) -> None:
    layer = nn.Linear(24, 40, bias=bias)
    x = torch.randn(2, rows, 24, requires_grad=True)
    expected = nn.functional.linear(x.bfloat16().float(), layer.weight.bfloat16().float(), layer.bias)
    use_mixed_products(nn.Sequential(layer))
    assert type(layer) is MixedLinear
    found = layer(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2**-8, atol=1e-3)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected, rtol=2**-8, atol=1e-3)


def test_gradients_are_those_of_the_float32_weights() -> None:
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, 1.0 + 2**-12]]))  # the second is 1 in bfloat16
    use_mixed_products(nn.Sequential(layer))
    x = torch.tensor([[2.0, -4.0]], requires_grad=True)
    y = layer(x)
    assert (y - layer.bias).item() == -3.0
    y.backward()
    assert layer.weight.grad.dtype == torch.float32
    assert layer.weight.grad.tolist() == [[2.0, -4.0]]
    assert layer.bias.grad.tolist() == [1.0]
    assert x.grad.tolist() == [[0.5, 1.0]]
    assert layer.weight[0, 1].item() == 1.0 + 2**-12  # the weight itself is not rounded


def test_a_change_of_weights_renews_the_copy() -> None:
    layer = nn.Linear(4, 4, bias=False)
    use_mixed_products(nn.Sequential(layer))

    def fresh() -> bool:
        return torch.equal(layer.low(), layer.weight.detach().bfloat16())

    kept = layer.low()
    assert layer.low() is kept, "nothing changed, so nothing is rounded again"
    for optimizer in (
        torch.optim.AdamW(layer.parameters(), lr=0.5, foreach=True),
        torch.optim.AdamW(layer.parameters(), lr=0.5, foreach=False),
        torch.optim.SGD(layer.parameters(), lr=0.5),
        torch.optim.AdamW(layer.parameters(), lr=0.5, fused=True),
    ):
        layer.weight.grad = torch.ones_like(layer.weight)
        optimizer.step()
        layer.forget()  # as ``weights_changed`` does; a fused optimiser does not count its change
        assert fresh()
    with torch.no_grad():
        layer.weight.copy_(torch.randn(4, 4))
    assert fresh()
    before = layer.weight.data
    layer.weight.data = torch.randn(4, 4)
    assert fresh()
    layer.weight.data = before
    assert fresh()
    layer.load_state_dict({"weight": torch.randn(4, 4)})
    assert fresh()
    twin = copy.deepcopy(layer)
    assert torch.equal(twin.low(), layer.low())
    with torch.no_grad():
        twin.weight.add_(1)
    assert not torch.equal(twin.low(), layer.low())
    assert list(layer.state_dict()) == ["weight"]


def test_a_copy_made_while_sampling_can_be_trained_with() -> None:
    layer = nn.Linear(4, 4)
    use_mixed_products(nn.Sequential(layer))
    with torch.inference_mode():
        layer(torch.randn(2, 4))
    x = torch.randn(2, 4, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None


def test_policy_and_reference_take_turns_without_being_rounded_again() -> None:
    layer = nn.Linear(4, 4, bias=False)
    use_mixed_products(nn.Sequential(layer))
    policy, reference = layer.weight.data, torch.randn(4, 4)
    kept = layer.low()
    layer.weight.data = reference
    other = layer.low()
    layer.weight.data = policy
    assert layer.low() is kept
    layer.weight.data = reference
    assert layer.low() is other and not torch.equal(kept, other)


def test_weights_changed_forgets_what_trains_and_keeps_what_does_not() -> None:
    model = tiny(trainable_layers=1, matmul_dtype="bfloat16")
    model.logprobs(ROWS)
    layers = [module for module in model.module.modules() if type(module) is MixedLinear]
    before = {id(layer): layer.low() for layer in layers}
    for parameter in model.named_parameters().values():
        parameter.data.add_(1.0)  # not counted
    model.weights_changed()
    renewed = [layer.low() is not before[id(layer)] for layer in layers]
    assert renewed == [layer.weight.requires_grad for layer in layers]
    assert any(renewed) and not all(renewed)


def test_a_frozen_layer_keeps_no_input_for_its_backward_pass() -> None:
    layer = nn.Linear(4, 4, bias=False)
    layer.weight.requires_grad_(False)
    use_mixed_products(nn.Sequential(layer))
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        layer(torch.randn(3, 4, requires_grad=True)).sum()
    assert [tensor is layer.low() for tensor in saved] == [True]


def test_few_numbers_of_rows_are_multiplied() -> None:
    sizes = {padded(count) for count in range(1, 2049)}
    assert len(sizes) == 33 and min(sizes) == 8
    assert all(count <= padded(count) <= max(8, 1.25 * count) for count in range(1, 2049))


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)])
def test_a_model_gives_nearly_the_same(lora: LoraSettings | None) -> None:
    exact, mixed = tiny(lora=lora), tiny(lora=lora, matmul_dtype="bfloat16")
    assert any(type(module) is MixedLinear for module in mixed.module.modules())
    gradients = []
    for model in (exact, mixed):
        batch = model.logprobs(ROWS)
        assert batch.logprobs.dtype == torch.float32
        (batch.logprobs.sum() + batch.entropy.sum()).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.named_parameters().values()]))
    found, expected = (model.logprobs(ROWS).logprobs for model in (mixed, exact))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.999


def test_sampling_and_training_see_the_same_distribution() -> None:
    model = tiny(matmul_dtype="bfloat16")
    uniforms = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)).numpy()
    rows = model.sample([(1, 5, 9, 12, k) for k in range(6)], GenerationConfig(max_new_tokens=5), uniforms)
    trained = model.logprobs([(row.prompt_ids, tuple(row.completion_ids)) for row in rows]).logprobs
    sampled = torch.tensor([value for row in rows for value in row.logprobs])
    torch.testing.assert_close(trained.detach(), sampled, rtol=0, atol=0.05)


def test_the_setting_of_the_process_comes_back() -> None:
    before = torch.get_float32_matmul_precision()
    with rounded_products(False):
        assert torch.get_float32_matmul_precision() == before
    with pytest.raises(ZeroDivisionError), rounded_products(True):
        assert torch.get_float32_matmul_precision() == "medium"
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before


def test_a_model_in_float32_leaves_the_setting_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the setting of the process was touched")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", refuse)
    tiny().logprobs(ROWS).logprobs.sum().backward()


def test_rounding_of_the_first_ratio_is_told_from_a_mistake() -> None:
    exact, mixed = tiny(), tiny(matmul_dtype="bfloat16")
    check_ratio_gap(mixed, 0.6, 0.001)
    check_ratio_gap(exact, 0.01, 0.5)
    for model, gap, approx_kl in ((exact, 0.2, 0.0), (mixed, 0.2, 0.05)):
        with pytest.raises(RuntimeError, match=r"importance ratio is off by 0\.200"):
            check_ratio_gap(model, gap, approx_kl)


@pytest.mark.parametrize("settings", [{"gradient_checkpointing": True}, {"trainable_layers": 1}])
def test_other_settings_of_a_model_change_nothing(settings: dict[str, object]) -> None:
    found = []
    for more in ({}, settings):
        model = tiny(matmul_dtype="bfloat16", **more)
        for _ in range(2):
            batch = model.logprobs(ROWS)
        batch.logprobs.sum().backward()
        found.append((batch.logprobs.detach(), model.named_parameters()))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-2)
    for name, parameter in found[1][1].items():
        torch.testing.assert_close(parameter.grad, found[0][1][name].grad, rtol=0.05, atol=0.02)


def test_the_reference_is_the_policy_of_before() -> None:
    model = tiny(matmul_dtype="bfloat16")
    model.keep_reference()
    before = model.logprobs(ROWS).logprobs.detach()
    with torch.no_grad():
        for parameter in model.named_parameters().values():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.weights_changed()
    after = model.logprobs(ROWS).logprobs.detach()
    assert (after - before).abs().max() > 1e-3
    assert torch.equal(model.reference_logprobs(ROWS), before)
    assert torch.equal(model.logprobs(ROWS).logprobs.detach(), after)


def test_bfloat16_weights_have_nothing_to_round() -> None:
    with pytest.raises(ConfigError, match="leave one of them out"):
        ModelConfig("tiny", dtype="bfloat16", matmul_dtype="bfloat16")
