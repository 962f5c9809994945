"""Playing a panel in trials: what failed is tried again from the same start, by an agent that has thought about it.

For :mod:`stratagem.agents.reflexion`. Trial 1 plays the whole panel; each further trial plays the episodes that have
not succeeded yet. The result of a trial counts every episode of the panel by its last attempt, so the success rate is
that of "solved within so many trials" and never falls.

What was played is enough to go on: the reflections are in the trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stratagem.agents.reflexion import REFLECTION, ReflexionAgent
from stratagem.errors import RunError
from stratagem.evaluation.panels import EvaluationResult, Panel
from stratagem.evaluation.tables import Table, format_interval, format_share
from stratagem.rollout import Episode, Player, play_episodes
from stratagem.seeding import Part
from stratagem.types import StopReason, Trajectory

__all__ = ["Trial", "describe_reflections", "evaluate_trials", "last_attempts", "trials_table"]


@dataclass(frozen=True)
class Trial:
    """One trial of a panel."""

    number: int
    """From 1."""
    played: dict[int, Trajectory]
    """What was played in it, by place in the panel."""
    result: EvaluationResult
    """Of every episode of the panel, each by its last attempt up to here."""


def evaluate_trials(
    panel: Panel,
    make_agent: Callable[[], ReflexionAgent],
    opponents: Sequence[Player] = (),
    *,
    address: tuple[Part, ...],
    num_trials: int,
    optima: Sequence[float] | None = None,
    max_concurrent: int = 256,
    on_finish: Callable[[int, int, Trajectory], None] | None = None,
    done: Mapping[int, Mapping[int, Trajectory]] | None = None,
) -> list[Trial]:
    """Play what is missing of some trials of a panel.

    Args:
        panel: what is played, with ``course=0``.
        make_agent: returns who plays seat 0; called for each trial, since a served model cannot be asked again later.
        opponents: who plays seats 1, 2, ...
        address: where the draws come from; the same address gives the same draws.
        num_trials: at most; they end once every episode has succeeded.
        optima: see :func:`stratagem.evaluation.panels.panel_optima`.
        max_concurrent: episodes under way at once.
        on_finish: called with the number of the trial, the place in the panel and the trajectory as an episode ends.
        done: trial -> place -> what was played before; it is not played again.

    Returns:
        The trials that were needed.

    Raises:
        RunError: an episode of ``done`` is not of this panel, or its trial has no place for it.
        GameError: more games failed than ended.
        ModelError: a model cannot answer.
    """
    attempts: list[list[Trajectory]] = [[] for _ in panel.seeds]
    latest: list[Trajectory | None] = [None] * len(panel.seeds)
    trials: list[Trial] = []
    for number in range(1, num_trials + 1):
        places = [place for place, last in enumerate(latest) if last is None or not last.success]
        if not places:
            break
        played = dict((done or {}).get(number, {}))
        for place, trajectory in played.items():
            if place not in places or trajectory.seed != panel.seeds[place]:
                raise RunError(
                    f"Saved episode {place} of trial {number} has seed {trajectory.seed}, which panel {panel.name!r} "
                    f"(hash {panel.hash}) does not play there; evaluate into another folder."
                )
        missing = [place for place in places if place not in played]
        agent = make_agent()
        episodes = [
            Episode(panel.seeds[place], 0, (*address, "trial", number, place), player=agent.after(attempts[place]))
            for place in missing
        ]

        def finished(index: int, trajectory: Trajectory, trial: int = number, order: list[int] = missing) -> None:
            if on_finish is not None:
                on_finish(trial, order[index], trajectory)

        found = play_episodes(
            panel.make_game, [agent, *opponents], episodes, max_concurrent=max_concurrent, on_finish=finished
        )
        played.update(zip(missing, found, strict=True))
        for place, trajectory in played.items():
            latest[place] = trajectory
            if trajectory.stop_reason is not StopReason.GAME_FAILED:  # which teaches nothing
                attempts[place].append(trajectory)
        shown = [trajectory for trajectory in latest if trajectory is not None]
        trials.append(Trial(number, played, EvaluationResult.from_trajectories(panel, shown, optima)))
    return trials


def last_attempts(trials: Sequence[Trial]) -> list[Trajectory]:
    """Return the last attempt at each episode of the panel, in its order."""
    found: dict[int, Trajectory] = {}
    for trial in trials:
        found |= trial.played
    return [found[place] for place in sorted(found)]


def describe_reflections(trial: Trial) -> dict[str, float]:
    """Return how many reflections a trial began with, and how many could not be used, by reason."""
    parts = [
        part for t in trial.played.values() for step in t.steps[:1] for part in step.generations
        if part.role == REFLECTION
    ]  # fmt: skip
    found = {"reflections": float(len(parts))}
    for part in parts:
        if part.parse_error is not None:
            found[f"reflections_{part.parse_error}"] = found.get(f"reflections_{part.parse_error}", 0.0) + 1
    return found


def trials_table(trials: Sequence[Trial]) -> Table:
    """Return one row for each trial."""
    rows = [
        (
            str(trial.number),
            str(len(trial.played)),
            str(sum(bool(t.success) for t in trial.played.values())),
            format_share(trial.result.success_rate),
            format_interval(trial.result.mean, trial.result.interval),
        )
        for trial in trials
    ]
    return Table(("Trial", "Played", "Solved in it", "Solved so far", "Return"), tuple(rows))
