"""One episode as a film, and the episodes of a group side by side."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.requests import Request

from stratagem.data.token_logprobs import ANSWER
from stratagem.errors import RunError
from stratagem.page.answers import candidates_of, tokens_of
from stratagem.page.boards import draw_board, grid_of
from stratagem.page.changes import SCALE, Colouring, colouring_of, summed, words
from stratagem.page.data import Library, RunData
from stratagem.page.episodes import episode_url, evaluation_url, group_url, summed_up
from stratagem.page.runs import run_url
from stratagem.page.store import EpisodeRow, StoredEpisode
from stratagem.page.tokens import TokenReader, find_tokenizer
from stratagem.types import Generation, Step, Trajectory

__all__ = ["frames", "show", "show_evaluated", "show_group"]

_SIDE_BY_SIDE = 24
"""Episodes of a group on one page."""
_LEVELS = 4
_ROLES = {"high": "names the subtask", "progress": "sums up the last action", "low": "acts"}
"""What the roles of a hierarchical agent do (:mod:`stratagem.agents.hierarchical`)."""


def show(library: Library, request: Request) -> dict[str, Any]:
    """Return what ``episode.html`` shows of training."""
    run = library.run(request.path_params["run"])
    iteration, group, episode = (request.path_params[name] for name in ("iteration", "group", "episode"))
    stored = run.store.episode(iteration, group, episode)
    scale = max((abs(row.advantage) for row in run.store.index(iteration) if row.advantage is not None), default=0.0)
    members = [row for row in run.store.index(iteration) if row.group == group]
    place = next((n for n, row in enumerate(members) if row.episode == episode), 0)
    colouring = colouring_of(run, request, iteration, group, episode)

    def url(row: EpisodeRow) -> str:
        return episode_url(run, row) + colouring.query

    return {
        **_film(run, stored, scale, colouring),
        "title": f"Iteration {iteration}, group {group}, episode {episode}",
        "crumbs": [
            ("Runs", "/"),
            (run.key, run_url(run)),
            (f"iteration {iteration}", f"{run_url(run)}/episodes?from={iteration}&to={iteration}"),
            (f"group {group}", group_url(run, iteration, group)),
        ],
        "before": url(members[place - 1]) if place else None,
        "after": url(members[place + 1]) if place + 1 < len(members) else None,
    }


def show_evaluated(library: Library, request: Request) -> dict[str, Any]:
    """Return what ``episode.html`` shows of an evaluation."""
    run = library.run(request.path_params["run"])
    tag, panel, place = (request.path_params[name] for name in ("tag", "panel", "episode"))
    episodes = {item.episode: item for item in run.store.evaluated(tag, panel)}
    if place not in episodes:
        raise RunError(f"Evaluation {tag!r} of panel {panel!r} has no episode {place}.")
    url = evaluation_url(run, tag, panel)
    return {
        **_film(run, episodes[place], 0.0),
        "title": f"{panel}, {tag}, episode {place}",
        "crumbs": [("Runs", "/"), (run.key, run_url(run)), (f"{panel}, {tag}", url)],
        "before": f"{url}/episode/{place - 1}" if place - 1 in episodes else None,
        "after": f"{url}/episode/{place + 1}" if place + 1 in episodes else None,
    }


def show_group(library: Library, request: Request) -> dict[str, Any]:
    """Return what ``group.html`` shows."""
    run = library.run(request.path_params["run"])
    iteration, group = request.path_params["iteration"], request.path_params["group"]
    episodes = run.store.group(iteration, group)
    lowest = request.query_params.get("order") == "lowest"
    sign = 1 if lowest else -1
    order = sorted(episodes, key=lambda item: (sign * (item.advantage or 0.0), item.episode))
    pages = max(1, -(-len(order) // _SIDE_BY_SIDE))
    asked = request.query_params.get("page", "1")
    page = min(max(int(asked), 1), pages) if asked.isdigit() else 1
    shown = order[(page - 1) * _SIDE_BY_SIDE : page * _SIDE_BY_SIDE]
    scale = max((abs(item.advantage) for item in episodes if item.advantage is not None), default=0.0)
    groups = sorted({row.group for row in run.store.index(iteration)})
    place = groups.index(group) if group in groups else 0
    returns = [item.trajectory.composite_return for item in episodes]
    return {
        "title": f"Iteration {iteration}, group {group}",
        "crumbs": [
            ("Runs", "/"),
            (run.key, run_url(run)),
            (f"iteration {iteration}", f"{run_url(run)}/episodes?from={iteration}&to={iteration}"),
        ],
        "stamp_url": "",
        "cards": [
            {
                "row": summed_up(item),
                "url": episode_url(run, item),
                "tint": _tint(item.advantage, scale),
                "frames": frames(run, item.trajectory),
                "actions": [_action(step) for step in item.trajectory.steps],
            }
            for item in shown
        ],
        "longest": max((len(item.trajectory.steps) for item in shown), default=0),
        "count": len(episodes),
        "page": page,
        "pages": pages,
        "page_url": lambda number: f"?page={number}" + ("&order=lowest" if lowest else ""),
        "lowest": lowest,
        "silent": len({round(value, 9) for value in returns}) <= 1 and len(returns) > 1,
        "spread": (min(returns), sum(returns) / len(returns), max(returns)),
        "before": group_url(run, iteration, groups[place - 1]) if place else None,
        "after": group_url(run, iteration, groups[place + 1]) if place + 1 < len(groups) else None,
    }


def frames(run: RunData | None, trajectory: Trajectory) -> list[Markup]:
    """Return a picture of the state before each step; text where the game has none."""
    params = run.setting("game.params") if run is not None else None
    params = params if isinstance(params, dict) else {}
    keys = [step.state_key for step in trajectory.steps]
    found = []
    for number, step in enumerate(trajectory.steps):
        action = step.executed_action
        board = draw_board(trajectory.game, step.state_key, action=action, trail=keys[:number], params=params)
        found.append(board or Markup('<pre class="board">{}</pre>').format(grid_of(step.observation)))
    return found


def _film(run: RunData, stored: StoredEpisode, scale: float, colouring: Colouring | None = None) -> dict[str, Any]:
    trajectory = stored.trajectory
    model = run.setting("model.name")
    reader = _tokenizer(run.path, model if isinstance(model, str) else None, run.state == "finished")
    by_change = colouring is not None and colouring.by_change
    boards = frames(run, trajectory)
    total = 0.0
    steps = []
    for number, step in enumerate(trajectory.steps):
        total += step.reward + step.invalid_penalty + step.shaping
        answer = _answer(stored, number, ANSWER, step, reader, colouring)
        steps.append(
            {
                "number": number + 1,
                "board": boards[number],
                "action": step.action,
                "executed": step.executed_action,
                "error": step.parse_error or ("no reason recorded" if step.action is None else None),
                "reward": step.reward,
                "penalty": step.invalid_penalty,
                "shaping": step.shaping,
                "total": total,
                "duration": step.duration,
                "finish": step.finish,
                "observation": step.observation,
                "answer": answer,
                "before": [
                    _answer(stored, number, part, said, reader, colouring) for part, said in enumerate(step.generations)
                ],
                "candidates": candidates_of(step, reader),
                "logprob": sum(step.logprobs) if step.logprobs else None,
                "state_key": step.state_key,
            }
        )
    return {
        "stamp_url": "",
        "run": run,
        "row": summed_up(stored),
        "trajectory": trajectory,
        "tint": _tint(stored.advantage, scale),
        "steps": steps,
        "colouring": colouring,
        "by_change": by_change,
        "scale": SCALE,
        "words": words,
        "has_tokens": any(step.completion_ids for step in trajectory.steps),
        "has_roles": any(step.generations for step in trajectory.steps),
        "has_reader": reader is not None,
        "failure": str(trajectory.info.get("error", "")),
    }


def _answer(
    stored: StoredEpisode,
    number: int,
    part: int,
    said: Step | Generation,
    reader: TokenReader | None,
    colouring: Colouring | None,
) -> dict[str, Any]:
    """Return what one role said in a step: the tokens, the prompt, and how the answer ended."""
    changes = None
    if colouring is not None and colouring.by_change:
        changes = colouring.of((stored.group, stored.episode, number, part), said)
    role = said.role if isinstance(said, Generation) else "low"
    return {
        "role": role,
        "does": _ROLES.get(role, "said before the action"),
        "text": said.completion,
        "tokens": tokens_of(said, reader, changes),
        "finish": said.finish,
        "error": said.parse_error if isinstance(said, Generation) else None,
        "prompt": reader.text(said.prompt_ids) if reader and said.prompt_ids else None,
        "prompt_tokens": len(said.prompt_ids),
        "change": summed(changes),
    }


def _action(step: Step) -> tuple[str, bool]:
    """Return the word that stands for a step in a row of actions, and whether the answer was valid."""
    arrows = {"up": "\u2191", "down": "\u2193", "left": "\u2190", "right": "\u2192"}
    if step.action is None:
        return ("\u2715", False)
    return (arrows.get(step.action, step.action), True)


def _tint(advantage: float | None, scale: float) -> str:
    """Return the class of an advantage: its sign, and its size in four levels."""
    if advantage is None or not scale or advantage == 0:
        return "zero"
    level = max(1, math.ceil(min(abs(advantage) / scale, 1.0) * _LEVELS))
    return f"{'plus' if advantage > 0 else 'minus'}{level}"


@lru_cache(maxsize=16)
def _tokenizer(path: Path, model: str | None, finished: bool) -> TokenReader | None:
    """Return a run's tokenizer; looked for again when the run has finished and holds its own."""
    return find_tokenizer(path, model)
