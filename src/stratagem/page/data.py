"""Run folders as the page reads them: by need, again only when a file changed, and never in the way of the writer.

A run may be trained while it is looked at, may have been killed in the middle of a line, or may be damaged. Nothing
here raises for that: what cannot be read is missing, and :attr:`RunData.problems` says why.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from stratagem.errors import RunError, UnknownNameError
from stratagem.page.store import Store

__all__ = ["Library", "MetricsReader", "RunData", "flatten", "number", "share_of_optimum"]


class MetricsReader:
    """The rows of a ``metrics.jsonl``; each call of :meth:`rows` reads only what was added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        """Whole lines that hold no row; they are left out."""
        self._rows: list[dict[str, Any]] = []
        self._offset = 0
        self._inode = -1

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows, oldest first. A last line without its line break is not there yet."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:  # a resumed run rewrites the file
                    self._rows, self._offset, self.damaged, self._inode = [], 0, 0, status.st_ino
                file.seek(self._offset)
                content = file.read()
        except OSError:
            self._rows, self._offset, self.damaged = [], 0, 0
            return self._rows
        whole = content.rfind(b"\n") + 1
        self._offset += whole
        for line in content[:whole].split(b"\n"):
            if line.strip():
                self._add(line)
        return self._rows

    def _add(self, line: bytes) -> None:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("iteration"), int):
            self._rows.append(row)
        else:
            self.damaged += 1


class RunData:
    """One run folder."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key
        """Its name in addresses; the folder's, with a number where two runs share it."""
        self.metrics = MetricsReader(path / "metrics.jsonl")
        self.store = Store(path / "trajectories", path / "evaluation")
        self._kept: dict[Path, tuple[tuple[int, int], Any]] = {}
        self._problems: dict[Path, str] = {}

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def problems(self) -> list[str]:
        """What could not be read, in sentences."""
        found = [f"{path.relative_to(self.path)} cannot be read: {reason}" for path, reason in self._problems.items()]
        if self.metrics.damaged:
            lines = "1 line" if self.metrics.damaged == 1 else f"{self.metrics.damaged} lines"
            found.append(f"metrics.jsonl holds {lines} that are no rows; they are left out.")
        return found + self.store.problems

    @property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe; empty where it is damaged."""
        return self._read(self.path / "recipe.toml", tomllib.loads)

    @property
    def provenance(self) -> dict[str, Any]:
        """Versions, commit, machine and command; empty where there are none."""
        return self._read(self.path / "provenance.json", json.loads)

    @property
    def summary(self) -> dict[str, Any]:
        """What the end of the run wrote; empty before."""
        return self._read(self.path / "summary.json", json.loads)

    @property
    def total_iterations(self) -> int | None:
        """As the recipe says."""
        total = self.setting("algorithm.num_iterations")
        return total if isinstance(total, int) else None

    @property
    def iteration(self) -> int:
        """The last one in the metrics; 0 before the first."""
        rows = self.metrics.rows()
        return int(rows[-1]["iteration"]) if rows else 0

    @property
    def state(self) -> str:
        """``finished``, ``training`` (a process of this machine holds the run) or ``stopped``."""
        if (self.path / "summary.json").is_file():
            return "finished"
        try:
            os.kill(int((self.path / ".lock").read_text(encoding="ascii")), 0)
        except PermissionError:
            return "training"
        except (OSError, ValueError, OverflowError):
            return "stopped"
        return "training"

    def setting(self, key: str) -> Any:
        """Return a value of the recipe by its dotted key; None where there is none."""
        value: Any = self.recipe
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def evaluations(self) -> dict[str, list[dict[str, Any]]]:
        """Return tag -> results of its panels, in the order of time: start, warm_start, iterations, final."""
        order = {"start": -2, "warm_start": -1, "final": 10**9}
        found: list[tuple[float, str, list[dict[str, Any]]]] = []
        for folder in _folders(self.path / "evaluation"):
            results = [r for path in sorted(folder.glob("*.json")) if (r := self._read(path, json.loads))]
            results = [r for r in results if number(r.get("mean")) is not None and isinstance(r.get("panel"), str)]
            if results:
                digits = int(folder.name) if folder.name.isdigit() else 10**8
                found.append((order.get(folder.name, digits), folder.name, results))
        return {tag: results for _, tag, results in sorted(found, key=lambda item: item[:2])}

    def stamp(self) -> str:
        """Return a text that changes when something was written."""
        parts = []
        for name in ("recipe.toml", "metrics.jsonl", "trajectories", "evaluation", "summary.json", ".lock"):
            try:
                status = (self.path / name).stat()
                parts.append(f"{status.st_mtime_ns:x}.{status.st_size:x}")
            except OSError:
                parts.append("-")
        return ",".join([*parts, self.state])

    def _read(self, path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
        try:
            status = path.stat()
            mark = (status.st_mtime_ns, status.st_size)
            if path in self._kept and self._kept[path][0] == mark:
                return dict(self._kept[path][1])
            value = parse(path.read_text(encoding="utf-8"))
            if not isinstance(value, dict):
                raise ValueError("expected a table at the top")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._problems[path] = f"{error}."
            return {}
        self._problems.pop(path, None)
        self._kept[path] = (mark, value)
        return dict(value)


class Library:
    """The runs that are shown: named ones, or all in a folder, also those that are made later."""

    def __init__(self, sources: Iterable[Path]) -> None:
        """Take sources as they are; see :meth:`find` for what a user names.

        Args:
            sources: run folders, and folders of runs.
        """
        self.sources = list(sources)
        self._runs: dict[Path, RunData] = {}

    @classmethod
    def find(cls, names: Iterable[str], runs_dir: str) -> Library:
        """Return the library of what a user names: runs, folders of runs, or nothing for all in ``runs_dir``.

        Raises:
            UnknownNameError: neither a run nor a folder.
        """
        sources = []
        for name in names:
            for path in (Path(name), Path(runs_dir) / name):
                if (path / "recipe.toml").is_file() or (path.is_dir() and any(path.glob("*/recipe.toml"))):
                    sources.append(path)
                    break
            else:
                raise UnknownNameError("run", name, [path.name for path in _runs_in(Path(runs_dir))])
        return cls(sources or [Path(runs_dir)])

    def runs(self) -> dict[str, RunData]:
        """Return the runs by key, newest first."""
        paths: dict[Path, None] = {}
        for source in self.sources:
            found = [source] if (source / "recipe.toml").is_file() else _runs_in(source)
            paths.update(dict.fromkeys(found))
        taken: dict[str, RunData] = {}
        for path in sorted(paths, key=_made, reverse=True):
            name = path.resolve().name
            key = next(k for n in range(1, len(paths) + 1) if (k := name if n == 1 else f"{name}~{n}") not in taken)
            run = self._runs.setdefault(path, RunData(path, key))
            run.key = key
            taken[key] = run
        return taken

    def run(self, key: str) -> RunData:
        """Return a run by its key.

        Raises:
            RunError: it is not there (any more).
        """
        runs = self.runs()
        if key not in runs:
            raise RunError(f"There is no run {key!r} here; it may have been deleted or renamed.")
        return runs[key]


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted key -> value of a recipe."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def number(value: Any) -> float | None:
    """Return a finite number as float, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def share_of_optimum(result: Mapping[str, Any]) -> float | None:
    """Return the share of an evaluation; None where there is none, or its file is older and says a negative one."""
    share = number(result.get("share_of_optimum"))
    return None if share is None or share < 0 else share


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir())
    except OSError:
        return []


def _runs_in(path: Path) -> list[Path]:
    return [child for child in _folders(path) if not child.name.startswith(".") and (child / "recipe.toml").is_file()]


def _made(path: Path) -> tuple[float, str]:
    try:
        return ((path / "recipe.toml").stat().st_mtime, path.name)
    except OSError:
        return (0.0, path.name)
