"""Sending metrics to TensorBoard, Weights & Biases or Trackio through accelerate's trackers; off by default.

``metrics.jsonl`` is the record of a run. A tracker is a copy for looking at: a missing package is an error before the
run starts, a failure later is one warning, and training goes on.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stratagem.errors import ConfigError, UnknownNameError

__all__ = ["TRACKERS", "Trackers", "check_trackers"]


def _tensorboard(folder: Path, run_name: str, iteration: int) -> Any:
    from accelerate.tracking import TensorBoardTracker

    # purge_step hides points of iterations that a resumed run makes again.
    return TensorBoardTracker("tensorboard", logging_dir=folder, purge_step=iteration + 1)


def _wandb(folder: Path, run_name: str, iteration: int) -> Any:
    from accelerate.tracking import WandBTracker

    # Offline unless the user's environment says otherwise; `wandb sync` uploads later.
    mode = os.environ.get("WANDB_MODE", "offline")
    return WandBTracker("stratagem", name=run_name, id=run_name, dir=str(folder), mode=mode, resume="allow")


def _trackio(folder: Path, run_name: str, iteration: int) -> Any:
    from accelerate.tracking import TrackioTracker

    return TrackioTracker("stratagem", name=run_name, resume="allow")


TRACKERS: dict[str, Callable[[Path, str, int], Any]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
}
"""Tracker name -> a function of the run's folder, its name and the last completed iteration."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that cannot be started.

    Raises:
        UnknownNameError: no tracker of that name.
        ConfigError: the tracker's package is not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise UnknownNameError("tracker", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"Tracker {name!r} needs the package {name!r}, which is not installed; "
                f"run pip install {name}, or leave it out of run.trackers."
            )


class Trackers:
    """The trackers of one run. With no names every method does nothing."""

    def __init__(
        self, names: Sequence[str], folder: Path, run_name: str, config: Mapping[str, Any], *, iteration: int = -1
    ) -> None:
        """Start trackers.

        Args:
            names: of :data:`TRACKERS`.
            folder: the run's folder; TensorBoard and Weights & Biases write below it.
            run_name: shown by the tracker.
            config: the resolved recipe as a table; sent once, flattened to dotted keys.
            iteration: the last completed iteration of a resumed run.

        Raises:
            UnknownNameError: no tracker of that name.
            ConfigError: the tracker's package is not installed.
        """
        check_trackers(names)
        self._active: dict[str, Any] = {}
        if names:
            from accelerate import PartialState

            PartialState()  # accelerate's loggers refuse to work without it
        for name in names:
            tracker = self._guard(name, TRACKERS[name], folder, run_name, iteration)
            if tracker is not None:
                self._active[name] = tracker
                self._guard(name, tracker.start)
        if iteration < 0:
            values = _flatten(config)
            for name, tracker in list(self._active.items()):
                self._guard(name, tracker.store_init_configuration, values)

    def log(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Send the numbers among ``metrics``."""
        numbers = {
            key: float(value)
            for key, value in metrics.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        for name, tracker in list(self._active.items()):
            self._guard(name, tracker.log, numbers, step=iteration)

    def close(self) -> None:
        """Finish every tracker; safe to call again."""
        for name, tracker in list(self._active.items()):
            self._guard(name, tracker.finish)
        self._active.clear()

    def _guard(self, name: str, call: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        """Call; on any failure warn, drop that tracker for good and return None."""
        try:
            return call(*arguments, **settings)
        except Exception as error:  # a third party's code may raise anything, and none of it may stop training
            self._active.pop(name, None)
            warnings.warn(
                f"Tracker {name!r} failed ({type(error).__name__}: {error}) and is off for the rest of this run; "
                "metrics.jsonl goes on.",
                RuntimeWarning,
                stacklevel=3,
            )
            return None


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted keys with the scalar types that trackers take; anything else as text."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat
