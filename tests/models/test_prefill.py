"""A prompt longer than a pass is computed in pieces: the same tokens and log-probabilities, others not delayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from stratagem.models.attention import KeyValueStore
from stratagem.models.base import GenerationConfig
from stratagem.models.catalog import ModelConfig, build_tiny
from stratagem.models.decoding import Row, TreeSampler
from stratagem.models.local import LocalModel
from stratagem.models.tree import build_tree
from stratagem.seeding import uniforms

Maker = Callable[..., LocalModel]
CONFIG = GenerationConfig(max_new_tokens=8)


class Passes:
    """The forward function of a model that notes how many tokens each pass computes."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        self.sizes: list[int] = []

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, store: KeyValueStore) -> torch.Tensor:
        self.sizes.append(len(ids))
        return self.model._forward_store(ids, positions, store)


def make_sampler(model: LocalModel, budget: int, *, capacity: int = 4096, **settings: Any) -> TreeSampler:
    config = model.module.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = (capacity, config.num_key_value_heads, width)
    layers = range(config.num_hidden_layers)
    defaults: dict[str, Any] = dict(
        forward=model._forward_store,
        head=model._head,
        store=KeyValueStore([torch.empty(shape) for _ in layers], [torch.empty(shape) for _ in layers]),
        stop_ids=frozenset(),
        decode=model.decode,
        context_length=model.context_length,
        max_tokens_per_pass=budget,
    )
    return TreeSampler(**(defaults | settings))


def finish(sampler: TreeSampler, rows: Sequence[Row]) -> list[tuple[int, ...]]:
    for _ in range(10_000):
        if all(row.finish is not None for row in rows):
            return [tuple(row.completion_ids) for row in rows]
        sampler.advance()
    raise AssertionError("the sampler makes no progress")


def draws(number: int, count: int = 8) -> np.ndarray:
    return uniforms(count, "pieces", number)


def make_prompts() -> list[tuple[int, ...]]:
    """Prompts that part from each other in the middle of a piece, one that ends inside another, two that are equal."""
    rng = np.random.default_rng(4)
    start = rng.integers(3, 259, 33).tolist()
    long = tuple([*start, *rng.integers(3, 259, 30).tolist()])
    other = tuple([*start, *rng.integers(3, 259, 17).tolist()])
    return [long, other, long, long[:40], (9,), tuple(rng.integers(3, 259, 25).tolist())]


PROMPTS = make_prompts()
LONGEST = max(map(len, PROMPTS)) + CONFIG.max_new_tokens - 1


def sample(sampler: TreeSampler, expected: Sequence[tuple[tuple[int, ...], ...]] | None = None) -> list[Row]:
    rows = [
        sampler.submit(prompt, CONFIG, draws(number), expected[number] if expected else ())
        for number, prompt in enumerate(PROMPTS)
    ]
    finish(sampler, rows)
    return rows


def logprobs(rows: Sequence[Row]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row.logprobs])


@pytest.mark.parametrize(
    ("budget", "capacity", "kind"),
    [
        (1, LONGEST, "none"),
        (7, LONGEST, "none"),
        (7, LONGEST + 11, "right"),
        (7, 4096, "wrong"),
        (13, LONGEST + 11, "none"),
        (40, LONGEST, "right"),
        (40, 4096, "none"),
        (63, LONGEST + 11, "wrong"),
    ],
    ids=str,
)
def test_pieces_give_the_tokens_and_logprobs_of_one_pass(
    make_local: Maker, budget: int, capacity: int, kind: str
) -> None:
    model = make_local()
    whole = sample(make_sampler(model, 10_000))
    answers = [tuple(row.completion_ids) for row in whole]
    expected = {
        "none": None,
        "right": [(answer, (3, 4, 5)) for answer in answers],
        "wrong": [(tuple(range(3, 3 + 3 * budget)),) for _ in answers],
    }[kind]
    passes = Passes(model)
    rows = sample(make_sampler(model, budget, capacity=capacity, forward=passes), expected)
    assert [tuple(row.completion_ids) for row in rows] == answers
    torch.testing.assert_close(logprobs(rows), logprobs(whole), rtol=1e-5, atol=1e-5)
    assert max(passes.sizes) <= budget


def test_pieces_attend_within_their_window(architecture: str, make_local: Maker) -> None:
    model = make_local(architecture)
    whole, rows = sample(make_sampler(model, 10_000)), sample(make_sampler(model, 7))
    assert [row.completion_ids for row in rows] == [row.completion_ids for row in whole]
    torch.testing.assert_close(logprobs(rows), logprobs(whole), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        plain = model.logprobs_by_row([(row.prompt_ids, tuple(row.completion_ids)) for row in rows]).logprobs
    torch.testing.assert_close(logprobs(rows), plain, rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("budget", [7, 13, 40])
def test_pieces_compute_no_token_twice(make_local: Maker, budget: int) -> None:
    prompts = [prompt for prompt in PROMPTS if prompt != PROMPTS[0][:40]]  # its last state is known only when asked for
    sampler = make_sampler(make_local(), budget)
    rows = [sampler.submit(prompt, CONFIG, draws(number)) for number, prompt in enumerate(prompts)]
    completions = finish(sampler, rows)
    assert sampler.stats.computed_tokens == build_tree(list(zip(prompts, completions, strict=True))).num_nodes


def test_a_long_prompt_delays_nobody_who_draws(make_local: Maker) -> None:
    model = make_local()
    passes = Passes(model)
    sampler = make_sampler(model, 10, forward=passes)
    short = [sampler.submit((5, 6), CONFIG, draws(0)), sampler.submit((7, 8), CONFIG, draws(1))]
    sampler.advance()
    long = sampler.submit(PROMPTS[0], CONFIG, draws(2))
    drawn = [[len(row.completion_ids) for row in (*short, long)]]
    for _ in range(9):
        sampler.advance()
        drawn.append([len(row.completion_ids) for row in (*short, long)])
    # 63 tokens in pieces of 10 - 2 = 8 while two others draw: 7 passes leave 7. The two are done by then, having drawn
    # a token in each pass, and the eighth pass computes the rest and draws the first token.
    assert drawn == [[n, n, 0] for n in range(1, 8)] + [[8, 8, 0], [8, 8, 1], [8, 8, 2]]
    assert passes.sizes == [4, *[10] * 7, 7, 1]


def test_a_long_prompt_that_came_first_delays_nobody_who_draws(make_local: Maker) -> None:
    sampler = make_sampler(make_local(), 10)
    long = sampler.submit(PROMPTS[0], CONFIG, draws(2))
    short = sampler.submit((5,), CONFIG, draws(0))
    for number in range(1, 9):
        sampler.advance()
        assert len(short.completion_ids) == number
        # 9 tokens of it in each of 7 passes
        assert len(long.completion_ids) == max(0, number - 6)


def test_clear_in_the_middle_of_a_prompt_begins_it_again(make_local: Maker) -> None:
    model = make_local()
    expected = [row.completion_ids for row in sample(make_sampler(model, 10_000))]
    sampler = make_sampler(model, 20)
    rows = [sampler.submit(prompt, CONFIG, draws(number)) for number, prompt in enumerate(PROMPTS)]
    sampler.advance()
    sampler.advance()
    with torch.no_grad():  # keys and values of before must not be used again
        for tensor in (*sampler._store.keys, *sampler._store.values):
            tensor.fill_(float("nan"))
    sampler.clear()
    finish(sampler, rows)
    assert [row.completion_ids for row in rows] == expected


def test_frozen_states_of_pieces_serve_the_learner(make_local: Maker) -> None:
    model, fresh = make_local(trainable_layers=1), make_local(trainable_layers=1)
    rows = sample(make_sampler(model, 7, frozen=model._frozen))
    calls: list[int] = []
    model.module.get_decoder().layers[0].register_forward_hook(lambda *_: calls.append(1))
    pairs = [(row.prompt_ids, tuple(row.completion_ids)) for row in rows]
    with torch.no_grad():
        found, computed = model.logprobs(pairs).logprobs, fresh.logprobs(pairs).logprobs
    assert calls == []
    torch.testing.assert_close(found, computed, rtol=0.0, atol=1e-5)


def test_a_prompt_of_4000_tokens_takes_passes_of_the_budget(tokenizer: PreTrainedTokenizerBase) -> None:
    model = LocalModel(build_tiny()[0], tokenizer, ModelConfig("tiny"))
    prompt = tuple(np.random.default_rng(0).integers(3, 259, 4000).tolist())
    passes = Passes(model)
    sampler = make_sampler(model, 1500, capacity=4096, forward=passes)
    rows = [sampler.submit(prompt, CONFIG, draws(number)) for number in range(2)]
    finish(sampler, rows)
    assert passes.sizes[:3] == [1500, 1500, 1000]
    with torch.no_grad():
        plain = model.logprobs_by_row([(row.prompt_ids, tuple(row.completion_ids)) for row in rows]).logprobs
    torch.testing.assert_close(logprobs(rows), plain, rtol=0.0, atol=1e-4)
