"""A run as pandas tables. pandas is imported when a table is asked for; it is the extra ``pandas``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratagem.data.trajectories import trajectory_file
from stratagem.errors import ConfigError, RunError
from stratagem.runs.folder import RunFolder
from stratagem.runs.metrics import read_metrics

if TYPE_CHECKING:
    import pandas

__all__ = ["Run", "open_run"]


class Run:
    """What a run wrote, read again at each look, so that it follows a run that trains."""

    def __init__(self, folder: RunFolder) -> None:
        self.path = folder.path
        self._folder = folder

    @property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe."""
        return tomllib.loads(self._folder.recipe_file.read_text(encoding="utf-8"))

    @property
    def metrics(self) -> pandas.DataFrame:
        """One row for each iteration, which is the index; see docs/runs.md for the columns."""
        frame = _pandas().DataFrame(read_metrics(self._folder.metrics_file))
        return frame.set_index("iteration") if len(frame) else frame

    @property
    def trajectories(self) -> pandas.DataFrame:
        """One row for each step of every iteration; :meth:`read_trajectories` reads less."""
        return self.read_trajectories()

    def read_trajectories(
        self, iterations: Iterable[int] | None = None, columns: Sequence[str] | None = None
    ) -> pandas.DataFrame:
        """Return the steps of some iterations.

        Args:
            iterations: which; None is all.
            columns: which, as in docs/runs.md; None is all. Ids and log-probabilities take most of the memory.

        Raises:
            RunError: there are none, or a file is missing or damaged.
        """
        pandas = _pandas()
        if iterations is None:
            paths = sorted(path for path in self._folder.trajectories.glob("*.parquet") if path.stem.isdigit())
        else:
            paths = [trajectory_file(self._folder.trajectories, iteration) for iteration in iterations]
        if not paths:
            raise RunError(f"Run {self._folder.name!r} holds no trajectories; run.save_trajectories may be off.")
        try:
            frames = [pandas.read_parquet(path, columns=None if columns is None else list(columns)) for path in paths]
        except (OSError, ValueError) as error:
            raise RunError(f"Trajectories of run {self._folder.name!r} cannot be read ({error}).") from error
        return pandas.concat(frames, ignore_index=True)


def open_run(path: Path | str) -> Run:
    """Open a run folder, also of a run that trains.

    Raises:
        RunError: the folder is missing or holds no run.
    """
    return Run(RunFolder.open(path))


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ConfigError("Tables need pandas; run `pip install -e '.[pandas]'` in a clone of Stratagem.") from error
    return pandas
