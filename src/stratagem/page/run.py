"""One run: its state, what it warns of, curves by group, the panels over time, the recipe and the versions."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from stratagem.evaluation.tables import format_endings, share_note
from stratagem.page.advice import warnings_of
from stratagem.page.charts import Series, line_chart, stack_chart
from stratagem.page.curves import GROUPS, Chart, other_charts, run_series, value
from stratagem.page.data import Library, RunData, flatten, number, share_of_optimum
from stratagem.page.runs import SMOOTHING, interval_of, run_url, window_of

__all__ = ["chart_groups", "facts", "panel_rows", "show", "stop_reasons", "versions"]

_STOP_FILES = 60
"""Stop reasons are read from at most so many iterations, evenly spread."""
_ENDINGS = {"success": 2, "terminated": 5, "terminated without success": 1, "max_steps": 4} | {
    "invalid_action": 3, "context": 0, "game_failed": 5
}  # fmt: skip
"""Stop reasons, with a verdict where the game gives one, and their colours; the same in every chart."""
_PATIENCE = 0.1
"""Seconds for reading episode files before the page is answered; the rest comes with the next look."""


def show(library: Library, request: Request) -> dict[str, Any]:
    """Return what ``run.html`` shows."""
    run = library.run(request.path_params["run"])
    window = window_of(request)
    rows = run.metrics.rows()
    groups = chart_groups(run, window)
    again = "x-again" in request.headers  # the page is there already and waits for the rest
    stops, pending = stop_reasons(run, 15 * _PATIENCE if again else _PATIENCE)
    groups[1][1].append(stops)
    iterations = run.store.iterations()
    last = run.store.index(iterations[-1]) if iterations else []
    total = run.total_iterations
    return {
        "title": run.key,
        "crumbs": [("Runs", "/")],
        "stamp_url": f"/stamp?run={quote(run.key, safe='')}",
        "run": run,
        "url": run_url(run),
        "state": run.state,
        "iteration": run.iteration,
        "total": total,
        "done": min(run.iteration / total, 1.0) if total else 0.0,
        "facts": facts(run),
        "warnings": warnings_of(run, last),
        "groups": [(title, [chart for chart in charts if chart is not None]) for title, charts in groups],
        "panels": panel_rows(run),
        "evaluations": run.store.panels(),
        "last_iteration": iterations[-1] if iterations else None,
        "recipe": [(key, json.dumps(setting)) for key, setting in flatten(run.recipe).items()],
        "versions": versions(run),
        "window": window,
        "smoothing": SMOOTHING,
        "pending": pending,
        "has_rows": bool(rows),
    }


def chart_groups(run: RunData, window: int) -> list[tuple[str, list[Any]]]:
    """Return (title, charts) for each group; a chart is (title, hint, legend, picture), None where it has no number."""
    rows = run.metrics.rows()
    played = [row for row in rows if value(row, "seconds") is not None]
    groups = [(title, [_drawn(rows, chart, window) for chart in charts]) for title, charts in GROUPS]
    phases = list(
        dict.fromkeys(key for row in played for key, part in row.items() if key.startswith("seconds_") and part)
    )
    if phases:
        names = [phase.removeprefix("seconds_").replace("_", " ") for phase in phases]
        parts = [[number(row.get(phase)) or 0.0 for row in played] for phase in phases]
        picture = stack_chart(names, [row["iteration"] for row in played], parts, label="Seconds per iteration")
        legend = [(name, place) for place, name in enumerate(names)]
        groups[-1][1].append(("Time per iteration", "Seconds by phase.", legend, picture))
    others = [_drawn(rows, chart, window) for chart in other_charts(rows)]
    if any(others):
        groups.append(("Other", others))
    return groups


def _drawn(rows: list[dict[str, Any]], chart: Chart, window: int) -> tuple[str, str, list[tuple[str, int]], Any] | None:
    series = run_series(rows, chart, window)
    if not series:
        return None
    legend = [(s.label, s.colour or 0) for s in series]
    return (chart.title, chart.hint, legend, line_chart(series, label=chart.title, percent=chart.percent))


def stop_reasons(run: RunData, seconds: float) -> tuple[tuple[str, str, list[tuple[str, int]], Any] | None, bool]:
    """Return the chart of how episodes ended, and whether more files are to be read."""
    iterations = run.store.iterations()
    step = max(1, -(-len(iterations) // _STOP_FILES))
    wanted = iterations[::-step][::-1]
    if not wanted:
        return None, False
    found = run.store.search(wanted, seconds=seconds)
    counts: dict[int, Counter[str]] = {}
    for row in found.rows:
        name = row.stop_reason
        if name == "terminated" and row.success is not None:
            name = "success" if row.success else "terminated without success"
        counts.setdefault(row.iteration, Counter())[name] += 1
    seen = set().union(*counts.values())
    names = [name for name in _ENDINGS if name in seen]
    x = sorted(counts)
    shares = [[counts[at][name] / counts[at].total() for at in x] for name in names]
    colours = [_ENDINGS[name] for name in names]
    picture = stack_chart(names, x, shares, label="How episodes ended", percent=True, colours=colours)
    legend = [(name.replace("_", " "), colour) for name, colour in zip(names, colours, strict=True)]
    hint = "Share of episodes by stop reason." if step == 1 else f"Share by stop reason, every {step}th iteration."
    return ("How episodes end", hint, legend, picture), found.read < found.total


def panel_rows(run: RunData) -> list[dict[str, Any]]:
    """Return a chart and the results of each panel, in the order of time."""
    panels: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for tag, results in run.evaluations().items():
        for result in results:
            panels.setdefault(result["panel"], []).append((tag, result))
    found = []
    for panel, entries in panels.items():
        points = [(_moment(run, tag), result) for tag, result in entries if tag != "start" or len(entries) == 1]
        points = [(at, result) for at, result in points if at is not None]
        intervals = [interval_of(result) for _, result in points]
        curve = Series(
            "mean", [at for at, _ in points if at is not None], [float(result["mean"]) for _, result in points],
            [i[0] if i else None for i in intervals], [i[1] if i else None for i in intervals],
        )  # fmt: skip
        rows = [
            {
                "tag": tag,
                "when": f"iteration {int(tag)}" if tag.isdigit() else tag.replace("_", " "),
                "mean": float(result["mean"]),
                "interval": interval_of(result),
                "std": number(result.get("std")),
                "success": number(result.get("success_rate")),
                "optimum": share_of_optimum(result),
                "invalid": number(result.get("invalid_action_rate")),
                "steps": number(result.get("mean_episode_length")),
                "count": result.get("num_episodes"),
                "endings": endings_of(result),
            }
            for tag, result in entries
        ]
        chart = line_chart([curve], label=f"Return on {panel}", width=480) if len(points) > 1 else None
        note = share_note(share_of_optimum(result) for _, result in entries)
        found.append({"name": panel, "rows": rows, "chart": chart, "note": note})
    return found


def endings_of(result: dict[str, Any]) -> str:
    """Return how the episodes of a result ended, in words."""
    reasons = result.get("stop_reasons")
    counts = reasons if isinstance(reasons, dict) else {}
    return format_endings({key: count for key, count in counts.items() if isinstance(count, int)}).replace("_", " ")


def _moment(run: RunData, tag: str) -> int | None:
    """Return the iteration of an evaluation."""
    if tag in ("start", "warm_start"):
        return 0
    if tag == "final":
        return run.total_iterations if run.total_iterations is not None else run.iteration
    return int(tag) if tag.isdigit() else None


def facts(run: RunData) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page."""
    rows = run.metrics.rows()
    played: dict[str, Any] = next((row for row in reversed(rows) if "return_mean" in row), {})
    seconds = sum(v for row in rows if (v := value(row, "seconds")) is not None)
    found = [
        ("Return", _text(value(played, "return_mean"), ".3f")),
        ("Success", _text(value(played, "success_rate"), ".1%")),
        ("Valid actions", _text(value(played, "valid_rate"), ".1%")),
        ("Groups without signal", _text(value(played, "groups_without_signal"), ".0%")),
        ("Tokens saved", _text(value(played, "tokens_saved"), ".1%")),
        ("Time", f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"),
    ]
    total = run.total_iterations
    recent = [v for row in rows[-20:] if row["iteration"] > 0 and (v := value(row, "seconds")) is not None]
    if run.state == "training" and total and recent:
        left = (total - run.iteration) * sum(recent) / len(recent)
        found.append(("Left, about", f"{left / 60:.0f} min" if left < 7200 else f"{left / 3600:.1f} h"))
    return found


def _text(number_: float | None, spec: str) -> str:
    return "-" if number_ is None else format(number_, spec)


def versions(run: RunData) -> list[tuple[str, str]]:
    """Return what the run was made with: start, command, commit, machine, packages."""
    provenance = run.provenance
    found: list[tuple[str, str]] = [(key, str(provenance[key])) for key in ("started", "seed") if key in provenance]
    command = provenance.get("command")
    if isinstance(command, list):
        found.append(("command", " ".join(map(str, command))))
    for table in ("git", "hardware", "versions"):
        entries = provenance.get(table)
        if isinstance(entries, dict):
            found += [(key if table == "versions" else f"{table} {key}", str(entry)) for key, entry in entries.items()]
    resumes = provenance.get("resumes")
    if isinstance(resumes, list) and resumes:
        found.append(("resumed", f"{len(resumes)} times"))
    return found
