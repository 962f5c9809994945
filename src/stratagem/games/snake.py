"""Snake with simultaneous moves: two or more snakes on one board, apples that feed or poison.

Setting of Dilkes et al. 2025 (arXiv:2508.10839): 10x10, five apples worth +1 (Snake-Standard) or -1 (Snake-Poison), one
enemy that moves at random among moves that are not foolish, a collision gives -3 and ends the game. The paper gives no
round limit; 100 is the one of SnakeBench, from which the game comes.

One round, exactly:

1. Every living snake names its new head cell at once. ``None`` ("no action") keeps a snake where it is for the round.
2. Snakes that move to one and the same cell die.
3. Any other snake that moves off the board, or onto a cell that a snake covers *before* the round, dies; tails count,
   also its own, and so do snakes that die in this round. A snake that stays does not die of being run into.
4. The others move. On an apple a snake grows by one (it keeps its tail), poisonous or not; otherwise the tail follows.
5. Dead snakes leave the board; eaten apples come back on random free cells.

The game ends when player 0 dies or at most one snake is left (none in a game for one); at ``max_steps`` rounds it is
truncated. A dead player's only action is ``None``.

A cell is the integer ``y * width + x`` with (0, 0) at the bottom left and up = y + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from stratagem.errors import ConfigError, GameError
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.games.snake_text import RELATIVE_RULES, relative_lines
from stratagem.seeding import generator

__all__ = [
    "ACTIONS",
    "Outcome",
    "Snake",
    "State",
    "advance",
    "grow",
    "neighbours",
    "place_apples",
    "plan",
    "sensible_moves",
]

ACTIONS = ("up", "down", "left", "right")

WALL = -1
"""Where a move off the board leads."""


class State(NamedTuple):
    """What the rules look at."""

    snakes: tuple[tuple[int, ...], ...]
    """Cells of each snake from head to tail; empty when it is dead."""
    apples: tuple[int, ...]
    """Cells of the apples, sorted."""


class Outcome(NamedTuple):
    """What one round led to, before apples come back."""

    state: State
    ate: tuple[bool, ...]
    """Whether each snake ate."""
    causes: tuple[str | None, ...]
    """Why each snake died in this round: head_on, wall, self or snake; None for one that did not."""


@lru_cache(maxsize=64)
def neighbours(width: int, height: int) -> tuple[tuple[int, int, int, int], ...]:
    """Return for each cell where each of ``ACTIONS`` leads, ``WALL`` off the board.

    >>> neighbours(2, 2)[0]
    (2, -1, -1, 1)
    """
    return tuple(
        (
            cell + width if cell + width < width * height else WALL,
            cell - width if cell >= width else WALL,
            cell - 1 if cell % width else WALL,
            cell + 1 if (cell + 1) % width else WALL,
        )
        for cell in range(width * height)
    )


def advance(state: State, actions: Sequence[str | None], table: Sequence[Sequence[int]]) -> Outcome:
    """Play rules 1 to 4 (and the first half of 5).

    Args:
        state: before the round.
        actions: a word or None for each snake; that of a dead one is not looked at.
        table: :func:`neighbours` of the board.
    """
    snakes, apples = state
    targets = [
        table[snake[0]][ACTIONS.index(action)] if snake and action is not None else None
        for snake, action in zip(snakes, actions, strict=True)
    ]
    causes: list[str | None] = []
    after: list[tuple[int, ...]] = []
    ate: list[bool] = []
    for snake, target in zip(snakes, targets, strict=True):
        cause = None
        if target is None:
            pass
        elif target == WALL:
            cause = "wall"
        elif targets.count(target) > 1:
            cause = "head_on"
        elif target in snake:
            cause = "self"
        elif any(target in other for other in snakes):
            cause = "snake"
        fed = target is not None and cause is None and target in apples
        causes.append(cause)
        ate.append(fed)
        if cause is not None:
            after.append(())
        elif target is None:
            after.append(snake)
        else:
            after.append((target, *snake) if fed else (target, *snake[:-1]))
    if any(ate):
        eaten = {snake[0] for snake, fed in zip(after, ate, strict=True) if fed}
        apples = tuple(cell for cell in apples if cell not in eaten)
    return Outcome(State(tuple(after), apples), tuple(ate), tuple(causes))


def place_apples(state: State, count: int, num_cells: int, rng: np.random.Generator) -> State:
    """Put ``count`` apples on random free cells, fewer where the board is full."""
    taken = {cell for snake in state.snakes for cell in snake} | set(state.apples)
    free = [cell for cell in range(num_cells) if cell not in taken]
    chosen = [free.pop(int(rng.integers(len(free)))) for _ in range(min(count, len(free)))]
    return State(state.snakes, tuple(sorted((*state.apples, *chosen))))


def grow(
    heads: Sequence[tuple[int, ...]],
    taken: set[int],
    length: int,
    table: Sequence[Sequence[int]],
    rng: np.random.Generator,
) -> tuple[tuple[int, ...], ...]:
    """Return snakes of 1 to ``length`` cells that lie on random paths from their heads, shorter where there is no room.

    Args:
        heads: the head of each snake.
        taken: other cells that are not free.
        length: the most cells of a snake.
        table: :func:`neighbours` of the board.
        rng: chooses lengths and paths.
    """
    covered = {head for snake in heads for head in snake} | taken
    snakes = []
    for snake in heads:
        for _ in range(int(rng.integers(length))):
            free = [cell for cell in table[snake[-1]] if cell != WALL and cell not in covered]
            if not free:
                break
            snake = (*snake, free[int(rng.integers(len(free)))])
            covered.add(snake[-1])
        snakes.append(snake)
    return tuple(snakes)


def sensible_moves(snake: Sequence[int], table: Sequence[Sequence[int]]) -> list[str]:
    """Return the moves that neither leave the board nor enter the snake's own body.

    The tail of a snake longer than two does not count as body, although rule 3 makes stepping on it fatal: this is the
    published enemy, which is not perfect. Other snakes are not looked at.
    """
    body = snake[:-1] if len(snake) > 2 else snake
    return [
        word for word, target in zip(ACTIONS, table[snake[0]], strict=True) if target != WALL and target not in body
    ]


def plan(state: State, player: int, table: Sequence[Sequence[int]], *, poison: bool = False) -> str:
    """Return the first move towards the nearest apple; without one to reach (or poisonous ones) the roomiest move.

    Moves that are at once fatal are left out, then those to a cell that another snake may enter in the same round, then
    those into a pocket smaller than the snake; a rule that would leave no move is skipped. Among equals the first of
    ``ACTIONS``.
    """
    snake = state.snakes[player]
    covered = {cell for other in state.snakes for cell in other}
    blocked = covered | set(state.apples) if poison else covered
    contested = {
        cell for seat, other in enumerate(state.snakes) if other and seat != player for cell in table[other[0]]
    }
    moves = {
        word: target
        for word, target in zip(ACTIONS, table[snake[0]], strict=True)
        if target != WALL and target not in covered
    }
    room = {word: len(_distances(target, blocked, table)) for word, target in moves.items()}
    for keep in (
        {word for word in moves if not (poison and moves[word] in state.apples)},
        {word for word in moves if moves[word] not in contested},
        {word for word in moves if room[word] > len(snake)},
    ):
        moves = {word: target for word, target in moves.items() if word in keep} or moves
    if not moves:
        return ACTIONS[0]
    if not poison:
        reach = {}
        for word, target in moves.items():
            distances = _distances(target, blocked, table)
            reach[word] = min((distances[cell] for cell in state.apples if cell in distances), default=len(table))
        if min(reach.values()) < len(table):
            return min(reach, key=lambda word: reach[word])
    return max(moves, key=lambda word: room[word])


def _distances(start: int, blocked: set[int], table: Sequence[Sequence[int]]) -> dict[int, int]:
    # Breadth-first: the steps from start to each cell that can be reached without entering blocked ones.
    distances = {start: 0}
    queue = [start]
    for cell in queue:
        for target in table[cell]:
            if target != WALL and target not in blocked and target not in distances:
                distances[target] = distances[cell] + 1
                queue.append(target)
    return distances


@lru_cache(maxsize=64)
def _labels(width: int, height: int) -> tuple[str, ...]:
    return tuple(f"({cell % width}, {cell // width})" for cell in range(width * height))


def _points(value: float) -> str:
    return f"{abs(value):g} point" + ("" if abs(value) == 1 else "s")


_END = "The game ends when your snake or every enemy is dead."


class Snake(Game):
    """Two or more snakes; see the module for the rules. Player 0 is the one whose death ends the game."""

    name = "snake"

    def __init__(
        self,
        *,
        width: int = 10,
        height: int = 10,
        num_snakes: int = 2,
        num_apples: int = 5,
        start_length: int = 1,
        apple_reward: float = 1.0,
        death_reward: float = -3.0,
        step_reward: float = 0.0,
        max_steps: int = 100,
        coordinates: bool = True,
        grid: bool = True,
        relative: bool = False,
    ) -> None:
        """Set the rules.

        Args:
            width: columns.
            height: rows.
            num_snakes: players.
            num_apples: apples on the board at any time (fewer once it is full).
            start_length: cells of a snake at the start, at most: each begins with 1 to this many, lying as there is
                room. The paper has 1; more gives short training games positions that are late in whole ones.
            apple_reward: for eating one; negative means poisonous, and the text says so.
            death_reward: for dying.
            step_reward: for each round that a player is alive at its start; the paper has none.
            max_steps: an episode is truncated after this many rounds.
            coordinates: show positions as coordinates.
            grid: show the board as a grid.
            relative: say what is beside the head and how far apples and enemies are from it.
        """
        for key, value in (("width", width), ("height", height)):
            if not 2 <= value <= 50:
                raise ConfigError(f"{key}={value!r} is not a playable board; set {key} between 2 and 50.")
        if not 1 <= num_snakes <= 9:
            raise ConfigError(f"num_snakes={num_snakes!r} cannot be played; set num_snakes between 1 and 9.")
        if num_apples < 0 or num_apples + num_snakes > width * height:
            raise ConfigError(
                f"num_apples={num_apples!r} does not fit a board of {width * height} cells with {num_snakes} snake(s); "
                f"set num_apples between 0 and {width * height - num_snakes}."
            )
        if start_length < 1:
            raise ConfigError(f"start_length={start_length!r} leaves no snake; set start_length to 1 or more.")
        if max_steps < 1:
            raise ConfigError(f"max_steps={max_steps!r} leaves no round to play; set max_steps to 1 or more.")
        if not (coordinates or grid or relative):
            raise ConfigError(
                "coordinates=False, grid=False and relative=False leave nothing to see; set at least one to True."
            )
        self.width = width
        self.height = height
        self.num_players = num_snakes
        self.num_apples = num_apples
        self.start_length = start_length
        self.apple_reward = apple_reward
        self.death_reward = death_reward
        self.step_reward = step_reward
        self.max_steps = max_steps
        self.coordinates = coordinates
        self.grid = grid
        self.relative = relative
        self._table = neighbours(width, height)
        self._labels = _labels(width, height)
        self._fixed_text = self._rules()
        self._state: State | None = None
        self._rng: np.random.Generator | None = None
        self._steps = 0
        self._over = False
        self._apples_eaten = [0] * num_snakes
        self._causes: list[str | None] = [None] * num_snakes

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Place apples and snakes by ``seed``; where eaten apples come back depends on ``seed`` and ``course``."""
        rng = generator(int(seed), "snake", "start")
        order = rng.permutation(len(self._table)).tolist()
        apples, heads = order[: self.num_apples], order[self.num_apples : self.num_apples + self.num_players]
        snakes: tuple[tuple[int, ...], ...] = tuple((head,) for head in heads)
        if self.start_length > 1:
            snakes = grow(snakes, set(apples), self.start_length, self._table, rng)
        self._state = State(snakes, tuple(sorted(apples)))
        self._rng = generator(int(seed), "snake", "course", int(course))
        self._steps, self._over = 0, False
        self._apples_eaten = [0] * self.num_players
        self._causes = [None] * self.num_players
        return tuple(self.observation(player) for player in range(self.num_players))

    def step(self, actions: Sequence[str | None]) -> GameStep:
        """Play one round."""
        check_joint_action(self, actions, started=self._state is not None, over=self._over)
        before = self._started()
        assert self._rng is not None
        state, ate, causes = advance(before, actions, self._table)
        if any(ate):
            state = place_apples(state, sum(ate), len(self._table), self._rng)
        rewards = []
        for player, snake in enumerate(before.snakes):
            reward = self.step_reward if snake else 0.0
            if ate[player]:
                reward += self.apple_reward
                self._apples_eaten[player] += 1
            if causes[player] is not None:
                reward += self.death_reward
                self._causes[player] = causes[player]
            rewards.append(reward)
        self._state = state
        self._steps += 1
        alive = sum(bool(snake) for snake in state.snakes)
        terminated = not state.snakes[0] or alive <= min(1, self.num_players - 1)
        truncated = not terminated and self._steps >= self.max_steps
        self._over = terminated or truncated
        observations = tuple(self.observation(player) for player in range(self.num_players))
        info = {"apples": tuple(self._apples_eaten), "cause": tuple(self._causes)}
        return GameStep(observations, tuple(rewards), terminated, truncated, info)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """Return all four words, fatal ones too; none for a dead player."""
        return () if self._over or not self._started().snakes[player] else ACTIONS

    def observation(self, player: int = 0) -> str:
        """Return rules, apples, enemies, the player's own snake and the grid; the player is always number 1."""
        state = self._started()
        labels = self._labels
        seats = [player, *(seat for seat in range(self.num_players) if seat != player)]
        lines = [self._fixed_text]
        if self.coordinates:
            lines.append(f"Apples: {', '.join([labels[cell] for cell in state.apples]) or 'none'}")
            for number, seat in enumerate(seats[1:], start=2):
                lines.append(f"Enemy snake {number}: {self._snake_text(state.snakes[seat])}")
            lines.append(f"Your snake 1: {self._snake_text(state.snakes[player])}")
        if self.relative:
            snakes = [state.snakes[seat] for seat in seats]
            moves = dict(zip(ACTIONS, self._table[snakes[0][0]], strict=True)) if snakes[0] else {}
            lines += relative_lines(snakes[0], snakes[1:], state.apples, moves, self.width)
        if self.grid:
            lines.append("State:")
            lines.append(self._grid_text(state, seats))
        return "\n".join(lines)

    def grid_observation(self, player: int = 0) -> np.ndarray:
        """Return uint8 planes [5, height, width], top row first.

        The planes are own head, own body, enemy heads, enemy bodies, apples.
        """
        state = self._started()
        planes = np.zeros((5, self.height * self.width), dtype=np.uint8)
        for seat, snake in enumerate(state.snakes):
            if snake:
                first = 0 if seat == player else 2
                planes[first, snake[0]] = 1
                planes[first + 1, list(snake[1:])] = 1
        planes[4, list(state.apples)] = 1
        return planes.reshape(5, self.height, self.width)[:, ::-1].copy()

    def state_key(self) -> str:
        """Return the cells of each snake from head to tail, and the apples."""
        state = self._started()
        snakes = ["".join(self._labels[cell] for cell in snake) or "dead" for snake in state.snakes]
        return (
            f"{self.width}x{self.height} {' | '.join(snakes)} apples {''.join(self._labels[c] for c in state.apples)}"
        )

    def render(self) -> str:
        """Return the grid as player 0 sees it."""
        return self._grid_text(self._started(), list(range(self.num_players)))

    def random_action(self, player: int, rng: Any) -> str:
        """Return a random move of :func:`sensible_moves`, any of the four where none is left."""
        snake = self._started().snakes[player]
        if not snake:
            raise GameError(f"player {player} of {self.name} is dead and has no action; give None for it.")
        moves = sensible_moves(snake, self._table) or ACTIONS
        return moves[int(rng.integers(len(moves)))]

    def planner_action(self, player: int = 0) -> str | None:
        """Return the move of :func:`plan`; None for a dead player."""
        if not self.legal_actions(player):
            return None
        return plan(self._started(), player, self._table, poison=self.apple_reward < 0)

    def _started(self) -> State:
        if self._state is None:
            raise GameError(f"{self.name} has not been started; call reset(seed=...) first.")
        return self._state

    def _snake_text(self, snake: tuple[int, ...]) -> str:
        if not snake:
            return "dead"
        body = ", ".join([self._labels[cell] for cell in snake[1:]])
        return f"head {self._labels[snake[0]]}, body {body or 'none'}"

    def _grid_text(self, state: State, seats: Sequence[int]) -> str:
        symbols = ["_"] * len(self._table)
        for cell in state.apples:
            symbols[cell] = "A"
        for number, seat in enumerate(seats, start=1):
            snake = state.snakes[seat]
            for cell in snake[1:]:
                symbols[cell] = "T"
            if snake:
                symbols[snake[0]] = str(number)
        width = self.width
        return "\n".join([" ".join(symbols[row : row + width]) for row in range((self.height - 1) * width, -1, -width)])

    def _rules(self) -> str:
        # Equal beginnings of prompts are computed once: what never changes stands before the state.
        enemies = {1: "You are alone on the board.", 2: "An enemy snake (2) moves at the same time."}.get(
            self.num_players, f"Enemy snakes (2 to {self.num_players}) move at the same time."
        )
        if self.apple_reward < 0:
            apples = f"Apples are poisonous: eating one loses {_points(self.apple_reward)} and adds one body segment."
            goal = "Guide your snake so that it stays alive and eats no apples."
        else:
            apples = f"Eating an apple gains {_points(self.apple_reward)} and adds one body segment."
            goal = "Guide your snake to eat apples and stay alive."
        death = f" and {'loses' if self.death_reward < 0 else 'gains'} {_points(self.death_reward)}"
        lines = [
            goal,
            "[Available Actions]",
            *(f'"{word}"' for word in ACTIONS),
            "[Rules]",
            f"Each action moves your snake one space. {enemies}",
            apples,
            f"Your snake dies when it hits a wall, a snake or its own body{death if self.death_reward else ''}.",
            "The game ends when your snake is dead." if self.num_players == 1 else _END,
        ]
        if self.coordinates:
            lines.append(
                f"Cells are (x, y): (0, 0) is bottom left, ({self.width - 1}, {self.height - 1}) is top right. "
                "Right adds 1 to x, up adds 1 to y."
            )
        if self.relative:
            lines.append(RELATIVE_RULES)
        if self.grid:
            enemy = {1: "", 2: "2 enemy head, "}.get(self.num_players, f"2 to {self.num_players} enemy heads, ")
            lines.append(f"Symbols: 1 your head, {enemy}T body, A apple, _ empty.")
        return "\n".join(lines)
