from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratagem.data.annotations import (
    AnnotatedEpisode,
    AnnotatedStep,
    check_annotations,
    one_subtask,
    read_annotations,
    write_annotations,
)
from stratagem.errors import RunError


def episode() -> AnnotatedEpisode:
    return AnnotatedEpisode(
        "alfworld",
        7,
        0,
        "put a cup in desk.",
        "",
        True,
        (
            AnnotatedStep(0, "Find a cup", "None", "Room.", "go to shelf 1", False, "Went.", "Shelf.", 0.0),
            AnnotatedStep(0, "Find a cup", "Went.", "Shelf.", "take cup 1", True, "Took.", "Taken.", 0.0),
            AnnotatedStep(1, "Put it", "None", "Taken.", "put cup 1", True, "Put.", "You put it.", 1.0),
        ),
    )


def rows() -> list[dict[str, Any]]:
    found = []
    for place, step in enumerate(episode().steps):
        whole = dataclasses.asdict(episode()) | dataclasses.asdict(step)
        whole.pop("steps")
        found.append({"episode": 0, "step": place} | whole)
    return found


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    episodes = [episode(), dataclasses.replace(episode(), seed=8)]
    write_annotations(tmp_path / name, episodes)
    assert read_annotations(tmp_path / name) == episodes


def test_good_rows_have_no_problem() -> None:
    assert check_annotations(rows()) == []
    assert check_annotations([episode(), episode()]) == []


def test_a_jsonl_file_holds_the_columns_that_are_documented(tmp_path: Path) -> None:
    write_annotations(tmp_path / "a.jsonl", [episode()])
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0]) == rows()[0]


def change(place: int, **values: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda table: table[place].update(values)


BAD: list[tuple[Callable[[list[dict[str, Any]]], Any], str]] = [
    (lambda table: table[1].pop("action"), "Row 1 (episode 0, step 1) has no action; expected str."),
    (change(1, done="yes"), "Row 1 (episode 0, step 1) has done='yes'; expected bool."),
    (change(1, reward=True), "Row 1 (episode 0, step 1) has reward=True; expected float."),
    (change(1, subtask_number=True), "Row 1 (episode 0, step 1) has subtask_number=True; expected int."),
    (
        change(0, action="go\nto"),
        "Row 0 (episode 0, step 0) has a line break in action='go\\nto'; expected one line.",
    ),
    (
        change(2, next_progress=" "),
        "Row 2 (episode 0, step 2) has an empty next_progress; expected text ('None' stands for nothing).",
    ),
    (change(1, step=2), "Row 1 (episode 0, step 2) has step=2; expected 1."),
    (
        change(1, subtask_number=1),
        "Row 1 (episode 0, step 1) has subtask_number=1; expected 0, since a subtask ends with done and only there.",
    ),
    (
        change(2, progress="Took."),
        "Row 2 (episode 0, step 2) begins a subtask with progress='Took.'; expected 'None'.",
    ),
    (
        change(2, task="other"),
        "Row 2 (episode 0, step 2) has task='other', and the row before 'put a cup in desk.'; expected one for an "
        "episode.",
    ),
    (
        change(1, observation="Sofa."),
        "Row 1 (episode 0, step 1) has observation='Sofa.'; expected next_observation of the row before.",
    ),
    (
        change(1, subtask="Put it"),
        "Row 1 (episode 0, step 1) changes the subtask to 'Put it' without done; expected 'Find a cup'.",
    ),
    (
        change(1, progress="None"),
        "Row 1 (episode 0, step 1) has progress='None'; expected next_progress of the row before.",
    ),
    (
        change(2, done=False),
        "Row 2 (episode 0, step 2) is the last of an episode that succeeded, but done is false; expected true.",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), BAD, ids=[message[:60] for _, message in BAD])
def test_a_bad_row_is_explained(spoil: Callable[[list[dict[str, Any]]], Any], message: str) -> None:
    table = rows()
    spoil(table)
    assert check_annotations(table)[0] == message


def test_a_file_with_bad_rows_is_refused_with_the_reasons(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    table = rows()
    table[1]["step"] = 5
    path.write_text("".join(json.dumps(row) + "\n" for row in table), encoding="utf-8")
    message = (
        f"Annotation file {str(path)!r} has 2 problem(s). Row 1 (episode 0, step 5) has step=5; expected 1. Row 2 "
        "(episode 0, step 2) has step=2; expected 6. Correct the file, or leave these episodes out; `stratagem data "
        "check-annotations` names all."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        read_annotations(path)


def test_an_empty_file_and_an_unknown_ending_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    message = (
        f"Annotation file {str(tmp_path / 'a.jsonl')!r} has 0 problem(s). It holds no row. Correct the file, or leave "
        "these episodes out; `stratagem data check-annotations` names all."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        read_annotations(tmp_path / "a.jsonl")
    message = f"Annotation file {str(tmp_path / 'a.csv')!r} ends with '.csv'; use .parquet or .jsonl."
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        read_annotations(tmp_path / "a.csv")


def searched() -> AnnotatedEpisode:
    """Two subtasks, the first a search that ticks off a place."""
    checked = "No cup at shelf 1; others are unchecked. || [Checked: shelf 1]"
    found = "Picked up the cup 1 from the shelf 2. || [Checked: shelf 1]"
    return dataclasses.replace(
        episode(),
        steps=(
            AnnotatedStep(0, "Find a cup", "None", "Room.", "go to shelf 1", False, checked, "Shelf.", 0.0),
            AnnotatedStep(0, "Find a cup", checked, "Shelf.", "take cup 1", True, found, "Taken.", 0.0),
            AnnotatedStep(1, "Put it", "None", "Taken.", "go to desk 1", False, "Arrived.", "Desk.", 0.0),
            AnnotatedStep(1, "Put it", "Arrived.", "Desk.", "put cup 1", True, "Put.", "You put it.", 1.0),
        ),
    )


def test_without_a_hierarchy_the_progress_keeps_what_each_subtask_ended_with() -> None:
    flat = one_subtask(searched())
    assert check_annotations([searched(), flat]) == []
    assert {step.subtask for step in flat.steps} == {"put a cup in desk."}
    assert [step.done for step in flat.steps] == [False, False, False, True]
    assert [step.next_progress for step in flat.steps] == [
        "No cup at shelf 1; others are unchecked. || [Checked: shelf 1]",
        "Picked up the cup 1 from the shelf 2.",
        "Picked up the cup 1 from the shelf 2. Arrived.",
        "Picked up the cup 1 from the shelf 2. Put.",
    ]
    kept = ("observation", "action", "next_observation", "reward")
    assert [[getattr(step, name) for name in kept] for step in flat.steps] == [
        [getattr(step, name) for name in kept] for step in searched().steps
    ]


def test_one_subtask_without_progress_stays_without() -> None:
    plain = dataclasses.replace(
        episode(), steps=tuple(dataclasses.replace(s, progress="None", next_progress="None") for s in episode().steps)
    )
    assert {step.next_progress for step in one_subtask(plain).steps} == {"None"}


def test_files_that_were_put_together_keep_their_episodes_apart(tmp_path: Path) -> None:
    write_annotations(tmp_path / "a.jsonl", [episode()])
    text = (tmp_path / "a.jsonl").read_text(encoding="utf-8")
    (tmp_path / "both.jsonl").write_text(text + text, encoding="utf-8")  # both are number 0
    assert read_annotations(tmp_path / "both.jsonl") == [episode(), episode()]


def test_a_row_after_a_bad_one_is_judged_by_itself() -> None:
    table: list[Any] = rows()
    table[0].pop("done")
    assert check_annotations(table) == ["Row 0 (episode 0, step 0) has no done; expected bool."]
    table = rows()
    table[1] = ["not", "a", "row"]
    assert check_annotations(table) == [
        "Row 1 is ['not', 'a', 'row']; expected an object with a value for each column."
    ]


def test_a_reward_is_finite() -> None:
    table = rows()
    table[1]["reward"] = float("nan")
    assert check_annotations(table) == ["Row 1 (episode 0, step 1) has reward=nan; expected a finite number."]


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(rows()[0]) + "\n{oops\n", encoding="utf-8")
    message = (
        f"Annotation file {str(path)!r} cannot be read (line 2: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)); give another, or make one."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        read_annotations(path)
