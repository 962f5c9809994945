"""ReAct: what the model is asked, and how its words are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.agents.parsing import ParsedAction, ParseError
from stratagem.agents.react import ReActAgent, ReActConfig, load_react_template, parse_react, react_answer
from stratagem.errors import ConfigError, UnknownNameError
from stratagem.games import make
from stratagem.games.alfworld import ALFWorld
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.models.base import Completion, Request
from stratagem.rollout import Episode, play_episodes
from stratagem.types import Finish, StopReason, Trajectory

LEGAL = ("go to shelf 1", "open fridge 1", "Wait", "wait")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Thought: Go.\nAction: go to shelf 1", ParsedAction("go to shelf 1", None, "go to shelf 1")),
        ("Action: Go to  SHELF 1 ", ParsedAction("go to shelf 1", None, "Go to SHELF 1")),
        ("  action : open fridge 1\n", ParsedAction("open fridge 1", None, "open fridge 1")),
        ("Action: wait", ParsedAction("wait", None, "wait")),
        ("Action: WAIT", ParsedAction(None, ParseError.AMBIGUOUS, "WAIT")),
        ("Action: open fridge 1\nAction: Open fridge 1", ParsedAction("open fridge 1", None, "open fridge 1")),
        ("Action: open fridge 1\nAction: wait", ParsedAction(None, ParseError.AMBIGUOUS, "open fridge 1")),
        (
            "Action: open fridge 1\nObservation: It is.\nAction: wait",
            ParsedAction("open fridge 1", None, "open fridge 1"),
        ),
        ("Action: open fridge 1\nObservation:", ParsedAction("open fridge 1", None, "open fridge 1")),
        ("Action:", ParsedAction(None, ParseError.EMPTY, "")),
        ("Action:\ngo to shelf 1", ParsedAction(None, ParseError.EMPTY, "")),
        ("Action: go to shelf 1.", ParsedAction(None, ParseError.UNKNOWN, "go to shelf 1.")),
        ("Action: not go to shelf 1", ParsedAction(None, ParseError.UNKNOWN, "not go to shelf 1")),
        ("Thought: the Action: go to shelf 1", ParsedAction(None, ParseError.MISSING)),
        ("Observation: Action: wait", ParsedAction(None, ParseError.MISSING)),
        ("go to shelf 1", ParsedAction(None, ParseError.MISSING)),
        ("", ParsedAction(None, ParseError.MISSING)),
    ],
)
def test_the_action_is_what_stands_behind_its_mark_at_the_beginning_of_a_line(
    text: str, expected: ParsedAction
) -> None:
    assert parse_react(text, LEGAL) == expected


def test_what_an_expert_would_say_is_what_the_parser_reads() -> None:
    assert parse_react(react_answer("open fridge 1"), LEGAL).action == "open fridge 1"


class Says:
    """Answers in order; the last answer repeats."""

    name = "says"
    context_length = 1000

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> Completion:
        text = self.texts[min(len(self.requests), len(self.texts) - 1)]
        self.requests.append(request)
        return Completion(text, Finish.STOP, (1, 2), (3, 4), (-0.5, -0.5), 2, 2)

    async def aclose(self) -> None:
        return None


class Hall(Game):
    """Rules and a place; three moves."""

    name = "hall"

    def __init__(self) -> None:
        self.place = -1

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        self.place = 0
        return (self.observation(),)

    def step(self, actions: Sequence[str | None]) -> GameStep:
        check_joint_action(self, actions, started=self.place >= 0, over=self.place == 3)
        self.place += 1
        end = self.place == 3
        return GameStep((self.observation(),), (float(end),), end, False, {"success": True} if end else {})

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        return () if self.place == 3 else ("go", "stay")

    def observation(self, player: int = 0) -> str:
        return f"Walk to the end.\nAt {self.place}.\n"

    def state_key(self) -> str:
        return str(self.place)

    def render(self) -> str:
        return self.state_key()


def play(model: Says, config: ReActConfig | None = None) -> Trajectory:
    return play_episodes(Hall, [ReActAgent.from_config(model, config)], [Episode(0)])[0]


def test_all_of_the_episode_stands_in_the_prompt_as_a_chat() -> None:
    model = Says("Thought: Near.\nAction: go", "Action: fly", "I stay.")
    trajectory = play(model)
    system = load_react_template("react").system
    assert system is not None
    assert model.requests[2].messages == (
        ("system", system),
        ("user", "Observation: Walk to the end.\nAt 0."),
        ("assistant", "Thought: Near.\nAction: go"),
        ("user", "Observation: At 1."),  # what never changes stands once
        ("assistant", "Action: fly"),
        ("user", "Observation: At 2."),
    )
    assert model.requests[2].sampled == ((3, 4), (3, 4))
    assert model.requests[0].config.stop == ("\nObservation:",)
    assert model.requests[0].config.temperature == 0.0
    assert [step.action for step in trajectory.steps] == ["go", None, None]
    assert [step.parse_error for step in trajectory.steps] == [None, "unknown", "missing"]
    assert trajectory.environment_return == 1.0  # an invalid action costs nothing here


def test_a_window_shows_the_last_steps_only() -> None:
    model = Says("Action: go")
    play(model, ReActConfig(context_steps=1))
    assert [role for role, _ in model.requests[2].messages] == ["system", "user", "assistant", "user"]
    assert model.requests[2].messages[1] == ("user", "Observation: Walk to the end.\nAt 1.")


@pytest.mark.parametrize("name", ["react", "react_alfworld"])
def test_the_built_in_templates_say_the_form_that_the_parser_reads(name: str) -> None:
    system = load_react_template(name).system
    assert system is not None
    assert "Thought: your thought, on one line\nAction: the action" in system


def test_the_example_of_the_alfworld_template_is_worded_as_the_game_is() -> None:
    """Every reply of the example is one that the engine gives, and every action is one that it takes."""
    system = load_react_template("react_alfworld").system
    assert system is not None
    example = system.partition("An example:\n")[2]
    actions = re.findall(r"^Action: (.+)$", example, re.MULTILINE)
    assert actions[-1] == "put mug 3 in/on cabinet 1" and len(actions) == 8
    replies = re.findall(r"^Observation: (.+)$", example, re.MULTILINE)
    patterns = [
        r"You are in the middle of a room\. Looking quickly around you, you see (a [a-z]+ \d+, )+and a [a-z]+ \d+\.",
        r"On the [a-z]+ \d+, you see a fork 2, and a plate 1\.",
        r"The [a-z]+ \d+ is closed\.",
        r"You open the [a-z]+ \d+\. The [a-z]+ \d+ is open\. In it, you see a [a-z]+ \d+\.",
        r"You pick up the [a-z]+ \d+ from the [a-z]+ \d+\.",
        r"You heat the [a-z]+ \d+ using the [a-z]+ \d+\.",
        r"The [a-z]+ \d+ is open\. In it, you see nothing\.",
    ]
    assert all(any(re.fullmatch(pattern, reply) for pattern in patterns) for reply in replies)
    seen = set()
    game = make("ALFWorld-Generated", view="raw", task_types=["pick_heat_then_place_in_recep"])
    assert isinstance(game, ALFWorld)
    for seed in range(40):  # the same forms are seen in play
        game.reset(seed=seed)
        ended = False
        while not ended:
            step = game.step((game.planner_action(),))
            ended = step.terminated or step.truncated
            seen |= {number for number, pattern in enumerate(patterns) if re.fullmatch(pattern, game.reply)}
    assert {2, 3, 4, 5} <= seen


def test_in_alfworld_any_other_text_is_answered_with_nothing_happens() -> None:
    model = Says("Action: look at the ceiling")
    agent = ReActAgent.from_config(model)
    make_game = lambda: make("ALFWorld-Generated", view="raw", max_steps=2)  # noqa: E731
    (trajectory,) = play_episodes(make_game, [agent], [Episode(0)])
    assert model.requests[1].messages[-1] == ("user", "Observation: Nothing happens.")
    assert model.requests[0].messages[-1][1].startswith("Observation: -= Welcome to TextWorld, ALFRED! =-")
    assert [step.parse_error for step in trajectory.steps] == ["unknown", "unknown"]


def test_a_template_with_tags_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "mine.txt")
    Path(path).write_text("tags: action\n--- user\n{observation}\n", encoding="utf-8")
    message = (
        f"template={path!r} asks for tags or begins the answer, and a ReAct agent reads lines that begin with "
        "'Thought:' and 'Action:'; use one of react, react_alfworld, or a file without headers."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        load_react_template(path)
    message = "Unknown ReAct template 'reactt'. Did you mean 'react'? Available: react, react_alfworld."
    with pytest.raises(UnknownNameError, match=f"^{re.escape(message)}$"):
        load_react_template("reactt")


def test_a_react_template_is_refused_by_an_agent_that_reads_tags() -> None:
    message = (
        "template='react' asks for no tags, which are what this agent reads; set agent.name = 'react', or choose "
        "another template."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        LanguageAgent.from_config(Says("x"), AgentConfig(template="react"))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^max_new_tokens=0 leaves nothing to sample; set it to 1 or more\.$"):
        ReActConfig(max_new_tokens=0)
    message = (
        "context_steps=-1 is no number of past steps; use 0 for the present observation alone, 1 or more, or 'all'."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ReActConfig(context_steps=-1)


def test_too_many_invalid_actions_in_a_row_end_the_episode() -> None:
    trajectory = play(Says("Action: go", "Action: fly"), ReActConfig(max_invalid=2))
    assert [step.parse_error for step in trajectory.steps] == [None, "unknown", "unknown"]
    assert trajectory.stop_reason is StopReason.INVALID_ACTION
    with pytest.raises(ConfigError, match=r"^max_invalid=0 leaves no step; set it to 1 or more, or leave it out\.$"):
        ReActConfig(max_invalid=0)
