r"""Hierarchical annotations: expert episodes with subtasks and local progress, one row for each step.

``FILE.parquet`` or ``FILE.jsonl``; both hold the same columns (:class:`AnnotatedStep`) and are read by
:func:`read_annotations`, which refuses what a hierarchical agent could not have lived through and says why. Whoever
writes such a file by other means (another program, people) can check it with :func:`check_annotations`.

What the three roles learn from an episode (Zhen et al. 2026, arXiv:2604.05808, appendix A.2):

- ``high``: at the first step of each subtask, the subtask;
- ``low``: at each step, the action and whether it is the subtask's last;
- ``progress``: after each step, the new local progress.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stratagem.agents.roles import NOTHING
from stratagem.errors import RunError
from stratagem.files import atomic_write, atomic_write_text, error_reason

__all__ = [
    "SCHEMA",
    "AnnotatedEpisode",
    "AnnotatedStep",
    "annotation_rows",
    "check_annotations",
    "one_subtask",
    "read_annotations",
    "write_annotations",
]


@dataclass(frozen=True)
class AnnotatedStep:
    """One step of an expert, with everything that the three roles are shown and should say."""

    subtask_number: int
    """0 for the first subtask of the episode, one more for each that follows."""
    subtask: str
    """g, one line."""
    progress: str
    """p before the action, one line; ``None`` at the first step of each subtask."""
    observation: str
    """o before the action, without empty lines; of the first, what :func:`stratagem.agents.roles.read_start` leaves."""
    action: str
    """a, a legal action."""
    done: bool
    """Whether the action completes the subtask."""
    next_progress: str
    """p after the action, one line."""
    next_observation: str
    """o after the action, without empty lines."""
    reward: float
    """The game's, for the action."""


@dataclass(frozen=True)
class AnnotatedEpisode:
    """One episode of an expert."""

    game: str
    seed: int
    course: int
    task: str
    """c, one line."""
    scene: str
    """What holds for the whole episode; may be empty."""
    success: bool
    steps: tuple[AnnotatedStep, ...]


_MANY_LINES = ("scene", "observation", "next_observation")
_EPISODE_COLUMNS = tuple(field.name for field in dataclasses.fields(AnnotatedEpisode) if field.name != "steps")
_STEP_COLUMNS = tuple(field.name for field in dataclasses.fields(AnnotatedStep))
_KINDS = typing.get_type_hints(AnnotatedEpisode) | typing.get_type_hints(AnnotatedStep)
_PYTHON = {"episode": int, "step": int} | {name: _KINDS[name] for name in (*_EPISODE_COLUMNS, *_STEP_COLUMNS)}
_ARROW = {int: pa.int64(), str: pa.string(), bool: pa.bool_(), float: pa.float64()}

SCHEMA = pa.schema(
    [pa.field(name, _ARROW[kind], nullable=False) for name, kind in _PYTHON.items()],
    metadata={"stratagem.annotations": "1"},
)
"""Columns of an annotation file, in order: ``episode``, ``step``, those of the episode, those of the step."""


def write_annotations(path: Path, episodes: Sequence[AnnotatedEpisode]) -> None:
    """Write episodes as Parquet or JSON lines, by the ending of the name, replacing the file if it is there.

    Raises:
        RunError: the name has another ending, or the disk is full.
    """
    rows = _rows(episodes)
    try:
        if _is_parquet(path):
            table = pa.Table.from_pylist(rows, schema=SCHEMA)
            atomic_write(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))
        else:
            atomic_write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    except OSError as error:
        raise RunError(f"Annotations could not be written to {str(path)!r} ({error_reason(error)}).") from error


def annotation_rows(path: Path) -> list[Any]:
    """Return the rows of a file as they stand in it, good or bad; :func:`check_annotations` says what is wrong.

    Raises:
        RunError: the file is missing or is not of its kind.
    """
    number = 0
    try:
        if _is_parquet(path):
            found: list[Any] = pq.read_table(path).to_pylist()
            return found
        rows = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):  # noqa: B007
            if line.strip():
                rows.append(json.loads(line))
        return rows
    except (OSError, ValueError, pa.ArrowException) as error:
        where = f"line {number}: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise RunError(f"Annotation file {str(path)!r} cannot be read ({where}); give another, or make one.") from error


def read_annotations(path: Path) -> list[AnnotatedEpisode]:
    """Return the episodes of a file.

    Raises:
        RunError: it is missing, damaged, or holds rows that no agent could have lived through; the first ones are
            named with their reasons.
    """
    rows = annotation_rows(path)
    problems = check_annotations(rows)
    if problems or not rows:
        shown = " ".join(problems[:3]) or "It holds no row."
        raise RunError(
            f"Annotation file {str(path)!r} has {len(problems)} problem(s). {shown} Correct the file, or leave these "
            "episodes out; `stratagem data check-annotations` names all."
        )
    # By their first steps: numbers of episodes repeat in a file that was put together from others.
    begins = [number for number, row in enumerate(rows) if row["step"] == 0]
    return [
        AnnotatedEpisode(
            **{name: rows[begin][name] for name in _EPISODE_COLUMNS},
            steps=tuple(AnnotatedStep(**{name: row[name] for name in _STEP_COLUMNS}) for row in rows[begin:end]),
        )
        for begin, end in itertools.pairwise([*begins, len(rows)])
    ]


def _is_parquet(path: Path) -> bool:
    if path.suffix not in (".parquet", ".jsonl"):
        raise RunError(f"Annotation file {str(path)!r} ends with {path.suffix!r}; use .parquet or .jsonl.")
    return path.suffix == ".parquet"


def _rows(episodes: Iterable[AnnotatedEpisode]) -> list[dict[str, Any]]:
    return [
        {"episode": number, "step": place}
        | {name: getattr(episode, name) for name in _EPISODE_COLUMNS}
        | dataclasses.asdict(step)
        for number, episode in enumerate(episodes)
        for place, step in enumerate(episode.steps)
    ]


def one_subtask(episode: AnnotatedEpisode) -> AnnotatedEpisode:
    """Return an episode without a hierarchy: one subtask, the task, and a progress that goes through all of it.

    The progress is what each completed subtask ended with, and what there is of the present one. The places that a
    search has ticked off (``|| [Checked: shelf 1]``) go when it is over.
    """
    steps: list[AnnotatedStep] = []
    past, progress = "", NOTHING
    for step in episode.steps:
        told = step.next_progress.partition(" || ")[0] if step.done else step.next_progress
        after = (past or NOTHING) if told == NOTHING else f"{past} {told}".strip()
        done = step.done and len(steps) + 1 == len(episode.steps)
        steps.append(
            replace(step, subtask_number=0, subtask=episode.task, progress=progress, done=done, next_progress=after)
        )
        progress = after
        if step.done:
            past = "" if after == NOTHING else after
    return replace(episode, steps=tuple(steps))


# ---- what is wrong with a row ----------------------------------------------------------------------------------------


def check_annotations(rows: Sequence[Any]) -> list[str]:
    """Return what is wrong, one sentence for each bad row; empty where all is well.

    Args:
        rows: rows as a file holds them, or episodes.
    """
    table: list[Any] = [
        row for item in rows for row in (_rows([item]) if isinstance(item, AnnotatedEpisode) else [item])
    ]
    problems = []
    before: dict[str, Any] | None = None
    known = True  # whether what came before can be compared with
    for number, row in enumerate(table):
        if not isinstance(row, dict):
            problems.append(f"Row {number} is {row!r}; expected an object with a value for each column.")
            known = False
            continue
        reason = _bad_values(row)
        good = reason is None
        if good:
            after = table[number + 1] if number + 1 < len(table) else None
            readable = after is None or (isinstance(after, dict) and {"episode", "step"} <= after.keys())
            if known or row["step"] == 0:
                reason = _bad_place(row, before if _same_episode(before, row) else None)
            ends = readable and not _same_episode(row, after)
            if reason is None and ends and row["success"] and not row["done"]:
                reason = "is the last of an episode that succeeded, but done is false; expected true"
        if reason is not None:
            place = f" (episode {row['episode']}, step {row['step']})" if {"episode", "step"} <= row.keys() else ""
            problems.append(f"Row {number}{place} {reason}.")
        before, known = row, good
    return problems


def _same_episode(first: dict[str, Any] | None, second: dict[str, Any] | None) -> bool:
    """Return whether the second row goes on with the episode of the first; numbers of episodes may repeat."""
    if first is None or second is None or first.get("episode") != second.get("episode"):
        return False
    return bool(second.get("step") != 0)


def _bad_values(row: dict[str, Any]) -> str | None:
    for name, kind in _PYTHON.items():
        if name not in row:
            return f"has no {name}; expected {kind.__name__}"
        value = row[name]
        fits = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
        if not fits or (isinstance(value, bool) is not (kind is bool)):
            return f"has {name}={value!r}; expected {kind.__name__}"
        if kind is float and not math.isfinite(value):
            return f"has {name}={value!r}; expected a finite number"
        if kind is str and "\n" in value and name not in _MANY_LINES:
            return f"has a line break in {name}={value!r}; expected one line"
        if kind is str and not value.strip() and name != "scene":
            return f"has an empty {name}; expected text ({NOTHING!r} stands for nothing)"
    return None


def _bad_place(row: dict[str, Any], before: dict[str, Any] | None) -> str | None:
    """Return what does not follow from the row before, which is None at the beginning of an episode."""
    begins = before is None or before["done"]
    expected = 0 if before is None else before["subtask_number"] + bool(before["done"])
    if row["step"] != (0 if before is None else before["step"] + 1):
        return f"has step={row['step']}; expected {0 if before is None else before['step'] + 1}"
    if row["subtask_number"] != expected:
        return (
            f"has subtask_number={row['subtask_number']}; expected {expected}, since a subtask ends with done and only "
            "there"
        )
    if begins and row["progress"] != NOTHING:
        return f"begins a subtask with progress={row['progress']!r}; expected {NOTHING!r}"
    if before is None:
        return None
    for name in ("game", "seed", "course", "task", "scene", "success"):
        if row[name] != before[name]:
            return f"has {name}={row[name]!r}, and the row before {before[name]!r}; expected one for an episode"
    if row["observation"] != before["next_observation"]:
        return f"has observation={row['observation']!r}; expected next_observation of the row before"
    if not begins and row["subtask"] != before["subtask"]:
        return f"changes the subtask to {row['subtask']!r} without done; expected {before['subtask']!r}"
    if not begins and row["progress"] != before["next_progress"]:
        return f"has progress={row['progress']!r}; expected next_progress of the row before"
    return None
