"""Charts as SVG, made on the server: they are there with the first paint, print well and need no script.

A chart carries its numbers in ``data-chart``, from which ``static/page.js`` makes the cross-hair. Series differ in
colour and in dash; colours are classes of the style sheet, so they follow light and dark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from markupsafe import Markup, escape

__all__ = ["Bar", "Series", "format_number", "interval_chart", "line_chart", "smooth", "stack_chart"]

NUM_COLOURS = 6
_POINTS = 300
"""A longer line is drawn with the lowest and the highest value of each of half as many stretches."""


@dataclass(frozen=True)
class Series:
    """One line; None leaves a gap."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    raw: Sequence[float | None] = ()
    """The values before smoothing, drawn faint."""
    colour: int | None = None
    """None takes the place among the series."""


@dataclass(frozen=True)
class Bar:
    """A value with its interval."""

    label: str
    value: float
    low: float | None
    high: float | None
    colour: int = 0
    note: str = ""


@dataclass
class _Frame:
    """The plane between the axes."""

    width: int
    height: int
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    left: int = 48
    right: int = 8
    top: int = 8
    bottom: int = 22
    parts: list[str] = field(default_factory=list)

    def x(self, value: float) -> float:
        span = (self.x_high - self.x_low) or 1.0
        return round(self.left + (value - self.x_low) / span * (self.width - self.left - self.right), 1)

    def y(self, value: float) -> float:
        span = (self.y_high - self.y_low) or 1.0
        place = (value - self.y_low) / span * (self.height - self.top - self.bottom)
        return round(self.height - self.bottom - place, 1)


def smooth(values: Sequence[float | None], window: int) -> list[float | None]:
    """Return the mean of each value and those before it, ``window`` in all; gaps are left out.

    >>> smooth([1.0, 3.0, None, 5.0], 2)
    [1.0, 2.0, 3.0, 5.0]
    """
    found: list[float | None] = []
    for place in range(len(values)):
        near = [value for value in values[max(0, place - window + 1) : place + 1] if value is not None]
        found.append(sum(near) / len(near) if near else None)
    return found


def format_number(value: float | None, *, percent: bool = False) -> str:
    """Return a number for people.

    >>> format_number(0.12345), format_number(1234567.0), format_number(0.5, percent=True), format_number(None)
    ('0.123', '1.23e+06', '50.0%', '-')
    """
    if value is None:
        return "-"
    if percent:
        return f"{value:.1%}"
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def line_chart(
    series: Sequence[Series], *, label: str, percent: bool = False, width: int = 420, height: int = 190
) -> Markup:
    """Return lines with bands over iterations.

    Args:
        series: at least one with at least one number.
        label: what screen readers say; the last values are added.
        percent: the axis runs in percent.
        width: of the drawing, which scales to its place.
        height: likewise.
    """
    shown = [s for s in series if any(value is not None for value in s.y)]
    numbers = [v for s in shown for part in (s.y, s.low, s.high, s.raw) for v in part if v is not None]
    xs = [x for s in shown for x in s.x]
    if not numbers:
        return Markup('<p class="none">no numbers yet</p>')
    ticks = _ticks(min(numbers), max(numbers), percent)
    frame = _Frame(width, height, min(xs), max(xs), *_range(min(numbers), max(numbers), ticks, percent))
    _axes(frame, ticks, percent)
    longest = max(sum(value is not None for value in s.y) for s in shown)
    for place, s in enumerate(shown):
        style = _style(place if s.colour is None else s.colour)
        if s.low and s.high:
            frame.parts.append(f'<path class="band {style}" d="{_band(frame, s)}"/>')
        if s.raw:
            frame.parts.append(f'<path class="raw {style}" d="{_path(frame, s.x, s.raw)}"/>')
    for place, s in enumerate(shown):
        style = _style(place if s.colour is None else s.colour)
        frame.parts.append(f'<path class="line {style}" d="{_path(frame, s.x, s.y)}"/>')
        count = sum(value is not None for value in s.y)
        if longest <= 40 or 3 * count < longest:  # points of their own: a rare evaluation, the start of a run
            dots = "".join(f"M{frame.x(x)} {frame.y(y)}h0" for x, y in zip(s.x, s.y, strict=True) if y is not None)
            frame.parts.append(f'<path class="dots {style}" d="{dots}"/>')
    last = "; ".join(f"{s.label} {format_number(_last(s.y), percent=percent)}" for s in shown[:8])
    hover = {
        "f": percent,
        "s": [[s.label, place if s.colour is None else s.colour, *_thinned(s.x, s.y)] for place, s in enumerate(shown)],
    }
    return _svg(frame, f"{label}, last: {last}", hover)


def stack_chart(
    labels: Sequence[str],
    x: Sequence[float],
    shares: Sequence[Sequence[float]],
    *,
    label: str,
    percent: bool = False,
    colours: Sequence[int] | None = None,
    width: int = 420,
    height: int = 190,
) -> Markup:
    """Return columns of parts over iterations.

    Args:
        labels: one for each part.
        x: iterations.
        shares: [parts][len(x)].
        label: for screen readers.
        percent: the parts are shares of one.
        colours: one for each part; None counts up.
        width: of the drawing.
        height: likewise.
    """
    if not x or not labels:
        return Markup('<p class="none">no numbers yet</p>')
    x, shares = _binned(x, shares)
    colours = range(len(labels)) if colours is None else colours
    top = 1.0 if percent else max(sum(column) for column in zip(*shares, strict=True)) or 1.0
    ticks = _ticks(0.0, top, percent)
    half = 0.5 * (min(b - a for a, b in pairwise(x)) if len(x) > 1 else 1.0)
    frame = _Frame(width, height, min(x) - half, max(x) + half, 0.0, max(top, ticks[-1]))
    _axes(frame, ticks, percent)
    base = [0.0] * len(x)
    for place, part in enumerate(shares):
        area = []
        for column, value in enumerate(part):
            if value > 0:
                left, right = frame.x(x[column] - half), frame.x(x[column] + half)
                low, high = frame.y(base[column]), frame.y(base[column] + value)
                gap = 1 if right - left > 4 else 0
                area.append(f"M{left} {low}H{right - gap:g}V{high}H{left}z")
                base[column] += value
        frame.parts.append(f'<path class="area {_style(colours[place])}" d="{"".join(area)}"/>')
    hover = {"f": percent, "s": [[name, place, x, shares[place]] for place, name in enumerate(labels)]}
    last = "; ".join(
        f"{name} {format_number(part[-1], percent=percent)}" for name, part in zip(labels, shares, strict=True)
    )
    return _svg(frame, f"{label}, last: {last}", hover)


def interval_chart(bars: Sequence[Bar], *, label: str, width: int = 480) -> Markup:
    """Return values with their intervals, one below the other on one scale."""
    numbers = [v for bar in bars for v in (bar.value, bar.low, bar.high) if v is not None]
    if not numbers:
        return Markup('<p class="none">no results yet</p>')
    ticks = _ticks(min(0.0, *numbers), max(numbers), False)
    row = 26
    frame = _Frame(width, row * len(bars) + 30, ticks[0], ticks[-1], 0, 1, left=150, right=60, top=4)
    for tick in ticks:
        frame.parts.append(
            f'<path class="grid" d="M{frame.x(tick)} {frame.top}V{frame.height - frame.bottom}"/>'
            f'<text class="tick mid" x="{frame.x(tick)}" y="{frame.height - 6}">{_tick_text(tick, ticks, False)}</text>'
        )
    for place, bar in enumerate(bars):
        y = frame.top + row * place + row // 2
        style = _style(bar.colour)
        name = bar.label if len(bar.label) <= 22 else f"{bar.label[:21]}\u2026"
        frame.parts.append(f'<text class="name" x="{frame.left - 10}" y="{y + 4}">{escape(name)}</text>')
        if bar.low is not None and bar.high is not None:
            frame.parts.append(f'<path class="whisker {style}" d="M{frame.x(bar.low)} {y}H{frame.x(bar.high)}"/>')
        frame.parts.append(f'<circle class="point {style}" cx="{frame.x(bar.value)}" cy="{y}" r="5"/>')
        text = f"{bar.value:.3f}{bar.note}"
        frame.parts.append(f'<text class="value" x="{width - 4}" y="{y + 4}">{escape(text)}</text>')
    said = "; ".join(f"{bar.label} {bar.value:.3f}" for bar in bars)
    return _svg(frame, f"{label}: {said}", None)


def _svg(frame: _Frame, label: str, hover: object) -> Markup:
    data = "" if hover is None else f' data-chart="{escape(json.dumps(hover, separators=(",", ":")))}"'
    plane = f"{frame.left},{frame.right},{frame.width},{frame.x_low:g},{frame.x_high:g}"
    return Markup(
        f'<svg class="chart" viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{escape(label)}"'
        f' data-plane="{plane}"{data}>{"".join(frame.parts)}</svg>'
    )


def _style(place: int) -> str:
    return f"c{place % NUM_COLOURS} d{place // NUM_COLOURS % 4}"


def _axes(frame: _Frame, ticks: Sequence[float], percent: bool) -> None:
    right = frame.width - frame.right
    for tick in ticks:
        if frame.y_low - 1e-12 <= tick <= frame.y_high + 1e-12:
            text = _tick_text(tick, ticks, percent)
            frame.parts.append(
                f'<path class="grid" d="M{frame.left} {frame.y(tick)}H{right}"/>'
                f'<text class="tick end" x="{frame.left - 6}" y="{frame.y(tick) + 4}">{text}</text>'
            )
    marks = [tick for tick in _ticks(frame.x_low, frame.x_high, False) if frame.x_low <= tick <= frame.x_high]
    for tick in marks:
        frame.parts.append(f'<text class="tick mid" x="{frame.x(tick)}" y="{frame.height - 6}">{tick:g}</text>')


def _ticks(low: float, high: float, percent: bool) -> list[float]:
    """Return about four round numbers around a range."""
    if percent and low >= 0 and 0.3 <= high <= 1:
        return [0.0, 0.25, 0.5, 0.75, 1.0]
    if -0.02 * (high - low) < low < 0:
        low = 0.0  # rounding below zero, which would cost a quarter of the plane
    if high <= low:
        spread = abs(low) / 2 or 0.5
        low, high = (low if low == 0 else low - spread), high + spread
    raw = (high - low) / 4
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _range(low: float, high: float, ticks: Sequence[float], percent: bool) -> tuple[float, float]:
    """Return the ends of an axis: at its outer ticks, or a little beyond the numbers where those ticks are far."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    if percent and ticks[-1] == 1.0:
        return min(0.0, low), max(1.0, high)  # a share is judged against none and all
    bottom = ticks[0] if low - ticks[0] <= 0.5 * step else low - 0.1 * step
    top = ticks[-1] if ticks[-1] - high <= 0.5 * step else high + 0.1 * step
    return min(bottom, low), max(top, high)


def _tick_text(tick: float, ticks: Sequence[float], percent: bool) -> str:
    """Return a tick with as many digits as the distance of the ticks needs."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    if percent:
        return f"{tick:.0%}" if step >= 0.0099 else f"{tick:.1%}"
    size = max(abs(ticks[0]), abs(ticks[-1]))
    if tick and (size < 1e-3 or size >= 1e6):
        mantissa, _, exponent = f"{tick:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    digits = max(0, -math.floor(math.log10(step * 1.0001)))
    text = f"{tick:.{digits + (abs(step * 10**digits - round(step * 10**digits)) > 1e-6)}f}"
    return text if float(text) else "0"


def _path(frame: _Frame, x: Sequence[float], y: Sequence[float | None]) -> str:
    x, y = _thinned(x, y)
    parts, pen = [], "M"
    for at, value in zip(x, y, strict=True):
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{frame.x(at):g} {frame.y(value):g}")
        pen = "L"
    return "".join(parts)


def _band(frame: _Frame, s: Series) -> str:
    kept = [
        (at, low, high)
        for at, low, high in zip(s.x, s.low, s.high, strict=True)
        if low is not None and high is not None
    ]
    kept = kept[:: max(1, len(kept) // _POINTS)]
    if not kept:
        return ""
    over = "L".join(f"{frame.x(at):g} {frame.y(high):g}" for at, _, high in kept)
    under = "L".join(f"{frame.x(at):g} {frame.y(low):g}" for at, low, _ in reversed(kept))
    return f"M{over}L{under}z"


def _thinned(x: Sequence[float], y: Sequence[float | None]) -> tuple[list[float], list[float | None]]:
    points = [(at, value if value is None else float(f"{value:.5g}")) for at, value in zip(x, y, strict=True)]
    if len(points) > _POINTS:
        size = math.ceil(len(points) / (_POINTS // 2))
        kept: list[tuple[float, float | None]] = []
        for start in range(0, len(points), size):
            part = [(value, at) for at, value in points[start : start + size] if value is not None]
            ends = {min(part)[1]: min(part)[0], max(part)[1]: max(part)[0]} if part else {}
            kept += sorted(ends.items())
        if points[-1] not in kept:
            kept.append(points[-1])
        points = kept
    return [at for at, _ in points], [value for _, value in points]


def _binned(x: Sequence[float], shares: Sequence[Sequence[float]]) -> tuple[list[float], list[list[float]]]:
    """Return at most 120 columns; neighbours are averaged."""
    size = math.ceil(len(x) / 120)
    starts = range(0, len(x), size)
    centres = [sum(part) / len(part) for start in starts if (part := x[start : start + size])]
    means = [
        [float(f"{sum(part) / len(part):.4g}") for start in starts if (part := line[start : start + size])]
        for line in shares
    ]
    return [round(centre, 2) for centre in centres], means


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)
