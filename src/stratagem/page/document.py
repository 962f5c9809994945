"""A run as one HTML file that needs nothing else, and as Markdown: to send, to keep, to print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from stratagem import __version__
from stratagem.errors import RunError
from stratagem.evaluation.figures import sparkline
from stratagem.evaluation.tables import Table, format_interval, format_share
from stratagem.files import atomic_write_text, error_reason
from stratagem.page.advice import warnings_of
from stratagem.page.charts import format_number
from stratagem.page.curves import GROUPS, value
from stratagem.page.data import RunData, flatten
from stratagem.page.episode import frames
from stratagem.page.run import chart_groups, facts, panel_rows, stop_reasons, versions
from stratagem.page.store import StoredEpisode

__all__ = ["chosen_episodes", "write_document"]

_SHOWN_STEPS = 30


def write_document(run: RunData, folder: Path) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.md`` and return their paths.

    Args:
        run: finished or not.
        folder: made if missing; files of an earlier report are replaced.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    where, episodes = chosen_episodes(run)
    context = _context(run, where, episodes)
    environment = Environment(
        loader=PackageLoader("stratagem.page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters.update(num=format_number, pct=lambda number: format_number(number, percent=True))
    style = (Path(__file__).parent / "static" / "page.css").read_text(encoding="utf-8")
    page = environment.get_template("document.html").render(style=style, version=__version__, **context)
    paths = (folder / "report.html", folder / "report.md")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(paths[0], page)
        atomic_write_text(paths[1], _markdown(run, context))
    except OSError as error:
        raise RunError(
            f"The report could not be written to {str(folder)!r} ({error_reason(error)}); free some space, or name "
            "another folder with --to."
        ) from error
    return paths


def chosen_episodes(run: RunData) -> tuple[str, list[tuple[str, StoredEpisode]]]:
    """Return where they are from, and the best, the median and the worst episode by return; fewer of few.

    The final evaluation of the first panel is looked at, else the newest one with episodes, else the newest iteration.
    """
    panels = [str(panel) for panel in run.setting("evaluation.panels") or ()]
    for tag in reversed(run.evaluations()):
        known = sorted(
            (panel for at, panel in run.store.panels() if at == tag),
            key=lambda panel: panels.index(panel) if panel in panels else len(panels),
        )
        if known:
            return f"{known[0]}, {tag.replace('_', ' ')}", _picked(run.store.evaluated(tag, known[0]))
    iterations = run.store.iterations()
    if not iterations:
        return "", []
    rows = run.store.index(iterations[-1])
    order = sorted(rows, key=lambda row: -row.composite_return)
    found = [run.store.episode(row.iteration, row.group, row.episode) for row in _three(order)]
    return f"training, iteration {iterations[-1]}", _named(found)


def _picked(episodes: list[StoredEpisode]) -> list[tuple[str, StoredEpisode]]:
    return _named(_three(sorted(episodes, key=lambda item: -item.trajectory.environment_return)))


def _three(ordered: list[Any]) -> list[Any]:
    places = dict.fromkeys((0, len(ordered) // 2, len(ordered) - 1)) if ordered else {}
    return [ordered[place] for place in places]


def _named(found: list[StoredEpisode]) -> list[tuple[str, StoredEpisode]]:
    names = ("Best", "Median", "Worst") if len(found) == 3 else ("Best", "Worst")
    return list(zip(names, found, strict=False))


def _context(run: RunData, where: str, episodes: list[tuple[str, StoredEpisode]]) -> dict[str, Any]:
    groups = chart_groups(run, 1)
    stops, _ = stop_reasons(run, 60.0)
    groups[1][1].append(stops)
    iterations = run.store.iterations()
    return {
        "title": run.name,
        "run": run,
        "state": run.state,
        "iteration": run.iteration,
        "total": run.total_iterations,
        "facts": facts(run),
        "warnings": warnings_of(run, run.store.index(iterations[-1]) if iterations else []),
        "groups": [(title, [chart for chart in charts if chart is not None]) for title, charts in groups],
        "panels": panel_rows(run),
        "where": where,
        "episodes": [
            {
                "name": name,
                "place": item.episode,
                "trajectory": item.trajectory,
                "steps": list(zip(item.trajectory.steps, frames(run, item.trajectory), strict=True))[:_SHOWN_STEPS],
                "left_out": max(0, len(item.trajectory.steps) - _SHOWN_STEPS),
            }
            for name, item in episodes
        ],
        "recipe": [(key, json.dumps(setting)) for key, setting in flatten(run.recipe).items()],
        "versions": versions(run),
    }


def _markdown(run: RunData, context: dict[str, Any]) -> str:
    total = "" if context["total"] is None else f" of {context['total']}"
    lines = [
        f"# {_plain(run.name)}",
        f"{_plain(run.setting('model.name'))} on {_plain(run.setting('game.name'))}, "
        f"{_plain(run.setting('algorithm.name'))}, seed {run.setting('seed')}; iteration {run.iteration}{total}, "
        f"{context['state']}.",
    ]
    lines += [f"- **{_plain(w.what)}** {_plain(w.remedy)}" for w in context["warnings"]]
    for panel in context["panels"]:
        cells = tuple(
            (
                row["when"],
                format_interval(row["mean"], row["interval"]),
                format_number(row["std"]),
                format_share(row["success"]),
                format_share(row["optimum"]),
                format_share(row["invalid"]),
                format_number(row["steps"]),
                str(row["count"]),
                row["endings"],
            )
            for row in panel["rows"]
        )
        headers = ("When", "Return [95%]", "Std", "Success", "Of optimum", "Invalid", "Steps", "Episodes", "Ended by")
        lines += [f"## {_plain(panel['name'])}", Table(headers, cells).markdown()]
        lines += [panel["note"]] if panel["note"] is not None else []
    rows = run.metrics.rows()
    curves = []
    for _, charts in GROUPS:
        for chart in charts:
            for name, label in chart.metrics:
                numbers = [v for row in rows if (v := value(row, name)) is not None]
                if len(numbers) > 1:
                    first, last = (format_number(n, percent=chart.percent) for n in (numbers[0], numbers[-1]))
                    curves.append((f"{chart.title}, {label}", f"`{sparkline(numbers, 40)}`", first, last))
    if curves:
        lines += ["## Curves", Table(("Metric", "Over iterations", "First", "Last"), tuple(curves)).markdown()]
    if (run.path / "figures" / "learning_curve.png").is_file():
        lines.append("![Learning curve](figures/learning_curve.png)")
    if context["episodes"]:
        lines.append(f"## Episodes ({_plain(context['where'])})")
    for episode in context["episodes"]:
        trajectory = episode["trajectory"]
        moves = tuple(
            (str(n + 1), step.action or "none", f"{step.reward + step.invalid_penalty + step.shaping:+.2f}",
             step.parse_error or "")
            for n, (step, _) in enumerate(episode["steps"])
        )  # fmt: skip
        lines += [
            f"### {episode['name']}: return {trajectory.environment_return:+.2f}, "
            f"{str(trajectory.stop_reason).replace('_', ' ')}",
            Table(("Step", "Action", "Reward", "Why not"), moves).markdown(),
        ]
    for title, entries in (("Recipe", context["recipe"]), ("Versions", context["versions"])):
        lines += [f"## {title}", Table(("Name", "Value"), tuple((_plain(k), _plain(v)) for k, v in entries)).markdown()]
    return "\n\n".join(line.rstrip("\n") for line in lines) + "\n"


def _plain(text: Any) -> str:
    """Return text that Markdown shows as it is."""
    special = "\\`*_[]<>#"
    return "".join(f"\\{letter}" if letter in special else letter for letter in " ".join(str(text).split()))
