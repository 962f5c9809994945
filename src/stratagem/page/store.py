"""Episodes on disk as the page reads them: a small index of each file, and one episode or group when it is opened.

Only the columns that an index needs are read, and only the row groups that can hold what is asked for. A file that is
damaged or of another version is left out with a note, so that it hides no other.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratagem.data.columns import numpy_column, take_rows
from stratagem.data.trajectories import read_group, trajectory_file
from stratagem.errors import RunError
from stratagem.evaluation.episode_log import read_episodes
from stratagem.types import Finish, Trajectory

__all__ = ["EpisodeRow", "Found", "Store", "StoredEpisode"]

_INDEX_COLUMNS = (
    *("group", "episode", "step", "success", "stop_reason", "advantage", "action", "finish"),
    *("reward", "invalid_penalty", "shaping"),
)
_TEXT_COLUMNS = ("observation", "completion", "action", "parse_error", "state_key", "generations")
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
        found = read_group(path, group, episode) if path.is_file() else {}
        if not found:
            what = "" if episode is None else f" with an episode {episode}"
            raise RunError(f"There is no group {group}{what} in iteration {iteration}.")
        return [StoredEpisode(iteration, group, place, *found[place]) for place in sorted(found)]

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

    group, episode, step = (numpy_column(table.column(name)) for name in ("group", "episode", "step"))
    starts = np.flatnonzero(np.r_[True, (group[1:] != group[:-1]) | (episode[1:] != episode[:-1])])
    # A pattern rather than a comparison, for the reason that columns.py gives; the other endings do not begin like it.
    cut = numpy_column(pc.starts_with(table.column("finish"), Finish.LENGTH.value))
    valid = numpy_column(pc.is_valid(table.column("action")))
    environment = numpy_column(table.column("reward")) + numpy_column(table.column("invalid_penalty"))
    composite = environment + numpy_column(table.column("shaping"))
    counts = [np.add.reduceat(part.astype(np.int64), starts) for part in (step >= 0, valid, cut)]
    sums = [*counts, np.add.reduceat(environment, starts), np.add.reduceat(composite, starts)]
    firsts = take_rows(table.select(["success", "stop_reason", "advantage"]), starts).to_pydict()
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
            known = numpy_column(matches).astype(bool) if len(matches) else np.zeros(1, dtype=bool)
            hit[at : at + len(chunk)] |= (
                numpy_column(chunk.is_valid()).astype(bool) & known[numpy_column(chunk.indices)]
            )
            at += len(chunk)
    kept = take_rows(table, np.flatnonzero(hit))
    return frozenset(zip(kept.column("group").to_pylist(), kept.column("episode").to_pylist(), strict=True))
