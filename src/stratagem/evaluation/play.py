"""Playing a panel: the same episodes with the same draws, each time.

The draws of an episode depend on the address and on its place in the panel only, so two evaluations of one run with the
same address are paired: an unchanged agent plays unchanged episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stratagem.agents.base import make_policy
from stratagem.errors import RunError
from stratagem.evaluation.panels import EvaluationResult, Panel
from stratagem.games.base import Game
from stratagem.rollout import Episode, Player, play_episodes
from stratagem.seeding import Part
from stratagem.types import Trajectory

__all__ = ["evaluate", "seat_opponents"]


def seat_opponents(game: Game) -> tuple[Player, ...]:
    """Return who plays seats 1, 2, ... of a game unless a user says otherwise."""
    return tuple(make_policy(game.default_opponent(seat)) for seat in range(1, game.num_players))


def evaluate(
    panel: Panel,
    players: Sequence[Player],
    *,
    address: tuple[Part, ...],
    optima: Sequence[float] | None = None,
    make_game: Callable[[], Game] | None = None,
    max_concurrent: int = 256,
    on_finish: Callable[[int, Trajectory], None] | None = None,
    done: Mapping[int, Trajectory] | None = None,
) -> tuple[EvaluationResult, list[Trajectory]]:
    """Play what is missing of a panel and sum up seat 0.

    Args:
        panel: what is played, with ``course=0``.
        players: one for each seat.
        address: where the draws come from; the same address gives the same draws.
        optima: see :func:`stratagem.evaluation.panels.panel_optima`.
        make_game: None makes the panel's game in this process.
        max_concurrent: episodes under way at once.
        on_finish: called with the place in the panel and the trajectory as soon as an episode ends.
        done: episodes that were played before, by their place; they are not played again.

    Returns:
        The result, and the trajectories in the order of the panel.

    Raises:
        RunError: an episode of ``done`` is not of this panel.
        GameError: more games failed than ended.
        ModelError: a model cannot answer.
    """
    found = dict(done or {})
    for place, trajectory in found.items():
        if not 0 <= place < len(panel.seeds) or trajectory.seed != panel.seeds[place]:
            raise RunError(
                f"Saved episode {place} has seed {trajectory.seed}, which panel {panel.name!r} (hash {panel.hash}) "
                "does not play there; evaluate into another folder."
            )
    missing = [place for place in range(len(panel.seeds)) if place not in found]

    def finished(number: int, trajectory: Trajectory) -> None:
        if on_finish is not None:
            on_finish(missing[number], trajectory)

    if missing:
        episodes = [Episode(panel.seeds[place], 0, (*address, place)) for place in missing]
        played = play_episodes(
            make_game or panel.make_game, players, episodes, max_concurrent=max_concurrent, on_finish=finished
        )
        found.update(zip(missing, played, strict=True))
    trajectories = [found[place] for place in range(len(panel.seeds))]
    return EvaluationResult.from_trajectories(panel, trajectories, optima), trajectories
