"""Layers that do not train are passed over where sampling has been: the same numbers, fewer computations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from stratagem.models.base import GenerationConfig
from stratagem.models.frozen import FROZEN_STATE_MODELS, LOST, ROOT, FrozenStates
from stratagem.models.local import LocalModel
from stratagem.models.tree import build_tree

Maker = Callable[..., LocalModel]
GENERATION = GenerationConfig(max_new_tokens=6, temperature=1.0)
PROMPTS = [(7, 8, 9, 10, 11, 12, 13, 14), (7, 8, 9, 10, 11, 12, 20), (7, 8, 9, 10, 11, 12, 20), (30, 31)]


def count_calls(model: LocalModel, layer: int) -> list[int]:
    calls: list[int] = []
    model.module.get_decoder().layers[layer].register_forward_hook(lambda *_: calls.append(1))
    return calls


def sample(model: LocalModel, seed: int = 0) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    uniforms = np.random.default_rng(seed).random((len(PROMPTS), GENERATION.max_new_tokens))
    rows = model.sample(PROMPTS, GENERATION, uniforms)
    return [(row.prompt_ids, tuple(row.completion_ids)) for row in rows]


@pytest.mark.parametrize("architecture", sorted(FROZEN_STATE_MODELS))
def test_learning_after_sampling_skips_the_frozen_layers_and_finds_the_same(
    make_local: Maker, architecture: str
) -> None:
    model, fresh = make_local(architecture, trainable_layers=1), make_local(architecture, trainable_layers=1)
    rows = sample(model)
    assert len({len(completion) for _, completion in rows}) >= 1
    lower, upper = count_calls(model, 0), count_calls(model, 1)
    batch, expected = model.logprobs(rows), fresh.logprobs(rows)
    assert (len(lower), len(upper)) == (0, 1)
    torch.testing.assert_close(batch.logprobs, expected.logprobs, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(batch.entropy, expected.entropy, rtol=0.0, atol=1e-5)
    for one, other in ((batch, model), (expected, fresh)):
        one.logprobs.sum().backward()  # type: ignore[no-untyped-call]
        assert all(p.grad is not None for p in other.named_parameters().values())
    for name, parameter in model.named_parameters().items():
        expected_grad = fresh.named_parameters()[name].grad
        torch.testing.assert_close(parameter.grad, expected_grad, rtol=1e-4, atol=1e-5)


def test_rows_that_were_not_sampled_are_computed_whole_and_then_known(make_local: Maker) -> None:
    model = make_local(trainable_layers=1)
    rows = [*sample(model), ((7, 8, 99), (5, 6))]
    lower = count_calls(model, 0)
    first = model.logprobs(rows)
    second = model.logprobs(rows)
    assert len(lower) == 1
    torch.testing.assert_close(second.logprobs, first.logprobs, rtol=0.0, atol=1e-6)


def test_states_outlive_a_step_of_learning_and_end_with_the_next_collection(make_local: Maker) -> None:
    model = make_local(trainable_layers=1)
    rows = sample(model)
    model.weights_changed()  # as after an optimizer step between two minibatches
    lower = count_calls(model, 0)
    model.logprobs(rows)
    assert len(lower) == 0
    model.sample([(40, 41)], GENERATION, np.full((1, 6), 0.5))
    lower.clear()
    model.logprobs(rows)
    assert len(lower) == 1


def test_trained_upper_layers_are_seen(make_local: Maker) -> None:
    model = make_local(trainable_layers=1)
    rows = sample(model)
    before = model.logprobs(rows).logprobs.detach().clone()
    with torch.no_grad():
        for parameter in model.named_parameters().values():
            parameter.mul_(1.5)
    model.weights_changed()
    after = model.logprobs(rows).logprobs.detach()
    assert (after - before).abs().max() > 1e-2
    again = model.logprobs_by_row(rows).logprobs.detach()
    torch.testing.assert_close(after, again, rtol=0.0, atol=1e-4)


def test_without_room_everything_is_computed_as_before(make_local: Maker) -> None:
    model, roomy = make_local(trainable_layers=1, cache_tokens=24), make_local(trainable_layers=1)
    rows = sample(model)
    more = [*rows, (tuple(range(100, 130)), (3, 4))]
    torch.testing.assert_close(model.logprobs(more).logprobs, roomy.logprobs(more).logprobs, rtol=0.0, atol=1e-5)


def test_numbers_follow_the_path_and_end_with_the_room(make_local: Maker) -> None:
    decoder = make_local(trainable_layers=1).module.get_decoder()
    states = FrozenStates(decoder, 1, width=32, capacity=3)
    first = states.place(ROOT, 5)
    assert states.place(first, 5) == 1
    assert states.place(ROOT, 5) == first
    assert states.place(ROOT, 6) == 2
    assert states.place(2, 7) == LOST
    assert states.place(LOST, 8) == LOST
    assert len(states) == 3
    assert states.of_tree(build_tree([((5, 7), (1,))])) is None


def test_all_layers_trained_keep_no_states(make_local: Maker) -> None:
    model = make_local(trainable_layers=2)
    lower = count_calls(model, 0)
    model.logprobs(sample(model))
    assert len(lower) > 1
