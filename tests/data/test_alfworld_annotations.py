from __future__ import annotations

import re
from functools import partial

import pytest

from stratagem.data.alfworld_annotations import expert_episodes, is_consistent, progress_after
from stratagem.data.annotations import AnnotatedEpisode, check_annotations
from stratagem.errors import ConfigError, GameError
from stratagem.games import make
from stratagem.games.alfworld import ALFWorld
from stratagem.games.alfworld_rules import TASK_TYPES

LOCATE = "Locate and pick up a cup"


@pytest.mark.parametrize(
    ("subtask", "progress", "action", "observation", "expected"),
    [
        (
            LOCATE,
            "None",
            "go to shelf 1",
            "On the shelf 1, you see a cupcake 1, and a pen 2.",
            "No cup at shelf 1; others are unchecked. || [Checked: shelf 1]",
        ),
        (
            LOCATE,
            "No cup at shelf 1; others are unchecked. || [Checked: shelf 1]",
            "go to fridge 1",
            "The fridge 1 is closed.",
            "The fridge 1 is closed and still unchecked. || [Checked: shelf 1]",
        ),
        (
            LOCATE,
            "The fridge 1 is closed and still unchecked. || [Checked: shelf 1]",
            "open fridge 1",
            "You open the fridge 1. The fridge 1 is open. In it, you see nothing.",
            "No cup at fridge 1; others are unchecked. || [Checked: shelf 1, fridge 1]",
        ),
        (
            LOCATE,
            "No cup at shelf 1; others are unchecked. || [Checked: shelf 1]",
            "go to shelf 1",
            "On the shelf 1, you see a pen 2.",
            "No cup at shelf 1; others are unchecked. || [Checked: shelf 1]",
        ),
        (
            LOCATE,
            "None",
            "go to desk 1",
            "On the desk 1, you see a cup 2, and a cup 1.",
            "Found the cup 2 at the desk 1.",
        ),
        (
            LOCATE,
            "Found the cup 2 at the desk 1. || [Checked: shelf 1]",
            "take cup 2 from desk 1",
            "You pick up the cup 2 from the desk 1.",
            "Picked up the cup 2 from the desk 1. || [Checked: shelf 1]",
        ),
        (
            "Locate and pick up a new cup except cup 2",
            "None",
            "go to desk 1",
            "On the desk 1, you see a cup 2.",
            "No cup at desk 1; others are unchecked. || [Checked: desk 1]",
        ),
        (
            "Locate and pick up a new cup except cup 2",
            "None",
            "examine desk 1",
            "On the desk 1, you see a cup 2, and a cup 1.",
            "Found the cup 1 at the desk 1.",
        ),
        (
            "Locate and use a desklamp",
            "None",
            "go to desk 1",
            "On the desk 1, you see a desklamp 1.",
            "Found the desklamp 1 at the desk 1.",
        ),
        (
            "Locate and use a desklamp",
            "None",
            "use desklamp 1",
            "You turn on the desklamp 1.",
            "Turned on the desklamp 1.",
        ),
        (LOCATE, "p || [Checked: bed 1]", "fly", "Nothing happens.", "Nothing happened. || [Checked: bed 1]"),
        (
            "Cool the cup 2 with the fridge 1",
            "None",
            "go to fridge 1",
            "The fridge 1 is closed.",
            "The fridge 1 is closed.",
        ),
        (
            "Cool the cup 2 with the fridge 1",
            "None",
            "cool cup 2 with fridge 1",
            "You cool the cup 2 using the fridge 1.",
            "Cooled the cup 2 with the fridge 1.",
        ),
        (
            "Place the cup 2 in/on the desk 1",
            "None",
            "go to desk 1",
            "On the desk 1, you see a cup 1.",
            "Arrived at the desk 1.",
        ),
        (
            "Place the cup 2 in/on the desk 1",
            "None",
            "open drawer 1",
            "You open the drawer 1. The drawer 1 is open. In it, you see nothing.",
            "Opened the drawer 1.",
        ),
        (
            "Place the cup 2 in/on the desk 1",
            "None",
            "put cup 2 in/on desk 1",
            "You put the cup 2 in/on the desk 1.",
            "Placed the cup 2 in/on the desk 1.",
        ),
        (
            "Place the cup 2 in/on the desk 1",
            "None",
            "move cup 2 to desk 1",
            "You move the cup 2 to the desk 1.",
            "Placed the cup 2 in/on the desk 1.",
        ),
        ("Place the cup 2 in/on the desk 1", "None", "look", "You are facing the desk 1.", "Looked around."),
    ],
)
def test_the_progress_follows_from_what_its_role_is_shown(
    subtask: str, progress: str, action: str, observation: str, expected: str
) -> None:
    assert progress_after(subtask, progress, action, observation) == expected


def make_game(task_type: str | None = None, **params: object) -> ALFWorld:
    types = {} if task_type is None else {"task_types": [task_type]}
    game = make("ALFWorld-Generated", **types, **params)
    assert isinstance(game, ALFWorld)
    return game


def subtasks(episode: AnnotatedEpisode) -> list[str]:
    return [
        re.sub(r"\d+", "N", step.subtask)
        for number, step in enumerate(episode.steps)
        if number == 0 or episode.steps[number - 1].done
    ]


def shapes(episode: AnnotatedEpisode, kind: str) -> list[str]:
    """Return subtasks with the type of the object as O and the rest of the names left out."""
    return [re.sub(r"(with|in/on) the .+", r"\1 R", text).replace(kind, "O") for text in subtasks(episode)]


@pytest.mark.parametrize(
    ("task_type", "expected"),
    [
        ("pick_and_place_simple", ["Locate and pick up a O", "Place the O N in/on R"]),
        ("look_at_obj_in_light", ["Locate and pick up a O", "Locate and use a desklamp"]),
        (
            "pick_clean_then_place_in_recep",
            ["Locate and pick up a O", "Clean the O N with R", "Place the O N in/on R"],
        ),
        ("pick_heat_then_place_in_recep", ["Locate and pick up a O", "Heat the O N with R", "Place the O N in/on R"]),
        ("pick_cool_then_place_in_recep", ["Locate and pick up a O", "Cool the O N with R", "Place the O N in/on R"]),
        (
            "pick_two_obj_and_place",
            [
                "Locate and pick up a O",
                "Place the O N in/on R",
                "Locate and pick up a new O except O N",
                "Place the O N in/on R",
            ],
        ),
    ],
)
def test_each_kind_of_task_has_its_subtasks(task_type: str, expected: list[str]) -> None:
    assert task_type in TASK_TYPES
    for wording in ("put", "move"):
        episodes = expert_episodes(partial(make_game, task_type, wording=wording), 8, seed=1)
        assert check_annotations(episodes) == []
        for episode in episodes:
            kind = episode.steps[0].subtask.removeprefix("Locate and pick up a ")
            assert shapes(episode, kind) == expected


def test_an_annotated_episode_is_one_that_the_game_accepts_and_that_wins() -> None:
    episodes = expert_episodes(make_game, 10, seed=2)
    for episode in episodes:
        game = make_game(view="raw")
        game.reset(seed=episode.seed)
        for step in episode.steps:
            result = game.step((step.action,))
            assert result.observations[0] == step.next_observation
        assert result.terminated and result.info["success"]
        assert [step.reward for step in episode.steps] == [0.0] * (len(episode.steps) - 1) + [1.0]


def test_the_progress_of_an_episode_can_be_worked_out_from_the_prompts_of_its_role_alone() -> None:
    for episode in expert_episodes(make_game, 10, seed=3):
        for step in episode.steps:
            assert progress_after(step.subtask, step.progress, step.action, step.next_observation) == step.next_progress


def test_a_search_looks_nowhere_twice() -> None:
    for episode in expert_episodes(make_game, 30, seed=4):
        for step in episode.steps:
            checked = re.search(r"\[Checked: (.*)\]", step.progress)
            target = re.fullmatch(r"(?:go to|open|examine) (.+)", step.action)
            if checked and target and step.subtask.startswith("Locate"):
                assert target[1] not in checked[1].split(", ")


def test_episodes_of_the_panels_are_left_out() -> None:
    game = make_game()
    first = expert_episodes(make_game, 2, seed=5)
    game.reset(seed=first[0].seed)
    others = expert_episodes(make_game, 2, seed=5, excluded_starts=frozenset({game.state_key()}))
    assert others[0] == first[1]


def test_a_find_that_is_passed_by_is_not_consistent() -> None:
    (episode,) = expert_episodes(partial(make_game, "pick_and_place_simple"), 1, seed=6)
    assert is_consistent(episode)
    steps = list(episode.steps)
    place = next(n for n, step in enumerate(steps) if step.progress.startswith("Found"))
    from dataclasses import replace

    steps[place] = replace(steps[place], action="go to shelf 9")
    assert not is_consistent(replace(episode, steps=tuple(steps)))


def test_another_game_has_no_rules() -> None:
    message = (
        "There are rules to annotate ALFWorld and none for game 'frozen_lake'; set algorithm.annotations to a file "
        "(docs/algorithms/step_hrl.md), or play ALFWorld in this process (game.isolate = false)."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        expert_episodes(partial(make, "frozen_lake"), 1, seed=0)


def test_an_expert_that_always_fails_is_given_up() -> None:
    message = (
        "Of 120 starts of 'alfworld' only 0 gave an expert episode outside the evaluation panels; expected 1. Ask for "
        "fewer, or evaluate on fewer episodes."
    )
    with pytest.raises(GameError, match=f"^{re.escape(message)}$"):
        expert_episodes(partial(make_game, max_steps=1), 1, seed=0)
