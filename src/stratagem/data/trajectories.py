"""Trajectories on disk: one Parquet file per iteration, one row per step.

Any Parquet reader opens the files. What is read back equals what was written, to the last bit; only ``info`` is limited
to what JSON holds. A trajectory without steps (its game failed on reset) is one row with ``step`` = -1 and nulls in
the columns of a step.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stratagem.data.columns import numpy_column, take_rows
from stratagem.errors import RunError
from stratagem.files import atomic_write, error_reason
from stratagem.types import Finish, Step, StopReason, Trajectory, TrajectoryGroup, generation_from_json

__all__ = [
    "SCHEMA",
    "StoredGroup",
    "read_group",
    "read_table",
    "read_trajectories",
    "trajectory_file",
    "write_trajectories",
]

SCHEMA = pa.schema(
    [
        # Where the step belongs.
        pa.field("iteration", pa.int32(), nullable=False),
        pa.field("group", pa.int32(), nullable=False),
        pa.field("episode", pa.int32(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        # The episode; the same in all of its rows.
        pa.field("game", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("course", pa.int64(), nullable=False),
        pa.field("player", pa.int32(), nullable=False),
        pa.field("terminated", pa.bool_(), nullable=False),
        pa.field("truncated", pa.bool_(), nullable=False),
        pa.field("stop_reason", pa.string(), nullable=False),
        pa.field("success", pa.bool_()),
        pa.field("info", pa.string(), nullable=False),  # JSON
        pa.field("advantage", pa.float64()),  # of the episode, as the update used it; null where there was none
        # The step.
        pa.field("observation", pa.string()),
        pa.field("completion", pa.string()),
        pa.field("action", pa.string()),  # null: no valid action, see parse_error
        pa.field("executed_action", pa.string()),  # what the game was given
        pa.field("parse_error", pa.string()),
        pa.field("reward", pa.float64()),
        pa.field("invalid_penalty", pa.float64()),
        pa.field("shaping", pa.float64()),
        pa.field("state_key", pa.string()),
        pa.field("prompt_ids", pa.list_(pa.int32())),
        pa.field("completion_ids", pa.list_(pa.int32())),
        # float64 holds a sampler's float32 as well as its float64; zstd removes the unused half.
        pa.field("logprobs", pa.list_(pa.float64())),
        pa.field("finish", pa.string()),
    ],
    metadata={"stratagem.schema": "1"},
)
"""Columns of a trajectory file, in order."""

_STEP_COLUMNS = tuple(SCHEMA.names[SCHEMA.get_field_index("observation") :])

_MORE_COLUMNS = {
    "generations": pa.field("generations", pa.string()),  # JSON of :class:`stratagem.types.Generation`
    "duration": pa.field("duration", pa.int32()),
    "candidates": pa.field("candidates", pa.list_(pa.list_(pa.int32()))),
    "candidate_logprobs": pa.field("candidate_logprobs", pa.list_(pa.float64())),
}
"""Columns that only files have in which a step has such a thing: agents that say more than their action or choose among
whole actions, games whose steps take time."""
_PLAIN = {"generations": (), "duration": 1, "candidates": (), "candidate_logprobs": ()}
"""What a step without the column has."""


@dataclass(frozen=True)
class StoredGroup:
    """A group as it was trained on."""

    iteration: int
    index: int
    """Place of the group within its iteration."""
    group: TrajectoryGroup
    advantages: tuple[float | None, ...]
    """One number for each trajectory; None where it took no part in the update."""


def trajectory_file(folder: Path, iteration: int) -> Path:
    """Return the file of an iteration: ``000012.parquet``."""
    return folder / f"{iteration:06d}.parquet"


def write_trajectories(
    folder: Path,
    iteration: int,
    groups: Sequence[TrajectoryGroup],
    advantages: Sequence[Sequence[float | None]] | None = None,
) -> Path:
    """Write the trajectories of one iteration, replacing the file if it is there.

    Args:
        folder: the run's ``trajectories`` folder.
        iteration: names the file.
        groups: everything that was played.
        advantages: one number for each trajectory of each group, or None.

    Raises:
        RunError: the disk is full or the folder is gone.
    """
    rows: list[dict[str, Any]] = []
    for index, group in enumerate(groups):
        group_advantages = advantages[index] if advantages is not None else [None] * len(group.trajectories)
        for episode, (trajectory, advantage) in enumerate(zip(group.trajectories, group_advantages, strict=True)):
            shared = {
                "iteration": iteration,
                "group": index,
                "episode": episode,
                "advantage": None if advantage is None else float(advantage),
                **_episode_columns(trajectory),
            }
            if not trajectory.steps:
                rows.append({**shared, "step": -1})
            for number, step in enumerate(trajectory.steps):
                rows.append({**shared, "step": number, **{name: _text(getattr(step, name)) for name in _STEP_COLUMNS}})
                rows[-1].update(_more(step))
    table = pa.Table.from_pylist(rows, schema=_schema({name for row in rows for name in row}))
    path = trajectory_file(folder, iteration)
    try:
        atomic_write(path, lambda temporary: pq.write_table(table, temporary, compression="zstd", compression_level=6))
    except OSError as error:
        raise RunError(
            f"Trajectories of iteration {iteration} could not be written to {str(path)!r} ({error_reason(error)}); "
            "free some space, or set run.save_trajectories = false."
        ) from error
    return path


def read_trajectories(paths: Path | Iterable[Path]) -> list[StoredGroup]:
    """Return the groups in files, in the order of the files.

    Args:
        paths: trajectory files; a folder stands for all of its files, oldest first.

    Raises:
        RunError: a file is missing, damaged, or not a trajectory file.
    """
    if isinstance(paths, Path):
        paths = sorted(paths.glob("*.parquet")) if paths.is_dir() else [paths]
    return [group for path in paths for group in _read_file(path)]


def read_group(path: Path, group: int, episode: int | None = None) -> dict[int, tuple[Trajectory, float | None]]:
    """Return episode -> (trajectory, advantage) of one group, or of one of its episodes; empty where there is none.

    Only the parts of the file that can hold the group are read.

    Args:
        path: a trajectory file.
        group: place of the group within its iteration.
        episode: place of the episode within its group; None is all of them.

    Raises:
        RunError: the file is missing, damaged, or not a trajectory file.
    """
    by_episode: dict[int, list[dict[str, Any]]] = {}
    for row in _read_rows(path, group=group, episode=episode):
        by_episode.setdefault(row["episode"], []).append(row)
    return {place: (_trajectory(rows), rows[0]["advantage"]) for place, rows in by_episode.items()}


def read_table(path: Path, *, group: int | None = None, episode: int | None = None) -> pa.Table:
    """Return a Parquet file with columns ``group`` and ``episode``, or the rows of one group or episode.

    Raises:
        OSError: the file is missing.
        pyarrow.ArrowException: it is damaged, or lacks the columns.
    """
    with pq.ParquetFile(path) as file:
        if group is None:
            return file.read()
        column = file.schema_arrow.names.index("group")
        kept = []
        for number in range(file.num_row_groups):
            bounds = file.metadata.row_group(number).column(column).statistics
            if bounds is None or not bounds.has_min_max or bounds.min <= group <= bounds.max:
                kept.append(number)
        table = file.read_row_groups(kept, use_threads=False)
    wanted = numpy_column(table.column("group")) == group
    if episode is not None:
        wanted &= numpy_column(table.column("episode")) == episode
    return take_rows(table, np.flatnonzero(wanted))


def _read_file(path: Path) -> list[StoredGroup]:
    groups: dict[tuple[int, int], dict[int, list[dict[str, Any]]]] = {}
    for row in _read_rows(path):
        groups.setdefault((row["iteration"], row["group"]), {}).setdefault(row["episode"], []).append(row)
    return [
        StoredGroup(
            iteration=iteration,
            index=index,
            group=TrajectoryGroup(tuple(_trajectory(rows) for rows in episodes.values())),
            advantages=tuple(rows[0]["advantage"] for rows in episodes.values()),
        )
        for (iteration, index), episodes in groups.items()
    ]


def _read_rows(path: Path, *, group: int | None = None, episode: int | None = None) -> list[dict[str, Any]]:
    try:
        table = read_table(path, group=group, episode=episode)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise RunError(f"Trajectory file {str(path)!r} cannot be read ({error}); restore it from a copy.") from error
    if not table.schema.equals(_schema(set(table.schema.names))):
        missing = sorted(set(SCHEMA.names) - set(table.schema.names))
        raise RunError(
            f"{str(path)!r} is no trajectory file of this version (missing columns: {', '.join(missing) or 'none'}); "
            "read it with the version that its run's provenance.json names."
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _schema(names: set[str]) -> pa.Schema:
    """Return the schema of a file with these columns."""
    schema = SCHEMA
    for name, field in _MORE_COLUMNS.items():
        if name in names:
            schema = schema.append(field)
    return schema


def _more(step: Step) -> dict[str, Any]:
    """Return the columns beyond SCHEMA that a step needs."""
    found = {name: getattr(step, name) for name, plain in _PLAIN.items() if getattr(step, name) != plain}
    if "generations" in found:
        found["generations"] = json.dumps([dataclasses.asdict(part) for part in step.generations])
    return found


def _episode_columns(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "game": trajectory.game,
        "seed": trajectory.seed,
        "course": trajectory.course,
        "player": trajectory.player,
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "stop_reason": trajectory.stop_reason.value,
        "success": trajectory.success,
        # A game may put anything there; what JSON lacks becomes text rather than end a run.
        "info": json.dumps(trajectory.info, default=str),
    }


def _text(value: Any) -> Any:
    """Return UTF-8 text; a server may send half a surrogate pair, which becomes its escape."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def _trajectory(rows: list[dict[str, Any]]) -> Trajectory:
    first = rows[0]
    return Trajectory(
        game=first["game"],
        seed=first["seed"],
        course=first["course"],
        player=first["player"],
        steps=tuple(_step(row) for row in rows if row["step"] >= 0),
        terminated=first["terminated"],
        truncated=first["truncated"],
        stop_reason=StopReason(first["stop_reason"]),
        success=first["success"],
        info=json.loads(first["info"]),
    )


def _step(row: dict[str, Any]) -> Step:
    values = {name: row[name] for name in _STEP_COLUMNS}
    for name in ("prompt_ids", "completion_ids", "logprobs"):
        values[name] = tuple(values[name])
    if values["finish"] is not None:
        values["finish"] = Finish(values["finish"])
    values["generations"] = tuple(map(generation_from_json, json.loads(row.get("generations") or "[]")))
    values["duration"] = row.get("duration") or _PLAIN["duration"]
    values["candidates"] = tuple(map(tuple, row.get("candidates") or ()))
    values["candidate_logprobs"] = tuple(row.get("candidate_logprobs") or ())
    return Step(**values)
