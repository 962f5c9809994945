"""The page: tables, figures and CSV of what there is, with the paper's numbers beside, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from stratagem.evaluation.figures import Bar, Curve, CurvePanel, bar_grid
from stratagem.evaluation.panels import EvaluationResult
from stratagem.evaluation.statistics import mean, sample_std
from stratagem.evaluation.tables import Table
from stratagem.files import atomic_write_text
from stratagem.reproduce.arm import Arm
from stratagem.reproduce.arms import FROZEN_LAKE, SNAKE
from stratagem.reproduce.collect import FINISHED
from stratagem.reproduce.consistency import CONSISTENCY, consistency_section
from stratagem.reproduce.pages import (
    FORMATS,
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
from stratagem.reproduce.published import ABLATION, BASELINES, BEST_RUN, PANELS, TABLE_1, Spread

__all__ = ["write_report"]

_STEM = "ms-grpo"
_ABLATED = {SNAKE: ("Snake", "Snake-Standard"), FROZEN_LAKE: ("Frozen Lake", "FrozenLake-NotSlippery")}
"""Beginning of an arm's name -> what its table is called, and the panel in it."""


def _paper(spread: Spread, *, signed: bool = False) -> str:
    return f"{spread.mean:{'+' if signed else ''}.3f} ({spread.std:.3f})"


def write_report(findings: Findings, folder: Path) -> Path:
    """Write ``ms-grpo.md`` with its figures (PNG and SVG) and CSV files into a folder; return the page.

    Args:
        findings: what there is; a part of which nothing is there yet says so.
        folder: made if missing; files of an earlier page are replaced.
    """
    clear_figures(folder, _STEM)
    sections: dict[str, Callable[[Findings, Path], str]] = {
        "table 1": _table_1,
        "figure 1": _figure_1,
        "figure 2": _figure_2,
        "figure 3": _figure_3,
        "ablations": _ablations,
        CONSISTENCY: partial(consistency_section, stem=_STEM),
    }
    parts = [_head(findings)]
    parts += [write(findings, folder) for part, write in sections.items() if part in findings.parts]
    parts.append(missing_section(findings))
    page = folder / f"{_STEM}.md"
    atomic_write_text(page, "\n".join(parts))
    return page


def _head(findings: Findings) -> str:
    models = ", ".join(dict.fromkeys(arm.recipe.model.name for arm in findings.arms))
    lines = [
        "# MS-GRPO: the paper's experiments",
        "",
        "Dilkes, Yazdanpanah, Stein 2025, arXiv:2508.10839, beside what was measured here. Written by",
        "",
        "```text",
        findings.command,
        "```",
        "",
        f"Scale `{findings.scale}`, model {models}: "
        f"**{findings.num_finished} of {len(findings.runs)} runs are finished.**",
        "Values are mean (sample standard deviation) over runs of the mean return on the evaluation panel; only",
        "finished runs count in tables.",
    ]
    if any(arm.recipe.warm_start is not None for arm in findings.arms):
        lines.append('Runs begin with a warm start, and "initial" is the model after it; the paper has none.')
    if findings.scale != "paper":
        lines.append("Model, prompt and settings are not the paper's: compare directions with its numbers, not levels.")
    return "\n".join([*lines, "", states_table(findings)])


def _table_1(findings: Findings, folder: Path) -> str:
    rows, numbers = [], []
    for arm in findings.for_part("table 1"):
        runs = findings.of(arm, finished=True)
        for panel in PANELS:
            here = [run for run in runs if panel in run.points]
            first = [run.first(panel).mean for run in here]
            last = [run.last(panel).mean for run in here]
            change = [after - before for before, after in zip(first, last, strict=True)]
            paper = TABLE_1[arm.name, panel]
            rows.append(
                (
                    arm.name,
                    panel,
                    _paper(paper.initial),
                    spread_text(first),
                    _paper(paper.final),
                    spread_text(last),
                    _paper(paper.change, signed=True),
                    spread_text(change, signed=True),
                    str(len(here)),
                )
            )
            numbers.append(
                [arm.name, panel, len(here)]
                + [value for values in (first, last, change) for value in mean_and_std(values)]
                + [*paper.initial, *paper.final, *paper.change]
            )
    names = [f"{what}_{part}" for what in ("initial", "final", "difference") for part in ("mean", "std")]
    write_csv(
        folder / f"{_STEM}-table1.csv",
        ["training", "evaluation", "runs", *names, *(f"paper_{name}" for name in names)],
        numbers,
    )
    headers = (
        "Training", "Evaluation", "Initial, paper", "Initial, here", "Final, paper", "Final, here", "Difference, paper",
        "Difference, here", "Runs",
    )  # fmt: skip
    return f"## Table 1: before and after training\n\n{Table(headers, tuple(rows)).markdown()}"


def _figure_1(findings: Findings, folder: Path) -> str:
    title = "## Figure 1: learning curves\n\n"
    arms = [arm for arm in findings.for_part("figure 1") if findings.of(arm)]
    if not arms:
        return title + "No run has been evaluated yet.\n"
    panels, numbers = [], []
    for panel in PANELS:
        curves, single = [], []
        for arm in arms:
            runs = [run for run in findings.of(arm) if panel in run.points]
            iterations = shared_iterations(runs, panel)
            if not iterations:
                continue
            label = f"{arm.title}: mean and std"
            curves.append(Curve.from_seeds(label, iterations, values_at(runs, panel, iterations)))
            best = max(runs, key=lambda run, panel=panel: run.last(panel).mean)  # type: ignore[misc]
            points = best.points[panel]
            single.append(
                Curve(f"{arm.title}: best run", [p.iteration for p in points], [p.result.mean for p in points])
            )
            numbers += [
                [arm.name, run.seed, panel, p.iteration, f"{p.minutes:.3f}", p.result.mean, *p.result.interval]
                for run in runs
                for p in run.points[panel]
            ]
        panels.append(CurvePanel(panel, curves, single))
    draw_curves(folder, f"{_STEM}-figure1", panels)
    write_csv(
        folder / f"{_STEM}-figure1.csv",
        ["training", "seed", "evaluation", "iteration", "minutes", "mean", "low", "high"],
        numbers,
    )
    lines = [f"![Learning curves]({_STEM}-figure1.png)", "", "Best finished runs (paper's in brackets):", ""]
    for arm in arms:
        for panel in PANELS:
            last = [run.last(panel).mean for run in findings.of(arm, finished=True) if panel in run.points]
            paper = BEST_RUN.get((arm.name, panel))
            if last:
                beside = "" if paper is None else f" ({paper:.2f})"
                lines.append(f"* {arm.title}, {panel}: {max(last):.3f}{beside}")
    return title + "\n".join(lines) + "\n"


def _figure_2(findings: Findings, folder: Path) -> str:
    title = "## Figure 2: beside other players\n\n"
    arms = findings.for_part("figure 2")
    panels: list[tuple[str, list[Bar]]] = []
    rows, numbers = [], []
    for panel in PANELS:
        bars = []
        for arm in arms:
            last = [run.last(panel).mean for run in findings.of(arm, finished=True) if panel in run.points]
            if last:
                std = sample_std(last)
                spread = None if std is None else (mean(last) - std, mean(last) + std)
                bars.append(Bar(arm.title, mean(last), spread))
                paper = _paper(TABLE_1[arm.name, panel].final)
                rows.append((panel, arm.title, spread_text(last), paper, f"{len(last)} runs"))
                numbers.append([panel, arm.name, mean(last), *(spread or ("", "")), len(last), "std over runs"])
        for name, results in findings.baselines.items():
            if panel in results:
                result = results[panel]
                bars.append(Bar(name, result.mean, result.interval))
                low, high = result.interval
                published = BASELINES.get((name, panel))
                paper = "-" if published is None else f"{published.mean:.3f} ({published.std:.2f})"
                here = f"{result.mean:.3f} ({result.std or 0.0:.3f}) [{low:.3f}, {high:.3f}]"
                rows.append(
                    (panel, name + _other_settings(findings, result), here, paper, f"{result.num_episodes} episodes")
                )
                numbers.append([panel, name, result.mean, low, high, result.num_episodes, "95% interval"])
        rows += [
            (panel, f"{name} (paper)", "-", f"{spread.mean:.3f} ({spread.std:.2f})", "1000 episodes")
            for (name, on), spread in BASELINES.items()
            if on == panel and name not in findings.baselines
        ]
        panels.append((panel, bars))
    table = Table(("Evaluation", "Player", "Here", "Paper", "Over"), tuple(rows)).markdown()
    write_csv(
        folder / f"{_STEM}-figure2.csv",
        ["evaluation", "player", "mean", "low", "high", "count", "low and high"],
        numbers,
    )
    if not any(bars for _, bars in panels):
        return f"{title}Nobody has been evaluated yet.\n\n{table}"
    for suffix in FORMATS:
        bar_grid(folder / f"{_STEM}-figure2.{suffix}", panels)
    note = (
        "Trained agents: mean (standard deviation) over runs, the bar's line is that deviation. Others: mean (standard "
        "deviation) over episodes with the 95% bootstrap interval of the mean.\n"
    )
    return f"{title}![Trained agents and others]({_STEM}-figure2.png)\n\n{note}\n{table}"


def _other_settings(findings: Findings, result: EvaluationResult) -> str:
    """Say where a baseline was played with other settings of the game than the trained agents."""
    for run in findings.runs:
        if result.panel in run.points:
            mine = run.last(result.panel)
            if mine.params != result.params:
                shown = ", ".join(f"{key}={value!r}" for key, value in sorted(result.params.items())) or "defaults"
                return f", game with {shown}"
            return ""
    return ""


def _figure_3(findings: Findings, folder: Path) -> str:
    title = "## Figure 3: group size and sampling, against time\n\n"
    panel = "Snake-Standard"
    arms = findings.for_part("figure 3")
    full = max((arm.sizes[0] for arm in arms), default=0)
    least = min((arm.sizes[1] for arm in arms), default=0)
    reference = next((arm for arm in arms if arm.sizes == (full, full)), None)
    reference_runs = [] if reference is None else findings.of(reference, finished=True)
    rows, numbers = [], []
    groups: dict[str, list[Curve]] = {f"G = {full}, various G'": [], f"G' = {least}, various G": []}
    for arm in arms:
        runs = [run for run in findings.of(arm) if panel in run.points]
        iterations = shared_iterations(runs, panel)
        if iterations:
            minutes = [
                mean([p.minutes for run in runs for p in run.points[panel] if p.iteration == iteration])
                for iteration in iterations
            ]
            size, sampled = arm.sizes
            curve = Curve.from_seeds(f"G = {size}, G' = {sampled}", minutes, values_at(runs, panel, iterations))
            for index, belongs in enumerate((size == full, sampled == least)):
                if belongs:
                    list(groups.values())[index].append(curve)
            numbers += [
                [*arm.sizes, run.seed, p.iteration, f"{p.minutes:.3f}", p.result.mean, *p.result.interval]
                for run in runs
                for p in run.points[panel]
            ]
        done = [run for run in runs if run.state == FINISHED]
        spent = [run.seconds / 60 for run in done]
        saving = "-"
        if spent and reference_runs and mean(spent) > 0:
            saving = f"{mean([run.seconds / 60 for run in reference_runs]) / mean(spent):.2f}x"
        paper = ABLATION.get(arm.sizes)
        # The paper's sizes stand for shares of G where ours are smaller.
        shares = {(1.0, 0.25): (100, 25), (1.0, 1.0): (100, 100), (0.25, 0.25): (25, 25)}
        if paper is None and full:
            same = shares.get((arm.sizes[0] / full, arm.sizes[1] / full))
            paper = None if same is None else ABLATION[same]
        rows.append(
            (
                f"G = {arm.sizes[0]}, G' = {arm.sizes[1]}",
                spread_text([run.last(panel).mean for run in done]),
                "-" if paper is None else f"{paper:.2f}",
                f"{mean(spent):.1f}" if spent else "-",
                saving,
                str(len(done)),
            )
        )
    headers = ("Sizes", "Final, here", "Final, paper", "Minutes", "Time saved against all of G", "Runs")
    table = Table(headers, tuple(rows)).markdown()
    text = "The paper's values are of the same shares of G = 100; it saves 3.5x from G' = 100 to G' = 25.\n"
    if not any(groups.values()):
        return f"{title}No run has been evaluated yet.\n\n{text}\n{table}"
    drawn = [CurvePanel(name, curves) for name, curves in groups.items() if curves]
    draw_curves(folder, f"{_STEM}-figure3", drawn, columns=1, xlabel="Minutes of playing and learning")
    write_csv(
        folder / f"{_STEM}-figure3.csv",
        ["group_size", "sampled", "seed", "iteration", "minutes", "mean", "low", "high"],
        numbers,
    )
    return f"{title}![Return against time]({_STEM}-figure3.png)\n\n{text}\n{table}"


def _ablations(findings: Findings, folder: Path) -> str:
    arms = findings.for_part("ablations")
    numbers: list[list[object]] = []
    tables = []
    for name, (title, panel) in _ABLATED.items():
        own = [arm for arm in arms if arm.name.startswith(name)]
        if own:
            tables.append(_ablation_table(findings, own, title, panel, numbers))
    write_csv(
        folder / f"{_STEM}-ablations.csv",
        ["arm", "runs", "final_mean", "final_std", "difference_mean", "difference_std", "minutes"],
        numbers,
    )
    note = (
        "Ours, not the paper's. The context is what a prompt shows of the steps before it; the paper shows none. With "
        "the whole episode, and its return as the credit of every token, it is StarPO (arXiv:2504.20073) with GRPO's "
        "advantage. Arms with a context compare with the one without where there is one, else with the first line.\n"
    )
    return "\n".join(["## Further ablations\n", note, *tables])


def _ablation_table(
    findings: Findings, arms: Sequence[Arm], title: str, panel: str, numbers: list[list[object]]
) -> str:
    """Return a table of arms on a panel; its numbers are added to ``numbers``."""
    rows = []
    for arm in arms:
        done = [run for run in findings.of(arm, finished=True) if panel in run.points]
        last = [run.last(panel).mean for run in done]
        change = [run.last(panel).mean - run.first(panel).mean for run in done]
        spent = [run.seconds / 60 for run in done]
        cells = (spread_text(last), spread_text(change, signed=True), minutes_text(done), str(len(done)))
        rows.append((_ablation_title(arm), *cells))
        numbers.append([arm.name, len(done), *mean_and_std(last), *mean_and_std(change), *mean_and_std(spent)[:1]])
    return Table((f"{title}, one change at a time", "Final", "Difference", "Minutes", "Runs"), tuple(rows)).markdown()


def _ablation_title(arm: Arm) -> str:
    size, sampled = arm.sizes
    sampling = f"G = {size}, G' = {sampled}"
    return sampling if arm.title.startswith(("G =", "trained")) else f"{arm.title} ({sampling})"
