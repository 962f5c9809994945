"""The page of STEP-HRL: what each agent reaches after cloning and at the end, with the paper's numbers beside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stratagem.algorithms.eto_config import ETOConfig
from stratagem.algorithms.step_hrl_config import StepHRLConfig
from stratagem.evaluation.figures import Curve, CurvePanel
from stratagem.evaluation.panels import EvaluationResult
from stratagem.evaluation.tables import Table
from stratagem.files import atomic_write_text
from stratagem.reproduce.arm import Arm
from stratagem.reproduce.collect import Run
from stratagem.reproduce.pages import (
    Findings,
    clear_figures,
    draw_curves,
    mean_and_std,
    minutes_text,
    missing_section,
    shared_iterations,
    spread_text,
    states_table,
    write_csv,
)
from stratagem.reproduce.step_hrl_arms import TASKS

__all__ = ["PUBLISHED", "write_report"]

_STEM = "step-hrl"

PUBLISHED = {"alfworld": (0.8986, 0.8960), "scienceworld": (0.5188, 0.4978)}
"""The paper's STEP-HRL with Llama-3.2-1B on seen and on unseen tasks: share of successes, mean score."""


def write_report(findings: Findings, folder: Path) -> Path:
    """Write ``step-hrl.md`` with its figures (PNG and SVG) and a CSV file into a folder; return the page.

    Args:
        findings: what there is; a part of which nothing is there yet says so.
        folder: made if missing; files of an earlier page are replaced.
    """
    clear_figures(folder, _STEM)
    lines = [
        "# STEP-HRL: the paper's experiments",
        "",
        "Zhen et al. 2026, arXiv:2604.05808, beside what was measured here. Written by",
        "",
        "```text",
        findings.command,
        "```",
        "",
        f"Scale `{findings.scale}`: **{findings.num_finished} of {len(findings.runs)} runs are finished.**",
        "Values are mean (sample standard deviation) over finished runs, of the share of episodes that succeed",
        "(ALFWorld) or of the mean score (ScienceWorld). Model, games and amount of training are not the paper's.",
    ]
    numbers: list[list[object]] = []
    sections = [_task(findings, name, folder, numbers) for name in TASKS if _arms(findings, name)]
    write_csv(
        folder / f"{_STEM}-tasks.csv",
        ["arm", "panel", "runs", "cloned_mean", "cloned_std", "final_mean", "final_std"],
        numbers,
    )
    page = folder / f"{_STEM}.md"
    parts = ["\n".join([*lines, "", states_table(findings)]), *sections, missing_section(findings)]
    atomic_write_text(page, "\n".join(parts))
    return page


def _arms(findings: Findings, task: str) -> list[Arm]:
    others = {recipe for recipe, _ in TASKS[task].others}
    return [arm for arm in findings.arms if arm.name.startswith(f"{task}_") or arm.name in others]


def _value(result: EvaluationResult) -> float:
    """Return the share of successes, or the mean return where a game has none: ScienceWorld's is its score."""
    return result.mean if result.success_rate is None else result.success_rate


def _cloned(arm: Arm, run: Run, panel: str) -> float | None:
    """Return the value at the end of cloning, if the panel was played then."""
    algorithm = arm.algorithm
    assert isinstance(algorithm, StepHRLConfig | ETOConfig)
    end = algorithm.bc_iterations
    return next((_value(point.result) for point in run.points[panel] if point.iteration == end), None)


def _task(findings: Findings, task: str, folder: Path, numbers: list[list[object]]) -> str:
    arms = _arms(findings, task)
    panels = list(dict.fromkeys(panel for arm in arms for panel in arm.recipe.evaluation.panels))
    rows, drawn = [], []
    for panel in panels:
        curves = []
        for arm in arms:
            runs = [run for run in findings.of(arm) if panel in run.points]
            done = [run for run in findings.of(arm, finished=True) if panel in run.points]
            cloned = [value for run in done if (value := _cloned(arm, run, panel)) is not None]
            final = [_value(run.last(panel)) for run in done]
            title = arm.title.removesuffix(f", {TASKS[task].title}")
            rows.append((panel, title, spread_text(cloned), spread_text(final), minutes_text(done), str(len(done))))
            numbers.append([arm.name, panel, len(done), *mean_and_std(cloned), *mean_and_std(final)])
            if iterations := shared_iterations(runs, panel):
                curves.append(Curve.from_seeds(title, iterations, _values(runs, panel, iterations)))
        if curves:
            drawn.append(CurvePanel(panel, curves))
    seen, unseen = PUBLISHED[task]
    note = f"The paper's, with Llama-3.2-1B: {seen:.4f} on seen and {unseen:.4f} on unseen tasks.\n"
    headers = ("Evaluation", "Agent", "After cloning", "Final", "Minutes", "Runs")
    table = Table(headers, tuple(rows)).markdown()
    title = f"## {TASKS[task].title}\n\n"
    if not drawn:
        return f"{title}No run has been evaluated yet.\n\n{note}\n{table}"
    draw_curves(folder, f"{_STEM}-{task}", drawn)
    return f"{title}![Learning curves]({_STEM}-{task}.png)\n\n{note}\n{table}"


def _values(runs: Sequence[Run], panel: str, iterations: Sequence[int]) -> list[list[float]]:
    return [[_value(point.result) for point in run.points[panel] if point.iteration in iterations] for run in runs]
