import re
from collections import Counter

import numpy as np
import pytest

from stratagem.errors import ConfigError, GameError
from stratagem.games.frozen_lake import (
    ACTIONS,
    FrozenLake,
    generate_board,
    optimal_action,
    optimal_values,
    shortest_safe_path,
    transitions,
)

TINY = ("SF", "HG")
CORRIDOR = ("SFF", "FHF", "FFG")


def exact(message: str) -> str:
    return f"^{re.escape(message)}$"


def test_the_board_is_the_one_gymnasium_draws_for_the_seed():
    from gymnasium.envs.toy_text.frozen_lake import generate_random_map

    assert generate_board(0) == ("SFFF", "HHFF", "FHHF", "HFFG")
    for seed in range(20):
        assert generate_board(seed, size=5, hole_probability=0.3) == tuple(generate_random_map(5, p=0.7, seed=seed))


@pytest.mark.parametrize("size", [4, 6], ids=["4x4", "6x6"])
def test_dynamics_without_slips_equal_gymnasium_step_by_step(size):
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

    rng = np.random.default_rng(0)
    ends = Counter()
    for seed in range(30):
        game = FrozenLake(size=size, max_steps=60)
        game.reset(seed=seed)
        env = FrozenLakeEnv(desc=list(generate_board(seed, size=size)), is_slippery=False)
        env.reset(seed=0)
        for _ in range(60):
            # Half of the moves are the planner's, so that some episodes reach the goal.
            action = int(rng.integers(4)) if rng.random() < 0.5 else ACTIONS.index(game.planner_action())
            state, reward, terminated, _, _ = env.step(action)
            step = game.step((ACTIONS[action],))
            row, column = divmod(int(state), size)
            assert game.state_key().endswith(f" ({column}, {size - 1 - row})")
            assert (step.rewards, step.terminated) == ((float(reward),), terminated)
            if step.terminated or step.truncated:
                ends[step.rewards[0], step.terminated] += 1
                break
    assert ends[1.0, True] > 0 and ends[0.0, True] > 0  # both kinds of end were compared


@pytest.mark.parametrize(
    ("success_rate", "expected"),
    [(1 / 3, (1 / 3, 1 / 3, 1 / 3)), (0.8, (0.1, 0.8, 0.1))],
    ids=["one third", "four fifths"],
)
def test_slips_go_perpendicular_with_the_stated_chances(success_rate, expected):
    # From the middle, "right" goes up, right or down; 900 courses of one seed.
    count = 900
    game = FrozenLake(board=("SFF", "FFF", "FFG"), slippery=True, success_rate=success_rate)
    seen = Counter()
    for course in range(count):
        game.reset(seed=3, course=course)
        game._state = 4
        game.step(("right",))
        seen[game.state_key()[-6:]] += 1
    assert set(seen) == {"(1, 2)", "(2, 1)", "(1, 0)"}
    for cell, p in zip(("(1, 2)", "(2, 1)", "(1, 0)"), expected, strict=True):
        assert abs(seen[cell] - count * p) < 4 * np.sqrt(count * p * (1 - p))


def test_slippery_values_on_a_tiny_board_match_the_arithmetic():
    # S F     states 0 1, V_h = best expected return with h steps left, each of the three ways has chance 1/3.
    # H G            2 3
    # V1(1): down -> goal 1/3.  V1(0) = 0.
    # V2(0): up -> stays, stays, 1: V1(1)/3 = 1/9.  V2(1): right -> 3 (1), stays, stays: 1/3 + 2/3 * 1/3 = 5/9.
    # V3(0): up -> (2 V2(0) + V2(1)) / 3 = (2/9 + 5/9) / 3 = 7/27.
    # V3(1): right -> 1/3 + 2/3 * 5/9 = 19/27.
    values = optimal_values(TINY, slippery=True, horizon=3)
    np.testing.assert_allclose([v[0] for v in values], [0, 0, 1 / 9, 7 / 27], rtol=1e-12, atol=0.0)
    np.testing.assert_allclose([v[1] for v in values], [0, 1 / 3, 5 / 9, 19 / 27], rtol=1e-12, atol=0.0)
    # With gamma = 1/2: V2(0) = 1/2 * 1/3 * 1/3 = 1/18.
    assert optimal_values(TINY, slippery=True, horizon=2, gamma=0.5)[2][0] == pytest.approx(1 / 18, rel=1e-12)


def test_slippery_values_on_a_three_by_three_board_match_the_arithmetic():
    # 0 1 2    S F F
    # 3 4 5    F H F
    # 6 7 8    F F G
    # V1(5) = 1/3 (down or right).  V2(5): right -> 8, 5, 2: (1 + 1/3 + 0) / 3 = 4/9.
    # V2(2): right -> 5, 2, 2: (1/3 + 0 + 0) / 3 = 1/9.  V3(2): right -> (4/9 + 1/9 + 1/9) / 3 = 2/9.
    values = optimal_values(CORRIDOR, slippery=True, horizon=3)
    np.testing.assert_allclose(
        [values[1][5], values[2][5], values[2][2], values[3][2]], [1 / 3, 4 / 9, 1 / 9, 2 / 9], rtol=1e-12, atol=0.0
    )
    # The board is its own mirror image along the diagonal.
    assert values[3][6] == pytest.approx(values[3][2], rel=1e-12)


def test_a_higher_success_rate_changes_the_values():
    # p = 0.8: V1(1) of the tiny board = 0.8 (down), V2(0): right -> hole 0.1, state 1 0.8, stay 0.1: 0.8 * 0.8 = 0.64.
    values = optimal_values(TINY, slippery=True, success_rate=0.8, horizon=2)
    np.testing.assert_allclose([values[1][1], values[2][0]], [0.8, 0.64], rtol=1e-12, atol=0.0)


def test_values_without_slips_discount_the_length_of_the_path():
    values = optimal_values(CORRIDOR, slippery=False, horizon=4, gamma=0.9)
    assert values[3][0] == 0.0  # the path has four moves
    assert values[4][0] == pytest.approx(0.9**3, rel=1e-12)


def test_the_slippery_planner_breaks_ties_in_the_order_of_the_actions():
    # Start of the tiny board: with two steps left down, right and up are all worth 1/9, with three only up is 7/27.
    table = transitions(TINY, slippery=True)
    values = optimal_values(TINY, slippery=True, horizon=3)
    assert optimal_action(table[0], values[1]) == "down"
    assert optimal_action(table[0], values[2]) == "up"


@pytest.mark.parametrize(("max_steps", "waited", "action"), [(2, 0, "down"), (3, 0, "up"), (3, 1, "down")])
def test_the_slippery_planner_knows_how_many_steps_are_left(max_steps, waited, action):
    game = FrozenLake(board=TINY, slippery=True, max_steps=max_steps)
    game.reset(seed=0)
    for _ in range(waited):
        game.step((None,))
    assert game.planner_action() == action


def test_the_slippery_planner_reaches_its_optimal_return():
    board = ("SFF", "FFH", "FFG")
    game = FrozenLake(board=board, slippery=True, max_steps=8)
    returns = []
    for course in range(600):
        game.reset(seed=0, course=course)
        while True:
            step = game.step((game.planner_action(),))
            if step.terminated or step.truncated:
                returns.append(step.rewards[0])
                break
    game.reset(seed=0)
    optimum = game.optimal_return()
    assert 0.1 < optimum < 0.9
    assert abs(np.mean(returns) - optimum) < 4 * np.sqrt(optimum * (1 - optimum) / 600)


def test_the_shortest_safe_path_is_shortest_safe_and_the_first_of_its_length():
    assert shortest_safe_path(TINY) == ("right", "down")
    assert shortest_safe_path(CORRIDOR) == ("down", "down", "right", "right")
    assert shortest_safe_path(("SFFF", "HHFF", "FHHF", "HFFG")) == ("right", "right", "down", "right", "down", "down")
    assert shortest_safe_path(("SH", "HG")) is None


def test_the_planner_solves_every_board_that_does_not_slip():
    game = FrozenLake()
    for seed in range(40):
        game.reset(seed=seed)
        assert game.optimal_return() == 1.0
        while True:
            step = game.step((game.planner_action(),))
            if step.terminated or step.truncated:
                break
        assert (step.rewards, step.terminated, step.info) == ((1.0,), True, {"success": True})


def test_optimal_return_counts_the_steps_that_are_left():
    game = FrozenLake(board=CORRIDOR, max_steps=4)
    game.reset(seed=0)
    assert game.optimal_return() == 1.0
    assert game.optimal_return(gamma=0.5) == 0.125
    game.step((None,))
    assert game.optimal_return() == 0.0  # four moves are needed, three are left
    game.step(("right",)), game.step(("right",)), game.step(("down",))
    assert game.optimal_return() == 0.0  # the episode is over
    assert game.planner_action() is None


def test_a_hole_ends_the_game_without_reward():
    game = FrozenLake(board=TINY)
    game.reset(seed=0)
    step = game.step(("down",))
    assert (step.rewards, step.terminated, step.truncated, step.info) == ((0.0,), True, False, {"success": False})


def test_a_move_off_the_board_does_nothing_and_counts():
    game = FrozenLake(board=TINY, max_steps=2)
    game.reset(seed=0)
    key = game.state_key()
    step = game.step(("up",))
    assert (game.state_key(), step.rewards, step.terminated, step.info) == (key, (0.0,), False, {})
    step = game.step(("left",))
    assert (game.state_key(), step.terminated, step.truncated, step.info) == (key, False, True, {"success": False})


def test_the_goal_on_the_last_step_is_an_end_and_not_a_cut():
    game = FrozenLake(board=TINY, max_steps=2)
    game.reset(seed=0)
    game.step(("right",))
    step = game.step(("down",))
    assert (step.terminated, step.truncated) == (True, False)


def test_no_action_never_slips_and_counts_a_step():
    game = FrozenLake(slippery=True, max_steps=5)
    game.reset(seed=1)
    key = game.state_key()
    for number in range(1, 6):
        step = game.step((None,))
        assert game.state_key() == key
        assert step.truncated == (number == 5)


def test_the_luck_of_a_step_does_not_depend_on_the_steps_before():
    # Course 0: the second step slips the same way after "no action" and after any move that stays.
    game = FrozenLake(board=("SFF", "FFF", "FFG"), slippery=True)
    ends = set()
    for first in (None, "up", "left"):
        game.reset(seed=5, course=2)
        game.step((first,))
        game._state = 4
        game.step(("right",))
        ends.add(game.state_key())
    assert len(ends) == 1


def test_the_course_changes_the_slips_and_not_the_board():
    game = FrozenLake(slippery=True)
    paths = set()
    starts = set()
    for course in range(8):
        starts.add(game.reset(seed=4, course=course))
        path = []
        while True:
            step = game.step(("right",))
            path.append(game.state_key())
            if step.terminated or step.truncated:
                break
        paths.add(tuple(path))
    assert len(starts) == 1 and len(paths) > 1


def test_the_observation_goes_from_what_is_fixed_to_what_changes():
    game = FrozenLake(board=("SFF", "HFF", "FFG"), slippery=True, success_rate=0.8)
    game.reset(seed=0)
    game._state = 4
    assert game.observation() == (
        "Guide the player over the frozen lake to the goal.\n"
        "[Available Actions]\n"
        '"up"\n'
        '"down"\n'
        '"left"\n'
        '"right"\n'
        "[Rules]\n"
        "Each action moves one space. A move off the board does nothing.\n"
        "A hole ends the game with 0 points, the goal with 1 point.\n"
        "The ice is slippery: a move goes the chosen way with chance 4/5, each perpendicular way with chance 1/10.\n"
        "Cells are (x, y): (0, 0) is bottom left, (2, 2) is top right. Right adds 1 to x, up adds 1 to y.\n"
        "Symbols: P player, O hole, G goal, _ ice.\n"
        "Holes: (0, 1)\n"
        "Goal: (2, 0)\n"
        "Player position: (1, 1)\n"
        "State:\n"
        "_ _ _\n"
        "O P _\n"
        "_ _ G"
    )


def test_the_observation_says_that_ice_does_not_slip():
    game = FrozenLake(board=TINY)
    (text,) = game.reset(seed=0)
    assert "The ice is not slippery: a move goes the chosen way.\n" in text


def test_each_representation_can_be_left_out():
    (words,) = FrozenLake(board=TINY, grid=False).reset(seed=0)
    assert "State:" not in words and "Symbols" not in words and words.endswith("Player position: (0, 1)")
    (picture,) = FrozenLake(board=TINY, coordinates=False).reset(seed=0)
    assert "(" not in picture and picture.endswith("State:\nP _\nO G")


def test_grid_observation_has_planes_for_player_holes_and_goal():
    game = FrozenLake(board=TINY)
    game.reset(seed=0)
    game.step(("right",))
    planes = game.grid_observation()
    assert planes.dtype == np.uint8
    assert planes.tolist() == [[[0, 1], [0, 0]], [[0, 0], [1, 0]], [[0, 0], [0, 1]]]


def test_use_before_reset_and_after_the_end_is_refused():
    game = FrozenLake(board=TINY)
    not_started = exact("frozen_lake has not been started; call reset(seed=...) first.")
    for call in (game.observation, game.state_key, game.render, game.legal_actions, lambda: game.step(("up",))):
        with pytest.raises(GameError, match=not_started):
            call()
    game.reset(seed=0)
    game.step(("down",))
    assert game.legal_actions() == ()
    with pytest.raises(GameError, match=exact("frozen_lake has ended; call reset(seed=...) to play again.")):
        game.step(("up",))


def test_words_that_are_not_actions_are_refused_and_change_nothing():
    game = FrozenLake(board=TINY)
    game.reset(seed=0)
    key = game.state_key()
    message = (
        "action='Up' of player 0 is not legal in frozen_lake; use one of left, down, right, up, or None for no action."
    )
    with pytest.raises(GameError, match=exact(message)):
        game.step(("Up",))
    message = (
        "actions=('up', 'up') has 2 entries for 1 player(s) of frozen_lake; give one word or None for each player."
    )
    with pytest.raises(GameError, match=exact(message)):
        game.step(("up", "up"))
    assert game.state_key() == key


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"size": 1}, "size=1 is not a playable board; set size between 2 and 16."),
        (
            {"hole_probability": 0.9},
            "hole_probability=0.9 leaves (almost) no board with a path; set hole_probability between 0 and 0.5.",
        ),
        (
            {"success_rate": 0.0},
            "success_rate=0.0 is not a chance of going the chosen way; set success_rate above 0 and at most 1.",
        ),
        ({"max_steps": 0}, "max_steps=0 leaves no step to play; set max_steps to 1 or more."),
        (
            {"coordinates": False, "grid": False},
            "coordinates=False and grid=False leave nothing to see; set at least one to True.",
        ),
        (
            {"board": ("SF", "G")},
            "board='SF/G' is not a rectangle of at least 2x2; give rows of equal length, such as ('SFF', 'HFG').",
        ),
        (
            {"board": ("FS", "FG")},
            "board='FS/FG' needs one S at the top left, at least one G, and otherwise only F and H; "
            "such as ('SFF', 'HFG').",
        ),
        (
            {"board": ("SH", "HG")},
            "board='SH/HG' has no path from S to G that avoids the holes (H); open one with F.",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_settings_are_refused(params, message):
    with pytest.raises(ConfigError, match=exact(message)):
        FrozenLake(**params)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match=exact("seed=-1 is negative; use 0 or a positive integer.")):
        FrozenLake().reset(seed=-1)
