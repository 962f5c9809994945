"""Expert episodes with annotations, for the games that have rules for it."""

from __future__ import annotations

from collections.abc import Callable

from stratagem.data import alfworld_annotations, scienceworld_annotations
from stratagem.data.annotations import AnnotatedEpisode
from stratagem.errors import ConfigError
from stratagem.games.base import Game

__all__ = ["RULES", "expert_episodes"]

RULES: dict[str, Callable[..., list[AnnotatedEpisode]]] = {
    "alfworld": alfworld_annotations.expert_episodes,
    "scienceworld": scienceworld_annotations.expert_episodes,
}
"""Game -> what plays and annotates its expert."""


def expert_episodes(
    make_game: Callable[[], Game], count: int, *, seed: int, excluded_starts: frozenset[str] = frozenset()
) -> list[AnnotatedEpisode]:
    """Return annotated expert episodes, each from its own start.

    Args:
        make_game: makes a game of :data:`RULES`.
        count: episodes.
        seed: of the run.
        excluded_starts: state keys at which no episode may start.

    Raises:
        ConfigError: another game, for which there are no rules.
        GameError: the expert fails too often.
    """
    game = make_game()
    name = game.name
    game.close()
    if name not in RULES:
        raise ConfigError(
            f"There are rules to annotate {', '.join(RULES)} and none for game {name!r}; set algorithm.annotations to "
            "a file (docs/algorithms/step_hrl.md), or play one of these games."
        )
    return RULES[name](make_game, count, seed=seed, excluded_starts=excluded_starts)
