"""A list of episodes: of training, by iteration, or of an evaluation; filtered and sorted by the address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request

from stratagem.errors import RunError
from stratagem.page.data import Library, RunData
from stratagem.page.runs import run_url
from stratagem.page.store import EpisodeRow, StoredEpisode
from stratagem.types import Finish, StopReason

__all__ = ["SORTS", "episode_url", "evaluation_url", "group_url", "show", "show_evaluation", "summed_up"]

_PAGE = 100
_PATIENCE = 0.2
"""Seconds of reading before the page is answered with what has been found."""

_Key = Callable[[EpisodeRow], Any]
SORTS: dict[str, tuple[str, _Key]] = {
    "advantage": ("highest advantage first", lambda row: -(row.advantage if row.advantage is not None else -1e99)),
    "-advantage": ("lowest advantage first", lambda row: row.advantage if row.advantage is not None else 1e99),
    "return": ("highest return first", lambda row: -row.composite_return),
    "-return": ("lowest return first", lambda row: row.composite_return),
    "steps": ("longest first", lambda row: -row.num_steps),
    "-steps": ("shortest first", lambda row: row.num_steps),
    "invalid": ("most invalid actions first", lambda row: row.num_valid - row.num_steps),
    "order": ("as played", lambda row: 0),
}
OUTCOMES: dict[str, tuple[str, Callable[[EpisodeRow], bool]]] = {
    "": ("any", lambda row: True),
    "success": ("success", lambda row: row.success is True),
    "failure": ("no success", lambda row: row.success is False),
    "positive": ("advantage above 0", lambda row: row.advantage is not None and row.advantage > 0),
    "negative": ("advantage below 0", lambda row: row.advantage is not None and row.advantage < 0),
    "invalid": ("with an invalid action", lambda row: row.num_valid < row.num_steps),
}


def group_url(run: RunData, iteration: int, group: int) -> str:
    """Return the address of a group."""
    return f"{run_url(run)}/iteration/{iteration}/group/{group}"


def episode_url(run: RunData, row: EpisodeRow | StoredEpisode) -> str:
    """Return the address of an episode of training."""
    return f"{group_url(run, row.iteration, row.group)}/episode/{row.episode}"


def evaluation_url(run: RunData, tag: str, panel: str) -> str:
    """Return the address of the episodes of an evaluation."""
    return f"{run_url(run)}/evaluation/{quote(tag, safe='')}/{quote(panel, safe='')}"


def summed_up(stored: StoredEpisode) -> EpisodeRow:
    """Return the row of an episode that is at hand."""
    trajectory = stored.trajectory
    return EpisodeRow(
        stored.iteration,
        stored.group,
        stored.episode,
        len(trajectory.steps),
        len(trajectory.steps) - trajectory.num_invalid,
        sum(step.finish is Finish.LENGTH for step in trajectory.steps),
        trajectory.environment_return,
        trajectory.composite_return,
        trajectory.success,
        trajectory.stop_reason.value,
        stored.advantage,
    )


def show(library: Library, request: Request) -> dict[str, Any]:
    """Return what ``episodes.html`` shows of training."""
    run = library.run(request.path_params["run"])
    iterations = run.store.iterations()
    last = iterations[-1] if iterations else 0
    first_asked, last_asked = (_whole(request, "from", last), _whole(request, "to", last))
    wanted = [at for at in iterations if min(first_asked, last_asked) <= at <= max(first_asked, last_asked)]
    text = request.query_params.get("text", "").strip()
    found = run.store.search(wanted, text=text, seconds=20 * _PATIENCE if "x-again" in request.headers else _PATIENCE)
    context = _listed(
        request, found.rows, lambda row: (episode_url(run, row), group_url(run, row.iteration, row.group))
    )
    return {
        **context,
        "title": "Episodes",
        "crumbs": [("Runs", "/"), (run.key, run_url(run))],
        "stamp_url": f"/stamp?run={quote(run.key, safe='')}",
        "url": f"{run_url(run)}/episodes",
        "first": iterations[0] if iterations else 0,
        "last": last,
        "from_": min(first_asked, last_asked),
        "to": max(first_asked, last_asked),
        "text": text,
        "pending": (found.read, found.total) if found.read < found.total else None,
        "training": True,
        "problems": run.store.problems,
    }


def show_evaluation(library: Library, request: Request) -> dict[str, Any]:
    """Return what ``episodes.html`` shows of an evaluation."""
    run = library.run(request.path_params["run"])
    tag, panel = request.path_params["tag"], request.path_params["panel"]
    text = request.query_params.get("text", "").strip()
    stored = [item for item in run.store.evaluated(tag, panel) if _holds(item, text.lower())]
    url = evaluation_url(run, tag, panel)
    context = _listed(request, [summed_up(item) for item in stored], lambda row: (f"{url}/episode/{row.episode}", ""))
    return {
        **context,
        "title": f"{panel}, {tag}",
        "crumbs": [("Runs", "/"), (run.key, run_url(run))],
        "stamp_url": "",
        "url": url,
        "first": 0,
        "last": 0,
        "from_": 0,
        "to": 0,
        "text": text,
        "pending": None,
        "training": False,
        "problems": [],
    }


def _holds(stored: StoredEpisode, text: str) -> bool:
    return not text or any(
        text in part.lower()
        for step in stored.trajectory.steps
        for part in (
            *(step.observation, step.completion, step.action, step.parse_error, step.state_key),
            *(said.completion for said in step.generations),
        )
        if part
    )


def _listed(request: Request, rows: list[EpisodeRow], urls: Callable[[EpisodeRow], tuple[str, str]]) -> dict[str, Any]:
    """Filter, sort and cut into pages."""
    query = request.query_params
    outcome = query.get("outcome", "") if query.get("outcome", "") in OUTCOMES else ""
    stop = query.get("stop", "") if query.get("stop", "") in [reason.value for reason in StopReason] else ""
    has_advantages = any(row.advantage is not None for row in rows)
    sort = query.get("sort", "")
    sort = sort if sort in SORTS else "advantage" if has_advantages else "order"
    kept = [row for row in rows if OUTCOMES[outcome][1](row) and (not stop or row.stop_reason == stop)]
    kept.sort(key=lambda row: (SORTS[sort][1](row), row.iteration, row.group, row.episode))
    pages = max(1, -(-len(kept) // _PAGE))
    page = min(max(_whole(request, "page", 1), 1), pages)
    scale = max((abs(row.advantage) for row in kept if row.advantage is not None), default=0.0) or 1.0
    shown = [(row, *urls(row), _width(row.advantage, scale)) for row in kept[(page - 1) * _PAGE : page * _PAGE]]
    others = [(key, item) for key, item in query.multi_items() if key != "page"]
    return {
        "rows": shown,
        "count": len(kept),
        "all": len(rows),
        "page": page,
        "pages": pages,
        "page_url": lambda number: "?" + urlencode([*others, ("page", number)]),
        "outcome": outcome,
        "outcomes": {key: label for key, (label, _) in OUTCOMES.items()},
        "stop": stop,
        "stops": [reason.value for reason in StopReason],
        "sort": sort,
        "sorts": {key: label for key, (label, _) in SORTS.items()},
    }


def _width(advantage: float | None, scale: float) -> tuple[float, float]:
    """Return start and length of the bar of an advantage, on a line from 0 to 60 with zero in the middle."""
    length = 0.0 if advantage is None else 30 * min(abs(advantage) / scale, 1.0)
    return (30 - length if advantage is not None and advantage < 0 else 30, round(length, 1))


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise RunError(f"{name}={text!r} in the address is no whole number.") from None
