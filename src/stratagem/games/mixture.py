"""Several variants of one game in training: each start belongs to one of them, drawn by its seed.

An agent that only ever meets one set of rules need not read them: trained on Snake with apples worth +1, it goes on
eating where the rules say that they are poison (Dilkes et al. 2025, arXiv:2508.10839, table 1). The episodes of a group
share their start, and so their rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratagem.errors import ConfigError
from stratagem.games.base import Game, GameStep
from stratagem.seeding import generator

__all__ = ["Mixture"]


class Mixture(Game):
    """Plays one of its games, from ``reset`` to ``reset``."""

    def __init__(self, games: Sequence[Game]) -> None:
        """Wrap games that have as many players as each other.

        Raises:
            ConfigError: there is none, or they differ.
        """
        if len({game.num_players for game in games}) != 1:
            raise ConfigError(
                f"A mixture of games for {[game.num_players for game in games]} players; give one game or more, all "
                "for as many players."
            )
        self.games = tuple(games)
        self.current = self.games[0]
        """The one that is played."""
        self.name = self.current.name
        self.num_players = self.current.num_players
        self.max_steps = max(game.max_steps for game in games)
        limits = [game.max_concurrent for game in games if game.max_concurrent is not None]
        self.max_concurrent = min(limits, default=None)

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Start an episode of the game that the seed belongs to."""
        place = int(generator("mixture", seed).integers(len(self.games)))
        self.current = self.games[place]
        return self.current.reset(seed=seed, course=course)

    def step(self, actions: Sequence[str | None]) -> GameStep:
        """See :class:`Game`."""
        return self.current.step(actions)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """See :class:`Game`."""
        return self.current.legal_actions(player)

    def observation(self, player: int = 0) -> str:
        """See :class:`Game`."""
        return self.current.observation(player)

    def state_key(self) -> str:
        """Return that of the game, so that starts of a panel are known in every variant."""
        return self.current.state_key()

    def render(self) -> str:
        """See :class:`Game`."""
        return self.current.render()

    def default_opponent(self, player: int) -> str:
        """See :class:`Game`."""
        return self.current.default_opponent(player)

    def random_action(self, player: int, rng: Any) -> str:
        """See :class:`Game`."""
        return self.current.random_action(player, rng)

    def planner_action(self, player: int = 0) -> str | None:
        """See :class:`Game`."""
        return self.current.planner_action(player)

    def optimal_return(self, *, gamma: float = 1.0) -> float | None:
        """See :class:`Game`."""
        return self.current.optimal_return(gamma=gamma)

    def close(self) -> None:
        """Close all."""
        for game in self.games:
            game.close()
