"""Annotations of ScienceWorld by rule."""

from __future__ import annotations

import importlib.util
import re
import shutil
from contextlib import closing
from functools import partial

import pytest

from stratagem.agents.roles import tidy
from stratagem.data.annotations import check_annotations
from stratagem.data.expert import expert_episodes as any_expert_episodes
from stratagem.data.scienceworld_annotations import expert_episodes, progress_after, segment_ends, subtask_name
from stratagem.errors import ConfigError, GameError
from stratagem.games import make
from stratagem.games.scienceworld import ScienceWorld
from stratagem.games.worker import GameWorker

MISSING = shutil.which("java") is None or importlib.util.find_spec("scienceworld") is None
needs_engine = pytest.mark.skipif(MISSING, reason="there is no java or no package scienceworld here")

UNKNOWN = "No known action matches that input."
ASKS = "Ambiguous request: Please enter the number for the action you intended (or blank to cancel):\n0:\ta\n1:\tb\n"


# ---- subtasks --------------------------------------------------------------------------------------------------------


def cut(*actions: str, asked: tuple[int, ...] = ()) -> list[list[str]]:
    """Return the commands of each subtask."""
    replies = [ASKS if number in asked else "Done." for number in range(len(actions))]
    parts: list[list[str]] = [[]]
    for action, end in zip(actions, segment_ends(list(actions), replies), strict=True):
        parts[-1].append(action)
        if end:
            parts.append([])
    assert parts.pop() == []
    return parts


def test_moves_up_to_a_room_are_one_subtask() -> None:
    way = ("look around", "open door to kitchen", "go to kitchen", "look around", "open door to hall", "go to hall")
    assert cut(*way, "open cupboard", "pick up pot") == [list(way), ["open cupboard", "pick up pot"]]
    # What is opened in a room serves what comes next there, so the way ends before it.
    assert cut("go to kitchen", "open cupboard", "go to hall", "wait") == [
        ["go to kitchen"],
        ["open cupboard", "go to hall"],
        ["wait"],
    ]


def test_connections_and_waiting_in_a_row_are_one_subtask() -> None:
    assert cut("connect a to b", "connect b to c", "wait1", "look at b", "wait1", "focus on b") == [
        ["connect a to b", "connect b to c"],
        ["wait1", "look at b", "wait1"],
        ["focus on b"],
    ]


def test_an_answer_completes_what_was_asked_about() -> None:
    assert cut("pick up seed", "0", "focus on seed", asked=(0,)) == [["pick up seed", "0"], ["focus on seed"]]
    assert cut("go to a", "pick up b", "1", asked=(1,)) == [["go to a"], ["pick up b", "1"]]


def test_the_last_command_ends_a_subtask_whatever_it_is() -> None:
    assert cut("pick up pot", "look around") == [["pick up pot"], ["look around"]]


@pytest.mark.parametrize(
    ("action", "name"),
    [
        ("go to kitchen", "Go to the kitchen"),
        ("teleport to green house", "Go to the green house"),
        ("pick up thermometer", "Find and pick up the thermometer"),
        ("connect battery anode to red wire terminal 1", "Build the circuit"),
        ("wait1", "Wait and watch"),
        ("wait", "Wait and watch"),
        ("move metal pot in inventory to stove", "Move the metal pot to the stove"),
        ("pour water in cup into pot", "Pour the water in cup into the pot"),
        ("pour cup with paint in art studio in bowl", "Pour the cup with paint in art studio in the bowl"),
        ("use thermometer in inventory on water in cup", "Use the thermometer on the water in cup"),
        ("focus on avocado seed", "Focus on the avocado seed"),
        ("put down pot", "Put down the pot"),
        ("activate stove", "Activate the stove"),
        ("read recipe in inventory", "Read the recipe"),
        ("look around", "Look around"),
        ("eat", "Eat"),
    ],
)
def test_a_subtask_is_named_after_the_command_that_completes_it(action: str, name: str) -> None:
    assert subtask_name(action) == name


# ---- progress --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subtask", "progress", "action", "observation", "expected"),
    [
        ("Go to the hall", "None", "open door to hall", "The door is now open.", "Opened the door to hall."),
        ("Go to the hall", "None", "go to den", "You move to the den.", "Went to the den. || [Route: den]"),
        (
            "Go to the hall",
            "Looked around. || [Route: den]",
            "go to hall",
            "You move to the hall.",
            "Went to the hall. || [Route: den -> hall]",
        ),
        (
            "Find and pick up the pot",
            "Opened the fridge. || [Opened: fridge]",
            "open cupboard",
            "Obs: The cupboard is now open.\nLook: This room\nInventory: nothing",
            "Opened the cupboard. || [Opened: fridge, cupboard]",
        ),
        (
            "Find and pick up the pot",
            "Opened the fridge. || [Opened: fridge]",
            "open moon",
            f"Obs: {UNKNOWN}\nLook: This room\nInventory: nothing",
            "Nothing happened. || [Opened: fridge]",
        ),
        ("Find and pick up the pot", "None", "pick up pot", ASKS, "It was asked which one is meant."),
        ("Find and pick up the pot", "It was asked.", "0", "You move the pot.", "You move the pot."),
        ("Find and pick up the pot", "None", "pick up pot", "You move the pot.", "Picked up the pot."),
        (
            "Build the circuit",
            "Connected the a to b. || [Connections: a to b]",
            "connect b to c",
            "b is now connected to c",
            "Connected the b to c. || [Connections: a to b, b to c]",
        ),
        ("Wait and watch", "None", "wait1", "You wait.", "Waited. || [Waited: 1 time]"),
        ("Wait and watch", "Waited. || [Waited: 1 time]", "wait", "You wait.", "Waited. || [Waited: 2 times]"),
        (
            "Wait and watch",
            "Waited. || [Waited: 2 times]",
            "look at pot",
            "a metal pot, containing steam",
            "a metal pot, containing steam || [Waited: 2 times]",
        ),
        (
            "Use the thermometer on the water",
            "None",
            "use thermometer on water",
            "Obs: the thermometer measures a temperature of 24 degrees celsius\nLook: This room\nInventory: nothing",
            "the thermometer measures a temperature of 24 degrees celsius",
        ),
        ("Focus on the cat", "None", "focus on cat", "You focus on the cat.", "Focused on the cat."),
        ("Activate the stove", "None", "activate stove", "The stove is now activated.", "Activated the stove."),
        ("Activate the stove", "None", "look around", "This room", "Looked around."),
        ("Activate the stove", "None", "bend fork", "It bends.", "Did this: bend fork."),
    ],
)
def test_the_progress_follows_from_what_its_role_is_shown(
    subtask: str, progress: str, action: str, observation: str, expected: str
) -> None:
    assert progress_after(subtask, progress, action, observation) == expected


def test_a_long_answer_is_cut() -> None:
    assert progress_after("Read the book", "None", "read book", "x" * 999) == "x" * 200


# ---- episodes --------------------------------------------------------------------------------------------------------


@needs_engine
def test_an_annotated_episode_is_one_that_the_game_accepts_and_that_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    game = make("ScienceWorld", tasks=["find-animal", "lifespan-longest-lived"], view="look")
    assert isinstance(game, ScienceWorld)
    with closing(game), monkeypatch.context() as patch:
        patch.setattr(game, "close", lambda: None)  # one process for all
        (first,) = any_expert_episodes(lambda: game, 1, seed=2)
        assert check_annotations([first]) == []
        game.reset(seed=first.seed)
        (second,) = expert_episodes(lambda: game, 1, seed=2, excluded_starts=frozenset({game.state_key()}))
        assert first.seed != second.seed
        game.reset(seed=first.seed)
        for step in first.steps:
            assert progress_after(step.subtask, step.progress, step.action, step.next_observation) == step.next_progress
            result = game.step((step.action,))
            assert result.rewards == (step.reward,)
            assert tidy(result.observations[0]) == step.next_observation
        assert result.info["success"]


def test_too_few_solved_variations_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScienceWorld, "reset", lambda self, **start: ("",))
    monkeypatch.setattr(ScienceWorld, "state_key", lambda self: "the only one")
    make_game = partial(make, "ScienceWorld", tasks=["identify-life-stages-2"])
    message = (
        "Of 4 variations only 0 gave an expert episode outside the evaluation panels; expected 1. Ask for fewer, name "
        "more tasks, or raise max_steps."
    )
    with pytest.raises(GameError, match=f"^{re.escape(message)}$"):
        expert_episodes(make_game, 1, seed=0, excluded_starts=frozenset({"the only one"}))


def test_another_game_has_no_rules() -> None:
    message = (
        "There are rules to annotate alfworld, scienceworld and none for game 'frozen_lake'; set algorithm.annotations "
        "to a file (docs/algorithms/step_hrl.md), or play one of these games."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        any_expert_episodes(partial(make, "frozen_lake"), 1, seed=0)


def test_a_game_in_another_process_cannot_be_annotated() -> None:
    message = (
        "game='scienceworld' is played in another process, where its solutions cannot be annotated; set game.isolate = "
        "false. ScienceWorld's engine is a process of its own in any case."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        expert_episodes(lambda: GameWorker(("scienceworld", {})), 1, seed=0)
