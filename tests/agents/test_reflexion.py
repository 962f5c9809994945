"""Reflexion: what the model is asked about a failed attempt, and what the next trial is shown of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stratagem.agents.react import load_react_template
from stratagem.agents.reflexion import (
    ReflexionAgent,
    ReflexionConfig,
    load_reflection_template,
    reflections_in,
    transcript,
)
from stratagem.errors import ConfigError
from stratagem.models.base import Completion, Request
from stratagem.rollout import Episode, play_episodes
from stratagem.types import Finish, Generation, Step, StopReason, Trajectory


class Learner:
    """Reflects and acts; both in order, the last answer repeats."""

    name = "learner"
    context_length = 1000

    def __init__(
        self, reflections: Sequence[str] = ("Go right.",), actions: Sequence[str] = ("Action: right",)
    ) -> None:
        self.reflections, self.actions = list(reflections), list(actions)
        self.asked: list[Request] = []
        self.acted: list[Request] = []
        self.full = False

    async def generate(self, request: Request) -> Completion:
        if "failed attempt" in request.messages[0][1]:
            self.asked.append(request)
            if self.full:
                return Completion("", Finish.CONTEXT, (7,))
            text = self.reflections[min(len(self.asked), len(self.reflections)) - 1]
            return Completion(text, Finish.STOP if text != "Cut" else Finish.LENGTH, (7,), (8, 9), (-1.0, -1.0), 1, 2)
        self.acted.append(request)
        text = self.actions[min(len(self.acted), len(self.actions)) - 1]
        return Completion(text, Finish.STOP, (1,), (2,), (-0.5,), 1, 1)

    async def aclose(self) -> None:
        return None


def failed(*said: tuple[str, str], reflection: str | None = None) -> Trajectory:
    parts = () if reflection is None else (Generation("reflection", reflection),)
    steps = tuple(
        Step(observation, None, 0.0, completion=text, generations=parts if number == 0 else ())
        for number, (observation, text) in enumerate(said)
    )
    return Trajectory("lake", 0, 0, 0, steps, True, False, StopReason.TERMINATED, False)


FIRST = failed(("Rules.\nAt 0.", "Action: down"), ("Rules.\nAt 1.", ""))
SECOND = failed(("Rules.\nAt 0.", "Action: up"), reflection="Do not go down.")


def test_an_attempt_is_told_in_turns_and_what_never_changes_once() -> None:
    assert transcript(FIRST) == "Observation: Rules.\nAt 0.\nAction: down\nObservation: At 1.\n(no answer)"
    assert transcript(failed()) == ""


def test_the_model_is_asked_about_the_last_attempt_and_shown_what_earlier_ones_taught() -> None:
    agent = ReflexionAgent.from_config(Learner())
    system = load_reflection_template("default").system
    assert system is not None
    assert agent.after([FIRST]).reflection_request().messages == (
        ("system", system),
        (
            "user",
            "The attempt:\nObservation: Rules.\nAt 0.\nAction: down\nObservation: At 1.\n(no answer)\n\nThe attempt "
            "failed. Your advice for the next one:",
        ),
    )
    assert agent.after([FIRST, SECOND]).reflection_request().messages[1] == (
        "user",
        "What earlier attempts at this task taught:\n- Do not go down.\nThe attempt:\nObservation: Rules.\nAt "
        "0.\nAction: up\n\nThe attempt failed. Your advice for the next one:",
    )


def lake(model: Learner, attempts: Sequence[Trajectory], config: ReflexionConfig | None = None) -> Trajectory:
    from stratagem.games import make

    agent = ReflexionAgent.from_config(model, config).after(attempts)
    return play_episodes(lambda: make("frozen_lake", board=["SG", "FF"]), [agent], [Episode(0)])[0]


def test_reflections_stand_before_the_first_observation_of_the_next_trial() -> None:
    model = Learner(["Go right,\nquickly."], ["Action: down", "Action: right"])
    trajectory = lake(model, [FIRST, SECOND])
    system = load_react_template("react").system
    assert model.acted[0].messages[0] == ("system", system)
    assert (
        model.acted[0]
        .messages[1][1]
        .startswith(
            "What earlier attempts at this task taught:\n- Do not go down.\n- Go right, quickly.\n\nObservation: "
        )
    )
    assert len(model.asked) == 1  # once, at the beginning
    assert model.acted[1].messages[1] == model.acted[0].messages[1]  # and it stays there
    (part,) = trajectory.steps[0].generations
    assert (part.role, part.completion, part.parse_error) == ("reflection", "Go right,\nquickly.", None)
    assert trajectory.steps[1].generations == ()
    assert reflections_in([FIRST, SECOND, trajectory]) == ["Do not go down.", "Go right, quickly."]
    assert trajectory.num_tokens == 2 + len(trajectory.steps)  # those of the reflection count


def test_only_the_last_reflections_are_remembered() -> None:
    model = Learner(["c"])
    attempts = [FIRST, *(failed(("o", "x"), reflection=text) for text in ("a", "b"))]
    lake(model, attempts, ReflexionConfig(memory=2))
    assert "taught:\n- b\n- c\n\nObservation: " in model.acted[0].messages[1][1]


def test_without_attempts_it_is_a_react_agent() -> None:
    model = Learner()
    trajectory = lake(model, [])
    assert model.asked == [] and trajectory.steps[0].generations == ()
    assert model.acted[0].messages[1][1].startswith("Observation: ")


@pytest.mark.parametrize(
    ("reflection", "full", "reason", "shown"),
    [(" \n", False, "empty", False), ("Cut", False, "length", True), ("x", True, "context", False)],
    ids=["nothing said", "cut off", "no room"],
)
def test_a_reflection_that_cannot_be_used_is_counted_and_the_trial_is_played(
    reflection: str, full: bool, reason: str, shown: bool
) -> None:
    model = Learner([reflection])
    model.full = full
    trajectory = lake(model, [FIRST])
    assert trajectory.steps[0].generations[0].parse_error == reason
    assert ("- Cut" in model.acted[0].messages[1][1]) is shown
    assert trajectory.success


def test_an_attempt_that_never_began_is_not_thought_about() -> None:
    model = Learner()
    lake(model, [failed()])
    assert model.asked == []


def test_reflecting_and_acting_have_random_numbers_of_their_own() -> None:
    model = Learner()
    config = ReflexionConfig(max_new_tokens=3, temperature=1.0, reflection_tokens=2, reflection_temperature=1.0)
    lake(model, [FIRST], config)
    asked, acted = model.asked[0].uniforms, model.acted[0].uniforms
    assert asked is not None and acted is not None
    assert (len(asked), len(acted)) == (2, 3)
    assert not np.isin(asked, acted).any()


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^num_trials=0 leaves nothing to learn from; set it to 1 or more\.$"):
        ReflexionConfig(num_trials=0)
    with pytest.raises(ConfigError, match=r"^memory=0 leaves nothing to learn from; set it to 1 or more\.$"):
        ReflexionConfig(memory=0)
    path = str(tmp_path / "mine.txt")
    Path(path).write_text("--- user\n{observation}\n{lesson}\n", encoding="utf-8")
    message = (
        f"reflection_template={path!r} holds {{lesson}}, which is not known; use {{observation}} for the attempt and "
        "{lessons} for earlier reflections."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        load_reflection_template(path)
