"""The page of POAD: tables, curves and CSV of what there is, with the paper's numbers beside, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stratagem.algorithms.poad_config import POADConfig
from stratagem.evaluation.figures import Curve, CurvePanel
from stratagem.evaluation.statistics import mean
from stratagem.evaluation.tables import Table, format_share
from stratagem.files import atomic_write_text
from stratagem.reproduce.arm import Arm
from stratagem.reproduce.collect import Point, Run
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
    values_at,
    write_csv,
)
from stratagem.reproduce.poad_arms import ABLATED, CREDITS, TASKS
from stratagem.reproduce.poad_published import GENERALISATION, GENERALISATION_UNTRAINED, VARIANTS

__all__ = ["write_report"]

_STEM = "poad"
_NAMES = {"poad": "POAD", "ntpo": "NTPO", "twosome": "TWOSOME"}
_SPREADS = ("initial_mean", "initial_std", "final_mean", "final_std")


def write_report(findings: Findings, folder: Path) -> Path:
    """Write ``poad.md`` with its figures (PNG and SVG) and CSV files into a folder; return the page.

    Args:
        findings: what there is; a part of which nothing is there yet says so.
        folder: made if missing; files of an earlier page are replaced.
    """
    clear_figures(folder, _STEM)
    sections = {"tasks": _tasks, "generalisation": _generalisation, "ablations": _ablations}
    parts = [_head(findings)]
    parts += [
        write(findings, folder)
        for part, write in sections.items()
        if part in findings.parts and findings.for_part(part)
    ]
    parts.append(missing_section(findings))
    page = folder / f"{_STEM}.md"
    atomic_write_text(page, "\n".join(parts))
    return page


def _head(findings: Findings) -> str:
    models = ", ".join(dict.fromkeys(arm.recipe.model.name for arm in findings.arms))
    lines = [
        "# POAD, NTPO and TWOSOME: the paper's experiments",
        "",
        "Wen et al. 2024, arXiv:2405.15821, beside what was measured here. Written by",
        "",
        "```text",
        findings.command,
        "```",
        "",
        f"Scale `{findings.scale}`, model {models}: "
        f"**{findings.num_finished} of {len(findings.runs)} runs are finished.**",
        "Values are mean (sample standard deviation) over runs of the mean discounted return on the evaluation panel;",
        "only finished runs count in tables. The best return is exact, found by dynamic programming.",
    ]
    if findings.scale != "paper":
        lines.append("Model and settings are not the paper's: compare directions with its numbers, not levels.")
    return "\n".join([*lines, "", states_table(findings)])


def _algorithm(arm: Arm) -> POADConfig:
    assert isinstance(arm.recipe.algorithm, POADConfig)
    return arm.recipe.algorithm


def _task_arms(findings: Findings, part: str) -> dict[tuple[str, str], Arm]:
    """Return the arms of a part by task and credit."""
    games = {task.game: name for name, task in TASKS.items()}
    return {(games[arm.recipe.game.name], _algorithm(arm).credit): arm for arm in findings.for_part(part)}


def _curve(label: str, runs: Sequence[Run], panel: str) -> Curve | None:
    runs = [run for run in runs if panel in run.points]
    iterations = shared_iterations(runs, panel)
    return Curve.from_seeds(label, iterations, values_at(runs, panel, iterations)) if iterations else None


def _with_best(curves: Sequence[Curve], runs: Sequence[Run], panel: str) -> list[Curve]:
    """Return the curves of a panel and the level of the best return, where it is known."""
    best = next((run.last(panel).optimum_mean for run in runs if panel in run.points), None)
    if best is None:
        return list(curves)
    ends = (min(curve.x[0] for curve in curves), max(curve.x[-1] for curve in curves))
    return [*curves, Curve("best possible", ends, (best, best))]


def _cell(value: float | None) -> float | str:
    return "" if value is None else value


def _point_cells(point: Point) -> list[object]:
    result = point.result
    return [point.iteration, f"{point.minutes:.3f}", result.mean, *result.interval, _cell(result.success_rate)]


# ---- three credits on four tasks -------------------------------------------------------------------------------------


def _tasks(findings: Findings, folder: Path) -> str:
    arms = _task_arms(findings, "tasks")
    rows, numbers, points, panels = [], [], [], []
    for name, task in TASKS.items():
        curves, of_task = [], []
        for credit in (credit for credit in CREDITS if (name, credit) in arms):
            arm = arms[name, credit]
            runs = [run for run in findings.of(arm) if task.game in run.points]
            done = [run for run in findings.of(arm, finished=True) if task.game in run.points]
            of_task += runs
            first = [run.first(task.game).mean for run in done]
            last = [run.last(task.game).mean for run in done]
            shares = [share for run in done if (share := run.last(task.game).share_of_optimum) is not None]
            successes = [rate for run in done if (rate := run.last(task.game).success_rate) is not None]
            best = next((run.last(task.game).optimum_mean for run in runs), None)
            rows.append(
                (
                    task.title,
                    _NAMES[credit],
                    spread_text(first),
                    spread_text(last),
                    "-" if best is None else f"{best:.3f}",
                    format_share(mean(shares) if len(shares) == len(done) > 0 else None),
                    format_share(mean(successes) if successes else None),
                    minutes_text(done),
                    str(len(done)),
                )
            )
            spreads = (*mean_and_std(first), *mean_and_std(last))
            averages = (mean(values) if values else "" for values in (shares, successes))
            numbers.append([name, credit, len(done), *spreads, _cell(best), *averages])
            points += [
                [name, credit, run.seed, *_point_cells(point)] for run in runs for point in run.points[task.game]
            ]
            if (curve := _curve(_NAMES[credit], runs, task.game)) is not None:
                curves.append(curve)
        if curves:
            panels.append(CurvePanel(task.title, _with_best(curves, of_task, task.game)))
    write_csv(
        folder / f"{_STEM}-tasks.csv",
        ["task", "credit", "runs", *_SPREADS, "best", "share_of_best", "success_rate"],
        numbers,
    )
    headers = ("Task", "Credit", "Initial", "Final", "Best", "Of the best", "Success", "Minutes", "Runs")
    table = Table(headers, tuple(rows)).markdown()
    title = "## Three credits on four tasks\n\n"
    if not panels:
        return f"{title}No run has been evaluated yet.\n\n{table}"
    draw_curves(folder, f"{_STEM}-curves", panels)
    write_csv(
        folder / f"{_STEM}-curves.csv",
        ["task", "credit", "seed", "iteration", "minutes", "mean", "low", "high", "success_rate"],
        points,
    )
    note = "The paper shows these as curves; its numbers are not known here.\n"
    return f"{title}![Learning curves]({_STEM}-curves.png)\n\n{note}\n{table}"


# ---- generalisation --------------------------------------------------------------------------------------------------


def _generalisation(findings: Findings, folder: Path) -> str:
    arms = {credit: arm for (task, credit), arm in _task_arms(findings, "generalisation").items() if task == ABLATED}
    done = {credit: findings.of(arm, finished=True) for credit, arm in arms.items()}
    rows, numbers = [], []
    for panel, variant in VARIANTS.items():
        ready = [run for runs in done.values() for run in runs if panel in run.points]
        # Every run begins with the same model; their seeds draw different actions.
        first = [run.first(panel).mean for run in ready]
        last = {credit: [run.last(panel).mean for run in runs if panel in run.points] for credit, runs in done.items()}
        best = next((run.last(panel).optimum_mean for run in ready), None)
        published = GENERALISATION_UNTRAINED.get(variant)
        cells = [variant, spread_text(first), "-" if published is None else f"{published:.4f}"]
        for credit in (credit for credit in CREDITS if credit in arms):
            paper = GENERALISATION.get((credit, variant))
            cells += [spread_text(last[credit]), "-" if paper is None else f"{paper:.4f}"]
            spreads = (*mean_and_std(first), *mean_and_std(last[credit]))
            numbers.append([variant, credit, len(last[credit]), *spreads, *map(_cell, (best, published, paper))])
        rows.append((*cells, "-" if best is None else f"{best:.3f}"))
    write_csv(
        folder / f"{_STEM}-generalisation.csv",
        ["variant", "credit", "runs", *_SPREADS, "best", "paper_untrained", "paper"],
        numbers,
    )
    named = [_NAMES[credit] for credit in CREDITS if credit in arms]
    headers = ["Variant", "Untrained", "paper", *(cell for name in named for cell in (name, "paper")), "Best"]
    note = (
        "Trained on Food Preparation, played without further training with other words; the game is the same. In "
        "the paper the untrained LLaMA-2-7B reaches 0.13 to 0.17 on the others too.\n"
    )
    return f"## Generalisation\n\n{note}\n{Table(tuple(headers), tuple(rows)).markdown()}"


# ---- ablations -------------------------------------------------------------------------------------------------------


def _ablations(findings: Findings, folder: Path) -> str:
    panel = TASKS[ABLATED].game
    rows, numbers, curves, evaluated = [], [], [], []
    for arm in findings.for_part("ablations"):
        algorithm = _algorithm(arm)
        runs = [run for run in findings.of(arm) if panel in run.points]
        done = [run for run in findings.of(arm, finished=True) if panel in run.points]
        last = [run.last(panel).mean for run in done]
        shares = [share for run in done if (share := run.last(panel).share_of_optimum) is not None]
        inside = "-" if algorithm.credit == "twosome" else f"{algorithm.gamma_w:g}"
        rows.append(
            (
                _NAMES[algorithm.credit],
                f"{algorithm.gamma_a:g}",
                inside,
                spread_text(last),
                format_share(mean(shares) if len(shares) == len(done) > 0 else None),
                str(len(done)),
            )
        )
        numbers.append([algorithm.credit, algorithm.gamma_a, algorithm.gamma_w, len(done), *mean_and_std(last)])
        label = f"{_NAMES[algorithm.credit]}, gamma_a = {algorithm.gamma_a:g}"
        label += f", gamma_w = {inside}" if algorithm.credit == "ntpo" else ""
        if (curve := _curve(label, runs, panel)) is not None:
            curves.append(curve)
            evaluated += runs
    write_csv(
        folder / f"{_STEM}-ablations.csv",
        ["credit", "gamma_a", "gamma_w", "runs", "final_mean", "final_std"],
        numbers,
    )
    title = f"## Discounts between and inside actions, {TASKS[ABLATED].title}\n\n"
    table = Table(("Credit", "gamma_a", "gamma_w", "Final", "Of the best", "Runs"), tuple(rows)).markdown()
    note = (
        "In the paper NTPO falls behind POAD as gamma_w falls, and gamma_a = 1 hurts POAD and TWOSOME, as its "
        "curves show. Returns are discounted by the recipe's `evaluation.gamma` whatever an agent was trained with.\n"
    )
    if not curves:
        return f"{title}No run has been evaluated yet.\n\n{note}\n{table}"
    drawn = CurvePanel(TASKS[ABLATED].title, _with_best(curves, evaluated, panel))
    draw_curves(folder, f"{_STEM}-ablations", [drawn], columns=1)
    return f"{title}![Ablations]({_STEM}-ablations.png)\n\n{note}\n{table}"
