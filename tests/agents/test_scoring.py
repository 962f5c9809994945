"""Acting by scoring on the tiny model: the tree against one padded row for each action."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from stratagem.agents.prompts import load_template
from stratagem.agents.scoring import ScoringAgent, ScoringConfig, action_logprobs, action_size
from stratagem.errors import ConfigError, GameError
from stratagem.games import make
from stratagem.models.base import LabelLogprobs, TokenRow
from stratagem.models.catalog import ModelConfig
from stratagem.models.local import LocalModel
from stratagem.rollout import Episode, play_episodes
from stratagem.types import Finish, StopReason

ACTIONS = ("pick up the tomato", "take the bowl", "walk to the cutting board", "serve nothing", "chop nothing")
PROMPT = "There is a fixed cutting board in the room. To serve the dish, you should first"


def exact(message: str) -> str:
    return f"^{re.escape(message)}$"


class CountingModel(LocalModel):
    """Counts passes and rows."""

    passes: int = 0
    rows: int = 0

    def logprobs(self, rows: Sequence[TokenRow], *, temperature: float = 1.0) -> LabelLogprobs:
        self.passes += 1
        self.rows += len(rows)
        return super().logprobs(rows, temperature=temperature)


@pytest.fixture(scope="module")
def model() -> CountingModel:
    loaded = CountingModel.load(ModelConfig(name="tiny"))
    assert isinstance(loaded, CountingModel)
    return loaded


def decide(agent: ScoringAgent, actions: tuple[str, ...] = ACTIONS, u: float | None = 0.5, prompt: str = PROMPT):
    return asyncio.run(agent.decide(prompt, actions, None if u is None else np.array([u])))


def row_by_row(model: LocalModel, prompt: tuple[int, ...], candidates: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """Return the token log-probabilities by a plain pass of padded rows through the model."""
    with torch.no_grad():
        flat = model.logprobs_by_row([(prompt, ids) for ids in candidates]).logprobs
    return list(torch.split(flat, [len(ids) for ids in candidates]))


@pytest.mark.parametrize("normalisation", ["words", "tokens", "none"])
@pytest.mark.parametrize("template", [None, "action"])
def test_the_distribution_is_that_of_one_padded_row_for_each_action(
    model: CountingModel, normalisation: str, template: str | None
) -> None:
    agent = ScoringAgent.from_config(model, ScoringConfig(template=template, normalisation=normalisation))  # type: ignore[arg-type]
    decision = decide(agent)
    prompt = agent.prompt_ids(PROMPT)
    lead = " " if template is None else ""
    candidates = [tuple(model.encode(lead + action)) for action in ACTIONS]
    parts = row_by_row(model, prompt, candidates)
    sizes = {
        "words": [4, 3, 5, 2, 2],  # pick up the tomato | take the bowl | walk to the cutting board | ...
        "tokens": [len(ids) for ids in candidates],
        "none": [1] * 5,
    }[normalisation]
    scores = [float(part.sum()) / size for part, size in zip(parts, sizes, strict=True)]
    log_total = math.log(sum(math.exp(score - max(scores)) for score in scores)) + max(scores)
    probabilities = [math.exp(score - log_total) for score in scores]
    assert [math.exp(value) for value in decision.candidate_logprobs] == pytest.approx(probabilities, abs=1e-5)
    assert decision.candidate_logprobs == pytest.approx([score - log_total for score in scores], rel=1e-5, abs=1e-4)
    assert sum(map(math.exp, decision.candidate_logprobs)) == pytest.approx(1, abs=1e-6)
    assert decision.candidates == tuple(candidates)
    chosen = ACTIONS.index(decision.action or "")
    assert decision.completion.completion_ids == candidates[chosen]
    assert decision.completion.logprobs == pytest.approx(parts[chosen].tolist(), abs=1e-5)
    assert (decision.completion.prompt_ids, decision.completion.finish) == (prompt, Finish.STOP)


def test_a_choice_token_by_token_records_the_policy_that_drew_it(model: CountingModel) -> None:
    agent = ScoringAgent.from_config(model, ScoringConfig(choice="token", temperature=2.0))
    decision = decide(agent)
    chosen = ACTIONS.index(decision.action or "")
    assert sum(map(math.exp, decision.candidate_logprobs)) == pytest.approx(1)
    # the action's probability is the product of its tokens', and tokens without an alternative cost nothing
    assert sum(decision.completion.logprobs) == pytest.approx(decision.candidate_logprobs[chosen])
    assert 0.0 in decision.completion.logprobs
    by_action = decide(ScoringAgent(model, normalisation="none", temperature=2.0)).candidate_logprobs
    assert decision.candidate_logprobs != pytest.approx(by_action, abs=1e-3)


def test_the_normalisations_are_different_policies(model: CountingModel) -> None:
    found = {
        normalisation: decide(ScoringAgent(model, normalisation=normalisation)).candidate_logprobs  # type: ignore[arg-type]
        for normalisation in ("words", "tokens", "none")
    }
    assert len({tuple(round(value, 3) for value in values) for values in found.values()}) == 3


def test_the_action_logprobs_by_hand() -> None:
    # Two actions: log 1/2 + log 1/4 over 1 word, and log 1/16 over 2 words (a square root): scores log 1/8 and log 1/4,
    # so 1/3 and 2/3. At temperature 1/2 the scores double: 1/64 and 1/16, so 1/5 and 4/5.
    tokens = torch.log(torch.tensor([0.5, 0.25, 1 / 16]))
    result = action_logprobs(tokens, [2, 1], [1, 2])
    assert result.exp().tolist() == pytest.approx([1 / 3, 2 / 3], abs=1e-6)
    assert action_logprobs(tokens, [2, 1], [1, 2], temperature=0.5).exp().tolist() == pytest.approx(
        [0.2, 0.8], abs=1e-6
    )


def test_the_gradient_of_the_choice_reaches_every_token() -> None:
    # d log pi(0) / d token = (1 - pi(0)) / N(0) for its own tokens, -pi(1) / N(1) for the other's.
    tokens = torch.log(torch.tensor([0.5, 0.25, 1 / 16])).requires_grad_()
    action_logprobs(tokens, [2, 1], [1, 2])[0].backward()
    assert tokens.grad is not None
    assert tokens.grad.tolist() == pytest.approx([2 / 3, 2 / 3, -1 / 3], abs=1e-6)


def test_a_permutation_of_the_actions_changes_neither_probabilities_nor_the_draw(model: CountingModel) -> None:
    agent = ScoringAgent(model)
    for u in (0.01, 0.3, 0.55, 0.99):
        one = decide(agent, ACTIONS, u)
        other = decide(agent, ACTIONS[::-1], u)
        assert other.action == one.action
        assert other.candidate_logprobs == pytest.approx(one.candidate_logprobs[::-1], abs=1e-6)


def test_the_draw_is_the_inverse_distribution_function(model: CountingModel) -> None:
    agent = ScoringAgent(model)
    order = sorted(range(5), key=lambda number: ACTIONS[number])
    weights = np.exp(np.array(decide(agent).candidate_logprobs))[order]
    edges = np.cumsum(weights)
    for place, number in enumerate(order):
        assert decide(agent, u=float(edges[place] - weights[place] / 2)).action == ACTIONS[number]
    assert decide(agent, u=np.nextafter(1.0, 0.0)).action == ACTIONS[order[-1]]


def test_without_a_number_the_most_probable_action_is_taken(model: CountingModel) -> None:
    agent = ScoringAgent(model, temperature=0.0)
    assert agent.num_uniforms == 0
    decision = decide(agent, u=None)
    assert decision.action == ACTIONS[int(np.argmax(decision.candidate_logprobs))]


def test_one_action_is_certain(model: CountingModel) -> None:
    decision = decide(ScoringAgent(model), ("serve the dish",), 0.7)
    assert (decision.action, decision.candidate_logprobs) == ("serve the dish", (0.0,))
    assert len(decision.completion.logprobs) == len(decision.completion.completion_ids) > 0


def test_equal_actions_are_refused(model: CountingModel) -> None:
    message = "Action 'chop' is offered twice among 3 actions; a game must give each action a text of its own."
    with pytest.raises(GameError, match=exact(message)):
        decide(ScoringAgent(model), ("chop", "serve", "chop"))


def test_a_prompt_that_does_not_fit_ends_the_episode(model: CountingModel) -> None:
    decision = decide(ScoringAgent(model), prompt="a" * (model.context_length + 1))
    assert (decision.action, decision.completion.finish, decision.completion.completion_ids) == (
        None,
        Finish.CONTEXT,
        (),
    )


def test_all_who_wait_share_one_pass_and_equal_rows_cost_once(model: CountingModel) -> None:
    agent = ScoringAgent(model)

    async def everyone() -> list[str | None]:
        prompts = [PROMPT, PROMPT, PROMPT + " now"]
        decisions = await asyncio.gather(*(agent.decide(text, ACTIONS, np.array([0.4])) for text in prompts))
        return [decision.action for decision in decisions]

    model.passes = model.rows = 0
    together = asyncio.run(everyone())
    assert (model.passes, model.rows) == (1, 10)
    assert together == [decide(agent, u=0.4, prompt=text).action for text in (PROMPT, PROMPT, PROMPT + " now")]


def test_a_small_budget_cuts_the_pass_and_changes_nothing(model: CountingModel) -> None:
    whole = decide(ScoringAgent(model)).candidate_logprobs
    model.passes = 0
    cut = decide(ScoringAgent(model, max_tokens=len(PROMPT) + 30)).candidate_logprobs
    assert model.passes > 1
    assert cut == pytest.approx(whole, abs=1e-5)


def test_an_error_of_the_model_reaches_everyone_who_waits(
    model: CountingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **settings: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "logprobs", broken)
    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        decide(ScoringAgent(model))


def test_episodes_do_not_depend_on_who_plays_beside_them(model: CountingModel) -> None:
    agent = ScoringAgent(model)
    episodes = [Episode(0, 0, (0, "scoring", number)) for number in range(6)]

    def play(some: list[Episode]):
        return play_episodes(lambda: make("VirtualHome-FoodPreparation", max_steps=5), [agent], some)

    together = play(episodes)
    alone = play(episodes[3:4])[0]
    assert [step.action for step in together[3].steps] == [step.action for step in alone.steps]
    assert len({tuple(step.action for step in trajectory.steps) for trajectory in together}) > 1
    for trajectory in together:
        assert trajectory.num_invalid == 0
        assert trajectory.stop_reason in (StopReason.MAX_STEPS, StopReason.TERMINATED)
        for step in trajectory.steps:
            assert step.completion_ids in step.candidates
            assert len(step.candidates) == len(step.candidate_logprobs) >= 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"normalisation": "letters"},
            "normalisation='letters' is not a length of an action; use one of words, tokens, none.",
        ),
        (
            {"temperature": -1.0},
            "temperature=-1.0 is not a temperature; use 0 for the best action or a positive number.",
        ),
        ({"choice": "letter"}, "choice='letter' is no way to choose; use 'action' or 'token'."),
        (
            {"choice": "token", "normalisation": "tokens"},
            "normalisation='tokens' has no effect with choice='token', which divides by nothing; leave it out.",
        ),
        ({"max_tokens": 0}, "max_tokens=0 scores nothing; set it to 1 or more."),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=exact(message)):
        ScoringConfig(**settings)  # type: ignore[arg-type]


def test_sizes_of_an_action() -> None:
    assert [action_size("take the bowl", 7, kind) for kind in ("words", "tokens", "none")] == [3, 7, 1]  # type: ignore[arg-type]


def test_a_template_is_named_or_refused(model: CountingModel) -> None:
    agent = ScoringAgent.from_config(model, ScoringConfig(template="action"))
    assert agent.template == load_template("action")
