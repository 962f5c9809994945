"""The run folder: everything that a run makes, in one place that survives ``kill -9``.

::

    runs/NAME/
      recipe.toml        the recipe as resolved; itself a recipe
      provenance.json    versions, commit, machine, command; one more entry for each resume
      metrics.jsonl      one line per iteration
      trajectories/      000012.parquet: every step of iteration 12
      checkpoints/       000010/: weights, optimizer, counters, with hashes
      evaluation/        results of the panels
      figures/           pictures
      logprobs/          WEIGHTS/000012.parquet: tokens of iteration 12 under other weights, where asked for
      template.txt       a copy of the prompt template, where it is a file of the user's
      warm_start.jsonl   one line per step of the warm start
      reference/         the reference policy, where the algorithm needs one; never deleted
      model/             the trained model, for transformers
      summary.json       before and after, minutes, memory
      .lock              held by the process that writes the run
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import tomllib
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

from stratagem.algorithms.ms_grpo_config import without_idle_settings
from stratagem.errors import RunError
from stratagem.files import (
    atomic_write_bytes,
    atomic_write_json,
    atomic_write_text,
    fsync_folder,
    publish_folder,
)
from stratagem.runs.metrics import truncate_metrics
from stratagem.runs.provenance import collect_provenance, own_games

__all__ = [
    "RunFolder",
    "atomic_write_bytes",
    "atomic_write_json",
    "atomic_write_text",
    "list_runs",
    "publish_folder",
    "recipe_differences",
]

_FOLDERS = ("trajectories", "checkpoints", "evaluation", "figures")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class RunFolder:
    """One run on disk. Made by :meth:`create`, :meth:`resume` or, for reading only, :meth:`open`."""

    def __init__(self, path: Path, *, lock: int | None = None) -> None:
        self.path = path
        self._lock = lock

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def recipe_file(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.toml"

    @property
    def provenance_file(self) -> Path:
        """Versions, commit, machine and command."""
        return self.path / "provenance.json"

    @property
    def metrics_file(self) -> Path:
        """One JSON object per iteration; see :mod:`stratagem.runs.metrics`."""
        return self.path / "metrics.jsonl"

    @property
    def trajectories(self) -> Path:
        """Folder of Parquet files; see :mod:`stratagem.data.trajectories`."""
        return self.path / "trajectories"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints; see :mod:`stratagem.runs.checkpoint`."""
        return self.path / "checkpoints"

    @property
    def evaluation(self) -> Path:
        """Folder of panel results."""
        return self.path / "evaluation"

    @property
    def figures(self) -> Path:
        """Folder of pictures."""
        return self.path / "figures"

    @classmethod
    def create(
        cls, root: Path | str, name: str | None, recipe_text: str, *, seed: int | None = None, resume: bool = False
    ) -> RunFolder:
        """Make a run folder and lock it; with ``resume`` continue the one that exists.

        Args:
            root: the folder of all runs; made if missing.
            name: the run's name; None picks ``<recipe>-<seed>-<n>`` with the next free n.
            recipe_text: the resolved recipe as TOML.
            seed: the run's seed, for the provenance; None takes the recipe's.
            resume: continue ``name`` rather than refuse it.

        Raises:
            RunError: the name is taken (or, with ``resume``, missing), locked, or belongs to another recipe.
        """
        root = Path(root)
        table = tomllib.loads(recipe_text)
        seed = int(table.get("seed", 0)) if seed is None else seed
        if resume:
            return cls._resume(root, name, table, seed)
        if name is not None:
            if _NAME.fullmatch(name) is None:
                raise RunError(f"Run name {name!r} is no file name; use letters, digits, '.', '_' and '-'.")
            if (root / name).exists():
                raise RunError(
                    f"Run {name!r} exists in {str(root)!r}; "
                    "choose another name with --name, or continue it with --resume."
                )
        root.mkdir(parents=True, exist_ok=True)
        temporary = root / f".tmp-run-{secrets.token_hex(4)}"
        lock: int | None = None
        try:
            temporary.mkdir()
            for folder in _FOLDERS:
                (temporary / folder).mkdir()
            atomic_write_text(temporary / "recipe.toml", recipe_text)
            provenance = {**collect_provenance(seed), "own_games": own_games(table), "resumes": []}
            atomic_write_json(temporary / "provenance.json", provenance)
            atomic_write_text(temporary / "metrics.jsonl", "")
            lock = _take_lock(temporary / ".lock", name or "new")
            path = _publish_run(temporary, root, name, f"{table.get('name', 'run')}-{seed}")
        except BaseException:
            if lock is not None:
                os.close(lock)
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return cls(path, lock=lock)

    @classmethod
    def _resume(cls, root: Path, name: str | None, table: dict[str, Any], seed: int) -> RunFolder:
        if name is None:
            raise RunError("--resume needs the run's name; give it with --name.")
        run = cls.open(root / name)
        lock = _take_lock(run.path / ".lock", name)
        try:
            stored = tomllib.loads(run.recipe_file.read_text(encoding="utf-8"))
            different = recipe_differences(stored, table)
            if different:
                raise RunError(
                    f"Run {name!r} was made with another recipe; different: {', '.join(different)}. "
                    "Resume with the run's own recipe.toml, or choose another name with --name."
                )
            for folder in _FOLDERS:  # deleted by hand, or lost in a copy that leaves out empty folders
                (run.path / folder).mkdir(exist_ok=True)
            _note_resume(run.provenance_file, seed, own_games(table))
        except BaseException:
            os.close(lock)
            raise
        return cls(run.path, lock=lock)

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Return an existing run for reading, without a lock.

        Raises:
            RunError: the folder is missing or holds no run.
        """
        path = Path(path)
        if not (path / "recipe.toml").is_file():
            names = ", ".join(list_runs(path.parent)) or "none"
            raise RunError(f"No run {path.name!r} in {str(path.parent)!r}; runs there: {names}.")
        return cls(path)

    def rewind(self, iteration: int) -> None:
        """Drop metrics and trajectories after ``iteration``, which will be made again; -1 drops all.

        What is dropped was paid for, but keeping it beside its repetition would count iterations twice.
        """
        truncate_metrics(self.metrics_file, iteration)
        for path in self.trajectories.glob("*.parquet"):
            if path.stem.isdigit() and int(path.stem) > iteration:
                path.unlink()
        for path in self.path.glob("logprobs/*/*.parquet"):  # of tokens, or under weights, that will be made again
            numbers = [int(name) for name in (path.stem, path.parent.name) if name.isdecimal()]
            if max(numbers, default=-1) > iteration:
                path.unlink()
        fsync_folder(self.trajectories)

    def close(self) -> None:
        """Release the lock; safe to call again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        """Return the run."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock."""
        self.close()


def list_runs(root: Path | str) -> list[str]:
    """Return the names of the runs in ``root``, oldest first."""
    found = [path.parent for path in Path(root).glob("*/recipe.toml") if not path.parent.name.startswith(".")]
    return [path.name for path in sorted(found, key=lambda path: (path.joinpath("recipe.toml").stat().st_mtime, path))]


def recipe_differences(stored: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """Return ``key (old -> new)`` for every dotted key whose value differs and has an effect."""
    old, new = _flatten(without_idle_settings(stored)), _flatten(given)
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key, _ABSENT) != new.get(key, _ABSENT))
    return [f"{key} ({old.get(key, _ABSENT)!r} -> {new.get(key, _ABSENT)!r})" for key in keys]


class _Absent:
    def __repr__(self) -> str:
        return "not set"


_ABSENT = _Absent()


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value:
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _publish_run(temporary: Path, root: Path, name: str | None, stem: str) -> Path:
    """Give the folder its name; the next free number where none was asked for, also against other processes."""
    if name is not None:
        try:
            publish_folder(temporary, root / name)
        except FileExistsError:
            raise RunError(f"Run {name!r} was made by another process just now; choose another name.") from None
        return root / name
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip(".-_") or "run"
    taken = (re.fullmatch(re.escape(stem) + r"-(\d+)", path.name) for path in root.iterdir())
    number = max((int(match[1]) for match in taken if match), default=0) + 1
    while True:
        try:
            publish_folder(temporary, root / f"{stem}-{number}")
        except FileExistsError:
            number += 1
        else:
            return root / f"{stem}-{number}"


def _take_lock(path: Path, name: str) -> int:
    """Lock a run for this process; the system releases it when the process ends, however it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise RunError(
            f"Run {name!r} is being written by process {owner}; wait until it ends, or choose another name with --name."
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _note_resume(path: Path, seed: int, games: dict[str, dict[str, str]]) -> None:
    """Add a resume to the provenance, and say where the code of a game is not what the run began with.

    Warns:
        RuntimeWarning: it is another; not an error, since a comment may have been changed.
    """
    try:
        provenance = json.loads(path.read_text(encoding="utf-8"))
        provenance["resumes"].append({**collect_provenance(seed), "own_games": games})
        first = {name: code["sha256"] for name, code in provenance.get("own_games", {}).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{str(path)!r} is damaged ({type(error).__name__}: {error}); restore it from a copy, or write "
            '{"resumes": []} into it to go on without what it said.'
        ) from error
    for name, code in games.items():
        if first.get(name, code["sha256"]) != code["sha256"]:
            warnings.warn(
                f"The code of game {name!r} ({code['file']}) was changed since run {path.parent.name!r} began; what is "
                "trained and evaluated from here on may be another game.",
                RuntimeWarning,
                stacklevel=2,
            )
    atomic_write_json(path, provenance)
    fsync_folder(path.parent)
