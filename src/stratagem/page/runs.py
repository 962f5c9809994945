"""Runs compared: curves with seeds as bands, settings that differ, and what the panels say in the end."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from stratagem.evaluation.tables import share_note
from stratagem.page.charts import Bar, interval_chart, line_chart
from stratagem.page.curves import COMPARED, compared_series, same_settings, value
from stratagem.page.data import Library, RunData, flatten, number, share_of_optimum

__all__ = ["SMOOTHING", "latest_results", "run_url", "show", "window_of"]

SMOOTHING = (1, 5, 10, 20, 50)
_SHOWN = 8
"""So many runs are compared unless the address names others."""


def run_url(run: RunData) -> str:
    """Return the address of a run."""
    return f"/run/{quote(run.key, safe='')}"


def window_of(request: Request) -> int:
    """Return the number of iterations that curves are averaged over."""
    text = request.query_params.get("smooth", "1")
    return int(text) if text.isdigit() and int(text) in SMOOTHING else 1


def latest_results(run: RunData) -> tuple[str, list[dict[str, Any]]]:
    """Return the tag and the results of a run's newest evaluation; an empty tag where there is none."""
    found = run.evaluations()
    tag = next(reversed(found), "")
    return tag, found.get(tag, [])


def show(library: Library, request: Request) -> dict[str, Any]:
    """Return what ``runs.html`` shows."""
    runs = library.runs()
    asked = [key for key in request.query_params.getlist("run") if key in runs]
    chosen = [runs[key] for key in (asked or list(runs)[:_SHOWN])]
    window = window_of(request)
    seeds = request.query_params.get("seeds", "band")
    groups = same_settings(chosen) if seeds == "band" else [[run] for run in chosen]
    colours = {run.key: place for place, group in enumerate(groups) for run in group}
    charts = []
    for name, title, percent in COMPARED:
        series = compared_series(groups, name, window)
        if series:
            charts.append((title, line_chart(series, label=title, percent=percent), series[:12]))
    return {
        "title": "Runs",
        "crumbs": [],
        "stamp_url": "/stamp",
        "rows": [_row(run, run in chosen, colours.get(run.key, 0)) for run in runs.values()],
        "num_chosen": len(chosen),
        "charts": charts,
        "settings": _differences(chosen),
        "panels": _panels(chosen, colours),
        "window": window,
        "smoothing": SMOOTHING,
        "seeds": seeds,
        "has_seeds": any(len(group) > 1 for group in same_settings(chosen)),
    }


def _row(run: RunData, chosen: bool, colour: int) -> dict[str, Any]:
    rows = run.metrics.rows()
    last: dict[str, Any] = next((row for row in reversed(rows) if "return_mean" in row), {})
    evaluations = run.evaluations()
    first = next(iter(evaluations.values()), [])
    tag, results = latest_results(run)
    total = run.total_iterations
    return {
        "key": run.key,
        "name": run.key,
        "url": run_url(run),
        "chosen": chosen,
        "colour": colour,
        "state": run.state,
        "game": run.setting("game.name") or "-",
        "model": str(run.setting("model.name") or "-").rstrip("/").rpartition("/")[2],
        "seed": run.setting("seed"),
        "iteration": run.iteration,
        "total": total,
        "done": min(run.iteration / total, 1.0) if total else 0.0,
        "return_mean": value(last, "return_mean"),
        "success": value(last, "success_rate"),
        "before": number(first[0].get("mean")) if first and len(evaluations) > 1 else None,
        "after": results[0] if results else None,
        "interval": interval_of(results[0]) if results else None,
        "tag": tag,
        "damaged": bool(run.problems) or not run.recipe,
    }


def interval_of(result: dict[str, Any]) -> tuple[float, float] | None:
    """Return the interval of a result's mean; None where it has none."""
    interval = result.get("interval")
    if not isinstance(interval, list) or len(interval) != 2:
        return None
    low, high = number(interval[0]), number(interval[1])
    return None if low is None or high is None else (low, high)


def _differences(runs: list[RunData]) -> dict[str, Any]:
    """Return the settings that are not the same in all runs."""
    flat = [flatten(run.recipe) for run in runs]
    keys = dict.fromkeys(key for recipe in flat for key in recipe)
    rows = [
        (key, values)
        for key in keys
        if key != "name"
        and len(set(values := [_shown(recipe[key]) if key in recipe else "not set" for recipe in flat])) > 1
    ]
    return {"runs": [run.key for run in runs], "rows": rows}


def _shown(setting: Any) -> str:
    return str(setting).lower() if isinstance(setting, bool) else str(setting)


def _panels(runs: list[RunData], colours: dict[str, int]) -> list[dict[str, Any]]:
    """Return a chart and a table for each panel that a run was evaluated on; different panels are never mixed."""
    found: dict[tuple[str, str], list[tuple[RunData, str, dict[str, Any]]]] = {}
    for run in runs:
        tag, results = latest_results(run)
        for result in results:
            found.setdefault((result["panel"], str(result.get("panel_hash"))), []).append((run, tag, result))
    panels = []
    for (panel, panel_hash), entries in found.items():
        bars = []
        for run, tag, result in entries:
            low, high = interval_of(result) or (None, None)
            note = "" if tag == "final" else "*"
            bars.append(Bar(run.key, float(result["mean"]), low, high, colours[run.key], note))
        rows = [
            {
                "name": run.key,
                "url": run_url(run),
                "tag": tag,
                "mean": float(result["mean"]),
                "interval": interval_of(result),
                "success": number(result.get("success_rate")),
                "optimum": share_of_optimum(result),
                "invalid": number(result.get("invalid_action_rate")),
                "count": result.get("num_episodes"),
            }
            for run, tag, result in entries
        ]
        hashes = sum(name == panel for name, _ in found)
        panels.append(
            {
                "name": panel if hashes == 1 else f"{panel} (hash {panel_hash})",
                "chart": interval_chart(bars, label=f"Return on {panel}"),
                "rows": rows,
                "unfinished": any(tag != "final" for _, tag, _ in entries),
                "note": share_note(share_of_optimum(result) for _, _, result in entries),
            }
        )
    return panels
