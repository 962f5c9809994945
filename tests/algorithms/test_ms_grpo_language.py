"""MS-GRPO on a real (tiny, random) language model; :mod:`test_ms_grpo` holds what a table can show."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stratagem.agents.parsing import ParsedAction, ParseError
from stratagem.algorithms import ms_grpo
from stratagem.algorithms.ms_grpo import Learner, MSGRPOConfig, make_samples, train, update
from stratagem.games.base import Game, GameStep
from stratagem.models.base import GenerationConfig
from stratagem.models.catalog import LoraSettings, ModelConfig, build_tiny
from stratagem.models.local import LocalModel
from stratagem.seeding import generator


def config(**settings: Any) -> MSGRPOConfig:
    whole_group: dict[str, Any] = dict(sampled_group_size=None, episode_temperature=None)
    return MSGRPOConfig(**({"group_size": 4, "learning_rate": 0.1, **whole_group} | settings))


def samples_of(group: Any) -> ms_grpo.GroupSamples:
    return make_samples(group, config(), generator("test"))


def gradient(learner: Learner) -> Tensor:
    return torch.cat([p.grad.flatten() for p in learner.parameters.values() if p.grad is not None])


@pytest.fixture
def tiny() -> Any:
    def make(**settings: Any) -> LocalModel:
        model, tokenizer = build_tiny()
        return LocalModel(model, tokenizer, ModelConfig("tiny", cache_tokens=4096, **settings))

    return make


class TextBandit(Game):
    """Two arms, named by words; "right" pays 1."""

    name = "text_bandit"

    def __init__(self) -> None:
        self._over = True

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        self._over = False
        return (self.observation(),)

    def step(self, actions: Any) -> GameStep:
        self._over = True
        return GameStep((self.observation(),), (float(actions[0] == "right"),), True, False)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        return () if self._over else ("left", "right")

    def observation(self, player: int = 0) -> str:
        return "left or right?"

    def state_key(self) -> str:
        return "start"

    def render(self) -> str:
        return "start"


def text_agent(toys: SimpleNamespace, model: Any, temperature: float = 1.0, limit: int = 1) -> Any:
    """An agent of a random byte model, whose answer is read from the first byte: odd is left, even is right."""

    def parse(text: str, legal: Any) -> ParsedAction:
        word = text.removeprefix("<action>")
        return ParsedAction(legal[ord(word[0]) % 2 == 0]) if word else ParsedAction(None, ParseError.EMPTY)

    return toys.make_agent(
        model, generation=GenerationConfig(max_new_tokens=limit, temperature=temperature), parser=parse
    )


def p_right(model: Any, agent: Any) -> float:
    ids = model.encode_chat(agent.template.messages(TextBandit().observation()), "<action>")
    with torch.no_grad():
        p = model.logprobs([(ids, (token,)) for token in range(259)]).logprobs.exp()
    texts = [model.decode([token], skip_special_tokens=True) for token in range(259)]
    return float(sum(p[token] for token, text in enumerate(texts) if text and ord(text[0]) % 2 == 0))


@pytest.mark.parametrize("advantages", ["true", "zero"])
def test_a_language_model_learns_the_text_bandit_from_its_advantages_alone(
    toys: SimpleNamespace, tiny: Any, monkeypatch: pytest.MonkeyPatch, advantages: str
) -> None:
    if advantages == "zero":  # negative control: every step is made, with advantage 0
        plain = ms_grpo.make_samples

        def without(*args: Any) -> ms_grpo.GroupSamples:
            found = plain(*args)
            return dataclasses.replace(
                found, samples=tuple(dataclasses.replace(s, advantage=0.0) for s in found.samples)
            )

        monkeypatch.setattr(ms_grpo, "make_samples", without)
    model = tiny()
    agent = text_agent(toys, model)
    before = p_right(model, agent)
    assert before < 0.5
    settings = config(num_iterations=12, group_size=32, learning_rate=0.01)
    iterations = list(train(Learner(model, settings), agent, TextBandit, seed=0))
    assert iterations[0].metrics["num_updates"] == 1.0
    if advantages == "true":
        assert p_right(model, agent) > 0.9
    else:
        assert p_right(model, agent) == pytest.approx(before, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_the_first_ratio_is_one_at_any_temperature(toys: SimpleNamespace, tiny: Any, temperature: float) -> None:
    model = tiny()
    agent = text_agent(toys, model, temperature, limit=12)
    settings = config(num_iterations=2, num_groups=2, group_size=6, learning_rate=0.01)
    for iteration in train(Learner(model, settings), agent, TextBandit, seed=0):
        assert iteration.metrics["num_updates"] == 1.0
        assert iteration.metrics["ratio_gap"] < 1e-3


def test_another_temperature_than_that_of_sampling_is_noticed(toys: SimpleNamespace, tiny: Any) -> None:
    # negative control of the test above: the ratio of a learner that forgets T is far from 1
    model = tiny()
    agent = text_agent(toys, model, 0.6, limit=12)
    learner = Learner(model, config(num_iterations=1, num_groups=1, group_size=6))
    groups, _ = ms_grpo.play_groups(TextBandit, [agent], num_groups=1, group_size=6, address=(0,))
    with pytest.raises(RuntimeError, match="importance ratio is off"):
        update(learner, [samples_of(groups[0])], 1.0, seed=0)


def test_micro_batches_of_a_language_model_give_one_gradient(toys: SimpleNamespace, tiny: Any) -> None:
    found = []
    for limit in (8192, 60, 1):
        model = tiny()
        agent = text_agent(toys, model, limit=9)
        groups, _ = ms_grpo.play_groups(TextBandit, [agent], num_groups=2, group_size=5, address=(0,))
        learner = Learner(model, config(max_tokens_per_pass=limit))
        samples = [s for group in groups for s in samples_of(group).samples]
        assert len({len(s.completion_ids) for s in samples}) > 1 or len(samples) > 4
        metrics = learner.step(samples, 2, 1.0)
        found.append((gradient(learner), metrics))
    for grad, metrics in found[1:]:
        torch.testing.assert_close(grad, found[0][0], rtol=0.0, atol=1e-6)
        for key in ("loss", "entropy", "grad_norm"):
            assert metrics[key] == pytest.approx(found[0][1][key], abs=1e-5)
    # fewer tokens are computed the more rows share a pass
    assert found[0][1]["tokens_computed"] < found[1][1]["tokens_computed"] < found[2][1]["tokens_computed"]
    assert found[2][1]["tokens_computed"] == found[2][1]["tokens_seen"]


def test_trained_ids_are_the_sampled_ones(toys: SimpleNamespace, tiny: Any) -> None:
    model = tiny()
    seen: list[Any] = []
    plain = model.logprobs
    model.logprobs = lambda rows, **settings: (seen.extend(rows), plain(rows, **settings))[1]
    agent = text_agent(toys, model, limit=9)
    learner = Learner(model, config(num_iterations=1, group_size=12))
    (iteration,) = train(learner, agent, TextBandit, seed=0)
    assert iteration.metrics["num_updates"] == 1.0
    steps = [step for group in iteration.groups for t in group.trajectories for step in t.steps]
    assert sorted(seen) == sorted((step.prompt_ids, step.completion_ids) for step in steps)
    assert any(model.encode(step.completion) != step.completion_ids for step in steps)


def test_lora_learns_and_resumes_like_all_weights(toys: SimpleNamespace, tiny: Any) -> None:
    settings = config(num_iterations=4, group_size=8, learning_rate=0.02, kl_coef=0.01)
    runs = []
    for stop in (4, 2):
        model = tiny(lora=LoraSettings(rank=4))
        agent, learner = text_agent(toys, model), None
        learner = Learner(model, settings)
        run = train(learner, agent, TextBandit, seed=1)
        for _ in range(stop):
            next(run)
        if stop < 4:
            other = tiny(lora=LoraSettings(rank=4))
            resumed = Learner(other, settings)  # the reference is taken here, from the weights of the start
            for name, parameter in other.named_parameters().items():
                parameter.data.copy_(model.named_parameters()[name].data)
            resumed.optimizer.load_state_dict(learner.optimizer.state_dict())
            resumed.iteration = learner.iteration
            list(train(resumed, text_agent(toys, other), TextBandit, seed=1))
            model = other
        runs.append(torch.cat([p.detach().flatten() for p in model.named_parameters().values()]))
    torch.testing.assert_close(runs[0], runs[1], rtol=0.0, atol=0.0)
