import itertools
import re

import numpy as np
import pytest

from stratagem.errors import ConfigError, GameError
from stratagem.games import make
from stratagem.games.snake import (
    ACTIONS,
    Snake,
    State,
    advance,
    grow,
    neighbours,
    place_apples,
    plan,
    sensible_moves,
)

# All rule tests are on a board of five by five; cell (x, y) is 5 * y + x.
TABLE = neighbours(5, 5)


def exact(message: str) -> str:
    return f"^{re.escape(message)}$"


def cells(*positions: tuple[int, int]) -> tuple[int, ...]:
    return tuple(5 * y + x for x, y in positions)


def board(*snakes: tuple[int, ...], apples: tuple[int, ...] = ()) -> State:
    return State(snakes, apples)


def started(state: State, **params) -> Snake:
    game = Snake(width=5, height=5, num_snakes=len(state.snakes), num_apples=len(state.apples), **params)
    game.reset(seed=0)
    game._state = state
    return game


def test_up_raises_y_and_right_raises_x():
    moves = dict(zip(ACTIONS, TABLE[12], strict=True))
    assert moves == {"up": 17, "down": 7, "left": 11, "right": 13}


def test_a_move_takes_the_tail_along():
    outcome = advance(board(cells((2, 2), (2, 1))), ("right",), TABLE)
    assert outcome == (board(cells((3, 2), (2, 2))), (False,), (None,))


@pytest.mark.parametrize(
    ("head", "action"), [((2, 4), "up"), ((2, 0), "down"), ((0, 2), "left"), ((4, 2), "right")], ids=list(ACTIONS)
)
def test_leaving_the_board_is_fatal(head, action):
    outcome = advance(board(cells(head)), (action,), TABLE)
    assert outcome == (board(()), (False,), ("wall",))


def test_equal_new_heads_are_fatal_for_both():
    outcome = advance(board(cells((1, 2)), cells((3, 2)), apples=cells((2, 2))), ("right", "left"), TABLE)
    assert outcome.causes == ("head_on", "head_on")
    assert outcome.ate == (False, False)
    assert outcome.state == board((), (), apples=cells((2, 2)))  # nobody ate the apple


def test_swapping_places_is_fatal_for_both():
    outcome = advance(board(cells((1, 2)), cells((2, 2))), ("right", "left"), TABLE)
    assert outcome.causes == ("snake", "snake")


def test_a_tail_that_moves_away_still_counts():
    # Snake 1 leaves (3, 2) in this round, but it covered the cell before the round.
    outcome = advance(board(cells((4, 2)), cells((2, 2), (3, 2))), ("left", "up"), TABLE)
    assert outcome.causes == ("snake", None)


def test_ones_own_tail_counts():
    ring = cells((1, 1), (1, 2), (2, 2), (2, 1))
    assert advance(board(ring), ("right",), TABLE).causes == ("self",)
    assert advance(board(cells((1, 1), (2, 1))), ("right",), TABLE).causes == ("self",)


def test_a_snake_that_dies_in_this_round_is_still_in_the_way():
    outcome = advance(board(cells((0, 2)), cells((1, 2))), ("left", "left"), TABLE)
    assert outcome.causes == ("wall", "snake")


def test_a_dead_snake_is_not_in_the_way():
    outcome = advance(board(cells((2, 2)), (), cells((0, 0))), ("right", None, "up"), TABLE)
    assert outcome.causes == (None, None, None)


def test_no_action_stays_and_the_one_that_runs_into_it_dies():
    outcome = advance(board(cells((2, 2)), cells((3, 2))), (None, "left"), TABLE)
    assert outcome == (board(cells((2, 2)), ()), (False, False), (None, "snake"))


def test_an_eaten_apple_grows_the_snake_by_one():
    outcome = advance(board(cells((2, 2), (2, 1)), apples=cells((2, 3), (4, 4))), ("up",), TABLE)
    assert outcome == (board(cells((2, 3), (2, 2), (2, 1)), apples=cells((4, 4))), (True,), (None,))


def test_apples_come_back_on_free_cells_only():
    taken = State(((0, 1),), (2, 3))
    for seed in range(20):
        state = place_apples(taken, 1, 6, np.random.default_rng(seed))
        assert len(state.apples) == 3 and set(state.apples) - {2, 3} <= {4, 5}
    full = place_apples(taken, 5, 6, np.random.default_rng(0))
    assert full.apples == (2, 3, 4, 5)


def test_the_enemy_leaves_out_walls_and_its_body_and_forgets_its_moving_tail():
    assert sensible_moves(cells((0, 0)), TABLE) == ["up", "right"]
    assert sensible_moves(cells((0, 0), (1, 0)), TABLE) == ["up"]  # length two: the tail is body
    assert sensible_moves(cells((0, 0), (0, 1), (1, 1), (1, 0)), TABLE) == ["right"]  # longer: it is not
    assert sensible_moves(cells((0, 0), (1, 0), (1, 1), (0, 1), (0, 2)), TABLE) == []


def test_the_enemy_draws_from_all_moves_when_none_is_sensible():
    game = started(board(cells((4, 4)), cells((0, 0), (1, 0), (1, 1), (0, 1), (0, 2))))
    rng = np.random.default_rng(0)
    assert {game.random_action(1, rng) for _ in range(100)} == set(ACTIONS)
    assert {game.random_action(0, rng) for _ in range(100)} == {"down", "left"}


def test_the_planner_goes_round_a_snake_to_the_nearest_apple():
    # The wall of snake 1 stands between the head (0, 2) and the apple (2, 2); the far apple (4, 4) is left alone.
    wall = cells((1, 0), (1, 1), (1, 2), (1, 3))
    state = board(cells((0, 2)), wall, apples=cells((2, 2), (4, 4)))
    assert plan(state, 0, TABLE) == "up"


def test_the_planner_avoids_poison_and_prefers_room():
    # Right leads to the open board through poison, up into the open board without.
    state = board(cells((0, 0)), cells((4, 4)), apples=cells((1, 0)))
    assert plan(state, 0, TABLE, poison=True) == "up"
    assert plan(state, 0, TABLE) == "right"


def test_the_planner_does_not_enter_a_cell_that_an_enemy_may_enter():
    # Both are one move from the apple at (2, 2).
    state = board(cells((1, 2)), cells((3, 2)), apples=cells((2, 2)))
    assert plan(state, 0, TABLE) != "right"


def test_the_planner_takes_a_contested_cell_rather_than_a_wall():
    # In the corner (0, 4) both free cells are next to the enemy's head.
    assert plan(board(cells((0, 4)), cells((1, 3))), 0, TABLE) in {"down", "right"}


def test_the_planner_names_a_move_when_all_are_fatal():
    state = board(cells((0, 0), (1, 0), (1, 1), (0, 1), (0, 2)))
    assert plan(state, 0, TABLE) == "up"


def mean_return(name: str, policy: str, num_seeds: int = 50) -> float:
    game = make(name)
    total = 0.0
    for seed in range(num_seeds):
        rng = np.random.default_rng(seed)
        game.reset(seed=seed)
        while True:
            own = game.planner_action(0) if policy == "planner" else game.random_action(0, rng)
            step = game.step((own, game.random_action(1, rng)))
            total += step.rewards[0]
            if step.terminated or step.truncated:
                break
    return total / num_seeds


def test_the_planner_beats_random_by_far():
    # Measured: 9.7 against -0.2 and 0.0 against -3.2.
    assert mean_return("Snake-Standard", "planner") > mean_return("Snake-Standard", "random") + 6
    assert mean_return("Snake-Poison", "planner") > mean_return("Snake-Poison", "random") + 2


def test_rewards_are_counted_for_each_player():
    game = started(board(cells((2, 2)), cells((0, 0)), apples=cells((2, 3))), step_reward=-0.25)
    step = game.step(("up", "left"))
    # Player 0: step and apple; player 1: step and death. One snake is left, so the game ends.
    assert step.rewards == (0.75, -3.25)
    assert (step.terminated, step.truncated) == (True, False)
    assert step.info == {"apples": (1, 0), "cause": (None, "wall")}


def test_a_poisonous_apple_costs_a_point_and_grows_the_snake():
    game = started(board(cells((2, 2)), cells((0, 0)), apples=cells((2, 3))), apple_reward=-1.0)
    step = game.step(("up", "up"))
    assert step.rewards == (-1.0, 0.0)
    assert "Your snake 1: head (2, 3), body (2, 2)" in step.observations[0]


def test_an_eaten_apple_comes_back():
    game = started(board(cells((2, 2)), cells((0, 0)), apples=cells((2, 3))))
    game.step(("up", "up"))
    assert int(game.grid_observation()[4].sum()) == 1


def test_the_death_of_player_0_ends_the_game_and_that_of_another_does_not_while_two_live():
    state = board(cells((2, 2)), cells((0, 0)), cells((4, 4)))
    game = started(state)
    step = game.step(("up", "left", "left"))
    assert not step.terminated
    assert game.legal_actions(1) == () and game.planner_action(1) is None
    with pytest.raises(GameError, match=exact("player 1 of snake is dead and has no action; give None for it.")):
        game.random_action(1, np.random.default_rng(0))
    message = "action='up' of player 1 is not legal in snake; use one of none, or None for no action."
    with pytest.raises(GameError, match=exact(message)):
        game.step(("up", "up", "left"))
    step = game.step(("left", None, "left"))
    assert (step.rewards, step.terminated) == ((0.0, 0.0, 0.0), False)
    assert "Enemy snake 2: dead" in step.observations[0]
    game = started(state)
    game._state = board(cells((2, 4)), cells((0, 0)), cells((4, 4)))
    assert game.step(("up", "up", "left")).terminated


def test_a_snake_alone_plays_on_and_is_cut_at_the_limit():
    game = started(board(cells((2, 2))), max_steps=2)
    assert not game.step(("up",)).terminated
    step = game.step((None,))
    assert (step.terminated, step.truncated) == (False, True)


def test_death_on_the_last_round_is_an_end_and_not_a_cut():
    game = started(board(cells((2, 4)), cells((0, 0))), max_steps=1)
    step = game.step(("up", "up"))
    assert (step.terminated, step.truncated) == (True, False)


def test_the_start_has_the_stated_numbers_on_distinct_cells():
    game = Snake()
    for seed in range(20):
        game.reset(seed=seed)
        planes = game.grid_observation()
        assert planes.shape == (5, 10, 10) and planes.dtype == np.uint8
        assert planes.sum((1, 2)).tolist() == [1, 0, 1, 0, 5]
        assert planes.sum(0).max() == 1


def test_the_course_changes_where_apples_come_back_and_not_the_start():
    game = Snake(width=5, height=5, num_apples=5)
    after = set()
    starts = set()
    for course in range(10):
        starts.add(game.reset(seed=1, course=course))
        game._state = board(cells((2, 2)), cells((0, 0)), apples=cells((2, 3)))
        game.step(("up", "up"))
        after.add(game.state_key())
    assert len(starts) == 1 and len(after) > 1


def test_the_observation_goes_from_what_is_fixed_to_what_changes():
    game = started(board(cells((2, 2), (2, 1), (1, 1)), cells((4, 4)), apples=cells((0, 0), (3, 2))))
    assert game.observation(0) == (
        "Guide your snake to eat apples and stay alive.\n"
        "[Available Actions]\n"
        '"up"\n'
        '"down"\n'
        '"left"\n'
        '"right"\n'
        "[Rules]\n"
        "Each action moves your snake one space. An enemy snake (2) moves at the same time.\n"
        "Eating an apple gains 1 point and adds one body segment.\n"
        "Your snake dies when it hits a wall, a snake or its own body and loses 3 points.\n"
        "The game ends when your snake or every enemy is dead.\n"
        "Cells are (x, y): (0, 0) is bottom left, (4, 4) is top right. Right adds 1 to x, up adds 1 to y.\n"
        "Symbols: 1 your head, 2 enemy head, T body, A apple, _ empty.\n"
        "Apples: (0, 0), (3, 2)\n"
        "Enemy snake 2: head (4, 4), body none\n"
        "Your snake 1: head (2, 2), body (2, 1), (1, 1)\n"
        "State:\n"
        "_ _ _ _ 2\n"
        "_ _ _ _ _\n"
        "_ _ 1 A _\n"
        "_ T T _ _\n"
        "A _ _ _ _"
    )
    assert game.state_key() == "5x5 (2, 2)(2, 1)(1, 1) | (4, 4) apples (0, 0)(3, 2)"


def test_every_player_sees_itself_as_number_1():
    game = started(board(cells((2, 2)), cells((4, 4)), cells((0, 4))))
    text = game.observation(1)
    assert "Your snake 1: head (4, 4), body none" in text
    assert "Enemy snake 2: head (2, 2), body none\nEnemy snake 3: head (0, 4), body none" in text
    assert "Enemy snakes (2 to 3) move at the same time." in text
    assert text.split("State:\n")[1].startswith("3 _ _ _ 1\n")
    assert game.grid_observation(1)[0, 0, 4] == 1


def test_the_poison_variant_says_so():
    (text, _) = make("Snake-Poison").reset(seed=0)
    assert text.startswith("Guide your snake so that it stays alive and eats no apples.\n")
    assert "Apples are poisonous: eating one loses 1 point and adds one body segment.\n" in text


def test_each_representation_can_be_left_out():
    words = Snake(grid=False).reset(seed=0)[0]
    assert "State:" not in words and "Symbols" not in words
    picture = Snake(coordinates=False).reset(seed=0)[0]
    assert "Apples: (" not in picture and "Cells are" not in picture and "State:\n" in picture


def test_snakes_begin_as_long_as_there_is_room_and_never_on_each_other():
    lengths = set()
    for seed in range(60):
        game = Snake(width=4, height=4, num_apples=3, start_length=4)
        game.reset(seed=seed)
        state = game._state
        covered = [cell for snake in state.snakes for cell in snake]
        assert len(set(covered)) == len(covered) and not set(covered) & set(state.apples)
        table = neighbours(4, 4)
        for snake in state.snakes:
            assert all(after in table[before] for before, after in itertools.pairwise(snake))
            lengths.add(len(snake))
    assert lengths == {1, 2, 3, 4}


def test_a_snake_without_room_begins_shorter():
    # A corner of the five by five board: (0, 0) = 0 has the neighbours (1, 0) = 1 and (0, 1) = 5, both taken.
    class Longest:
        def integers(self, count):
            return count - 1

    assert grow([(0,)], {1, 5}, 4, TABLE, Longest()) == ((0,),)
    # From (0, 0) to the last free neighbour each time: up, down, left, right is the order, so 1, then 2, then 3.
    assert grow([(0,)], set(), 4, TABLE, Longest()) == ((0, 1, 2, 3),)


def test_longer_starts_leave_heads_and_apples_where_they_are():
    one, long = Snake(), Snake(start_length=5)
    one.reset(seed=3)
    long.reset(seed=3)
    assert one._state.apples == long._state.apples
    assert [snake[0] for snake in one._state.snakes] == [snake[0] for snake in long._state.snakes]
    assert max(len(snake) for snake in long._state.snakes) > 1


def test_use_before_reset_is_refused():
    for call in (lambda g: g.step(("up", "up")), lambda g: g.observation(), lambda g: g.legal_actions()):
        with pytest.raises(GameError, match=exact("snake has not been started; call reset(seed=...) first.")):
            call(Snake())


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"width": 1}, "width=1 is not a playable board; set width between 2 and 50."),
        ({"height": 51}, "height=51 is not a playable board; set height between 2 and 50."),
        ({"num_snakes": 0}, "num_snakes=0 cannot be played; set num_snakes between 1 and 9."),
        (
            {"width": 2, "height": 2, "num_apples": 3},
            "num_apples=3 does not fit a board of 4 cells with 2 snake(s); set num_apples between 0 and 2.",
        ),
        ({"start_length": 0}, "start_length=0 leaves no snake; set start_length to 1 or more."),
        ({"max_steps": 0}, "max_steps=0 leaves no round to play; set max_steps to 1 or more."),
        (
            {"coordinates": False, "grid": False},
            "coordinates=False, grid=False and relative=False leave nothing to see; set at least one to True.",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_settings_are_refused(params, message):
    with pytest.raises(ConfigError, match=exact(message)):
        Snake(**params)


def test_the_text_from_the_head_of_the_snake() -> None:
    # A board of 4 x 4, cell = x + 4 y. Own snake: head (0, 1) = 4, body (0, 0) = 0. Enemy: head (1, 2) = 9, body (1, 1)
    # = 5. Apples at (0, 2) = 8 (one up) and (3, 0) = 3 (three right, one down).
    game = Snake(width=4, height=4, num_apples=2, relative=True, coordinates=False, grid=False)
    game.reset(seed=0)
    game._state = State(((4, 0), (9, 5)), (3, 8))
    assert game.observation(0).splitlines()[-4:] == [
        "Beside is one space away. Distances are counted from your head; the nearest stands first.",
        "Beside your head: up apple, down body, left wall, right snake",
        "Apples: 1 up; 3 right and 1 down",
        "Enemy heads: 1 right and 1 up",
    ]
    assert game.observation(1).splitlines()[-3:] == [
        "Beside your head: up free, down body, left apple, right free",
        "Apples: 1 left; 2 right and 2 down",
        "Enemy heads: 1 left and 1 down",
    ]
    assert "(x, y)" not in game.observation(0)
    game._state = State(((), (9, 5)), ())
    assert game.observation(0).splitlines()[-1] == "You are dead."
    assert game.observation(1).splitlines()[-2:] == ["Apples: none", "Enemy heads: none"]


def test_equally_far_cells_stand_in_a_fixed_order() -> None:
    game = Snake(width=5, height=5, num_snakes=1, num_apples=4, relative=True, coordinates=False, grid=False)
    game.reset(seed=0)
    game._state = State(((12,),), (7, 11, 13, 17))
    assert game.observation(0).splitlines()[-1] == "Apples: 1 left; 1 down; 1 up; 1 right"
