"""Figures as files, and a line of text for the terminal.

matplotlib is used through its objects, never through pyplot: nothing global is touched, so figures can be drawn in any
thread and on a machine without a display. The suffix of the path chooses the format; the same data give the same SVG.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stratagem.errors import ConfigError
from stratagem.evaluation.statistics import Interval

__all__ = [
    "PALETTE",
    "Bar",
    "Curve",
    "CurvePanel",
    "Reference",
    "bar_grid",
    "bars",
    "curve_grid",
    "learning_curve",
    "sparkline",
]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of Okabe and Ito, which people with any common colour blindness can tell apart; yellow is left out."""

_LINES = ("-", "--", "-.", ":")
_FORMATS = (".png", ".svg", ".pdf")
_FONT = 11


@dataclass(frozen=True)
class Curve:
    """One line of a learning curve, with an optional band."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Refuse lines of unequal length."""
        for name in ("y", "low", "high"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.x):
                raise ValueError(f"{name} has {len(values)} values and x has {len(self.x)}; give one for each x.")
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high make a band together; give both or neither.")

    @classmethod
    def from_seeds(cls, label: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> Curve:
        """Return the mean over runs with a band of one sample standard deviation (no band for one run).

        Args:
            label: for the legend.
            x: shared by all runs.
            runs: [seeds][len(x)] values.
        """
        values = np.asarray(runs, dtype=np.float64)
        centre = values.mean(axis=0)
        if len(values) < 2:
            return cls(label, x, centre.tolist())
        spread = values.std(axis=0, ddof=1)
        return cls(label, x, centre.tolist(), (centre - spread).tolist(), (centre + spread).tolist())


@dataclass(frozen=True)
class Reference:
    """A level to compare with: the optimum, a random player, a published number."""

    label: str
    value: float


@dataclass(frozen=True)
class CurvePanel:
    """One of several learning curves in a figure."""

    title: str
    curves: Sequence[Curve]
    """Solid, with their bands."""
    single: Sequence[Curve | None] = ()
    """For each of ``curves`` a single run, dashed in the same colour, or None."""


@dataclass(frozen=True)
class Bar:
    """One bar of a panel."""

    label: str
    value: float
    interval: Interval | None = None


def _grid(path: Path, count: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    _check_format(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = math.ceil(count / columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(count)]
    for one in axes:
        one.tick_params(labelsize=_FONT - 2)
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="0.88", linewidth=0.8)
        one.set_axisbelow(True)
    return figure, axes


def _check_format(path: Path) -> None:
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"path={str(path)!r} does not say a format; end it with one of {', '.join(_FORMATS)}.")


def _axes(path: Path, xlabel: str, ylabel: str, title: str | None) -> tuple[Any, Any]:
    _check_format(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel, fontsize=_FONT)
    axes.set_ylabel(ylabel, fontsize=_FONT)
    if title:
        axes.set_title(title, fontsize=_FONT + 2, loc="left")
    axes.tick_params(labelsize=_FONT - 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.88", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    # A fixed salt and no date: the same figure is the same file.
    metadata: dict[str, None] = {} if path.suffix.lower() == ".png" else {"CreationDate": None}
    if path.suffix.lower() == ".svg":
        metadata = {"Date": None}
    with matplotlib.rc_context({"svg.hashsalt": "stratagem"}):
        figure.savefig(path, dpi=150, metadata=metadata)
    return path


def _legend_below(figure: Any) -> None:
    """Name everything under the axes, where no line runs through the words."""
    figure.legend(loc="outside lower center", ncols=2, columnspacing=1.2, fontsize=_FONT - 2, frameon=False)


def _draw_references(axes: Any, references: Sequence[Reference], near: Interval | None = None) -> None:
    """Draw levels; one that lies far outside ``near`` would flatten all else, so it is named in the legend only."""
    for index, reference in enumerate(references):
        style = _LINES[1:][index % (len(_LINES) - 1)]
        if near is not None and not near[0] <= reference.value <= near[1]:
            axes.plot([], [], " ", label=f"{reference.label}: {reference.value:.2f}, off the axis")
            continue
        axes.axhline(reference.value, color="0.35", linestyle=style, linewidth=1.2, label=reference.label)


def learning_curve(
    path: str | Path,
    curves: Sequence[Curve],
    *,
    references: Sequence[Reference] = (),
    xlabel: str = "Iteration",
    ylabel: str = "Return per episode",
    title: str | None = None,
) -> Path:
    """Draw curves over training and return the path.

    Args:
        path: ends with .png, .svg or .pdf; missing folders are made.
        curves: at least one; gaps (nan) are left open.
        references: horizontal lines; a level more than twice the range of the curves away is named in the legend only.
        xlabel: under the axis.
        ylabel: beside the axis.
        title: None leaves it out.

    Raises:
        ConfigError: the suffix is not a known format.
    """
    path = Path(path)
    figure, axes = _axes(path, xlabel, ylabel, title)
    for index, curve in enumerate(curves):
        colour = PALETTE[index % len(PALETTE)]
        style = _LINES[index % len(_LINES)]  # a second cue beside colour
        marker = "o" if len(curve.x) <= 40 else None
        axes.plot(curve.x, curve.y, style, color=colour, linewidth=2, marker=marker, markersize=4, label=curve.label)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    drawn = [value for curve in curves for value in curve.y if math.isfinite(value)]
    span = max(drawn) - min(drawn) if drawn else 0.0
    _draw_references(axes, references, (min(drawn) - 2 * span, max(drawn) + 2 * span) if span > 0 else None)
    if len(curves) + len(references) > 1:
        _legend_below(figure)
    return _save(figure, path)


def bars(
    path: str | Path,
    groups: Sequence[str],
    series: Sequence[tuple[str, Sequence[float], Sequence[Interval | None]]],
    *,
    references: Sequence[Reference] = (),
    ylabel: str = "Return per episode",
    title: str | None = None,
) -> Path:
    """Draw bars with intervals, side by side for each group, and return the path.

    Args:
        path: ends with .png, .svg or .pdf; missing folders are made.
        groups: names below the bars, such as panels.
        series: (label, one value per group, one interval or None per group), such as before and after.
        references: horizontal lines.
        ylabel: beside the axis.
        title: None leaves it out.

    Raises:
        ConfigError: the suffix is not a known format.
    """
    path = Path(path)
    figure, axes = _axes(path, "", ylabel, title)
    width = 0.8 / max(len(series), 1)
    for index, (label, values, intervals) in enumerate(series):
        if not len(values) == len(intervals) == len(groups):
            raise ValueError(
                f"series {label!r} has {len(values)} values and {len(intervals)} intervals for {len(groups)} groups."
            )
        places = [place + (index - (len(series) - 1) / 2) * width for place in range(len(groups))]
        axes.bar(places, values, width * 0.92, color=PALETTE[index % len(PALETTE)], label=label)
        for place, value, interval in zip(places, values, intervals, strict=True):
            if interval is not None:
                # A bootstrap interval may lie to one side of the mean; an error bar must not be negative.
                errors = [[max(value - interval[0], 0.0)], [max(interval[1] - value, 0.0)]]
                axes.errorbar([place], [value], yerr=errors, color="black", capsize=4, linewidth=1.2)
    axes.set_xticks(range(len(groups)), groups)
    axes.axhline(0.0, color="black", linewidth=0.8)
    _draw_references(axes, references)
    if len(series) + len(references) > 1:
        _legend_below(figure)
    return _save(figure, path)


def curve_grid(
    path: str | Path,
    panels: Sequence[CurvePanel],
    *,
    columns: int = 2,
    xlabel: str = "Iteration",
    ylabel: str = "Return per episode",
) -> Path:
    """Draw several panels of curves side by side, with one legend, and return the path.

    A label has the same colour in all panels.

    Args:
        path: ends with .png, .svg or .pdf; missing folders are made.
        panels: at least one.
        columns: panels in a row.
        xlabel: under the axes.
        ylabel: beside the axes.

    Raises:
        ConfigError: the suffix is not a known format.
    """
    path = Path(path)
    figure, axes = _grid(path, len(panels), columns, (4.6, 3.2))
    handles: dict[str, Any] = {}
    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    for one, panel in zip(axes, panels, strict=True):
        one.set_title(panel.title, fontsize=_FONT, loc="left")
        for index, curve in enumerate(panel.curves):
            colour = PALETTE[labels.index(curve.label) % len(PALETTE)]
            marker = "o" if len(curve.x) <= 40 else None
            (line,) = one.plot(curve.x, curve.y, "-", color=colour, linewidth=2, marker=marker, markersize=3)
            handles.setdefault(curve.label, line)
            if curve.low is not None and curve.high is not None:
                one.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
            single = panel.single[index] if index < len(panel.single) else None
            if single is not None:
                (line,) = one.plot(single.x, single.y, "--", color=colour, linewidth=1.4)
                handles.setdefault(single.label, line)
    figure.supxlabel(xlabel, fontsize=_FONT)
    figure.supylabel(ylabel, fontsize=_FONT)
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=2, frameon=False, fontsize=_FONT - 1
    )
    return _save(figure, path)


def bar_grid(
    path: str | Path,
    panels: Sequence[tuple[str, Sequence[Bar]]],
    *,
    columns: int = 2,
    ylabel: str = "Return per episode",
) -> Path:
    """Draw several panels of bars, each with a scale of its own, and return the path.

    Args:
        path: ends with .png, .svg or .pdf; missing folders are made.
        panels: (title, bars); a label has the same colour in all panels.
        columns: panels in a row.
        ylabel: beside the axes.

    Raises:
        ConfigError: the suffix is not a known format.
    """
    path = Path(path)
    labels = list(dict.fromkeys(bar.label for _, panel in panels for bar in panel))
    figure, axes = _grid(path, len(panels), columns, (4.6, 3.4))
    for one, (title, panel) in zip(axes, panels, strict=True):
        one.set_title(title, fontsize=_FONT, loc="left")
        for place, bar in enumerate(panel):
            one.bar(place, bar.value, 0.8, color=PALETTE[labels.index(bar.label) % len(PALETTE)])
            if bar.interval is not None:
                errors = [[max(bar.value - bar.interval[0], 0.0)], [max(bar.interval[1] - bar.value, 0.0)]]
                one.errorbar([place], [bar.value], yerr=errors, color="black", capsize=3, linewidth=1.2)
        one.set_xticks(range(len(panel)), [bar.label for bar in panel], rotation=25, ha="right", fontsize=_FONT - 3)
        one.axhline(0.0, color="black", linewidth=0.8)
    figure.supylabel(ylabel, fontsize=_FONT)
    return _save(figure, path)


def sparkline(values: Sequence[float], width: int | None = None) -> str:
    """Return one block character per value, from the lowest to the highest; values that are not finite are blank.

    Args:
        values: in order of time.
        width: at most so many characters; None is one for each value. Neighbours are averaged.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if width is not None and len(numbers) > width:
        parts = [part[np.isfinite(part)] for part in np.array_split(numbers, width)]
        numbers = np.array([part.mean() if len(part) else math.nan for part in parts])
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return " " * len(numbers)
    low, span = float(finite.min()), float(finite.max() - finite.min())
    # U+2581 to U+2588 are the blocks of one to eight eighths; a flat line is drawn at half height.
    levels = [
        " " if not math.isfinite(number) else chr(0x2581 + (round((number - low) / span * 7) if span > 0 else 3))
        for number in numbers.tolist()
    ]
    return "".join(levels)
