"""What is left of a run for people: the numbers on the screen, the summary, the curve."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratagem.errors import ConfigError, RunError
from stratagem.evaluation.figures import Curve, Reference, learning_curve
from stratagem.evaluation.panels import EvaluationResult
from stratagem.evaluation.statistics import mean
from stratagem.evaluation.tables import difference
from stratagem.files import atomic_write_json, error_reason
from stratagem.recipe import Recipe
from stratagem.runs.folder import RunFolder
from stratagem.runs.metrics import read_metrics

__all__ = ["Evaluation", "peak_memory", "screen_metrics", "write_report"]

_SCREEN = {
    "return_mean": "return_mean",
    "success_rate": "success_rate",
    "entropy": "entropy",
    "approx_kl": "kl",
    "clip_fraction": "clipped",
    "episode_length": "steps",
    "learning_rate": "learning_rate",
    "panel_mean": "panel_mean",
}


@dataclass(frozen=True)
class Evaluation:
    """The panels at one moment of a run."""

    iteration: int
    results: tuple[EvaluationResult, ...]
    """One for each panel."""


def screen_metrics(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics that are worth a place on the screen."""
    shown = {name: row[key] for key, name in _SCREEN.items() if isinstance(row.get(key), (int, float))}
    shown = {name: value for name, value in shown.items() if value == value}
    if abs(shown.get("kl", 1.0)) < 1e-6:
        del shown["kl"]  # one step of ascent from the sampling weights: rounding only
    if "invalid_action_rate" in row:
        shown["valid_rate"] = 1.0 - row["invalid_action_rate"]
    if row.get("tokens_seen"):
        shown["tokens_saved"] = 1.0 - row["tokens_computed"] / row["tokens_seen"]
    phases = {key: value for key, value in row.items() if key.startswith("seconds_") and value is not None}
    return shown | {"seconds": sum(phases.values())} | phases


def peak_memory() -> dict[str, float]:
    """Return the most memory that this process has held, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"peak_memory_gib": peak / (2**30 if sys.platform == "darwin" else 2**20)}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["peak_gpu_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return found


def write_report(
    folder: RunFolder,
    recipe: Recipe,
    evaluations: Mapping[str, Evaluation],
    optima: Sequence[Sequence[float] | None],
    seconds: float,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Write ``summary.json`` and ``figures/learning_curve.png``; return the summary.

    Raises:
        RunError: the disk is full.
    """
    rows = read_metrics(folder.metrics_file)
    phases = ("warm_start", "play", "update", "evaluate", "save")
    summary = {
        "run": folder.name,
        "iterations": recipe.algorithm.num_iterations,
        "minutes": seconds / 60,
        "peak_memory_gib": max(row.get("peak_memory_gib", 0.0) for row in rows),
        "seconds": {phase: sum(row.get(f"seconds_{phase}", 0.0) for row in rows) for phase in phases},
        "evaluations": {
            tag: {"iteration": evaluation.iteration, "panels": [_numbers(result) for result in evaluation.results]}
            for tag, evaluation in evaluations.items()
            if not tag.isdigit()
        },
        "improvement": _improvement(evaluations),
        "warnings": list(warnings),
    }
    try:
        atomic_write_json(folder.path / "summary.json", summary)
        _draw(folder, evaluations, optima, rows)
    except OSError as error:
        raise RunError(
            f"The report could not be written to {str(folder.path)!r} ({error_reason(error)}); free some space, then "
            "continue with --resume."
        ) from error
    return summary


def _numbers(result: EvaluationResult) -> dict[str, Any]:
    return {
        "panel": result.panel,
        "panel_hash": result.panel_hash,
        "num_episodes": result.num_episodes,
        "mean": result.mean,
        "interval": list(result.interval),
        "success_rate": result.success_rate,
        "share_of_optimum": result.share_of_optimum,
        "invalid_action_rate": result.invalid_action_rate,
    }


def _improvement(evaluations: Mapping[str, Evaluation]) -> list[dict[str, Any]]:
    """Return final minus each earlier evaluation, episode by episode; first what training itself changed."""
    found = []
    for tag in ("warm_start", "start"):
        if tag not in evaluations or "final" not in evaluations:
            continue
        for before, after in zip(evaluations[tag].results, evaluations["final"].results, strict=True):
            try:
                change = difference(before, after)
            except ConfigError:
                continue  # a game failed in every episode of one of them
            interval = None if change.interval is None else list(change.interval)
            found.append({"panel": after.panel, "from": tag, "mean": change.mean, "interval": interval})
    return found


def _draw(
    folder: RunFolder,
    evaluations: Mapping[str, Evaluation],
    optima: Sequence[Sequence[float] | None],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    # The untrained model is a line to compare with where a warm start lies between it and iteration 1.
    points = {evaluation.iteration: evaluation.results[0] for evaluation in evaluations.values()}
    panel = next(iter(points.values())).panel
    curves = [
        Curve(
            f"Panel {panel}",
            list(points),
            [result.mean for result in points.values()],
            [result.interval[0] for result in points.values()],
            [result.interval[1] for result in points.values()],
        )
    ]
    played = [row for row in rows if isinstance(row.get("return_mean"), (int, float))]
    if played:
        curves.append(
            Curve("Training episodes", [row["iteration"] for row in played], [row["return_mean"] for row in played])
        )
    references = []
    if optima[0] is not None:
        references.append(Reference("Optimum", mean(optima[0])))
    if "warm_start" in evaluations and "start" in evaluations:
        references.append(Reference("Untrained model", evaluations["start"].results[0].mean))
    learning_curve(
        folder.figures / "learning_curve.png", curves, references=references, title=f"{folder.name}: return per episode"
    )
