from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from stratagem.errors import ModelError
from stratagem.models.attention import KeyValueStore
from stratagem.models.base import GenerationConfig
from stratagem.models.catalog import ModelConfig, build_tiny
from stratagem.models.decoding import Row, TreeSampler
from stratagem.models.distribution import distributions
from stratagem.models.local import LocalModel
from stratagem.models.tree import build_tree
from stratagem.seeding import uniforms
from stratagem.types import Finish

Maker = Callable[..., LocalModel]
EOS = 2


def make_sampler(model: LocalModel, *, capacity: int = 4096, **settings: Any) -> TreeSampler:
    """Return a sampler with a store of its own size; no token ends a completion unless said so."""
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
    )
    return TreeSampler(**(defaults | settings))


def finish(sampler: TreeSampler, rows: Sequence[Row]) -> list[tuple[int, ...]]:
    for _ in range(10_000):
        if all(row.finish is not None for row in rows):
            return [tuple(row.completion_ids) for row in rows]
        sampler.advance()
    raise AssertionError("the sampler makes no progress")


def draws(number: int, count: int = 16) -> np.ndarray:
    return uniforms(count, "decoding", number)


CONFIG = GenerationConfig(max_new_tokens=9)


def make_prompts() -> list[tuple[int, ...]]:
    """Prompts as an agent makes them: one beginning, equal states, one that is the beginning of another."""
    rng = np.random.default_rng(1)
    start = rng.integers(3, 259, 20).tolist()
    states = [tuple([*start, *rng.integers(3, 259, n).tolist()]) for n in (1, 3, 6, 10)]
    return [*states, states[1], states[1], states[2], tuple(start), states[3][:-2], (7,)]


PROMPTS = make_prompts()


def sample_alone(model: LocalModel) -> list[tuple[int, ...]]:
    """Each request in a sampler of its own."""
    found = []
    for number, prompt in enumerate(PROMPTS):
        sampler = make_sampler(model)
        found += finish(sampler, [sampler.submit(prompt, CONFIG, draws(number))])
    return found


# ---- the same tokens whatever else happens ---------------------------------------------------------------------------


LONGEST = max(map(len, PROMPTS)) + CONFIG.max_new_tokens - 1


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ({}, 1),
        ({}, -1),
        ({"max_tokens_per_pass": 1}, 1),
        ({"max_tokens_per_pass": 7}, -1),
        ({"capacity": LONGEST}, 1),
        ({"capacity": LONGEST}, -1),
        ({"capacity": LONGEST + 11, "max_tokens_per_pass": 13}, 1),
        ({"distribution_bytes": 1}, 1),
    ],
    ids=[
        "batch",
        "reversed",
        "one_token_a_pass",
        "seven_tokens_a_pass",
        "store_just_large_enough",
        "small_store_reversed",
        "small_store_small_pass",
        "no_room_for_distributions",
    ],
)
def test_tokens_depend_on_the_request_alone(make_local: Maker, settings: dict[str, Any], order: int) -> None:
    model = make_local()
    expected = sample_alone(model)
    assert len(set(expected)) == len(expected)  # draws differ, so nothing is the same by accident
    sampler = make_sampler(model, **settings)
    rows: dict[int, Row] = {}
    for number in range(len(PROMPTS))[::order]:
        rows[number] = sampler.submit(PROMPTS[number], CONFIG, draws(number))
    assert finish(sampler, [rows[number] for number in range(len(PROMPTS))]) == expected
    assert sampler.num_running == 0


@pytest.mark.parametrize("capacity", [LONGEST, 4096], ids=["small_store", "large_store"])
def test_requests_that_join_while_others_run_change_nothing(make_local: Maker, capacity: int) -> None:
    model = make_local()
    expected = sample_alone(model)
    sampler = make_sampler(model, capacity=capacity)
    rows = []
    for number, prompt in enumerate(PROMPTS):
        rows.append(sampler.submit(prompt, CONFIG, draws(number)))
        sampler.advance()
        sampler.advance()
    assert finish(sampler, rows) == expected


def test_a_longer_limit_keeps_the_earlier_tokens(make_local: Maker) -> None:
    model = make_local()
    sampler = make_sampler(model)
    short = sampler.submit(PROMPTS[0], GenerationConfig(max_new_tokens=5), draws(0))
    long = sampler.submit(PROMPTS[0], GenerationConfig(max_new_tokens=15), draws(0))
    left, right = finish(sampler, [short, long])
    assert left == right[:5]


def test_clear_while_rows_run_goes_on_from_their_tokens(make_local: Maker) -> None:
    model = make_local()
    expected = sample_alone(model)
    sampler = make_sampler(model)
    rows = [sampler.submit(prompt, CONFIG, draws(number)) for number, prompt in enumerate(PROMPTS)]
    for _ in range(4):
        sampler.advance()
    assert {len(row.completion_ids) for row in rows} == {4}
    sampler.clear()
    assert finish(sampler, rows) == expected


def test_after_clear_the_new_weights_are_used(make_local: Maker) -> None:
    model = make_local()
    before = sample_alone(model)
    sampler = make_sampler(model)
    finish(sampler, [sampler.submit(prompt, CONFIG, draws(n)) for n, prompt in enumerate(PROMPTS)])
    with torch.no_grad():
        model.module.get_input_embeddings().weight.mul_(1.7)
    sampler.clear()
    after = finish(sampler, [sampler.submit(prompt, CONFIG, draws(n)) for n, prompt in enumerate(PROMPTS)])
    assert after == sample_alone(model) != before


def test_two_settings_at_one_node_do_not_mix(make_local: Maker) -> None:
    model = make_local()
    settings = [GenerationConfig(max_new_tokens=6, temperature=t, top_k=k) for t in (0.0, 0.5, 2.0) for k in (None, 3)]
    alone = []
    for config in settings:
        sampler = make_sampler(model)
        alone += finish(sampler, [sampler.submit(PROMPTS[0], config, draws(0))])
    sampler = make_sampler(model)
    assert finish(sampler, [sampler.submit(PROMPTS[0], config, draws(0)) for config in settings]) == alone


# ---- answers that are expected ---------------------------------------------------------------------------------------

EXPECTED = {"no_use": ((3, 4, 5, 6), (3, 4, 7)), "the_answer": None, "too_long": (tuple(range(3, 60)),), "empty": ((),)}


@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize(
    "settings",
    [{}, {"max_tokens_per_pass": 7}, *({"capacity": LONGEST + extra} for extra in (0, 3, 11, 40, 90))],
    ids=str,
)
def test_expected_answers_change_no_token(make_local: Maker, kind: str, settings: dict[str, Any]) -> None:
    model = make_local()
    alone = sample_alone(model)
    sampler = make_sampler(model, **settings)
    rows = []
    for number, prompt in enumerate(PROMPTS):
        expected = EXPECTED[kind] or (alone[number], alone[(number + 1) % len(alone)])
        rows.append(sampler.submit(prompt, CONFIG, draws(number), expected))
    assert finish(sampler, rows) == alone
    trained = model.logprobs([(row.prompt_ids, row.completion_ids) for row in rows]).logprobs.detach()
    sampled = torch.tensor([x for row in rows for x in row.logprobs])
    torch.testing.assert_close(trained, sampled, rtol=0.0, atol=1e-4)


def test_an_expected_answer_takes_one_pass(make_local: Maker) -> None:
    model = make_local()
    alone = sample_alone(model)[:4]
    sampler = make_sampler(model)
    rows = [sampler.submit(PROMPTS[n], CONFIG, draws(n), (alone[n], (3, 4, 5))) for n in range(4)]
    sampler.advance()
    assert [tuple(row.completion_ids) for row in rows] == alone
    assert all(row.finish is not None for row in rows)
    assert sampler.stats.passes == 1
    # and no token twice: those of the answers, and of (3, 4, 5) the first two at each of 4 prompts
    tree = build_tree(list(zip(PROMPTS[:4], alone, strict=True)))
    assert sampler.stats.computed_tokens == tree.num_nodes + 2 * 4


def test_an_expected_answer_that_another_prompt_goes_on_from_is_computed_once(make_local: Maker) -> None:
    model = make_local()
    sampler = make_sampler(model)
    one = GenerationConfig(max_new_tokens=1)
    rows = [
        sampler.submit((5, 6, 7), one, draws(0), ((8, 9, 10),)),
        sampler.submit((5, 6, 7, 8, 9), one, draws(1)),  # ends on a node that the first row has computed ahead
        sampler.submit((5, 6, 7, 8, 9, 11), one, draws(2)),
    ]
    finish(sampler, rows)
    assert sampler.stats.computed_tokens == 6
    assert sampler.stats.passes == 1


# ---- nothing is computed twice ---------------------------------------------------------------------------------------


def test_every_distinct_token_is_computed_once(make_local: Maker) -> None:
    model = make_local()
    sampler = make_sampler(model)
    rows = [sampler.submit(prompt, CONFIG, draws(number)) for number, prompt in enumerate(PROMPTS)]
    completions = finish(sampler, rows)
    tree = build_tree(list(zip(PROMPTS, completions, strict=True)))
    assert sampler.stats.computed_tokens == tree.num_nodes
    assert sampler.stats.seen_tokens == tree.num_row_tokens
    assert sampler.stats.sampled_tokens == sum(map(len, completions))


def test_equal_requests_advance_as_one_row(make_local: Maker) -> None:
    model = make_local()
    sampler = make_sampler(model)
    rows = [sampler.submit(PROMPTS[0], CONFIG, draws(0)) for _ in range(20)]
    completions = finish(sampler, rows)
    assert len(set(completions)) == 1
    assert sampler.stats.computed_tokens == len(PROMPTS[0]) + CONFIG.max_new_tokens - 1
    assert sampler.stats.passes == CONFIG.max_new_tokens


def test_a_known_prompt_is_not_computed_again(make_local: Maker) -> None:
    model = make_local()
    sampler = make_sampler(model)
    finish(sampler, [sampler.submit(PROMPTS[0], CONFIG, draws(0))])
    before = sampler.stats.computed_tokens
    finish(sampler, [sampler.submit(PROMPTS[0], CONFIG, draws(0))])
    assert sampler.stats.computed_tokens == before


# ---- the distribution ------------------------------------------------------------------------------------------------

VOCABULARY = 13


@pytest.fixture
def small(tokenizer: PreTrainedTokenizerBase) -> LocalModel:
    """A model with so few tokens that its distribution can be counted."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = LlamaForCausalLM(config)
    return LocalModel(model, tokenizer, ModelConfig("small"))


def next_probabilities(model: LocalModel, ids: Sequence[int], config: GenerationConfig) -> np.ndarray:
    """Return the distribution after ``ids`` by transformers and a direct reading of the definitions."""
    with torch.no_grad():
        logits = model.module(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1].double().numpy()
    p = np.exp(logits / config.temperature)
    p /= p.sum()
    if config.top_k is not None:
        p[np.argsort(-p)[config.top_k :]] = 0.0
        p /= p.sum()
    if config.top_p is not None:
        kept, total = [], 0.0
        for token in np.argsort(-p):
            if total >= config.top_p:
                break
            kept.append(token)
            total += p[token]
        p[[token for token in range(len(p)) if token not in kept]] = 0.0
        p /= p.sum()
    if config.min_p is not None:
        p[p < config.min_p * p.max()] = 0.0
        p /= p.sum()
    return p


SETTINGS = {
    "plain": GenerationConfig(max_new_tokens=2),
    "temperature": GenerationConfig(max_new_tokens=2, temperature=0.7),
    "top_k": GenerationConfig(max_new_tokens=2, top_k=4),
    "top_p": GenerationConfig(max_new_tokens=2, top_p=0.8),
    "top_p_alone": GenerationConfig(max_new_tokens=2, top_p=0.01),
    "min_p": GenerationConfig(max_new_tokens=2, min_p=0.3),
    "all": GenerationConfig(max_new_tokens=2, temperature=1.5, top_k=8, top_p=0.9, min_p=0.05),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_frequencies_and_logprobs_are_those_of_the_distribution(small: LocalModel, name: str) -> None:
    config, prompt, count = SETTINGS[name], (3, 4, 5), 1000
    grid = (np.arange(count) + 0.5) / count
    sampler = make_sampler(small)
    # First tokens by a grid of uniform numbers; second tokens by a grid after each of three first tokens.
    rows = [sampler.submit(prompt, config, np.array([u, 0.5])) for u in grid]
    finish(sampler, rows)
    cases = [((), rows, 0)]
    for first in (0.1, 0.5, 0.9):
        second = [sampler.submit(prompt, config, np.array([first, u])) for u in grid]
        finish(sampler, second)
        cases.append(((second[0].completion_ids[0],), second, 1))
    for before, drawn, place in cases:
        expected = next_probabilities(small, (*prompt, *before), config)
        counts = np.bincount([row.completion_ids[place] for row in drawn], minlength=VOCABULARY)
        # An interval of length p holds p * count grid points, give or take one.
        assert np.abs(counts - expected * count).max() <= 1.0 + 1e-3
        assert (counts[expected == 0.0] == 0).all()
        for row in drawn:
            assert row.logprobs[place] == pytest.approx(math.log(expected[row.completion_ids[place]]), abs=1e-5)


def test_greedy_is_the_argmax_of_transformers(make_local: Maker) -> None:
    model = make_local("qwen3")
    sampler = make_sampler(model)
    config = GenerationConfig(max_new_tokens=7, temperature=0.0)
    rows = [sampler.submit(prompt, config) for prompt in PROMPTS]
    for prompt, completion in zip(PROMPTS, finish(sampler, rows), strict=True):
        ids = list(prompt)
        with torch.no_grad():
            for token in completion:
                assert token == int(model.module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
                ids.append(token)
    assert rows[0].logprobs == [0.0] * 7  # of the distribution that was drawn from, which has one token


def test_sampled_logprobs_are_those_of_a_training_pass(architecture: str, make_local: Maker) -> None:
    # Windows, position-less layers and logit caps must be the same on both sides.
    model = make_local(architecture)
    config = GenerationConfig(max_new_tokens=9, temperature=0.7)
    rows = model.sample(PROMPTS, config, [draws(number) for number in range(len(PROMPTS))])
    trained = model.logprobs([(row.prompt_ids, row.completion_ids) for row in rows], temperature=0.7)
    sampled = torch.tensor([x for row in rows for x in row.logprobs])
    torch.testing.assert_close(trained.logprobs.detach(), sampled, rtol=0.0, atol=1e-4)
    plain = model.logprobs_by_row([(row.prompt_ids, row.completion_ids) for row in rows], temperature=0.7)
    torch.testing.assert_close(plain.logprobs.detach(), sampled, rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53], ids=["lowest", "highest"])
@pytest.mark.parametrize("size", [5, 256, 257, 1000])
def test_the_edges_of_the_cdf_never_draw_an_impossible_token(uniform: float, size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(50):
        logits = torch.full((size,), -math.inf)
        possible = np.sort(rng.choice(size, min(size, 3), replace=False))
        logits[possible] = torch.from_numpy(rng.normal(size=len(possible)).astype(np.float32))
        token, logprob = distributions(logits[None], GenerationConfig())[0].draw(uniform)
        assert token == possible[0 if uniform == 0.0 else -1]
        assert math.isfinite(logprob)


def test_each_uniform_number_draws_the_token_whose_interval_holds_it() -> None:
    # p = (1/8, 0, 3/8, 1/2): intervals [0, .125), [], [.125, .5), [.5, 1)
    logits = torch.log(torch.tensor([0.125, 0.0, 0.375, 0.5]))
    distribution = distributions(logits[None], GenerationConfig())[0]
    drawn = [distribution.draw(u)[0] for u in (0.0, 0.1249, 0.1251, 0.4999, 0.5001, 0.9999)]
    assert drawn == [0, 0, 2, 2, 3, 3]
    assert distribution.draw(0.3)[1] == pytest.approx(math.log(0.375), abs=1e-6)


def test_top_k_of_equal_tokens_keeps_k() -> None:
    distribution = distributions(torch.zeros(1, 10), GenerationConfig(top_k=3))[0]
    assert np.count_nonzero(distribution.probabilities) == 3


# ---- how a completion ends -------------------------------------------------------------------------------------------


def greedy_ids(model: LocalModel, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    sampler = make_sampler(model)
    return finish(sampler, [sampler.submit(prompt, GenerationConfig(max_new_tokens=count, temperature=0.0))])[0]


def test_a_stop_id_ends_the_completion_and_stays_in_it(make_local: Maker) -> None:
    model = make_local()
    free = greedy_ids(model, PROMPTS[0], 9)
    stop = free[3]
    sampler = make_sampler(model, stop_ids=frozenset({stop}))
    row = sampler.submit(PROMPTS[0], GenerationConfig(max_new_tokens=9, temperature=0.0))
    (ids,) = finish(sampler, [row])
    assert row.finish is Finish.STOP
    assert ids == free[: free.index(stop) + 1]


def test_a_stop_id_first_is_a_completion_of_one_token(make_local: Maker) -> None:
    model = make_local()
    first = greedy_ids(model, PROMPTS[0], 1)[0]
    sampler = make_sampler(model, stop_ids=frozenset({first}))
    row = sampler.submit(PROMPTS[0], GenerationConfig(temperature=0.0))
    assert finish(sampler, [row]) == [(first,)]
    assert row.finish is Finish.STOP
    assert len(row.logprobs) == 1


def test_a_stop_text_ends_the_completion_once_it_is_whole(make_local: Maker) -> None:
    model = make_local()
    words = dict(enumerate(["a", "</ac", "tion", ">", "b", "</action", "> c"]))
    script = [0, 1, 4, 1, 2, 3, 0]  # "a</acb</action>a"

    class Scripted:
        """Logits that make one token certain at each position after the prompt."""

        def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
            place = len(row.completion_ids)
            logits = torch.full((len(hidden), 7), -math.inf)
            logits[:, script[place]] = 0.0
            return logits

    sampler = make_sampler(model, head=Scripted(), decode=lambda ids: "".join(words[i] for i in ids))
    row = sampler.submit((7,), GenerationConfig(max_new_tokens=7, stop=("</action>",)), draws(0))
    assert finish(sampler, [row]) == [(0, 1, 4, 1, 2, 3)]
    assert row.finish is Finish.STOP


def test_length_and_context_limits(make_local: Maker) -> None:
    model = make_local()
    sampler = make_sampler(model, context_length=25)
    by_length = sampler.submit(PROMPTS[0], GenerationConfig(max_new_tokens=4), draws(0))  # 21 + 4 = 25
    by_context = sampler.submit(PROMPTS[0], GenerationConfig(max_new_tokens=5), draws(0))
    too_long = sampler.submit(PROMPTS[3], GenerationConfig(max_new_tokens=5), draws(0))  # 30
    just_full = sampler.submit(PROMPTS[0] + (3, 4, 5, 6), GenerationConfig(max_new_tokens=5), draws(0))  # 25
    one_left = sampler.submit(PROMPTS[0] + (3, 4, 5), GenerationConfig(max_new_tokens=5), draws(0))  # 24
    rows = [by_length, by_context, too_long, just_full, one_left]
    completions = finish(sampler, rows)
    assert [len(ids) for ids in completions] == [4, 4, 0, 0, 1]
    assert [row.finish for row in rows] == [Finish.LENGTH, *[Finish.CONTEXT] * 4]


def test_an_empty_prompt_has_no_context(make_local: Maker) -> None:
    row = make_sampler(make_local()).submit((), CONFIG, draws(0))
    assert row.finish is Finish.CONTEXT


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_a_request_that_does_not_fit_into_the_store_is_refused(make_local: Maker) -> None:
    sampler = make_sampler(make_local(), capacity=len(PROMPTS[0]) - 1)
    sampler.submit(PROMPTS[0], CONFIG, draws(0))
    message = "A request of 21 tokens does not fit into the store of 20 tokens. Raise model.cache_tokens."
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        sampler.advance()


@pytest.mark.parametrize(("numbers", "have"), [(None, 0), (draws(0, 8), 8)], ids=["none", "too_few"])
def test_missing_uniform_numbers_are_refused(make_local: Maker, numbers: np.ndarray | None, have: int) -> None:
    message = (
        f"A request came with {have} uniform numbers; sampling at temperature=1.0 needs max_new_tokens=9. Pass them, "
        "or set temperature to 0."
    )
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        make_sampler(make_local()).submit(PROMPTS[0], CONFIG, numbers)


# ---- long ------------------------------------------------------------------------------------------------------------


def test_answers_of_200_tokens(make_local: Maker) -> None:
    model = make_local()
    config = GenerationConfig(max_new_tokens=200)
    prompts = [PROMPTS[0], PROMPTS[2]]
    numbers = [uniforms(200, "long", n) for n in (0, 1)]
    alone = []
    for prompt, us in zip(prompts, numbers, strict=True):
        sampler = make_sampler(model)
        alone += finish(sampler, [sampler.submit(prompt, config, us)])
    sampler = make_sampler(model, capacity=300)  # less than the two need together
    assert finish(sampler, [sampler.submit(p, config, us) for p, us in zip(prompts, numbers, strict=True)]) == alone
    assert {len(ids) for ids in alone} == {200}


def test_a_context_of_4000_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    model = LocalModel(build_tiny()[0], tokenizer, ModelConfig("tiny"))
    rng = np.random.default_rng(0)
    prompt = tuple(rng.integers(3, 259, 4000).tolist())
    rows = model.sample([prompt, prompt], GenerationConfig(max_new_tokens=5), [draws(0), draws(1)])
    with torch.no_grad():
        expected = model.logprobs_by_row([(row.prompt_ids, row.completion_ids) for row in rows]).logprobs
    sampled = torch.tensor([x for row in rows for x in row.logprobs])
    torch.testing.assert_close(sampled, expected, rtol=0.0, atol=1e-4)
