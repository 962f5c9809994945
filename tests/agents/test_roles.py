from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratagem.agents.roles import (
    PLACEHOLDERS,
    ROLES,
    LowAnswer,
    Role,
    RoleError,
    TaskView,
    fill,
    load_role_template,
    low_answer,
    parse_line,
    parse_low,
    read_start,
    tidy,
)
from stratagem.errors import ConfigError

LEGAL = ("go to shelf 1", "open fridge 1", "Wait", "wait")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("go to shelf 1; False", LowAnswer("go to shelf 1", False, "go to shelf 1")),
        ("go to shelf 1; True", LowAnswer("go to shelf 1", True, "go to shelf 1")),
        ("  Go to  shelf 1 ;TRUE.\n", LowAnswer("go to shelf 1", True, "Go to shelf 1")),
        ("go to shelf 1", LowAnswer(None, False, "go to shelf 1", RoleError.NO_FLAG)),
        ("go to shelf 1; maybe", LowAnswer(None, False, "go to shelf 1; maybe", RoleError.NO_FLAG)),
        ("not go to shelf 1; True", LowAnswer(None, True, "not go to shelf 1", RoleError.UNKNOWN)),
        ("go to shelf 1; False; True", LowAnswer(None, True, "go to shelf 1; False", RoleError.UNKNOWN)),
        ("; True", LowAnswer(None, True, "None", RoleError.EMPTY)),
        (" \n", LowAnswer(None, False, "None", RoleError.EMPTY)),
        ("WAIT; False", LowAnswer(None, False, "WAIT", RoleError.AMBIGUOUS)),
        ("wait; False", LowAnswer("wait", False, "wait")),
    ],
)
def test_a_low_answer_is_one_legal_action_and_a_flag(text: str, expected: LowAnswer) -> None:
    assert parse_low(text, LEGAL) == expected


@pytest.mark.parametrize("done", [False, True])
def test_what_the_low_level_should_say_is_what_the_parser_reads(done: bool) -> None:
    assert parse_low(low_answer("open fridge 1", done), LEGAL) == LowAnswer("open fridge 1", done, "open fridge 1")


def test_a_line_is_one_line_and_may_be_cut_off_or_empty() -> None:
    assert parse_line(" a\n b ") == ("a b", None)
    assert parse_line("a", cut_off=True) == ("a", RoleError.LENGTH)
    assert parse_line(" \n ", cut_off=True) == (None, RoleError.EMPTY)


def test_the_start_of_alfworld_is_taken_apart() -> None:
    text = (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a "
        "bed 1, and a desk 1.\n\nYour task is to: put a pen in desk."
    )
    assert read_start(text, "none") == TaskView(
        "put a pen in desk.",
        "Looking quickly around you, you see a bed 1, and a desk 1.",
        "You are in the middle of a room.",
    )


def test_a_grid_stays_a_grid_without_empty_lines() -> None:
    assert tidy("\n\n S F \n\n  F G\n") == "S F\n  F G"


def test_a_game_without_a_task_gets_the_default_one() -> None:
    assert read_start("Row 1\nRow 2", "Win.") == TaskView("Win.", "", "Row 1\nRow 2")


@pytest.mark.parametrize("role", ROLES)
def test_a_built_in_template_shows_what_the_paper_says_and_changing_text_last(role: Role) -> None:
    template = load_role_template(role, "default")
    values = {name: f"<{name}>" for name in PLACEHOLDERS[role]}
    (_, system), (_, user) = fill(template, values)
    assert "{" not in system + user
    expected = {
        "high": ["scene", "task", "subtasks", "progress", "observation"],
        "low": ["scene", "subtask", "progress", "observation"],
        "progress": ["subtask", "progress", "action", "observation"],
    }
    assert re.findall(r"<(\w+)>", user) == expected[role]


def test_an_empty_scene_leaves_no_line_and_values_are_never_filled_in_again() -> None:
    template = load_role_template("low", "default")
    user = fill(template, {"scene": "", "subtask": "{progress}", "progress": "p", "observation": "o"})[1][1]
    assert user == "Subtask: {progress}\nLocal progress: p\nObservation: o"


def test_a_template_that_shows_what_its_role_is_not_told_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("--- user\n{action} {observation}\n", encoding="utf-8")
    message = (
        "template='mine' holds {action}, which role 'low' is not told; use {scene}, {task}, {subtask}, {progress}, "
        "{actions}, {observation}."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        load_role_template("low", str(path))
    assert load_role_template("progress", str(path)).user == "{action} {observation}"


def test_a_template_holds_the_history_where_there_is_one_and_only_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("--- user\n{subtask} {observation}\n", encoding="utf-8")
    message = (
        "template='mine' has no {history}, which is all that role 'low' knows of what happened; put it in, or set "
        "use_history=False."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        load_role_template("low", str(path), history=True)
    path.write_text("--- user\n{history}\n{observation}\n", encoding="utf-8")
    assert load_role_template("low", str(path), history=True).name == "mine"
    with pytest.raises(ConfigError, match=r"holds \{history\}, which role 'low' is not told; use \{scene\}, "):
        load_role_template("low", str(path))
