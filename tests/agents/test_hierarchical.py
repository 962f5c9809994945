"""The agent with scripted models: what each role is asked, and what is recorded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratagem.agents.hierarchical import HierarchicalAgent, HierarchicalConfig, RoleSettings
from stratagem.data.trajectories import read_trajectories, write_trajectories
from stratagem.errors import ConfigError
from stratagem.evaluation.episode_log import read_episodes, write_episodes
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.models.base import Completion, Request
from stratagem.rollout import Episode, play_episodes
from stratagem.types import Finish, StopReason, Trajectory, TrajectoryGroup


class Scripted:
    """Answers by the role that asks, in order; the last answer repeats."""

    name = "scripted"
    context_length = 1000

    def __init__(self, **answers: Sequence[str]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str]] = []
        self.uniforms: list[tuple[str, list[float] | None]] = []
        self.closed = 0
        self.full_for: str | None = None

    async def generate(self, request: Request) -> Completion:
        system, user = request.messages[0][1], request.messages[1][1]
        role = "high" if "high level" in system else "low" if "low level" in system else "progress"
        place = sum(asker == role for asker, _ in self.asked)
        self.asked.append((role, user))
        self.uniforms.append((role, None if request.uniforms is None else request.uniforms.tolist()))
        if role == self.full_for:
            return Completion("", Finish.CONTEXT, (1, 2))
        text = self.answers[role][min(place, len(self.answers[role]) - 1)]
        finish = Finish.LENGTH if text.endswith("...") else Finish.STOP
        return Completion(text, finish, (1, 2), (3,) * len(text.split()) or (4,), (-0.5,), 2, len(text.split()))

    async def aclose(self) -> None:
        self.closed += 1


class Walk(Game):
    """Three moves; the observation is a number."""

    name = "walk"

    def __init__(self, steps: int = 3) -> None:
        self.steps, self.place = steps, -1

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        self.place = 0
        return ("Hall. Looking quickly around you, you see a door 1.\n\nYour task is to: walk.",)

    def step(self, actions: Sequence[str | None]) -> GameStep:
        check_joint_action(self, actions, started=self.place >= 0, over=self.place == self.steps)
        self.place += 1
        end = self.place == self.steps
        return GameStep((self.observation(),), (float(end),), end, False, {"success": True} if end else {})

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        return () if self.place == self.steps else ("go", "stay")

    def observation(self, player: int = 0) -> str:
        return f"\nAt {self.place}. \n"

    def state_key(self) -> str:
        return str(self.place)

    def render(self) -> str:
        return self.state_key()


def play(model: Any, config: HierarchicalConfig | None = None, *, steps: int = 3, **own: Any) -> Trajectory:
    agent = HierarchicalAgent.from_config(model, config, **own)
    return play_episodes(lambda: Walk(steps), [agent], [Episode(0)])[0]


def script() -> Scripted:
    return Scripted(
        high=["Leave the hall", "Go on"],
        low=["go; False", "go; True", "stay; True"],
        progress=["One step made", "Two steps made"],
    )


def test_the_roles_are_asked_in_the_order_of_the_paper() -> None:
    model = script()
    trajectory = play(model)
    scene = "Looking quickly around you, you see a door 1."
    assert model.asked == [
        (
            "high",
            f"{scene}\nTask: walk.\nCompleted subtasks: None\nLast progress: None\nObservation: Hall.",
        ),
        ("low", f"{scene}\nSubtask: Leave the hall\nLocal progress: None\nObservation: Hall."),
        ("progress", "Subtask: Leave the hall\nPrevious progress: None\nAction: go\nObservation: At 1."),
        ("low", f"{scene}\nSubtask: Leave the hall\nLocal progress: One step made\nObservation: At 1."),
        ("progress", "Subtask: Leave the hall\nPrevious progress: One step made\nAction: go\nObservation: At 2."),
        (
            "high",
            f"{scene}\nTask: walk.\nCompleted subtasks: Leave the hall\nLast progress: Two steps made\nObservation: "
            "At 2.",
        ),
        ("low", f"{scene}\nSubtask: Go on\nLocal progress: None\nObservation: At 2."),
    ]
    assert [step.action for step in trajectory.steps] == ["go", "go", "stay"]
    assert [[part.role for part in step.generations] for step in trajectory.steps] == [
        ["high"],
        ["progress"],
        ["progress", "high"],
    ]
    assert trajectory.success and trajectory.environment_return == 1.0
    assert model.closed == 1


def test_without_subtasks_the_high_level_is_never_asked_and_the_task_lasts() -> None:
    model = script()
    trajectory = play(model, HierarchicalConfig(use_subtasks=False))
    scene = "Looking quickly around you, you see a door 1."
    assert model.asked == [
        ("low", f"{scene}\nSubtask: walk.\nLocal progress: None\nObservation: Hall."),
        ("progress", "Subtask: walk.\nPrevious progress: None\nAction: go\nObservation: At 1."),
        ("low", f"{scene}\nSubtask: walk.\nLocal progress: One step made\nObservation: At 1."),
        ("progress", "Subtask: walk.\nPrevious progress: One step made\nAction: go\nObservation: At 2."),
        ("low", f"{scene}\nSubtask: walk.\nLocal progress: Two steps made\nObservation: At 2."),
    ]
    assert [step.action for step in trajectory.steps] == ["go", "go", "stay"]


def test_without_progress_every_prompt_says_that_there_is_none() -> None:
    model = script()
    play(model, HierarchicalConfig(use_progress=False))
    scene = "Looking quickly around you, you see a door 1."
    assert model.asked == [
        ("high", f"{scene}\nTask: walk.\nCompleted subtasks: None\nLast progress: None\nObservation: Hall."),
        ("low", f"{scene}\nSubtask: Leave the hall\nLocal progress: None\nObservation: Hall."),
        ("low", f"{scene}\nSubtask: Leave the hall\nLocal progress: None\nObservation: At 1."),
        (
            "high",
            f"{scene}\nTask: walk.\nCompleted subtasks: Leave the hall\nLast progress: None\nObservation: At 2.",
        ),
        ("low", f"{scene}\nSubtask: Go on\nLocal progress: None\nObservation: At 2."),
    ]


def test_with_histories_it_is_shown_what_happened_and_nobody_sums_up() -> None:
    model = script()
    trajectory = play(model, HierarchicalConfig(use_progress=False, use_history=True))
    scene = "Looking quickly around you, you see a door 1."
    first, second = "Observation: Hall.\nAction: go\n", "Observation: At 1.\nAction: go\n"
    assert model.asked == [
        ("high", f"{scene}\nTask: walk.\nCompleted subtasks: None\nObservation: Hall."),
        ("low", f"{scene}\nSubtask: Leave the hall\nObservation: Hall."),
        ("low", f"{scene}\nSubtask: Leave the hall\n{first}Observation: At 1."),
        ("high", f"{scene}\nTask: walk.\nCompleted subtasks: Leave the hall\n{first}{second}Observation: At 2."),
        ("low", f"{scene}\nSubtask: Go on\nObservation: At 2."),
    ]
    assert [step.action for step in trajectory.steps] == ["go", "go", "stay"]


def test_an_invalid_action_stands_in_the_history_as_it_was_said() -> None:
    model = Scripted(high=["First"], low=["fly; False", "", "go; False"], progress=[])
    play(model, HierarchicalConfig(use_progress=False, use_history=True))
    assert model.asked[-1][1].count("Action: ") == 2
    assert "Observation: Hall.\nAction: fly\nObservation: At 1.\nAction: None\nObservation: At 2." in model.asked[-1][1]


def test_histories_leave_nothing_to_sum_up() -> None:
    message = (
        "use_history=True shows everything that happened, so that nobody needs to sum it up; set use_progress=False "
        "beside it."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        HierarchicalConfig(use_history=True)


def test_a_limit_of_subtasks_does_not_go_without_subtasks() -> None:
    message = "max_subtask_steps=5 ends subtasks, and use_subtasks=False has none; leave one of them out."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        HierarchicalConfig(use_subtasks=False, max_subtask_steps=5)


def test_every_word_of_every_role_counts_as_a_token() -> None:
    # high 3 + 2, low 3 x 2, progress 3 + 3
    assert play(script()).num_tokens == 17


def test_prompts_do_not_grow_with_the_episode() -> None:
    model = Scripted(high=["Walk"], low=["go; True"], progress=["Step made"])
    play(model, HierarchicalConfig(shown_subtasks=2), steps=30)
    prompts = [user for role, user in model.asked if role == "high"]
    assert len(prompts) == 30
    assert "Completed subtasks: Walk; Walk\n" in prompts[-1]
    assert len(prompts[29]) - len(prompts[9]) == 1  # "At 29." against "At 9."


def test_malformed_answers_are_data_and_something_defined_takes_their_place() -> None:
    model = Scripted(high=[" "], low=["fly; False", "go", "go; False"], progress=["", "Cut off..."])
    trajectory = play(model)
    assert [step.parse_error for step in trajectory.steps] == ["unknown", "no_flag", None]
    assert [step.executed_action for step in trajectory.steps] == [None, None, "go"]
    assert [part.parse_error for step in trajectory.steps for part in step.generations] == ["empty", "empty", "length"]
    users = [user for role, user in model.asked if role != "high"]
    assert "Subtask: walk." in users[0]  # the task stands for a subtask that was not named
    assert "Previous progress: None\nAction: fly" in users[1]
    assert "Local progress: None" in users[2]  # an empty one changes nothing
    assert "Action: go\nObservation: At 2." in users[3]
    assert "Local progress: Cut off..." in users[4]


def test_a_subtask_that_takes_too_long_is_ended() -> None:
    model = Scripted(high=["First", "Second"], low=["go; False"], progress=["Walked"])
    play(model, HierarchicalConfig(max_subtask_steps=2))
    assert [role for role, _ in model.asked if role != "progress"] == ["high", "low", "low", "high", "low"]


def test_invalid_actions_in_a_row_end_the_episode() -> None:
    model = Scripted(high=["First"], low=["fly; False", "go; False", "fly; False"], progress=["Walked"])
    trajectory = play(model, HierarchicalConfig(max_invalid=2), steps=9)
    assert [step.action for step in trajectory.steps] == [None, "go", None, None]
    assert trajectory.stop_reason is StopReason.INVALID_ACTION


def test_without_progress_nobody_sums_up() -> None:
    model = script()
    play(model, HierarchicalConfig(use_progress=False))
    assert {role for role, _ in model.asked} == {"high", "low"}
    assert all("rogress: None" in user for _, user in model.asked)


def test_a_role_can_have_a_model_of_its_own_and_each_is_closed_once() -> None:
    shared, own = script(), script()
    play(shared, progress=own)
    assert {role for role, _ in shared.asked} == {"high", "low"}
    assert {role for role, _ in own.asked} == {"progress"}
    assert (shared.closed, own.closed) == (1, 1)


def test_each_role_draws_from_its_own_part_of_the_uniforms() -> None:
    config = HierarchicalConfig(
        high=RoleSettings(temperature=1.0, max_new_tokens=2),
        progress=RoleSettings(temperature=1.0, max_new_tokens=3),
    )
    model = script()
    agent = HierarchicalAgent.from_config(model, config)
    assert agent.num_uniforms == 5
    episode = agent.begin()
    numbers = np.arange(5) / 10
    for observation in ("o", "p"):
        asyncio.run(episode.decide(observation, ("go",), numbers))
    assert model.uniforms == [
        ("high", [0.0, 0.1]),
        ("low", None),
        ("progress", [0.2, 0.3, 0.4]),
        ("low", None),
    ]


def test_other_temperatures_leave_the_rest_as_it_is() -> None:
    agent = HierarchicalAgent.from_config(script())
    other = agent.with_temperatures(1.0, 0.0, 0.5)
    assert [other.generation[role].temperature for role in ("high", "low", "progress")] == [1.0, 0.0, 0.5]
    assert [other.generation[role].max_new_tokens for role in ("high", "low", "progress")] == [32, 32, 150]
    assert agent.num_uniforms == 0 and other.num_uniforms == 182


@pytest.mark.parametrize("role", ["high", "low", "progress"])
def test_a_full_context_ends_the_episode(role: str) -> None:
    model = script()
    model.full_for = role
    trajectory = play(model)
    assert trajectory.stop_reason is StopReason.CONTEXT
    assert len(trajectory.steps) == (1 if role == "progress" else 0)


def test_what_was_said_comes_back_from_parquet_and_from_a_log(tmp_path: Path) -> None:
    trajectory = play(script())
    write_trajectories(tmp_path, 1, [TrajectoryGroup((trajectory,))])
    assert read_trajectories(tmp_path)[0].group.trajectories == (trajectory,)
    write_episodes(tmp_path / "e.jsonl", {}, [trajectory])
    assert read_episodes(tmp_path / "e.jsonl")[1] == {0: trajectory}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"recovery": "random"},
            "recovery='random' does not go with a hierarchical agent, whose progress tells what it did itself; use "
            "no_action or end.",
        ),
        (
            {"invalid_penalty": 0.5},
            "invalid_penalty=0.5 would reward invalid actions; use a number of 0 or less.",
        ),
        ({"max_subtask_steps": 0}, "max_subtask_steps=0 leaves no step; set it to 1 or more, or leave it out."),
        ({"max_invalid": 0}, "max_invalid=0 leaves no step; set it to 1 or more, or leave it out."),
        ({"shown_subtasks": 0}, "shown_subtasks=0 shows none; set it to 1 or more."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        HierarchicalConfig(**settings)
