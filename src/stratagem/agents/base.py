"""Policies: anything that turns what a player sees into an action.

A policy of plain code subclasses :class:`Policy` and is handed the game itself, so that planners can look at the true
state. A language agent (:mod:`stratagem.agents.language`) sees the observation text only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from stratagem.errors import ConfigError, UnknownNameError
from stratagem.games.base import Game

__all__ = ["POLICIES", "PlannerPolicy", "Policy", "RandomPolicy", "make_policy"]


class Policy(ABC):
    """A policy that needs no language model."""

    name: str

    @abstractmethod
    def act(self, game: Game, player: int, observation: str, rng: np.random.Generator) -> str | None:
        """Return a legal action of ``player``, or ``None`` for no action; draw only from ``rng``."""


class RandomPolicy(Policy):
    """Play the game's own idea of a random action (Snake: random among moves that are not at once fatal)."""

    name = "random"

    def act(self, game: Game, player: int, observation: str, rng: np.random.Generator) -> str | None:
        """Return a random action."""
        return game.random_action(player, rng)


class PlannerPolicy(Policy):
    """Play the game's planner: shortest safe path, greedy breadth-first search, and so on."""

    name = "planner"

    def act(self, game: Game, player: int, observation: str, rng: np.random.Generator) -> str | None:
        """Return the planner's action.

        Raises:
            ConfigError: the game has no planner.
        """
        action = game.planner_action(player)
        if action is None:
            raise ConfigError(f"Game {game.name!r} has no planner for player {player}; choose another policy.")
        return action


POLICIES: dict[str, type[Policy]] = {"random": RandomPolicy, "planner": PlannerPolicy}


def make_policy(name: str) -> Policy:
    """Return a policy by name.

    Raises:
        UnknownNameError: no policy of that name; the nearest one is suggested.
    """
    if name not in POLICIES:
        raise UnknownNameError("policy", name, POLICIES)
    return POLICIES[name]()
