"""Frozen Lake: reach the goal over ice with holes, with or without slipping.

The board generator and the dynamics are Gymnasium's own (``generate_random_map`` and the transition table of
``FrozenLakeEnv``); this file adds the text, the exact planner and the exact optimal return. Setting of Dilkes et al.
2025 (arXiv:2508.10839): 4x4, each tile a hole with probability 0.2, a path always exists, goal +1, a move against the
edge has no effect, slippery ice goes the chosen way and each perpendicular way with probability 1/3.

Differences from ``gymnasium.make("FrozenLake-v1")``: an episode is cut after ``max_steps=20`` steps, not 100, and
``None`` is "no action": nothing moves and the step counts.

A board is a tuple of rows from top to bottom, letters S (start) F (ice) H (hole) G (goal). State ``s`` is
``row * columns + column`` and action ``a`` indexes :data:`ACTIONS`, both as in Gymnasium. In texts a cell is (x, y)
with x the column and y counted from the bottom row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from stratagem.errors import ConfigError, GameError
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.seeding import generator

__all__ = [
    "ACTIONS",
    "Board",
    "FrozenLake",
    "generate_board",
    "observation_text",
    "optimal_action",
    "optimal_values",
    "shortest_safe_path",
    "transitions",
]

ACTIONS = ("left", "down", "right", "up")
"""The words in Gymnasium's order of action numbers."""

Board = tuple[str, ...]

TransitionTable = tuple[tuple[tuple[tuple[float, int, float, bool], ...], ...], ...]

TIE = 1e-12
"""Action values closer than this are equal; the first action in the order of ``ACTIONS`` wins."""


@lru_cache(maxsize=4096)
def generate_board(seed: int, *, size: int = 4, hole_probability: float = 0.2) -> Board:
    """Return the board that Gymnasium draws for ``seed``; a safe path from start to goal always exists.

    >>> generate_board(0)
    ('SFFF', 'HHFF', 'FHHF', 'HFFG')
    """
    from gymnasium.envs.toy_text.frozen_lake import generate_random_map

    return tuple(generate_random_map(size, p=1.0 - hole_probability, seed=seed))


@lru_cache(maxsize=4096)
def transitions(board: Board, *, slippery: bool, success_rate: float = 1 / 3) -> TransitionTable:
    """Return Gymnasium's dynamics as ``table[state][action] = ((probability, next state, reward, terminal), ...)``."""
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

    table = FrozenLakeEnv(desc=list(board), is_slippery=slippery, success_rate=success_rate).unwrapped.P
    return tuple(
        tuple(
            tuple((float(p), int(s), float(r), bool(end)) for p, s, r, end in table[state][action])
            for action in range(len(ACTIONS))
        )
        for state in range(len(table))
    )


@lru_cache(maxsize=1024)
def optimal_values(
    board: Board, *, slippery: bool, success_rate: float = 1 / 3, horizon: int = 20, gamma: float = 1.0
) -> tuple[tuple[float, ...], ...]:
    r"""Return the exact best expected return ``values[h][s]`` with ``h`` steps left, for h = 0 .. horizon.

    .. math:: V_0(s) = 0, \qquad V_h(s) = \max_a \sum_{s'} P(s'|s,a)\,[r + \gamma V_{h-1}(s')]

    with the value of terminal states 0. "No action" is left out: with rewards that are never negative it is never
    better than the best move.

    >>> optimal_values(("SF", "HG"), slippery=False, horizon=2)[2][0]
    1.0
    """
    table = transitions(board, slippery=slippery, success_rate=success_rate)
    values = [(0.0,) * len(table)]
    for _ in range(horizon):
        values.append(
            tuple(max(_action_value(outcomes, values[-1], gamma) for outcomes in table[s]) for s in range(len(table)))
        )
    return tuple(values)


def _action_value(
    outcomes: Sequence[tuple[float, int, float, bool]], next_values: Sequence[float], gamma: float
) -> float:
    return sum(p * (reward + (0.0 if end else gamma * next_values[s])) for p, s, reward, end in outcomes)


def optimal_action(
    outcomes_by_action: Sequence[Sequence[tuple[float, int, float, bool]]],
    next_values: Sequence[float],
    *,
    gamma: float = 1.0,
) -> str:
    """Return the action of highest value in one state; the first of ``ACTIONS`` among equals.

    Args:
        outcomes_by_action: one row of :func:`transitions`.
        next_values: value of each state after the move, a row of :func:`optimal_values`.
        gamma: discount.
    """
    scores = [_action_value(outcomes, next_values, gamma) for outcomes in outcomes_by_action]
    return next(word for word, score in zip(ACTIONS, scores, strict=True) if score >= max(scores) - TIE)


def shortest_safe_path(board: Board, start: int = 0) -> tuple[str, ...] | None:
    """Return the fewest moves from ``start`` to a goal on ice that does not slip, or ``None`` where no path exists.

    Breadth-first; among shortest paths the first in the order of ``ACTIONS`` at each step.

    >>> shortest_safe_path(("SF", "HG"))
    ('right', 'down')
    """
    table = transitions(board, slippery=False)
    paths: dict[int, tuple[str, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for word, outcomes in zip(ACTIONS, table[state], strict=True):
            _, following, reward, end = outcomes[0]
            if reward > 0:
                return (*paths[state], word)
            if not end and following not in paths:
                paths[following] = (*paths[state], word)
                queue.append(following)
    return None


def _coordinates(board: Board, state: int) -> str:
    row, column = divmod(state, len(board[0]))
    return f"({column}, {len(board) - 1 - row})"


def _cells(board: Board, letter: str) -> str:
    letters = "".join(board)
    return ", ".join(_coordinates(board, s) for s in range(len(letters)) if letters[s] == letter) or "none"


def _grid(board: Board, state: int) -> str:
    symbols = ["OG_"["HG".find(letter) if letter in "HG" else 2] for letter in "".join(board)]
    symbols[state] = "P"
    width = len(board[0])
    return "\n".join(" ".join(symbols[row * width : (row + 1) * width]) for row in range(len(board)))


@lru_cache(maxsize=4096)
def _fixed_text(board: Board, slippery: bool, success_rate: float, coordinates: bool, grid: bool) -> str:
    # Equal beginnings of prompts are computed once, so: what never changes, then the board, then (elsewhere) the state.
    chance = Fraction(success_rate).limit_denominator(1000)
    lines = [
        "Guide the player over the frozen lake to the goal.",
        "[Available Actions]",
        *(f'"{word}"' for word in ("up", "down", "left", "right")),
        "[Rules]",
        "Each action moves one space. A move off the board does nothing.",
        "A hole ends the game with 0 points, the goal with 1 point.",
        (
            f"The ice is slippery: a move goes the chosen way with chance {chance}, "
            f"each perpendicular way with chance {(1 - chance) / 2}."
            if slippery
            else "The ice is not slippery: a move goes the chosen way."
        ),
    ]
    if coordinates:
        lines.append(
            f"Cells are (x, y): (0, 0) is bottom left, ({len(board[0]) - 1}, {len(board) - 1}) is top right. "
            "Right adds 1 to x, up adds 1 to y."
        )
    if grid:
        lines.append("Symbols: P player, O hole, G goal, _ ice.")
    if coordinates:
        lines += [f"Holes: {_cells(board, 'H')}", f"Goal: {_cells(board, 'G')}"]
    return "\n".join(lines)


def observation_text(
    board: Board,
    state: int,
    *,
    slippery: bool,
    success_rate: float = 1 / 3,
    coordinates: bool = True,
    grid: bool = True,
) -> str:
    """Return what the player reads: rules, then the board, then the position, then the grid."""
    lines = [_fixed_text(board, slippery, success_rate, coordinates, grid)]
    if coordinates:
        lines.append(f"Player position: {_coordinates(board, state)}")
    if grid:
        lines += ["State:", _grid(board, state)]
    return "\n".join(lines)


class FrozenLake(Game):
    """One player on a frozen lake; see the module for the rules."""

    name = "frozen_lake"

    def __init__(
        self,
        *,
        size: int = 4,
        hole_probability: float = 0.2,
        slippery: bool = False,
        board: Sequence[str] | None = None,
        max_steps: int = 20,
        success_rate: float = 1 / 3,
        coordinates: bool = True,
        grid: bool = True,
    ) -> None:
        """Set the rules.

        Args:
            size: rows and columns of a generated board.
            hole_probability: of each tile but start and goal, before boards without a path are thrown away.
            slippery: whether a move may go a perpendicular way.
            board: rows of S, F, H and G to play on instead of generated boards.
            max_steps: an episode is truncated after this many steps.
            success_rate: chance of the chosen way on slippery ice; the rest is split between the two sides.
            coordinates: show positions as coordinates.
            grid: show the board as a grid.
        """
        if not 2 <= size <= 16:
            raise ConfigError(f"size={size!r} is not a playable board; set size between 2 and 16.")
        if not 0.0 <= hole_probability <= 0.5:
            raise ConfigError(
                f"hole_probability={hole_probability!r} leaves (almost) no board with a path; "
                "set hole_probability between 0 and 0.5."
            )
        if not 0.0 < success_rate <= 1.0:
            raise ConfigError(
                f"success_rate={success_rate!r} is not a chance of going the chosen way; "
                "set success_rate above 0 and at most 1."
            )
        if max_steps < 1:
            raise ConfigError(f"max_steps={max_steps!r} leaves no step to play; set max_steps to 1 or more.")
        if not (coordinates or grid):
            raise ConfigError("coordinates=False and grid=False leave nothing to see; set at least one to True.")
        self.size = size
        self.hole_probability = hole_probability
        self.slippery = slippery
        self.success_rate = success_rate
        self.max_steps = max_steps
        self.coordinates = coordinates
        self.grid = grid
        self.fixed_board = None if board is None else _checked_board(board)
        self._board: Board = ()
        self._state = 0
        self._steps = 0
        self._over = False
        self._table: TransitionTable = ()
        self._rng: np.random.Generator | None = None

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Start at the top left; the board depends on ``seed`` only, slips depend on ``seed`` and ``course``."""
        if seed < 0:
            raise ConfigError(f"seed={seed!r} is negative; use 0 or a positive integer.")
        self._board = self.fixed_board or generate_board(
            int(seed), size=self.size, hole_probability=self.hole_probability
        )
        self._table = transitions(self._board, slippery=self.slippery, success_rate=self.success_rate)
        self._rng = generator(int(seed), "frozen_lake", "course", int(course)) if self.slippery else None
        self._state, self._steps, self._over = 0, 0, False
        return (self.observation(),)

    def step(self, actions: Sequence[str | None]) -> GameStep:
        """Move the player; ``None`` moves nothing and the step counts."""
        check_joint_action(self, actions, started=bool(self._board), over=self._over)
        # One draw for each step, used or not: the luck of step t does not depend on what was done before it.
        luck = 0.0 if self._rng is None else float(self._rng.random())
        reward, terminated = 0.0, False
        if actions[0] is not None:
            outcomes = self._table[self._state][ACTIONS.index(actions[0])]
            _, self._state, reward, terminated = outcomes[_pick(luck, [outcome[0] for outcome in outcomes])]
        self._steps += 1
        truncated = not terminated and self._steps >= self.max_steps
        self._over = terminated or truncated
        info: dict[str, Any] = {"success": reward > 0} if self._over else {}
        return GameStep((self.observation(),), (reward,), terminated, truncated, info)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """Return all four words, also beside an edge."""
        self._require_start()
        return () if self._over else ACTIONS

    def observation(self, player: int = 0) -> str:
        """Return rules, board, position and grid as text."""
        self._require_start()
        return observation_text(
            self._board,
            self._state,
            slippery=self.slippery,
            success_rate=self.success_rate,
            coordinates=self.coordinates,
            grid=self.grid,
        )

    def grid_observation(self, player: int = 0) -> np.ndarray:
        """Return uint8 planes [3, rows, columns]: player, holes, goal."""
        self._require_start()
        letters = np.array([list(row) for row in self._board])
        player_plane = np.zeros(letters.shape, dtype=np.uint8)
        player_plane[divmod(self._state, letters.shape[1])] = 1
        return np.stack([player_plane, (letters == "H").astype(np.uint8), (letters == "G").astype(np.uint8)])

    def state_key(self) -> str:
        """Return board and position."""
        self._require_start()
        return f"{'/'.join(self._board)} {_coordinates(self._board, self._state)}"

    def render(self) -> str:
        """Return the grid."""
        self._require_start()
        return _grid(self._board, self._state)

    def planner_action(self, player: int = 0) -> str | None:
        """Return the next move of the shortest safe path or, on slippery ice, of the optimal policy."""
        self._require_start()
        if self._over:
            return None
        if self.slippery:
            return optimal_action(self._table[self._state], self._values()[self.max_steps - self._steps - 1])
        path = shortest_safe_path(self._board, self._state)
        assert path, "every board has a path and ice without slips can be walked back"
        return path[0]

    def optimal_return(self, *, gamma: float = 1.0) -> float | None:
        """Return the exact best expected return from here with the steps that are left."""
        self._require_start()
        if self._over:
            return 0.0
        return self._values(gamma)[self.max_steps - self._steps][self._state]

    def _values(self, gamma: float = 1.0) -> tuple[tuple[float, ...], ...]:
        return optimal_values(
            self._board,
            slippery=self.slippery,
            success_rate=self.success_rate,
            horizon=self.max_steps,
            gamma=gamma,
        )

    def _require_start(self) -> None:
        if not self._board:
            raise GameError(f"{self.name} has not been started; call reset(seed=...) first.")


def _pick(luck: float, probabilities: Sequence[float]) -> int:
    # Inverse CDF; the last outcome takes what rounding leaves over.
    for index, probability in enumerate(probabilities[:-1]):
        luck -= probability
        if luck < 0:
            return index
    return len(probabilities) - 1


def _checked_board(board: Sequence[str]) -> Board:
    rows = tuple(board)
    shown = "/".join(rows)
    if len(rows) < 2 or len(rows[0]) < 2 or any(len(row) != len(rows[0]) for row in rows):
        raise ConfigError(
            f"board={shown!r} is not a rectangle of at least 2x2; give rows of equal length, such as ('SFF', 'HFG')."
        )
    if set(shown) - set("SFHG/") or rows[0][0] != "S" or shown.count("S") != 1 or "G" not in shown:
        raise ConfigError(
            f"board={shown!r} needs one S at the top left, at least one G, and otherwise only F and H; "
            "such as ('SFF', 'HFG')."
        )
    if shortest_safe_path(rows) is None:
        raise ConfigError(f"board={shown!r} has no path from S to G that avoids the holes (H); open one with F.")
    return rows
