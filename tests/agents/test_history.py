"""What an agent that remembers asks its model: golden chats, and what the tokens of a real tokenizer make of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest

from stratagem.agents.history import UNCHANGED, HistoryAgent, Turn, chat, make_language_agent, unrepeated
from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.agents.prompts import PromptTemplate
from stratagem.errors import ConfigError
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.models.base import Completion, GenerationConfig, Request
from stratagem.models.catalog import ModelConfig, build_tiny
from stratagem.models.local import LocalModel
from stratagem.rollout import Episode, play_episodes
from stratagem.types import Finish, StopReason

TEMPLATE = PromptTemplate("hand", "Be brief.", "Now:\n{observation}\nGo.", "<action>", ("action",))
RULES = "Walk to 9.\nWords: on, off."


def observation(place: int) -> str:
    return f"{RULES}\nYou are at {place}."


class Walk(Game):
    """Four steps along a line; "on" goes on."""

    name = "walk"

    def __init__(self, steps: int = 4) -> None:
        self.steps, self.place, self.count = steps, 0, -1

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        self.place = self.count = 0
        return (self.observation(),)

    def step(self, actions: Sequence[str | None]) -> GameStep:
        check_joint_action(self, actions, started=self.count >= 0, over=self.count == self.steps)
        self.place += actions[0] == "on"
        self.count += 1
        return GameStep((self.observation(),), (float(self.place),), self.count == self.steps, False)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        return () if self.count == self.steps else ("on", "off")

    def observation(self, player: int = 0) -> str:
        return observation(self.place)

    def state_key(self) -> str:
        return f"{self.place} after {self.count}"

    def render(self) -> str:
        return self.state_key()


class Scripted:
    """Says its lines in order and keeps what it was asked; ``room`` answers fit into its context."""

    name = "scripted"
    context_length = 1000

    def __init__(self, *lines: str, room: int = 100) -> None:
        self.lines, self.room = lines, room
        self.asked: list[Request] = []
        self.closed = 0

    async def generate(self, request: Request) -> Completion:
        place = len(self.asked)
        self.asked.append(request)
        if place >= self.room:
            return Completion("", Finish.CONTEXT, (1,) * 1000)
        return Completion(self.lines[place], Finish.STOP, (1,), (10 + place, 2), (-0.5, -0.5), 1, 2)

    async def aclose(self) -> None:
        self.closed += 1


def agent_of(model: Any, steps: Any, **settings: Any) -> HistoryAgent:
    generation = GenerationConfig(4, 0.0, stop=("</action>",))
    return HistoryAgent(LanguageAgent(model, generation, TEMPLATE, **settings), steps)


def play(model: Any, steps: Any, **settings: Any) -> Any:
    return play_episodes(Walk, [agent_of(model, steps, **settings)], [Episode(0)])[0]


LINES = ("on</action>", "jump</action>", "on</action> now", "off</action>")

SYSTEM = ("system", "Be brief.")


def first(place: int) -> tuple[str, str]:
    return "user", f"Now:\n{observation(place)}\nGo."


def test_the_last_two_steps_stand_before_the_present_observation() -> None:
    model = Scripted(*LINES)
    play(model, 2)
    # Places: 0, then 1 after "on", still 1 after the invalid "jump", 2 after "on". Words behind the closing tag and
    # invalid answers stay as they were said. The rules stand in the first user turn that is shown, and only there.
    assert [request.messages for request in model.asked] == [
        (SYSTEM, first(0)),
        (SYSTEM, first(0), ("assistant", "<action>on</action>"), ("user", "You are at 1.")),
        (
            *(SYSTEM, first(0), ("assistant", "<action>on</action>"), ("user", "You are at 1.")),
            *(("assistant", "<action>jump</action>"), ("user", "You are at 1.")),
        ),
        (
            *(SYSTEM, first(1), ("assistant", "<action>jump</action>"), ("user", "Nothing has changed.")),
            *(("assistant", "<action>on</action> now"), ("user", "You are at 2.")),
        ),
    ]
    assert [request.sampled for request in model.asked] == [(), ((10, 2),), ((10, 2), (11, 2)), ((11, 2), (12, 2))]
    assert {request.assistant_prefix for request in model.asked} == {"<action>"}


def test_with_the_whole_episode_a_chat_begins_with_the_one_before() -> None:
    model = Scripted(*LINES)
    play(model, "all")
    for before, after in zip(model.asked, model.asked[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.sampled[: len(before.sampled)] == before.sampled
        assert len(after.messages) == len(before.messages) + 2
    # the last chat: system, 4 observations, 3 answers
    assert [role for role, _ in model.asked[-1].messages] == ["system", *["user", "assistant"] * 3, "user"]


def test_without_past_steps_the_request_is_that_of_a_language_agent() -> None:
    model = Scripted(*LINES)
    agent = agent_of(model, 0)
    episode = agent.begin()
    for place in range(3):
        asyncio.run(episode.decide(observation(place), ("on", "off")))
        assert model.asked[-1] == agent.agent.request(observation(place), None, ("on", "off"))
    # and a history agent's first request is that, whatever it will remember
    asyncio.run(agent_of(model, "all").begin().decide(observation(0), ("on", "off")))
    assert model.asked[-1] == agent.agent.request(observation(0), None, ("on", "off"))


def test_episodes_of_one_agent_do_not_share_their_past() -> None:
    class Echo(Scripted):
        async def generate(self, request: Request) -> Completion:
            await asyncio.sleep(0)
            self.asked.append(request)
            return Completion("on</action>", Finish.STOP, (1,), (3,), (-0.5,), 1, 1)

    model = Echo()
    played = play_episodes(lambda: Walk(2), [agent_of(model, "all")], [Episode(0), Episode(1)])
    assert [len(t.steps) for t in played] == [2, 2]
    assert sorted(len(request.messages) for request in model.asked) == [2, 2, 4, 4]
    assert model.closed == 1


def test_a_full_context_ends_the_episode_by_name() -> None:
    trajectory = play(Scripted(*LINES, room=2), "all")
    assert (trajectory.stop_reason, trajectory.truncated, len(trajectory.steps)) == (StopReason.CONTEXT, True, 2)


def test_steps_are_recorded_as_without_a_past() -> None:
    trajectory = play(Scripted(*LINES), "all", invalid_penalty=-0.25)
    assert [(step.action, step.invalid_penalty, step.completion) for step in trajectory.steps] == [
        ("on", 0.0, "on</action>"),
        (None, -0.25, "jump</action>"),
        ("on", 0.0, "on</action> now"),
        ("off", 0.0, "off</action>"),
    ]
    assert [step.observation for step in trajectory.steps] == [observation(place) for place in (0, 1, 1, 2)]


def test_an_invalid_answer_ends_the_episode_where_the_agent_says_so() -> None:
    trajectory = play(Scripted(*LINES), 2, recovery="end")
    assert (trajectory.stop_reason, len(trajectory.steps)) == (StopReason.INVALID_ACTION, 2)


# ---- what is left out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observations", "shown"),
    [
        (["a"], ["a"]),
        (["R\na\nz", "R\nb\nz", "R\na\nz"], ["R\na\nz", "b\nz", "a\nz"]),  # a changed line stays shown
        (["R\na", "R\na", "R\nb", "R\nb"], ["R\na", UNCHANGED, "b", "b"]),
        (["R\na\nb", "R\na"], ["R\na\nb", "a"]),
        (["R", "R\na"], ["R", "a"]),
        (["S\na", "R\na", "S\na"], ["S\na", "R\na", "S\na"]),
        (["Nothing happens."] * 2, ["Nothing happens."] * 2),
        (["", ""], ["", ""]),
    ],
    ids=["one", "changed", "unchanged", "shorter", "longer", "nothing_in_common", "one_line", "empty"],
)
def test_first_lines_are_left_out_while_they_have_never_changed(observations: list[str], shown: list[str]) -> None:
    assert unrepeated(observations) == shown


def test_what_is_shown_never_depends_on_what_comes_later() -> None:
    texts = [observation(0), f"{RULES}\nYou are at 1.", "Walk to 8.\nWords: on, off.\nYou are at 1.", observation(0)]
    for count in range(1, 5):
        assert unrepeated(texts[:count]) == unrepeated(texts)[:count]


def test_every_observation_can_be_put_together_again() -> None:
    # Nothing is lost: what is left out is the beginning of the first one, up to the line where the rest goes on.
    texts = [observation(place) for place in (0, 1, 0, 3)]
    for text, shown in zip(texts, unrepeated(texts), strict=True):
        assert text.endswith(shown)
        assert texts[0].startswith(text[: len(text) - len(shown)])


def test_a_template_without_system_section_begins_with_the_user() -> None:
    template = PromptTemplate("bare", None, "{observation}")
    assert chat(template, [Turn("R\na", "x")], "R\nb") == (("user", "R\na"), ("assistant", "x"), ("user", "b"))


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1, "some", True, 1.5], ids=str)
def test_a_context_that_is_no_number_of_steps_is_refused(value: Any) -> None:
    message = (
        f"context_steps={value!r} is no number of past steps; use 0 for the present observation alone, 1 or more, or "
        "'all'."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        AgentConfig(context_steps=value)
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        agent_of(None, value)


def test_the_settings_choose_the_agent() -> None:
    plain: Any = make_language_agent(Scripted(), AgentConfig())
    assert isinstance(plain, LanguageAgent)
    last = make_language_agent(Scripted(), AgentConfig(context_steps=2, temperature=0.5, invalid_penalty=-1.0))
    assert isinstance(last, HistoryAgent)
    assert (last.context_steps, last.generation.temperature, last.num_uniforms) == (2, 0.5, 200)
    assert (last.template.name, last.recovery, last.invalid_penalty) == ("action", "no_action", -1.0)
    greedy = last.with_temperature(0.0)
    assert (greedy.num_uniforms, greedy.context_steps, last.generation.temperature) == (0, 2, 0.5)


def test_a_language_agent_refuses_a_past_that_it_would_not_show() -> None:
    message = (
        "context_steps='all' needs an agent that remembers; build it with stratagem.agents.history.make_language_agent."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        LanguageAgent.from_config(Scripted(), AgentConfig(context_steps="all"))


# ---- tokens ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny() -> LocalModel:
    model, tokenizer = build_tiny()
    return LocalModel(model, tokenizer, ModelConfig("tiny"))


def test_the_prompts_of_an_episode_are_one_path_of_tokens(tiny: LocalModel) -> None:
    agent = make_language_agent(tiny, AgentConfig(template="think_action", max_new_tokens=12, context_steps="all"))
    played = play_episodes(Walk, [agent], [Episode(0, 0, ("path", number)) for number in range(6)])
    for trajectory in played:
        for before, after in zip(trajectory.steps, trajectory.steps[1:], strict=False):
            begin = before.prompt_ids + before.completion_ids
            assert after.prompt_ids[: len(begin)] == begin
            # 2 is <|im_end|>: sampled, or written by the chat template at once.
            assert before.completion_ids[-1] == 2 or after.prompt_ids[len(begin)] == 2
            assert tiny.decode(after.prompt_ids[len(begin) :]).endswith("<|im_start|>assistant\n")


def test_answers_keep_the_ids_they_were_sampled_with(tiny: LocalModel) -> None:
    # 0 is a special token that no text shows, and 2 the end of the turn, which the chat template writes itself.
    said = (*tiny.encode("up"), 0, 2)
    text = tiny.decode(said, skip_special_tokens=True)
    assert text == "up"
    messages = [("user", "a"), ("assistant", f"<action>{text}"), ("user", "b")]
    ids = tiny.encode_chat(messages, "<action>", [said])
    before = tiny.encode_chat(messages[:1], "<action>")
    assert ids[: len(before) + 4] == before + said
    rest = "\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n<action>"
    assert tiny.decode(ids[len(before) + 4 :]) == rest


def test_answers_without_ids_are_tokenised(tiny: LocalModel) -> None:
    messages = (("user", "a"), ("assistant", "<action>up"), ("user", "b"), ("assistant", "<action>on"), ("user", "c"))
    whole = tiny.encode_chat(messages, "<action>")
    up, on = tiny.encode("up"), tiny.encode("on")  # a byte a token: the text comes back as it was
    for sampled in ((), ((), ()), (up, ()), ((), on), (up, on)):
        assert tiny.encode_chat(messages, "<action>", sampled) == whole


def test_control_tokens_that_are_spelled_out_stay_letters_in_a_history(tiny: LocalModel) -> None:
    messages = (("user", "<|im_end|> a"), ("assistant", "<action>up"), ("user", "b <|im_start|>"))
    whole = tiny.encode_chat(messages, "<action>")
    assert tiny.encode_chat(messages, "<action>", (tiny.encode("up"),)) == whole
    assert whole.count(2) == 3  # the ends of three turns


def test_a_chat_template_that_drops_earlier_answers_is_refused() -> None:
    module, tokenizer = build_tiny()
    tokenizer.chat_template = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
    model = LocalModel(module, tokenizer, ModelConfig("tiny"))
    message = (
        "The chat template of model 'tiny' shows earlier answers 0 times; expected 1, each once. Set "
        "agent.context_steps = 0, or put a chat_template.jinja that keeps them into its folder."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        model.encode_chat((("user", "a"), ("assistant", "up"), ("user", "b")), "", ((5,),))


def test_the_tiny_model_fills_its_context_with_an_episode() -> None:
    module, tokenizer = build_tiny()
    module.config.max_position_embeddings = 420
    model = LocalModel(module, tokenizer, ModelConfig("tiny"))
    agent = make_language_agent(model, AgentConfig(max_new_tokens=8, context_steps="all"))
    (trajectory,) = play_episodes(lambda: Walk(20), [agent], [Episode(0)])
    assert trajectory.stop_reason is StopReason.CONTEXT
    assert 1 < len(trajectory.steps) < 20
    # A window keeps within it.
    (short,) = play_episodes(lambda: Walk(20), [HistoryAgent(agent.agent, 1)], [Episode(0)])
    assert (short.stop_reason, len(short.steps)) == (StopReason.TERMINATED, 20)
