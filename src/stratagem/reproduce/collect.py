"""Reading what the runs of a reproduction have reached, finished or not."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratagem.config import dump_toml
from stratagem.errors import RunError
from stratagem.evaluation.panels import EvaluationResult
from stratagem.reproduce.arm import Arm
from stratagem.runs.folder import recipe_differences
from stratagem.runs.metrics import read_metrics

__all__ = [
    "FINISHED",
    "MISSING",
    "OTHER",
    "STOPPED",
    "Point",
    "Run",
    "collect_baselines",
    "collect_run",
    "measured_rate",
]

FINISHED, STOPPED, MISSING, OTHER = "finished", "not finished", "not started", "of another recipe"
"""States of a run."""


@dataclass(frozen=True)
class Point:
    """One evaluation of one run on one panel."""

    iteration: int
    minutes: float
    """Of playing and learning up to it, without evaluations."""
    result: EvaluationResult


@dataclass(frozen=True)
class Run:
    """What one run has reached."""

    arm: Arm
    seed: int
    state: str
    detail: str = ""
    """Why it does not count, where it does not."""
    iteration: int = 0
    """Iterations that have been trained."""
    points: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    """For each panel its evaluations in order; the first is the model that the algorithm began with."""
    untrained: Mapping[str, EvaluationResult] = field(default_factory=dict)
    """For each panel that of the model before a warm start."""
    seconds: float = 0.0
    """Of playing and learning."""
    all_seconds: float = 0.0
    """With warm start, evaluations and saving."""

    @property
    def name(self) -> str:
        """The run's name."""
        return self.arm.run_name(self.seed)

    def first(self, panel: str) -> EvaluationResult:
        """Return the evaluation before training."""
        return self.points[panel][0].result

    def last(self, panel: str) -> EvaluationResult:
        """Return the newest evaluation."""
        return self.points[panel][-1].result


def collect_run(arm: Arm, seed: int, runs: Path) -> Run:
    """Read one run.

    Raises:
        RunError: a file of it is damaged.
    """
    folder = runs / arm.run_name(seed)
    if not (folder / "recipe.toml").is_file():
        return Run(arm, seed, MISSING)
    try:
        stored = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(
            f"{str(folder / 'recipe.toml')!r} cannot be read ({error}); restore it from a copy, or delete the run."
        ) from error
    different = recipe_differences(stored, tomllib.loads(dump_toml(arm.with_seed(seed))))
    if different:
        return Run(arm, seed, OTHER, ", ".join(different))
    rows = read_metrics(folder / "metrics.jsonl")
    finished = (folder / "summary.json").is_file() and (folder / "evaluation" / "final").is_dir()
    points, untrained = _evaluations(arm, folder / "evaluation", rows)
    return Run(
        arm,
        seed,
        FINISHED if finished else STOPPED,
        iteration=rows[-1]["iteration"] if rows else 0,
        points=points,
        untrained=untrained,
        seconds=_seconds(rows, len(rows)),
        all_seconds=float(sum(v or 0.0 for row in rows for key, v in row.items() if key.startswith("seconds_"))),
    )


def _seconds(rows: Sequence[Mapping[str, Any]], count: int) -> float:
    return float(sum(row.get(f"seconds_{part}") or 0.0 for row in rows[:count] for part in ("play", "update")))


def _evaluations(
    arm: Arm, folder: Path, rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, tuple[Point, ...]], dict[str, EvaluationResult]]:
    begin = "start" if arm.recipe.warm_start is None else "warm_start"
    tags = {begin: 0, "final": arm.algorithm.num_iterations}
    tags |= {path.name: int(path.name) for path in folder.glob("*") if path.name.isdigit()}
    points: dict[str, tuple[Point, ...]] = {}
    untrained: dict[str, EvaluationResult] = {}
    for panel in arm.recipe.evaluation.panels:
        found = []
        for tag, iteration in sorted(tags.items(), key=lambda item: item[1]):
            result = _read(folder / tag / f"{panel}.json")
            if result is not None:
                count = sum(row["iteration"] <= iteration for row in rows)
                found.append(Point(iteration, _seconds(rows, count) / 60, result))
        if found and found[0].iteration == 0:
            points[panel] = tuple(found)
        if begin != "start" and (result := _read(folder / "start" / f"{panel}.json")) is not None:
            untrained[panel] = result
    return points, untrained


def _read(path: Path) -> EvaluationResult | None:
    if not path.is_file():
        return None
    try:
        return EvaluationResult.from_json(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{str(path)!r} is no result of an evaluation ({type(error).__name__}: {error}); restore it from a copy, "
            "or delete it."
        ) from error


def collect_baselines(folder: Path, panels: Sequence[str]) -> dict[str, dict[str, EvaluationResult]]:
    """Return the results of players that were not trained here: name -> panel -> result.

    Each is a folder with ``PANEL.json``, or with ``PANEL/result.json`` as ``stratagem eval --out`` writes it.
    """
    found: dict[str, dict[str, EvaluationResult]] = {}
    for path in sorted(folder.glob("*")):
        for panel in panels:
            result = _read(path / f"{panel}.json") or _read(path / panel / "result.json")
            if result is not None:
                found.setdefault(path.name, {})[panel] = result
    return found


def measured_rate(runs: Sequence[Run], planned: Mapping[str, int]) -> float | None:
    """Return the planned tokens or decisions of a second of a run, over all finished ones; None without any.

    Args:
        runs: finished or not.
        planned: for each arm by name what one run has to do (:attr:`stratagem.runs.plan.Plan.work`).
    """
    done = [run for run in runs if run.state == FINISHED and run.all_seconds > 0]
    seconds = sum(run.all_seconds for run in done)
    return sum(planned[run.arm.name] for run in done) / seconds if seconds > 0 else None
