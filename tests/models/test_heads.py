"""Heads on a model's hidden states: the states themselves, gradients, slow copies, and what is saved."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stratagem.errors import ConfigError
from stratagem.models.catalog import LoraSettings
from stratagem.models.heads import HeadConfig, Heads, trunk_states
from stratagem.models.local import LocalModel
from stratagem.runs.checkpoint import load_checkpoint, save_checkpoint

MakeLocal = Callable[..., LocalModel]

# Shared beginnings, an equal row, a completion of one token.
ROWS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((5, 6, 7, 8, 9), (10, 11, 12)),
    ((5, 6, 7, 8, 9), (10, 13)),
    ((5, 6, 7, 20), (21,)),
    ((5, 6, 7, 8, 9), (10, 11, 12)),
]
SMALL = HeadConfig(layers=(16,))


def filled(width: int = 32, config: HeadConfig = SMALL, **settings: Any) -> Heads:
    """Return heads whose last layer is not zero, as after some training."""
    heads = Heads(width, {"value": 1}, config, **settings)
    generator = torch.Generator().manual_seed(3)
    for parameter in heads.named_parameters().values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return heads


def gradients(model: LocalModel, heads: Heads, rows: Any, by_row: bool, trunk: Any = "shared") -> dict[str, Tensor]:
    """Return the gradient of a mix of values and log-probabilities, as an actor-critic loss is."""
    batch = (model.logprobs_by_row if by_row else model.logprobs)(rows)
    values = heads("value", trunk_states(model, rows, batch, trunk))
    weights = torch.linspace(-1, 2, len(values))
    loss = (weights * values.square()).sum() + (weights.flip(0) * batch.logprobs).sum()
    named = {**model.named_parameters(), **heads.named_parameters()}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: torch.zeros_like(named[name]) if g is None else g for name, g in zip(named, found, strict=True)}


def test_the_states_of_a_tree_are_those_of_each_row_on_its_own(make_local: MakeLocal, architecture: str) -> None:
    model = make_local(architecture)
    tree, rows = model.logprobs(ROWS), model.logprobs_by_row(ROWS)
    assert tree.hidden.shape == (9, 32)
    torch.testing.assert_close(tree.hidden, rows.hidden, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.hidden_states(ROWS), tree.hidden, rtol=0.0, atol=0.0)
    # the state before the first token is that of the prompt, whatever follows
    assert torch.equal(tree.hidden[0], tree.hidden[3])
    assert not torch.equal(tree.hidden[0], tree.hidden[1])


def test_a_state_is_what_the_output_layer_reads(make_local: MakeLocal) -> None:
    model = make_local("llama")
    batch = model.logprobs(ROWS)
    head = model.module.get_output_embeddings()
    tokens = torch.tensor([token for _, completion in ROWS for token in completion])
    log_p = torch.log_softmax(batch.hidden @ head.weight.T, -1)
    torch.testing.assert_close(log_p.gather(1, tokens[:, None])[:, 0], batch.logprobs, rtol=1e-5, atol=1e-5)


def test_gradients_through_a_tree_are_those_of_each_row_on_its_own(make_local: MakeLocal, architecture: str) -> None:
    model, heads = make_local(architecture), filled()
    tree, rows = gradients(model, heads, ROWS, by_row=False), gradients(model, heads, ROWS, by_row=True)
    for name, gradient in rows.items():
        scale = float(gradient.abs().max()) + 1e-3
        torch.testing.assert_close(tree[name] / scale, gradient / scale, rtol=0.0, atol=1e-4)


def test_only_a_shared_trunk_feels_the_value_loss(make_local: MakeLocal) -> None:
    model, heads = make_local("llama"), filled()
    for trunk, felt in (("shared", True), ("detached", False)):
        batch = model.logprobs(ROWS)
        heads("value", trunk_states(model, ROWS, batch, trunk)).sum().backward()  # type: ignore[arg-type]
        assert any(p.grad is not None for p in model.named_parameters().values()) == felt
        assert all(p.grad is not None for p in heads.named_parameters().values())
        for parameter in (*model.named_parameters().values(), *heads.named_parameters().values()):
            parameter.grad = None


def test_the_base_trunk_does_not_follow_the_adapter(make_local: MakeLocal) -> None:
    model = make_local("llama", lora=LoraSettings(rank=2))
    batch = model.logprobs(ROWS)
    plain = trunk_states(model, ROWS, batch, "base")
    assert not plain.requires_grad
    with torch.no_grad():  # as the base is computed: products of few rows round otherwise with gradients
        without_gradients = model.hidden_states(ROWS)
    torch.testing.assert_close(plain, without_gradients, rtol=0.0, atol=1e-6)  # a new adapter adds nothing
    for parameter in model.named_parameters().values():
        parameter.data.add_(0.5)
    batch = model.logprobs(ROWS)
    assert torch.equal(trunk_states(model, ROWS, batch, "base"), plain)
    assert not torch.allclose(trunk_states(model, ROWS, batch, "detached"), plain, atol=1e-2)
    assert model.has_base and not make_local("llama").has_base


def test_states_above_frozen_layers_are_the_same_and_carry_gradients(make_local: MakeLocal) -> None:
    model, heads = make_local("llama", trainable_layers=1), filled()
    first = gradients(model, heads, ROWS, by_row=False)
    again = gradients(model, heads, ROWS, by_row=False)  # from the kept states
    whole = gradients(model, heads, ROWS, by_row=True)
    for name, gradient in whole.items():
        torch.testing.assert_close(again[name], first[name], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(again[name], gradient, rtol=1e-3, atol=1e-4)


def test_heads_start_at_zero_and_equal_seeds_give_equal_heads() -> None:
    before = torch.get_rng_state()
    heads = [Heads(8, {"value": 1, "q": 5}, HeadConfig(layers=(16, 4), seed=seed)) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    hidden = torch.ones(3, 8)
    assert heads[0]("value", hidden).tolist() == [0.0, 0.0, 0.0]
    assert heads[0]("q", hidden).shape == (3, 5)
    states = [h.state() for h in heads]
    assert list(states[0]) == [f"{name}.{n}.weight" for name in ("value", "q") for n in (0, 2, 4)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["value.0.weight"], states[2]["value.0.weight"])


def test_heads_compute_in_float32_on_a_model_that_does_not(make_local: MakeLocal) -> None:
    model = make_local("llama", dtype="bfloat16")
    batch = model.logprobs(ROWS)
    assert batch.hidden.dtype == torch.bfloat16
    assert filled()("value", batch.hidden).dtype == torch.float32


def test_slow_copies_follow_by_their_share() -> None:
    heads = Heads(2, {"q": 1}, HeadConfig(layers=()), targets=["q"])
    heads.named_parameters()["q.0.weight"].data.copy_(torch.tensor([[1.0, 2.0]]))
    hidden = torch.tensor([[1.0, 1.0]])
    assert (heads("q", hidden).item(), heads.target("q", hidden).item()) == (3.0, 0.0)
    heads.update_targets(0.25)
    assert heads.target("q", hidden).item() == 0.75  # 0 + 0.25 * 3
    heads.update_targets(0.25)
    assert heads.target("q", hidden).item() == 1.3125  # 0.75 + 0.25 * (3 - 0.75)
    heads.update_targets(1.0)
    assert heads.target("q", hidden).item() == 3.0
    assert list(heads.named_parameters()) == ["q.0.weight"]  # the copy does not train
    assert not heads.target("q", hidden).requires_grad


def test_what_is_saved_is_read_back_with_the_slow_copies(tmp_path: Path) -> None:
    heads = filled(targets=["value"])
    heads.update_targets(0.3)
    path = save_checkpoint(tmp_path, 1, {"heads": heads.state()}, {})
    assert (path / "heads.safetensors").is_file()
    other = Heads(32, {"value": 1}, SMALL, targets=["value"])
    other.load_state(load_checkpoint(path).tensors["heads"])
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(other("value", hidden), heads("value", hidden))
    assert torch.equal(other.target("value", hidden), heads.target("value", hidden))
    assert not torch.equal(other.target("value", hidden), other("value", hidden))


def test_heads_of_another_shape_are_refused() -> None:
    message = (
        "2 tensors of the saved heads are missing or have another shape, the first is 'value.0.weight'; expected those "
        "of heads value with layers=[16]. Use the settings that they were saved with."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        filled().load_state(Heads(32, {"value": 1}, HeadConfig(layers=(8,))).state())


def test_a_layer_that_holds_nothing_is_refused() -> None:
    message = "layers=[4, 0] has a width below 1; use widths of 1 or more."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        HeadConfig(layers=(4, 0))
