"""Episodes on disk as the page reads them: a small index of each file, and one episode or group when it is opened.

Only the columns that an index needs are read, and only the row groups that can hold what is asked for. A file that is
damaged or of another version is left out with a note, so that it hides no other.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratagem.data.trajectories import trajectory_file
from stratagem.errors import RunError
from stratagem.evaluation.episode_log import read_episodes
from stratagem.types import Finish, Step, StopReason, Trajectory, generation_from_json

__all__ = ["EpisodeRow", "Found", "Store", "StoredEpisode"]

_INDEX_COLUMNS = (
    *("group", "episode", "step", "success", "stop_reason", "advantage", "action", "finish"),
    *("reward", "invalid_penalty", "shaping"),
)
_TEXT_COLUMNS = ("observation", "completion", "action", "parse_error", "state_key", "generations")
_STEP_FIELDS = (
    *("observation", "action", "reward", "invalid_penalty", "shaping", "executed_action", "parse_error"),
    *("completion", "prompt_ids", "completion_ids", "logprobs", "finish", "state_key"),
)
_KEPT_QUERIES = 64


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """What a list of episodes says about one of them."""

    iteration: int
    group: int
    episode: int
    num_steps: int
    num_valid: int
    """Steps with a valid action."""
    num_cut: int
    """Steps whose completion met its token limit."""
    environment_return: float
    composite_return: float
    success: bool | None
    stop_reason: str
    advantage: float | None


@dataclass(frozen=True)
class Found:
    """Rows, and how far the search has come."""

    rows: list[EpisodeRow]
    read: int
    """Files that have been read."""
    total: int
    """Files that there are to read."""


@dataclass(frozen=True)
class StoredEpisode:
    """One episode with its place."""

    iteration: int
    group: int
    episode: int
    trajectory: Trajectory
    advantage: float | None


class Store:
    """The ``trajectories`` and ``evaluation`` folders of a run."""

    def __init__(self, trajectories: Path, evaluation: Path) -> None:
        self.trajectories = trajectories
        self.evaluation = evaluation
        self._index: dict[int, tuple[tuple[int, int], list[EpisodeRow]]] = {}
        self._matches: OrderedDict[str, dict[int, tuple[tuple[int, int], frozenset[tuple[int, int]]]]] = OrderedDict()
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        """Files that could not be read, in sentences."""
        return [f"{name} cannot be read: {reason}" for name, reason in self._problems.items()]

    def iterations(self) -> list[int]:
        """Return the iterations whose episodes are there."""
        return sorted(int(path.stem) for path in self.trajectories.glob("*.parquet") if path.stem.isdigit())

    def index(self, iteration: int) -> list[EpisodeRow]:
        """Return the rows of one iteration; none where the file is missing or damaged."""
        path = trajectory_file(self.trajectories, iteration)
        mark = _mark(path)
        if mark is None:
            self._index.pop(iteration, None)
            return []
        if iteration not in self._index or self._index[iteration][0] != mark:
            try:
                rows = _read_index(path, iteration)
            except (OSError, pa.ArrowException, KeyError, ValueError) as error:
                self._problems[f"trajectories/{path.name}"] = f"{str(error).splitlines()[0]}."
                rows = []
            self._index[iteration] = (mark, rows)
        return self._index[iteration][1]

    def search(self, iterations: Sequence[int], *, text: str = "", seconds: float = 1.0) -> Found:
        """Return the rows of iterations; stop reading files when the time is over, to go on with the next call.

        Args:
            iterations: which; the last are read first.
            text: keep episodes with this in an observation, completion, action, error or state, in any case.
            seconds: no further file is opened after so long, except that one file is always read.
        """
        deadline = time.perf_counter() + seconds
        rows: list[EpisodeRow] = []
        read = fresh = 0
        for iteration in reversed(iterations):
            known = iteration in self._index and (not text or iteration in self._matches.get(text, {}))
            if not known and fresh and time.perf_counter() > deadline:
                continue
            fresh += not known
            found = self.index(iteration)
            if text and found:
                matches = self._text_matches(iteration, text)
                found = [row for row in found if (row.group, row.episode) in matches]
            rows.extend(found)
            read += 1
        return Found(rows, read, len(iterations))

    def group(self, iteration: int, group: int) -> list[StoredEpisode]:
        """Return the episodes of a group, in their order.

        Raises:
            RunError: there is no such group, or its file is damaged.
        """
        return self._read(iteration, group, None)

    def episode(self, iteration: int, group: int, episode: int) -> StoredEpisode:
        """Return one episode.

        Raises:
            RunError: there is no such episode, or its file is damaged.
        """
        return self._read(iteration, group, episode)[0]

    def panels(self) -> list[tuple[str, str]]:
        """Return (tag, panel) of the evaluations whose episodes are there."""
        return sorted((path.parent.name, path.stem) for path in self.evaluation.glob("*/*.jsonl"))

    def evaluated(self, tag: str, panel: str) -> list[StoredEpisode]:
        """Return the episodes of an evaluation, in the order of the panel; their iteration and group are 0.

        Raises:
            RunError: there are none, or the file is damaged.
        """
        if (tag, panel) not in self.panels():
            raise RunError(f"There are no episodes of panel {panel!r} in evaluation {tag!r}.")
        _, episodes = read_episodes(self.evaluation / tag / f"{panel}.jsonl")
        return [StoredEpisode(0, 0, place, trajectory, None) for place, trajectory in sorted(episodes.items())]

    def _read(self, iteration: int, group: int, episode: int | None) -> list[StoredEpisode]:
        path = trajectory_file(self.trajectories, iteration)
        try:
            rows = _rows(path, group, episode)
            places = sorted({row["episode"] for row in rows})
            found = [
                StoredEpisode(iteration, group, place, _trajectory(kept), kept[0].get("advantage"))
                for place in places
                if (kept := [row for row in rows if row["episode"] == place])
            ]
        except FileNotFoundError:
            found = []
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise RunError(f"{path.name} cannot be read ({str(error).splitlines()[0]}).") from error
        if not found:
            what = "" if episode is None else f" with an episode {episode}"
            raise RunError(f"There is no group {group}{what} in iteration {iteration}.")
        return found

    def _text_matches(self, iteration: int, text: str) -> frozenset[tuple[int, int]]:
        kept = self._matches.setdefault(text, {})
        self._matches.move_to_end(text)
        if len(self._matches) > _KEPT_QUERIES:
            self._matches.popitem(last=False)
        path = trajectory_file(self.trajectories, iteration)
        mark = _mark(path)
        if mark is None:
            return frozenset()
        if iteration not in kept or kept[iteration][0] != mark:
            kept[iteration] = (mark, _read_matches(path, text))
        return kept[iteration][1]


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size)


def _read_index(path: Path, iteration: int) -> list[EpisodeRow]:
    with pq.ParquetFile(path) as file:
        table = file.read(columns=list(_INDEX_COLUMNS), use_threads=False)
    if missing := set(_INDEX_COLUMNS) - set(table.column_names):
        raise KeyError(f"it lacks the columns {', '.join(sorted(missing))}")
    if not len(table):
        return []

    def values(name: str) -> np.ndarray[Any, Any]:
        return np.asarray(pc.fill_null(table.column(name), 0).to_numpy(), dtype=np.float64)

    group, episode = (table.column(name).to_numpy() for name in ("group", "episode"))
    starts = np.flatnonzero(np.r_[True, (group[1:] != group[:-1]) | (episode[1:] != episode[:-1])])
    played = (table.column("step").to_numpy() >= 0).astype(np.int64)
    valid = np.asarray(pc.is_valid(table.column("action"))).astype(np.int64)
    cut = np.asarray(pc.fill_null(pc.equal(table.column("finish"), Finish.LENGTH.value), False)).astype(np.int64)
    environment = values("reward") + values("invalid_penalty")
    sums = [
        np.add.reduceat(part, starts) for part in (played, valid, cut, environment, environment + values("shaping"))
    ]
    firsts = table.select(["success", "stop_reason", "advantage"]).take(pa.array(starts)).to_pydict()
    return [
        EpisodeRow(iteration, int(g), int(e), int(n), int(v), int(c), float(r), float(total), success, stop, advantage)
        for g, e, n, v, c, r, total, success, stop, advantage in zip(
            *(group[starts], episode[starts], *sums), *firsts.values(), strict=True
        )
    ]


def _read_matches(path: Path, text: str) -> frozenset[tuple[int, int]]:
    try:
        known_names = pq.read_schema(path).names
        names = [name for name in _TEXT_COLUMNS if name in known_names]
        with pq.ParquetFile(path, read_dictionary=names) as file:
            table = file.read(columns=["group", "episode", *names], use_threads=False)
    except (OSError, pa.ArrowException):
        return frozenset()
    hit = np.zeros(len(table), dtype=bool)
    for name in names:
        at = 0
        for chunk in table.column(name).chunks:
            matches = pc.match_substring(chunk.dictionary, text, ignore_case=True)  # each distinct text once
            known = np.asarray(matches, dtype=bool) if len(matches) else np.zeros(1, dtype=bool)
            indices = np.asarray(pc.fill_null(chunk.indices, -1))
            hit[at : at + len(chunk)] |= (indices >= 0) & known[np.maximum(indices, 0)]
            at += len(chunk)
    kept = table.filter(pa.array(hit))
    return frozenset(zip(kept.column("group").to_pylist(), kept.column("episode").to_pylist(), strict=True))


def _rows(path: Path, group: int, episode: int | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with pq.ParquetFile(path) as file:
        column = file.schema_arrow.names.index("group")
        for number in range(file.num_row_groups):
            bounds = file.metadata.row_group(number).column(column).statistics
            if bounds is not None and bounds.has_min_max and not bounds.min <= group <= bounds.max:
                continue
            table = file.read_row_group(number, use_threads=False)
            wanted = pc.equal(table.column("group"), group)
            if episode is not None:
                wanted = pc.and_(wanted, pc.equal(table.column("episode"), episode))
            rows.extend(table.filter(wanted).to_pylist())
    return rows


def _trajectory(rows: Iterable[dict[str, Any]]) -> Trajectory:
    ordered = sorted(rows, key=lambda row: row["step"])
    first = ordered[0]
    return Trajectory(
        game=first["game"],
        seed=first["seed"],
        course=first["course"],
        player=first["player"],
        steps=tuple(_step(row) for row in ordered if row["step"] >= 0),
        terminated=first["terminated"],
        truncated=first["truncated"],
        stop_reason=StopReason(first["stop_reason"]),
        success=first["success"],
    )


def _step(row: dict[str, Any]) -> Step:
    values: dict[str, Any] = {name: row.get(name) for name in _STEP_FIELDS}
    for name in ("prompt_ids", "completion_ids", "logprobs"):
        values[name] = tuple(values[name] or ())
    for name in ("observation", "completion", "state_key"):
        values[name] = values[name] or ""
    for name in ("reward", "invalid_penalty", "shaping"):
        values[name] = values[name] or 0.0
    values["finish"] = None if values["finish"] is None else Finish(values["finish"])
    values["generations"] = tuple(map(generation_from_json, json.loads(row.get("generations") or "[]")))
    return Step(**values)
