"""The batched Snake plays by the rules of the single one."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem.errors import ConfigError
from stratagem.games.snake import ACTIONS, Snake, State, neighbours, sensible_moves
from stratagem.games.snake_batch import CAUSES, NO_ACTION, BatchState, SnakeBatch, advance_batch, sensible_actions
from stratagem.seeding import generator


def batch_of(state: State, cells: int) -> BatchState:
    """Return a batch of one board."""
    cover = np.zeros((1, len(state.snakes), cells), dtype=np.int16)
    heads = np.full((1, len(state.snakes)), -1, dtype=np.int64)
    for player, snake in enumerate(state.snakes):
        for place, cell in enumerate(snake):
            cover[0, player, cell] = len(snake) - place
        if snake:
            heads[0, player] = snake[0]
    apples = np.zeros((1, cells), dtype=bool)
    apples[0, list(state.apples)] = True
    return BatchState(cover, heads, apples)


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(3, 6),
    height=st.integers(3, 6),
    num_snakes=st.integers(1, 4),
    num_apples=st.integers(0, 5),
    step_reward=st.sampled_from([0.0, -0.25]),
    seed=st.integers(0, 2**31),
    idle=st.booleans(),
)
def test_every_round_of_every_board_is_that_of_the_single_game(
    width: int, height: int, num_snakes: int, num_apples: int, step_reward: float, seed: int, idle: bool
) -> None:
    params = {
        "width": width, "height": height, "num_snakes": num_snakes, "num_apples": num_apples,
        "step_reward": step_reward, "max_steps": 12,
    }  # fmt: skip
    batch = SnakeBatch(4, seed, **params)
    games = [Snake(**params) for _ in range(4)]
    for index, game in enumerate(games):
        game.reset(seed=0)
        game._state = batch.state.board(index)
    rng = generator("test", seed)
    for _ in range(30):
        joint = rng.integers(NO_ACTION if idle else 0, 4, size=(4, num_snakes))
        before = [batch.state.board(index) for index in range(4)]
        rewards, terminated, truncated, causes = batch.step(joint[:, 0], joint[:, 1:])
        ended = terminated | truncated
        for index, game in enumerate(games):
            words = [
                ACTIONS[action] if snake and action != NO_ACTION else None
                for snake, action in zip(before[index].snakes, joint[index], strict=True)
            ]
            outcome = game.step(words)
            after, mine = game._started(), batch.state.board(index)
            assert mine.snakes == after.snakes
            assert len(mine.apples) == len(after.apples)
            assert not set(mine.apples) & {cell for snake in mine.snakes for cell in snake}
            # What was not eaten stays; where apples come back is drawn from other numbers.
            kept = set(before[index].apples) - {snake[0] for snake in after.snakes if snake}
            assert kept <= set(mine.apples)
            assert rewards[index] == outcome.rewards[0]
            assert (terminated[index], truncated[index]) == (outcome.terminated, outcome.truncated)
            died = [CAUSES[cause] for cause in causes[index]]
            assert [c for c, snake in zip(died, before[index].snakes, strict=True) if snake] == [
                c for c, snake in zip(outcome.info["cause"], before[index].snakes, strict=True) if snake
            ]
            game._state = mine
            assert (batch.grids()[index] == game.grid_observation()).all()
        batch.restart(ended)
        for index in np.flatnonzero(ended):
            games[index].reset(seed=0)
            games[index]._state = batch.state.board(int(index))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), length=st.integers(1, 6))
def test_sensible_moves_are_those_of_the_single_game(seed: int, length: int) -> None:
    table = neighbours(4, 4)
    rng = generator("test", seed)
    snake = [int(rng.integers(16))]
    while len(snake) < length:
        free = [cell for cell in table[snake[0]] if cell >= 0 and cell not in snake]
        if not free:
            break
        snake.insert(0, free[int(rng.integers(len(free)))])
    state = batch_of(State((tuple(snake), ()), ()), 16)
    allowed = sensible_actions(state, np.array(table))
    words = [word for word, good in zip(ACTIONS, allowed[0, 0], strict=True) if good]
    assert words == sensible_moves(snake, table)
    assert not allowed[0, 1].any()


def test_a_board_is_read_back_as_it_was_put_in() -> None:
    state = State(((5, 1, 0), (), (15,)), (3, 9))
    assert batch_of(state, 16).board(0) == state


def test_a_round_leaves_the_state_before_it_as_it_was() -> None:
    state = batch_of(State(((5, 4),), (6,)), 16)
    copies = [array.copy() for array in state]
    advance_batch(state, np.array([[3]]), np.array(neighbours(4, 4)))
    assert all((now == then).all() for now, then in zip(state, copies, strict=True))


def test_enemies_move_at_random_among_sensible_moves_and_anywhere_where_there_are_none() -> None:
    # In the corner of an empty board up and right are left; a snake curled into the corner has no move at all.
    batch = SnakeBatch(2000, 0, width=3, height=3)
    free = batch_of(State(((8,), (0,)), ()), 9)
    stuck = batch_of(State(((8,), (0, 1, 4, 3)), ()), 9)
    stuck.cover[0, 1, 3] = 2  # not the tail
    for state, expected in ((free, [0.5, 0, 0, 0.5]), (stuck, [0.25] * 4)):
        batch.state = BatchState(*(np.repeat(array, 2000, axis=0) for array in state))
        shares = np.bincount(batch.opponent_actions()[:, 0], minlength=4) / 2000
        # Four standard deviations of a share of 2,000: 4 * sqrt(0.5 * 0.5 / 2000) = 0.045.
        assert np.abs(shares - expected).max() < 0.045
        assert (shares[np.array(expected) == 0] == 0).all()


def test_equal_addresses_play_equal_games_and_others_do_not() -> None:
    first, second, other = SnakeBatch(8, "a", 1), SnakeBatch(8, "a", 1), SnakeBatch(8, "a", 2)
    for _ in range(5):
        for batch in (first, second, other):
            batch.step(np.zeros(8, dtype=np.int64))
    assert (first.grids() == second.grids()).all()
    assert (first.grids() != other.grids()).any()


def test_a_batch_without_boards_is_refused() -> None:
    message = "num_boards=0 plays nothing; set it to 1 or more."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        SnakeBatch(0)
