"""What the pages of all papers share: what they are made of, how numbers are written, what is missing."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stratagem.evaluation.figures import CurvePanel, curve_grid
from stratagem.evaluation.panels import EvaluationResult
from stratagem.evaluation.statistics import mean, sample_std
from stratagem.evaluation.tables import Table
from stratagem.files import atomic_write_text
from stratagem.reproduce.arm import Arm
from stratagem.reproduce.collect import FINISHED, MISSING, OTHER, STOPPED, Run

__all__ = [
    "FORMATS",
    "Findings",
    "clear_figures",
    "draw_curves",
    "mean_and_std",
    "minutes_text",
    "missing_section",
    "shared_iterations",
    "spread_text",
    "states_table",
    "values_at",
    "write_csv",
]

FORMATS = ("png", "svg")
"""Of every figure."""


@dataclass(frozen=True)
class Findings:
    """Everything that a page is made of."""

    scale: str
    arms: Sequence[Arm]
    runs: Sequence[Run]
    """Of all arms and seeds, whatever their state."""
    baselines: Mapping[str, Mapping[str, EvaluationResult]]
    """Name -> panel -> result."""
    command: str
    """That makes this page."""
    parts: Sequence[str]
    """What the page is about."""

    def of(self, arm: Arm, *, finished: bool = False) -> list[Run]:
        """Return the runs of an arm that have been evaluated at least once."""
        found = [run for run in self.runs if run.arm is arm and run.points]
        return [run for run in found if run.state == FINISHED] if finished else found

    def for_part(self, part: str) -> list[Arm]:
        """Return the arms of a part of the paper."""
        return [arm for arm in self.arms if part in arm.parts]

    @property
    def num_finished(self) -> int:
        """Runs that are finished."""
        return sum(run.state == FINISHED for run in self.runs)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def spread_text(values: Sequence[float], *, signed: bool = False) -> str:
    """Return mean and sample standard deviation as text.

    >>> spread_text([1.0, 2.0]), spread_text([0.5], signed=True), spread_text([])
    ('1.500 (0.707)', '+0.500', '-')
    """
    if not values:
        return "-"
    sign = "+" if signed else ""
    std = sample_std(values)
    return f"{mean(values):{sign}.3f}" + ("" if std is None else f" ({std:.3f})")


def mean_and_std(values: Sequence[float]) -> list[float | str]:
    """Return mean and sample standard deviation as cells of a CSV file, empty where there are none."""
    if not values:
        return ["", ""]
    std = sample_std(values)
    return [mean(values), "" if std is None else std]


def minutes_text(runs: Sequence[Run]) -> str:
    """Return the mean minutes of playing and learning of finished runs as text."""
    minutes = [run.seconds / 60 for run in runs if run.state == FINISHED]
    return f"{mean(minutes):.1f}" if minutes else "-"


def shared_iterations(runs: Sequence[Run], panel: str) -> list[int]:
    """Return the iterations at which every run was evaluated."""
    per_run = [{point.iteration for point in run.points.get(panel, ())} for run in runs]
    return sorted(set.intersection(*per_run)) if per_run else []


def values_at(runs: Sequence[Run], panel: str, iterations: Sequence[int]) -> list[list[float]]:
    """Return for each run its mean returns at some iterations."""
    return [[point.result.mean for point in run.points[panel] if point.iteration in iterations] for run in runs]


# ---- files -----------------------------------------------------------------------------------------------------------


def write_csv(path: Path, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a CSV file that is whole or absent."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headers)
    writer.writerows(rows)
    atomic_write_text(path, text.getvalue())


def draw_curves(
    folder: Path, name: str, panels: Sequence[CurvePanel], *, columns: int = 2, xlabel: str = "Iteration"
) -> None:
    """Draw one figure in every format."""
    for suffix in FORMATS:
        curve_grid(folder / f"{name}.{suffix}", panels, columns=columns, xlabel=xlabel)


def clear_figures(folder: Path, stem: str) -> None:
    """Make the folder of a page, and delete figures and CSV files of an earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"{stem}-*"):
        if path.suffix in (".csv", *(f".{suffix}" for suffix in FORMATS)):
            path.unlink()


# ---- sections --------------------------------------------------------------------------------------------------------


def states_table(findings: Findings) -> str:
    """Return a table of how far the runs of each arm are."""
    rows = []
    for arm in findings.arms:
        runs = [run for run in findings.runs if run.arm is arm]
        states = [sum(run.state == state for run in runs) for state in (FINISHED, STOPPED, MISSING, OTHER)]
        rows.append((arm.name, arm.title, *map(str, states), minutes_text(runs)))
    headers = ("Arm", "What", "Finished", "Not finished", "Not started", "Of another recipe", "Minutes per run")
    return Table(headers, tuple(rows)).markdown()


def missing_section(findings: Findings) -> str:
    """Return the section that names every run that is not finished."""
    left = [run for run in findings.runs if run.state != FINISHED]
    if not left:
        return "## What is missing\n\nNo run.\n"
    lines = [
        f"* `{run.name}`: {run.state}"
        + (f" (iteration {run.iteration} of {run.arm.algorithm.num_iterations})" if run.state == STOPPED else "")
        + (f" ({run.detail}); move it away to run it anew" if run.state == OTHER else "")
        for run in left
        if run.state != MISSING
    ]
    for arm in findings.arms:
        seeds = [str(run.seed) for run in left if run.arm is arm and run.state == MISSING]
        if seeds:
            lines.append(f"* `{arm.name}`, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}: {MISSING}")
    return "\n".join(["## What is missing", "", *lines, ""])
