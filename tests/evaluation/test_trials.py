"""Playing a panel in trials."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from stratagem.agents.reflexion import ReflexionAgent, ReflexionConfig
from stratagem.errors import RunError
from stratagem.evaluation.panels import Panel, fixed_panel
from stratagem.evaluation.trials import (
    Trial,
    describe_reflections,
    evaluate_trials,
    last_attempts,
    trials_table,
)
from stratagem.models.base import Completion, Request
from stratagem.types import Finish, Trajectory


class Student:
    """Falls into the hole at first; once it has a reflection it walks to the goal. Some need two reflections."""

    name = "student"
    context_length = 1000

    def __init__(self, needed: int = 1) -> None:
        self.needed = needed
        self.calls = 0

    async def generate(self, request: Request) -> Completion:
        self.calls += 1
        if "failed attempt" in request.messages[0][1]:
            return Completion("Go right.", Finish.STOP, (1,), (2, 3), (-1.0, -1.0), 1, 2)
        learnt = request.messages[1][1].count("- Go right.")
        text = "Action: right" if learnt >= self.needed else "Action: down"
        return Completion(text, Finish.STOP, (1,), (2,), (-0.5,), 1, 1)

    async def aclose(self) -> None:
        return None


def panel() -> Panel:
    # Right is the goal, down is a hole.
    return fixed_panel("frozen_lake", {"board": ["SG", "HF"], "slippery": False}, 3)


def run(model: Any, trials: int = 3, **settings: Any) -> list[Trial]:
    agent = ReflexionAgent.from_config(model, ReflexionConfig(num_trials=trials))
    return evaluate_trials(panel(), lambda: agent, address=(0, "test"), num_trials=trials, **settings)


def test_what_failed_is_tried_again_with_a_reflection_and_solved_episodes_stay_solved() -> None:
    trials = run(Student())
    assert [trial.number for trial in trials] == [1, 2]  # nothing is left for the third
    assert [trial.result.success_rate for trial in trials] == [0.0, 1.0]
    assert [sorted(trial.played) for trial in trials] == [[0, 1, 2], [0, 1, 2]]
    assert all(t.success for t in last_attempts(trials)) and len(last_attempts(trials)) == 3
    assert describe_reflections(trials[0]) == {"reflections": 0.0}
    assert describe_reflections(trials[1]) == {"reflections": 3.0}
    assert trials_table(trials).rows[0][:4] == ("1", "3", "0", "0.0%")
    assert trials_table(trials).rows[1][:4] == ("2", "3", "3", "100.0%")


def test_reflections_add_up_over_trials() -> None:
    trials = run(Student(needed=2))
    assert [trial.result.success_rate for trial in trials] == [0.0, 0.0, 1.0]


def test_trials_end_at_their_number() -> None:
    trials = run(Student(needed=9), 2)
    assert [trial.number for trial in trials] == [1, 2]
    assert trials[-1].result.success_rate == 0.0


def test_what_was_played_before_is_not_played_again() -> None:
    saved: dict[int, dict[int, Trajectory]] = {}
    whole = run(
        Student(needed=2),
        on_finish=lambda trial, place, trajectory: saved.setdefault(trial, {}).update({place: trajectory}),
    )
    assert {trial.number: trial.played for trial in whole} == saved
    partial = {1: saved[1], 2: {1: saved[2][1]}}
    model = Student(needed=2)
    again = run(model, done=partial)
    assert [trial.played for trial in again] == [trial.played for trial in whole]
    # Trial 2: two episodes with a reflection and a step each; trial 3: three of them.
    assert model.calls == 2 * 2 + 3 * 2


def test_a_saved_episode_of_another_panel_is_refused() -> None:
    trajectory = run(Student())[0].played[0]
    message = (
        f"Saved episode 0 of trial 1 has seed -1, which panel 'frozen_lake' (hash {panel().hash}) does not play there; "
        "evaluate into another folder."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        run(Student(), done={1: {0: replace(trajectory, seed=-1)}})
