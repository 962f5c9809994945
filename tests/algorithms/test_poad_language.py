"""POAD, NTPO and TWOSOME on a real (tiny, random) language model, which samples tokens or scores actions."""

from __future__ import annotations

import dataclasses
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.agents.parsing import ParsedAction, ParseError
from stratagem.agents.scoring import ScoringAgent
from stratagem.algorithms import ms_grpo, poad
from stratagem.algorithms.poad import Learner, POADConfig, check_trainable, make_samples, train
from stratagem.algorithms.units import sample_units
from stratagem.errors import ConfigError
from stratagem.games import make
from stratagem.games.base import Game, GameStep
from stratagem.models.base import GenerationConfig
from stratagem.models.catalog import LoraSettings, ModelConfig, build_tiny
from stratagem.models.heads import HeadConfig
from stratagem.models.local import LocalModel
from stratagem.rollout import play_groups

CREDITS: dict[str, dict[str, Any]] = {
    "poad": {"credit": "poad"},
    "ntpo": {"credit": "ntpo", "gamma_w": 0.9},
    "twosome": {"credit": "twosome"},
}
KINDS = ("language", "scoring", "tokens")
WORDS = ("go left", "turn right", "stop")


def config(**settings: Any) -> POADConfig:
    critic = HeadConfig(layers=(16,))
    defaults: dict[str, Any] = dict(learning_rate=0.01, critic_learning_rate=0.01, critic=critic, num_groups=8)
    return POADConfig(**(defaults | settings))


def tiny(**settings: Any) -> LocalModel:
    model, tokenizer = build_tiny()
    return LocalModel(model, tokenizer, ModelConfig("tiny", cache_tokens=4096, **settings))


class TextBandit(Game):
    """Arms that are named by words of unequal length; "turn right" pays 1. The start is the same each time."""

    name = "text_bandit"

    def __init__(self, words: tuple[str, ...] = WORDS) -> None:
        self.words = words
        self._over = True

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        self._over = False
        return (self.observation(),)

    def step(self, actions: Any) -> GameStep:
        self._over = True
        return GameStep((self.observation(),), (float(actions[0] == "turn right"),), True, False)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        return () if self._over else self.words

    def observation(self, player: int = 0) -> str:
        return "Where to? You should"

    def state_key(self) -> str:
        return "start"

    def render(self) -> str:
        return "start"


def text_agent(toys: SimpleNamespace, model: Any, temperature: float = 1.0, limit: int = 1) -> Any:
    """An agent of a random byte model, whose answer is read from the first byte: even is right."""

    def parse(text: str, legal: Any) -> ParsedAction:
        word = text.removeprefix("<action>")
        return ParsedAction(legal[ord(word[0]) % 2 == 0]) if word else ParsedAction(None, ParseError.EMPTY)

    return toys.make_agent(
        model, generation=GenerationConfig(max_new_tokens=limit, temperature=temperature), parser=parse
    )


def p_right(model: Any, agent: Any) -> float:
    if isinstance(agent, ScoringAgent):
        candidates = agent.candidate_ids(WORDS)
        rows = [(agent.prompt_ids(TextBandit().observation()), ids) for ids in candidates]
        return float(agent.log_policy(agent.score_rows(rows), WORDS, candidates)[0].exp()[1])
    ids = model.encode_chat(agent.template.messages(TextBandit().observation()), "<action>")
    with torch.no_grad():
        p = model.logprobs([(ids, (token,)) for token in range(259)]).logprobs.exp()
    texts = [model.decode([token], skip_special_tokens=True) for token in range(259)]
    return float(sum(p[token] for token, text in enumerate(texts) if text and ord(text[0]) % 2 == 0))


def actor(kind: str, toys: SimpleNamespace, model: Any, **settings: Any) -> Any:
    if kind == "language":
        return text_agent(toys, model, **settings)
    return ScoringAgent(model, choice="token") if kind == "tokens" else ScoringAgent(model, normalisation="tokens")


@pytest.mark.parametrize("advantages", ["true", "zero"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("credit", CREDITS)
def test_a_language_model_learns_the_text_bandit_from_its_advantages_alone(
    toys: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, credit: str, kind: str, advantages: str
) -> None:
    if advantages == "zero":  # negative control: every step is made, with advantage 0
        plain = poad.make_samples

        def without(*args: Any, **kwargs: Any) -> Any:
            found = plain(*args, **kwargs)
            return [[dataclasses.replace(s, advantages=0.0 * s.advantages) for s in episode] for episode in found]

        monkeypatch.setattr(poad, "make_samples", without)
    model = tiny()
    agent = actor(kind, toys, model)
    before = p_right(model, agent)
    assert before < 0.6
    settings = config(num_iterations=14, num_groups=32, ent_coef=0.0, decay="constant", **CREDITS[credit])
    iterations = list(train(Learner(model, settings), agent, TextBandit, seed=0))
    assert iterations[0].metrics["num_updates"] == 1.0
    if advantages == "true":
        assert p_right(model, agent) > 0.9
    else:
        assert p_right(model, agent) == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("credit", CREDITS)
def test_the_first_ratio_is_one(toys: SimpleNamespace, credit: str, kind: str) -> None:
    model = tiny()
    agent = actor(kind, toys, model, **({"limit": 6, "temperature": 0.7} if kind == "language" else {}))
    if kind != "language":
        agent = dataclasses.replace(agent, temperature=0.7)
    for iteration in train(Learner(model, config(num_iterations=2, **CREDITS[credit])), agent, TextBandit, seed=0):
        assert iteration.metrics["ratio_gap"] < 1e-3


def trained(toys: SimpleNamespace, kind: str, settings: POADConfig, *, by_row: bool = False, **model: Any) -> Any:
    """Return the gradient of one step, on samples that a fresh model of always the same weights has played."""
    local = tiny(**model)
    agent = actor(kind, toys, local, **({"limit": 5} if kind == "language" else {}))
    groups, _ = play_groups(TextBandit, [agent], num_groups=2, group_size=5, address=(0,))
    learner = Learner(local, settings)
    with torch.no_grad():
        for number, parameter in enumerate(learner.critic_parameters.values()):
            generator = torch.Generator().manual_seed(number)
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    episodes = make_samples(learner, [t for g in groups for t in g.trajectories], by_branch=kind == "tokens")
    samples = [s for e in episodes for s in e]
    if by_row:
        local.logprobs = local.logprobs_by_row  # type: ignore[method-assign]
    metrics = learner.step(samples, agent)
    named = {**learner.parameters, **learner.critic_parameters}
    gradient = torch.cat([p.grad.flatten() for p in named.values() if p.grad is not None])
    return gradient, metrics


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("credit", CREDITS)
def test_the_gradient_of_a_tree_is_that_of_each_row_on_its_own(toys: SimpleNamespace, credit: str, kind: str) -> None:
    settings = config(critic=HeadConfig("shared", layers=(8,)), max_grad_norm=1e9, **CREDITS[credit])
    if credit == "twosome" and kind == "language":
        settings = dataclasses.replace(settings, ent_coef=0.05)
    tree, tree_metrics = trained(toys, kind, settings)
    rows, _ = trained(toys, kind, settings, by_row=True)
    assert float(rows.abs().max()) > 1e-3
    torch.testing.assert_close(tree, rows, rtol=1e-3, atol=1e-5)
    # equal prompts and beginnings are computed once
    assert tree_metrics["tokens_computed"] < tree_metrics["tokens_seen"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("credit", CREDITS)
def test_micro_batches_give_one_gradient(toys: SimpleNamespace, credit: str, kind: str) -> None:
    found = [
        trained(toys, kind, config(max_tokens_per_pass=limit, critic=HeadConfig("shared", (8,)), **CREDITS[credit]))
        for limit in (8192, 90, 1)
    ]
    for gradient, metrics in found[1:]:
        torch.testing.assert_close(gradient, found[0][0], rtol=0.0, atol=1e-5)
        for key in ("policy_loss", "value_loss", "entropy", "grad_norm", "critic_grad_norm"):
            assert metrics[key] == pytest.approx(found[0][1][key], abs=1e-4)
    if (credit != "twosome" and kind != "tokens") or kind == "language":  # elsewhere all samples are one decision
        assert found[0][1]["tokens_computed"] < found[2][1]["tokens_computed"]


@pytest.mark.parametrize("normalisation", ["words", "tokens"])
def test_the_choice_among_actions_is_trained_as_it_was_drawn(normalisation: Any) -> None:
    model = tiny()
    agent = ScoringAgent(model, normalisation=normalisation, temperature=0.5)
    groups, _ = play_groups(TextBandit, [agent], num_groups=1, group_size=6, address=(0,))
    learner = Learner(model, config(credit="twosome"))
    (samples,) = zip(*make_samples(learner, groups[0].trajectories), strict=True)
    units = sample_units(model, samples, agent, learner.config)
    # by hand: each action's mean over its words or bytes, at half the temperature, through its own row
    prompt = agent.prompt_ids(TextBandit().observation())
    scores = torch.stack(
        [
            model.logprobs_by_row([(prompt, model.encode(f" {word}"))]).logprobs.sum()
            / (0.5 * (len(word.split()) if normalisation == "words" else len(word) + 1))
            for word in WORDS
        ]
    )
    log_pi = torch.log_softmax(scores, 0)
    chosen = [WORDS.index(str(t.steps[0].action)) for t in groups[0].trajectories]
    torch.testing.assert_close(units.logprobs[units.index], log_pi[chosen], rtol=1e-4, atol=1e-4)
    assert len(units.logprobs) == len(WORDS)  # six equal decisions are one
    entropy = -(log_pi.exp() * log_pi).sum()
    torch.testing.assert_close(units.entropy[units.index], entropy.expand(6), rtol=1e-4, atol=1e-4)
    # over bytes, a random model finds all alike; over words it finds the fewest bytes for a word
    assert (len(set(chosen)) > 1) == (normalisation == "tokens")
    assert [s.old_logprobs[0] for s in samples] == pytest.approx(log_pi[chosen].tolist(), abs=1e-4)


def test_tokens_are_trained_as_they_were_drawn() -> None:
    model = tiny()
    agent = ScoringAgent(model, choice="token", temperature=0.5)
    groups, _ = play_groups(TextBandit, [agent], num_groups=1, group_size=8, address=(0,))
    learner = Learner(model, config())
    (samples,) = zip(*make_samples(learner, groups[0].trajectories, by_branch=True), strict=True)
    # The three words part at their first letter and never again, so by hand: the square of p of the letter over the sum
    # of all three, 1 for all that follows. The byte before it is the space, which all have in common.
    prompt = agent.prompt_ids(TextBandit().observation())
    with torch.no_grad():
        units = sample_units(model, samples, agent, learner.config)
        p = [model.logprobs_by_row([(prompt, model.encode(f" {word}"))]).logprobs[1].exp() ** 2 for word in WORDS]
    chosen = [WORDS.index(str(t.steps[0].action)) for t in groups[0].trajectories]
    by_hand = [[0.0, float(torch.log(p[c] / sum(p))), *[0.0] * (len(WORDS[c]) - 1)] for c in chosen]
    assert units.logprobs[units.index].tolist() == pytest.approx([x for row in by_hand for x in row], abs=1e-4)
    assert [s.old_logprobs.tolist() for s in samples] == [pytest.approx(row, abs=1e-4) for row in by_hand]
    log_p = torch.log(torch.stack(p) / sum(p))
    entropy = float(-(log_p.exp() * log_p).sum())
    found = units.entropy[units.index].tolist()
    assert found[:3] == pytest.approx([0, entropy, 0], abs=1e-4)
    assert len(set(chosen)) > 1


def test_the_action_of_an_agent_that_samples_is_its_whole_completion(toys: SimpleNamespace) -> None:
    model = tiny()
    agent = text_agent(toys, model, limit=4)
    groups, _ = play_groups(TextBandit, [agent], num_groups=1, group_size=6, address=(0,))
    learner = Learner(model, config(credit="twosome"))
    (samples,) = zip(*make_samples(learner, groups[0].trajectories), strict=True)
    units = sample_units(model, samples, agent, learner.config)
    whole = [math.fsum(t.steps[0].logprobs) for t in groups[0].trajectories]
    assert units.logprobs[units.index].tolist() == pytest.approx(whole, abs=1e-4)
    assert any(len(s.completion_ids) > 1 for s in samples)


def weights(model: LocalModel, learner: Learner) -> Tensor:
    return torch.cat(
        [p.detach().flatten() for p in (*model.named_parameters().values(), *learner.heads.state().values())]
    )


@pytest.mark.parametrize("trunk", ["base", "shared"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_learner_goes_on_exactly(toys: SimpleNamespace, kind: str, trunk: Any) -> None:
    settings = config(num_iterations=4, credit="twosome", critic=HeadConfig(trunk, layers=(8,)))
    runs = []
    for stop in (4, 2):
        model = tiny(lora=LoraSettings(rank=4))
        learner = Learner(model, settings)
        run = train(learner, actor(kind, toys, model), TextBandit, seed=1)
        for _ in range(stop):
            next(run)
        if stop < 4:
            other = tiny(lora=LoraSettings(rank=4))
            resumed = Learner(other, settings)
            for name, parameter in other.named_parameters().items():
                parameter.data.copy_(model.named_parameters()[name].data)
            resumed.heads.load_state(learner.heads.state())
            resumed.optimizer.load_state_dict(learner.optimizer.state_dict())
            resumed.iteration = learner.iteration
            list(train(resumed, actor(kind, toys, other), TextBandit, seed=1))
            model, learner = other, resumed
        runs.append(weights(model, learner))
    assert torch.equal(runs[0], runs[1])


def test_any_credit_runs_on_frozen_lake() -> None:
    for credit in CREDITS.values():
        model = tiny()
        agent = LanguageAgent.from_config(model, AgentConfig(max_new_tokens=4, recovery="random"))
        settings = config(num_iterations=2, num_groups=4, max_steps=3, **credit)
        (first, second) = train(
            Learner(model, settings), agent, lambda: make("frozen_lake", size=3, max_steps=4), seed=0
        )
        assert first.metrics["num_updates"] == second.metrics["num_updates"] == 1.0
        assert first.metrics["ratio_gap"] < 1e-3


def test_agents_that_cannot_be_trained_are_refused() -> None:
    message = "agent.temperature=0 always gives the same episode, so nothing is learnt; set it above 0."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_trainable(ScoringAgent(tiny(), temperature=0.0))
    message = (
        "agent.name='scoring' chooses among whole actions, and MS-GRPO trains tokens that were sampled; set agent.name "
        "= 'language', or algorithm.name = 'poad'."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ms_grpo.check_trainable(ScoringAgent(tiny()))  # type: ignore[arg-type]
