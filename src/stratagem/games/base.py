"""The text-mediated stochastic game (TMSG): what a game is, and how one is made by name.

A game is the tuple (P, S, A, Omega, O, P, R) of Dilkes et al. 2025 (arXiv:2508.10839): ``num_players`` seats, a hidden
state that the object owns, joint actions, and for each seat one text observation and one reward per step. Actions are
words. Rules are pure functions above the class in each game's file; the class only holds the state.

Randomness: ``reset(seed=..., course=...)`` fixes everything. ``seed`` alone fixes the start state; ``(seed, course)``
fixes what happens by chance afterwards. Games never touch a global generator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratagem.errors import GameError

__all__ = ["Game", "GameStep", "check_joint_action"]


@dataclass(frozen=True)
class GameStep:
    """What one joint action led to."""

    observations: tuple[str, ...]
    """One text for each player."""
    rewards: tuple[float, ...]
    """One number for each player."""
    terminated: bool
    """The new state is terminal."""
    truncated: bool
    """The game's own step limit was reached in a state that is not terminal."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """``success`` (bool) where the game knows one at its end; anything else the game wants to show."""


class Game(ABC):
    """A text game for one or more players.

    An author writes ``reset``, ``step``, ``legal_actions``, ``observation``, ``state_key`` and ``render``;
    :func:`stratagem.games.checks.check_game` says what was forgotten.
    """

    name: str
    """The name in :func:`stratagem.games.make`."""
    num_players: int = 1
    max_steps: int = 100
    """The game truncates an episode after this many steps."""
    max_concurrent: int | None = None
    """So many games at most are played at once in a process, where each holds much; None is no limit."""

    @abstractmethod
    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Start an episode and return one observation for each player.

        Args:
            seed: fixes the start state.
            course: with ``seed`` fixes everything random after the start.
        """

    @abstractmethod
    def step(self, actions: Sequence[str | None]) -> GameStep:
        """Apply one joint action: one word for each player, ``None`` for "no action".

        Raises:
            GameError: before ``reset``, after the end, or for a word that is not legal for that player.
        """

    @abstractmethod
    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """Return the words that ``player`` may choose in this state; empty after the end."""

    @abstractmethod
    def observation(self, player: int = 0) -> str:
        """Return what ``player`` sees now: static rules first, then the state (coordinates and grid)."""

    @abstractmethod
    def state_key(self) -> str:
        """Return the true state as text without step counters or history; equal states give equal keys."""

    @abstractmethod
    def render(self) -> str:
        """Return a picture of the state for people, as plain text."""

    @property
    def num_starts(self) -> int | None:
        """How many start states there are where seeds 0 to ``num_starts - 1`` start in each once; None elsewhere."""
        return None

    def default_opponent(self, player: int) -> str:
        """Return the name of the policy that plays seat ``player`` unless a user says otherwise."""
        return "random"

    def random_action(self, player: int, rng: Any) -> str:
        """Return a random legal word (a game may narrow this to "random but not foolish")."""
        legal = self.legal_actions(player)
        return legal[int(rng.integers(len(legal)))]

    def planner_action(self, player: int = 0) -> str | None:
        """Return a good action by search, or ``None`` where the game has no planner."""
        return None

    def optimal_return(self, *, gamma: float = 1.0) -> float | None:
        """Return the best expected return from the current state, or ``None`` where it is not computed."""
        return None

    def close(self) -> None:
        """Release what the game holds (processes, files); called once, safe to call again."""
        return None


def check_joint_action(game: Game, actions: Sequence[str | None], *, started: bool, over: bool) -> None:
    """Refuse what :meth:`Game.step` must refuse; games call it first in ``step``.

    Args:
        game: the game that is asked to step; its ``legal_actions`` are those of the state before the step.
        actions: what ``step`` was given.
        started: ``reset`` was called.
        over: the episode has ended.

    Raises:
        GameError: before ``reset``, after the end, for a wrong number of actions or a word that is not legal.
    """
    if not started:
        raise GameError(f"{game.name} has not been started; call reset(seed=...) first.")
    if over:
        raise GameError(f"{game.name} has ended; call reset(seed=...) to play again.")
    if len(actions) != game.num_players:
        raise GameError(
            f"actions={actions!r} has {len(actions)} entries for {game.num_players} player(s) of {game.name}; "
            "give one word or None for each player."
        )
    for player, action in enumerate(actions):
        if action is not None and action not in (legal := game.legal_actions(player)):
            raise GameError(
                f"action={action!r} of player {player} is not legal in {game.name}; "
                f"use one of {', '.join(legal) or 'none'}, or None for no action."
            )
