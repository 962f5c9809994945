from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stratagem.agents.base import RandomPolicy
from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.agents.prompts import PromptTemplate
from stratagem.algorithms.bc import WarmStartConfig, answer_text, demonstrations, expected_random_loss, warm_start
from stratagem.errors import ConfigError, GameError
from stratagem.games import make
from stratagem.games.base import Game, GameStep
from stratagem.models.catalog import ModelConfig, build_tiny
from stratagem.models.local import LocalModel


def tiny() -> LocalModel:
    model, tokenizer = build_tiny()
    return LocalModel(model, tokenizer, ModelConfig("tiny"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_episodes": 0}, "num_episodes=0 must be 1 or more."),
        ({"answers_per_state": 0}, "answers_per_state=0 must be 1 or more."),
        ({"num_steps": 0}, "num_steps=0 must be 1 or more."),
        ({"batch_size": 0}, "batch_size=0 must be 1 or more."),
        ({"max_tokens_per_pass": 0}, "max_tokens_per_pass=0 must be 1 or more."),
        ({"exploration": 1.5}, "exploration=1.5 is a share; use 0 to 1."),
        ({"learning_rate": math.inf}, "learning_rate=inf is no step size; use a finite number."),
        ({"learning_rate": 0}, "learning_rate=0 and max_grad_norm=1.0 must be above 0."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_teach_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        WarmStartConfig(**settings)


# ---- demonstrations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["action", "think_action", "think_plan_action"])
def test_an_answer_is_what_the_parser_reads(toys: SimpleNamespace, template: str) -> None:
    agent = LanguageAgent.from_config(toys.TableModel(), AgentConfig(template=template))
    text = agent.template.assistant_prefix + answer_text(agent, "left")
    assert agent.parser(text, ("left", "right")).action == "left"
    assert text.endswith("<action>left</action>")
    assert not answer_text(agent, "left").startswith("<action><action>")


def test_a_prefix_that_no_answer_begins_with_is_refused(toys: SimpleNamespace) -> None:
    template = PromptTemplate("odd", None, "{observation}", "Sure: ", ("action",))
    agent = toys.make_agent(toys.TableModel(), template=template)
    message = (
        "Template 'odd' begins the answer with 'Sure: ', but a well-formed answer begins with '<action>left</action'; "
        "make the prefix its beginning, or leave warm_start out."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        answer_text(agent, "left")


def test_random_answers_are_spread_over_the_legal_words(toys: SimpleNamespace) -> None:
    agent = toys.make_agent(toys.TableModel())
    config = WarmStartConfig(num_episodes=5, answers_per_state=4)
    episodes = demonstrations(agent, lambda: toys.Bandit(rounds=2), config, seed=0)
    assert [len(rows) for rows in episodes] == [8] * 5
    for rows in episodes:
        for prompt in ((0,), (1,)):
            assert sorted(answer for p, answer in rows if p == prompt) == [(0,), (0,), (1,), (1,)]


def test_fewer_answers_than_words_are_not_always_the_same_words(toys: SimpleNamespace) -> None:
    agent = toys.make_agent(toys.TableModel())
    config = WarmStartConfig(num_episodes=40, answers_per_state=1)
    answers = [rows[0][1] for rows in demonstrations(agent, toys.Bandit, config, seed=0)]
    assert 8 <= answers.count((0,)) <= 32


def test_planner_answers_are_the_planner_s_even_where_the_move_is_random(toys: SimpleNamespace) -> None:
    moves: list[Any] = []

    class Recorded(toys.Bandit):  # type: ignore[name-defined,misc]
        def step(self, actions: Any) -> GameStep:
            moves.append(actions[0])
            result: GameStep = super().step(actions)
            return result

    agent = toys.make_agent(toys.TableModel())
    config = WarmStartConfig("planner", num_episodes=50, exploration=0.5)
    episodes = demonstrations(agent, Recorded, config, seed=0)
    assert all(rows == [((0,), (0,))] for rows in episodes)
    # half of the moves are random and half of those are b: 12.5 of 50, give or take 5 standard errors of 3.1
    assert 1 <= moves.count("b") <= 28
    moves.clear()
    demonstrations(agent, Recorded, WarmStartConfig("planner", num_episodes=50, exploration=0.0), seed=0)
    assert moves == ["a"] * 50


def test_a_game_without_a_planner_is_refused(toys: SimpleNamespace) -> None:
    class Unplanned(toys.Bandit):  # type: ignore[name-defined,misc]
        def planner_action(self, player: int = 0) -> None:
            return None

    agent = toys.make_agent(toys.TableModel())
    message = "warm_start.demonstrator='planner' but game 'bandit' has no planner; use 'random'."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        demonstrations(agent, Unplanned, WarmStartConfig("planner"), seed=0)


def test_a_demonstration_that_does_not_fit_into_the_context_is_refused() -> None:
    model = tiny()
    agent = LanguageAgent.from_config(model, AgentConfig(template="action"))
    settings = WarmStartConfig(num_episodes=1)
    make_game = lambda: make("FrozenLake-NotSlippery")  # noqa: E731
    longest = max(len(p) + len(a) for e in demonstrations(agent, make_game, settings, seed=0) for p, a in e)
    model.context_length = longest
    assert demonstrations(agent, make_game, settings, seed=0)
    model.context_length = longest - 1
    message = (
        f"A demonstration takes {longest} tokens and the context of model {model.name!r} holds {longest - 1}; use a "
        "shorter template or fewer agent.context_steps."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        demonstrations(agent, make_game, settings, seed=0)


def test_no_demonstration_starts_where_an_evaluation_starts() -> None:
    agent = LanguageAgent.from_config(tiny(), AgentConfig())
    config = WarmStartConfig(num_episodes=4, answers_per_state=1)
    starts: list[str] = []

    def lake(excluded: frozenset[str] = frozenset()) -> frozenset[str]:
        game = make("frozen_lake")
        plain = game.reset
        seen: list[str] = []

        def reset(**settings: Any) -> tuple[str, ...]:
            result = plain(**settings)
            seen.append(game.state_key())
            return result

        game.reset = reset  # type: ignore[method-assign]
        demonstrations(agent, lambda: game, config, seed=0, excluded_starts=excluded)
        starts[:] = [key for key in seen if key not in excluded]
        return frozenset(starts)

    free = lake()
    assert len(free) == 4
    bound = lake(free)
    assert len(bound) == 4
    assert not free & bound


def test_a_game_whose_every_start_is_excluded_says_so(toys: SimpleNamespace) -> None:
    agent = toys.make_agent(toys.TableModel())
    message = (
        "1000 starts of 'bandit' in a row are starts of an evaluation panel; expected some that are not. Evaluate on "
        "fewer episodes, or choose a game with more starts."
    )
    with pytest.raises(GameError, match=f"^{re.escape(message)}$"):
        demonstrations(agent, toys.Bandit, WarmStartConfig(), seed=0, excluded_starts=frozenset({"0"}))


def test_opponents_who_left_are_not_asked() -> None:
    class Fading(Game):
        """Two players; the second leaves after the first round."""

        name = "fading"
        num_players = 2

        def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
            self.rounds: list[Any] = []
            return ("o", "o")

        def step(self, actions: Any) -> GameStep:
            self.rounds.append(tuple(actions))
            return GameStep(("o", "o"), (0.0, 0.0), len(self.rounds) == 3, False)

        def legal_actions(self, player: int = 0) -> tuple[str, ...]:
            return () if player and self.rounds else ("a", "b")

        def observation(self, player: int = 0) -> str:
            return "o"

        def state_key(self) -> str:
            return "s"

        def render(self) -> str:
            return "s"

    game = Fading()
    agent = LanguageAgent.from_config(tiny(), AgentConfig())
    demonstrations(agent, lambda: game, WarmStartConfig(num_episodes=1), seed=0, opponents=(RandomPolicy(),))
    assert [move is None for _, move in game.rounds] == [False, True, True]


# ---- cloning ---------------------------------------------------------------------------------------------------------


def test_cloning_random_answers_ends_at_the_uniform_policy(toys: SimpleNamespace) -> None:
    # Two words: the loss of a perfect clone of random answers is log 2 for each token.
    model = toys.TableModel(2, 1)
    agent = toys.make_agent(model)
    config = WarmStartConfig(num_steps=120, batch_size=16, learning_rate=0.2, num_episodes=8)
    metrics = list(warm_start(agent, lambda: toys.Bandit(rounds=2), config, seed=0))
    assert metrics[0]["loss"] == pytest.approx(math.log(4), rel=1e-6)  # the table starts uniform over 4 tokens
    assert metrics[-1]["loss"] == pytest.approx(math.log(2), abs=0.03)
    p = torch.softmax(model.table.detach()[:, 0], -1)
    assert (p[:, :2] > 0.4).all()
    assert (p[:, 2:] < 0.02).all()
    assert torch.equal(model.sampled_from, model.table)  # the sampler knows the new weights
    assert [m["step"] for m in metrics] == [float(n) for n in range(1, 121)]


class Compass(Game):
    """Three rounds, four words, no reward."""

    name = "compass"
    words = ("left", "down", "right", "up")

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        self.round = 0
        return (self.observation(),)

    def step(self, actions: Any) -> GameStep:
        self.round += 1
        return GameStep((self.observation(),), (0.0,), self.round == 3, False)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        return () if self.round == 3 else self.words

    def observation(self, player: int = 0) -> str:
        return f"round {self.round}"

    def state_key(self) -> str:
        return self.observation()

    def render(self) -> str:
        return self.observation()


def test_a_language_model_clones_random_answers_down_to_log_4(toys: SimpleNamespace) -> None:
    model = tiny()
    agent = toys.make_agent(model)
    config = WarmStartConfig(num_steps=80, batch_size=32, learning_rate=0.02, num_episodes=4, answers_per_state=8)
    losses = [metrics["loss"] for metrics in warm_start(agent, Compass, config, seed=0)]
    # One token for each byte: the mean length of an answer is 4 + 9.
    num_tokens = sum(map(len, Compass.words)) / 4 + len("</action>")
    assert losses[0] > 3.0
    # The first letters differ, so everything but the choice among four words can be known: log 4 is left for it.
    assert losses[-1] == pytest.approx(expected_random_loss(4, num_tokens), abs=0.03)
    prompt = model.encode_chat(agent.template.messages("round 1"), "<action>")
    with torch.no_grad():
        p = model.logprobs([(prompt, model.encode(letter)) for letter in "ldru"]).logprobs.exp()
    assert float(p.sum()) > 0.97
    assert float(p.min()) > 0.15


def test_micro_batches_change_no_step(toys: SimpleNamespace) -> None:
    tables = []
    for limit in (1, 8192):
        model = toys.TableModel(2, 1)
        config = WarmStartConfig(num_steps=5, batch_size=7, learning_rate=0.1, max_tokens_per_pass=limit)
        list(warm_start(toys.make_agent(model), lambda: toys.Bandit(rounds=2), config, seed=0))
        tables.append(model.table.detach())
    torch.testing.assert_close(tables[0], tables[1], rtol=0.0, atol=1e-5)


def test_the_rate_decays_to_a_tenth_and_the_run_repeats(toys: SimpleNamespace) -> None:
    tables = []
    for _ in range(2):
        model = toys.TableModel(2, 1)
        config = WarmStartConfig(num_steps=10, learning_rate=0.1)
        list(warm_start(toys.make_agent(model), lambda: toys.Bandit(rounds=2), config, seed=4))
        tables.append(model.table.detach())
    assert torch.equal(*tables)
