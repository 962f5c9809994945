"""What a training run shows while it works: progress, time left, numbers, learning curves, where the time goes.

On a terminal it is one live block; elsewhere (a file, a pipe, CI) it is one plain line per iteration, and what goes on
where there was none for a minute.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

__all__ = ["Display", "sparkline"]

_BLOCKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"

LABELS: dict[str, str] = {
    "return_mean": "return",
    "success_rate": "success",
    "valid_rate": "valid actions",
    "kl": "KL",
    "learning_rate": "lr",
    "tokens_saved": "tokens saved",
    "panel_mean": "panel mean",
}
"""Metric -> what it is called on the screen. These come first, in this order; others follow under their own names."""

PERCENT = frozenset({"success_rate", "valid_rate", "tokens_saved"})
"""Metrics between 0 and 1 that are shown in per cent."""

CURVES = ("return_mean", "success_rate", "panel_mean")
"""Metrics that a terminal shows as curves; the last is sent in the iterations that evaluate."""

_SILENCE_S = 60.0
"""Without a terminal, what goes on is said after so many seconds without a line."""

_PHASE = "seconds_"
"""How the names of metrics begin that say where the time of an iteration went; ``seconds`` is all of it."""


class Display:
    """Shows a run's progress; a context manager.

    ::

        with Display() as display:
            display.start(total=30, title="frozen_lake_demo-0-1")
            display.update(1, {"return_mean": -0.4, "panel_mean": 0.12})
            display.note("checkpoint 000001 saved")
    """

    def __init__(self, console: Console | None = None, *, live: bool | None = None) -> None:
        """Make a display that shows nothing yet.

        Args:
            console: where to write; None is standard output.
            live: one live block (True) or plain lines (False); None looks whether the console is a terminal.
        """
        self._console = console or Console(highlight=False)
        self._is_live = self._console.is_terminal if live is None else live
        self._live: Live | None = None
        self._progress: Progress | None = None
        self._total = 0
        self._metrics: dict[str, float] = {}
        self._curves: dict[str, list[float]] = {name: [] for name in CURVES}
        self._status = ""
        self._last_line = time.monotonic()

    def start(self, total: int, title: str, *, completed: int = 0, unit: str = "iterations") -> None:
        """Begin to show a run.

        Args:
            total: iterations of the whole run.
            title: the run's name.
            completed: iterations done before a resume.
            unit: what is counted.
        """
        self._total = total
        if not self._is_live:
            self._print(f"{title}: {total} {unit}" + (f", {completed} done" if completed else ""))
            return
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            # One iteration can take minutes; the estimate must look back far enough to see some.
            TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=3600,
            expand=True,
        )
        self._progress.add_task(title, total=total, completed=completed)
        self._live = Live(self._render(), console=self._console, refresh_per_second=2)
        self._live.start()

    def update(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Show the numbers of a completed iteration.

        Args:
            iteration: iterations completed, counted from 1; 0 for numbers from before the first one.
            metrics: numbers by name; a metric that is left out keeps its last value on a terminal.
        """
        self.seed(metrics)
        self._metrics.update(metrics)
        if self._live is None or self._progress is None:
            values = "  ".join(f"{label} {value}" for label, value in _rows(metrics))
            self._print(f"[{iteration}/{self._total}] {values}  {_time(metrics)}".rstrip())
            return
        self._progress.update(self._progress.task_ids[0], completed=iteration)
        self._live.update(self._render())

    def advance(self, completed: int) -> None:
        """Move the bar without new numbers; elsewhere the count is a status."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=completed)
        else:
            self.status(f"{completed} of {self._total}")

    def seed(self, metrics: Mapping[str, Any]) -> None:
        """Go on with the curves by the numbers of an iteration, without showing them; for those before a resume."""
        for name, curve in self._curves.items():
            value = metrics.get(name)
            if isinstance(value, (int, float)) and math.isfinite(value):
                curve.append(float(value))

    def status(self, text: str) -> None:
        """Say what is going on right now, in the last line of the live block; elsewhere once a minute."""
        self._status = text
        if self._live is not None:
            self._live.update(self._render())
        elif text and not self._is_live and time.monotonic() - self._last_line > _SILENCE_S:
            self._print(f"... {text}")

    def note(self, text: str) -> None:
        """Print one line that stays, above the live block."""
        self._print(text)

    def close(self) -> None:
        """Leave the last state on the screen and stop; safe to call again."""
        if self._live is not None:
            self.status("")
            self._live.stop()
            self._live = None

    def __enter__(self) -> Display:
        """Return the display."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, so that a traceback is printed below the block."""
        self.close()

    def _print(self, text: str) -> None:
        self._last_line = time.monotonic()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> Group:
        assert self._progress is not None
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column(justify="right")
        for label, value in _rows({name: v for name, v in self._metrics.items() if name not in CURVES}):
            table.add_row(label, value)
        parts: list[Progress | Table | Text] = [self._progress, table]
        width = max(8, min(60, self._console.width - 40))
        for name, curve in self._curves.items():
            if curve:
                ends = " -> ".join(_shown(name, value) for value in (curve[0], curve[-1]))
                parts.append(Text(f"{LABELS[name]:<10}  {sparkline(curve, width)}  {ends}", no_wrap=True))
        if time := _time(self._metrics):
            parts.append(Text(f"an iteration  {time}", style="dim", no_wrap=True, overflow="ellipsis"))
        if self._status:
            parts.append(Text(self._status, style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw numbers as one line of block characters, at most ``width`` wide.

    Longer series are averaged into ``width`` equal parts; a flat series is drawn at half height.
    """
    if not values:
        return ""
    if len(values) > width:
        edges = [round(index * len(values) / width) for index in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(values), max(values)
    if high == low:
        return _BLOCKS[3] * len(values)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((value - low) / (high - low) * top)] for value in values)


def _rows(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    names = [name for name in LABELS if name in metrics] + [name for name in metrics if name not in LABELS]
    return [
        (LABELS.get(name, name), _shown(name, metrics[name]))
        for name in names
        if isinstance(metrics[name], (int, float)) and name != "seconds" and not name.startswith(_PHASE)
    ]


def _time(metrics: Mapping[str, float]) -> str:
    """Return the seconds of an iteration and of its phases; empty where they are not told.

    >>> _time({"seconds": 3.25, "seconds_play": 1.0, "seconds_update": 2.25})
    '3.2 s (play 1.0, update 2.2)'
    """
    if "seconds" not in metrics:
        return ""
    phases = [
        f"{name.removeprefix(_PHASE)} {value:.1f}"
        for name, value in metrics.items()
        if name.startswith(_PHASE) and value
    ]
    return f"{metrics['seconds']:.1f} s" + (f" ({', '.join(phases)})" if phases else "")


def _shown(name: str, value: float) -> str:
    return f"{value:.1%}" if name in PERCENT else _number(value)


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.2e}" if value != 0 and abs(value) < 1e-3 else f"{value:.3f}"
