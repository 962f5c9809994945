"""Many boards of Snake in one array: the rules of :mod:`stratagem.games.snake`, thousands of times as often.

For baselines that need millions of steps and no text. A test plays both side by side, round for round. Boards have
the same start states and chances, but their random numbers come from one stream for the whole batch, so an episode here
is not the episode of a seed in :class:`stratagem.games.snake.Snake`.

A snake is one number for each cell: how many rounds the cell stays covered if the snake eats nothing, so its length at
the head, 1 at the tail and 0 elsewhere.

Shapes: B boards, P players, C cells, H and W rows and columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stratagem.errors import ConfigError
from stratagem.games.snake import WALL, Snake, State, neighbours
from stratagem.seeding import Part, generator

__all__ = ["CAUSES", "NO_ACTION", "BatchOutcome", "BatchState", "SnakeBatch", "advance_batch", "sensible_actions"]

NO_ACTION = -1
"""An action that is none: the snake stays."""

DEAD = -1
"""Head of a dead snake."""

CAUSES = (None, "wall", "head_on", "self", "snake")
"""What the numbers of :attr:`BatchOutcome.causes` mean."""


class BatchState(NamedTuple):
    """What the rules look at."""

    cover: np.ndarray
    """int16 [B, P, C]: rounds that a cell stays covered by a snake."""
    heads: np.ndarray
    """int64 [B, P]: cells of the heads, ``DEAD`` for a dead snake."""
    apples: np.ndarray
    """bool [B, C]."""

    def board(self, index: int) -> State:
        """Return one board as the rules of a single game see it."""
        snakes = []
        for cover in self.cover[index]:
            cells = np.flatnonzero(cover)
            snakes.append(tuple(cells[np.argsort(-cover[cells])].tolist()))
        return State(tuple(snakes), tuple(np.flatnonzero(self.apples[index]).tolist()))


class BatchOutcome(NamedTuple):
    """What one round led to, before apples come back."""

    state: BatchState
    ate: np.ndarray
    """bool [B, P]."""
    causes: np.ndarray
    """int64 [B, P]: place in ``CAUSES``."""


def advance_batch(state: BatchState, actions: np.ndarray, table: np.ndarray) -> BatchOutcome:
    """Play rules 1 to 4 (and the first half of 5) on every board; the given state is left as it is.

    Args:
        state: before the round.
        actions: int [B, P]: place in ``ACTIONS`` or ``NO_ACTION``; that of a dead snake is not looked at.
        table: int [C, 4]: :func:`stratagem.games.snake.neighbours` of the board.
    """
    cover, heads, apples = state
    num_boards, num_players = heads.shape
    acting = (heads != DEAD) & (actions != NO_ACTION)
    # A snake that does not act has a target of its own that no other one can have: nobody can meet it there.
    targets = np.where(acting, table[heads, actions], -2 - np.arange(num_players))
    inside = targets >= 0
    cells = np.where(inside, targets, 0)
    boards = np.arange(num_boards)[:, None]
    players = np.arange(num_players)[None, :]
    covered = cover.max(axis=1) > 0
    meets = (targets[:, :, None] == targets[:, None, :]).sum(axis=2) > 1
    # The first that holds: wall, head on, own body, another snake.
    causes = np.where(inside & covered[boards, cells], 4, 0)
    causes[inside & (cover[boards, players, cells] > 0)] = 3
    causes[inside & meets] = 2
    causes[targets == WALL] = 1
    moved = acting & (causes == 0)
    ate = moved & apples[boards, cells]
    lengths = cover.max(axis=2)
    after = cover - ((moved & ~ate)[:, :, None] & (cover > 0))
    board, player = np.nonzero(moved)
    after[board, player, targets[board, player]] = (lengths + ate)[board, player]
    after[causes > 0] = 0
    new_heads = np.where(moved, targets, heads)
    new_heads[causes > 0] = DEAD
    left = apples.copy()
    board, player = np.nonzero(ate)
    left[board, targets[board, player]] = False
    return BatchOutcome(BatchState(after, new_heads, left), ate, causes)


def sensible_actions(state: BatchState, table: np.ndarray) -> np.ndarray:
    """Return bool [B, P, 4]: the moves of :func:`stratagem.games.snake.sensible_moves`; all False for a dead snake."""
    cover, heads, _ = state
    alive = heads != DEAD
    targets = table[np.where(alive, heads, 0)]
    inside = targets != WALL
    boards = np.arange(len(heads))[:, None, None]
    players = np.arange(heads.shape[1])[None, :, None]
    there = cover[boards, players, np.where(inside, targets, 0)]
    # The tail (1 round left) does not count for a snake longer than two.
    tail = (cover.max(axis=2) > 2).astype(cover.dtype)
    allowed: np.ndarray = inside & (there <= tail[:, :, None]) & alive[:, :, None]
    return allowed


class SnakeBatch:
    """``num_boards`` games of Snake that go on side by side; an ended board starts anew in :meth:`restart`."""

    def __init__(self, num_boards: int, *address: Part, **params: Any) -> None:
        """Set the rules and start every board.

        Args:
            num_boards: B.
            address: of the random numbers; equal addresses give equal batches.
            params: settings of :class:`stratagem.games.snake.Snake`.

        Raises:
            ConfigError: a setting of the game is wrong, or there is no board.
        """
        if num_boards < 1:
            raise ConfigError(f"num_boards={num_boards!r} plays nothing; set it to 1 or more.")
        rules = Snake(**params)
        self.rules = rules
        self.num_boards = num_boards
        self.table = np.array(neighbours(rules.width, rules.height), dtype=np.int64)
        self._rng = generator("snake_batch", *address)
        cells = len(self.table)
        self.state = BatchState(
            np.zeros((num_boards, rules.num_players, cells), dtype=np.int16),
            np.full((num_boards, rules.num_players), DEAD, dtype=np.int64),
            np.zeros((num_boards, cells), dtype=bool),
        )
        self.steps = np.zeros(num_boards, dtype=np.int64)
        self.restart(np.ones(num_boards, dtype=bool))

    def restart(self, which: np.ndarray) -> None:
        """Start the boards of a bool mask [B] anew: apples and heads on random cells, as :meth:`Snake.reset` does."""
        rows = np.flatnonzero(which)
        if not len(rows):
            return
        cover, heads, apples = self.state
        order = np.argsort(self._rng.random((len(rows), len(self.table))), axis=1)
        eaten, players = self.rules.num_apples, self.rules.num_players
        cover[rows] = 0
        heads[rows] = order[:, eaten : eaten + players]
        cover[rows[:, None], np.arange(players)[None, :], heads[rows]] = 1
        apples[rows] = False
        apples[rows[:, None], order[:, :eaten]] = True
        self.steps[rows] = 0

    def opponent_actions(self) -> np.ndarray:
        """Return int [B, P - 1]: a random sensible move for each enemy, any of the four where none is left."""
        allowed = sensible_actions(self.state, self.table)[:, 1:]
        # All four have the same handicap where none is allowed.
        chosen: np.ndarray = np.argmax(self._rng.random(allowed.shape) + allowed, axis=2)
        return chosen

    def step(
        self, actions: np.ndarray, opponents: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Play one round on every board; ended ones must be started anew before the next.

        Args:
            actions: int [B]: moves of player 0.
            opponents: int [B, P - 1]: those of the others; None lets them move at random.

        Returns:
            Rewards of player 0 (float64 [B]), terminated, truncated (bool [B]), and causes of death (int64 [B, P]).
        """
        rules = self.rules
        others = self.opponent_actions() if opponents is None else opponents
        joint = np.concatenate([np.asarray(actions, dtype=np.int64)[:, None], others], axis=1)
        self.state, ate, causes = advance_batch(self.state, joint, self.table)
        self._place(ate.sum(axis=1))
        rewards = rules.step_reward + rules.apple_reward * ate[:, 0] + rules.death_reward * (causes[:, 0] > 0)
        self.steps += 1
        alive = self.state.heads != DEAD
        terminated = ~alive[:, 0] | (alive.sum(axis=1) <= min(1, rules.num_players - 1))
        truncated = ~terminated & (self.steps >= rules.max_steps)
        return rewards, terminated, truncated, causes

    def _place(self, counts: np.ndarray) -> None:
        """Put so many apples (int [B]) on random free cells of each board, fewer where it is full."""
        for already in range(int(counts.max(initial=0))):
            rows = np.flatnonzero(counts > already)
            cover, _, apples = self.state
            taken = cover[rows].any(axis=1) | apples[rows]
            cells = np.argmax(self._rng.random(taken.shape) - taken, axis=1)
            free = ~taken[np.arange(len(rows)), cells]
            apples[rows[free], cells[free]] = True

    def grids(self) -> np.ndarray:
        """Return uint8 [B, 5, H, W]: :meth:`stratagem.games.snake.Snake.grid_observation` of player 0 on each board."""
        cover, heads, apples = self.state
        planes = np.zeros((self.num_boards, 5, len(self.table)), dtype=np.uint8)
        covered = cover > 0
        planes[:, 1] = covered[:, 0]
        planes[:, 3] = covered[:, 1:].any(axis=1)
        planes[:, 4] = apples
        board, player = np.nonzero(heads != DEAD)
        cells = heads[board, player]
        own = player == 0
        planes[board, np.where(own, 0, 2), cells] = 1
        planes[board, np.where(own, 1, 3), cells] = 0
        shaped = planes.reshape(self.num_boards, 5, self.rules.height, self.rules.width)
        return np.ascontiguousarray(shaped[:, :, ::-1])
