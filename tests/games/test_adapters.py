import re

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test

from stratagem.agents.base import Policy
from stratagem.errors import ConfigError
from stratagem.games import make
from stratagem.games.adapters import GymnasiumGame, to_gymnasium, to_pettingzoo
from stratagem.games.checks import check_game


def exact(message: str) -> str:
    return f"^{re.escape(message)}$"


def cliff(slippery: bool = True) -> GymnasiumGame:
    return GymnasiumGame(
        lambda: gymnasium.make("CliffWalkingSlippery-v1" if slippery else "CliffWalking-v1"),
        actions={"up": 0, "right": 1, "down": 2, "left": 3},
        describe=lambda observation, info: f"You are in row {observation // 12}, column {observation % 12}.",
        rules="Walk to row 3, column 11 without falling off the cliff.",
        name="cliff_walking",
        max_steps=30,
    )


def taxi() -> GymnasiumGame:
    words = ("south", "north", "east", "west", "pick up", "drop off")
    return GymnasiumGame(
        lambda: gymnasium.make("Taxi-v4"),
        actions={word: number for number, word in enumerate(words)},
        describe=lambda observation, info: f"State {observation}.",
        legal=lambda observation, info: [w for w, ok in zip(words, info["action_mask"], strict=True) if ok],
        state_key=lambda env: str(int(env.s)),
        max_steps=20,
    )


class Always(Policy):
    name = "always"

    def __init__(self, word):
        self.word = word

    def act(self, game, player, observation, rng):
        return self.word


@pytest.mark.parametrize("make_game", [cliff, lambda: cliff(slippery=False), taxi], ids=["slippery", "plain", "taxi"])
def test_a_lifted_environment_keeps_the_contract(make_game):
    check_game(make_game)


def test_course_0_is_gymnasiums_own_episode():
    game, env = cliff(), gymnasium.make("CliffWalkingSlippery-v1")
    game.reset(seed=5)
    env.reset(seed=5)
    for action in (0, 1, 1, 1, 0, 1, 1):
        state, reward, terminated, truncated, _ = env.step(action)
        step = game.step((("up", "right", "down", "left")[action],))
        assert step.observations[0].endswith(f"\nYou are in row {state // 12}, column {state % 12}.")
        assert (step.rewards, step.terminated) == ((float(reward),), terminated)
        if terminated or truncated:
            break


def test_another_course_changes_the_slips():
    game = cliff()
    paths = set()
    for course in range(6):
        game.reset(seed=1, course=course)
        paths.add(tuple(game.step(("up",)).observations for _ in range(5)))
    assert len(paths) > 1


def test_the_rules_come_first_and_no_action_leaves_the_environment_alone():
    game = cliff(slippery=False)
    (text,) = game.reset(seed=0)
    assert text == "Walk to row 3, column 11 without falling off the cliff.\nYou are in row 3, column 0."
    step = game.step((None,))
    assert (step.observations, step.rewards) == ((text,), (0.0,))


def test_legal_words_follow_the_environments_mask():
    game = taxi()
    game.reset(seed=0)
    assert 0 < len(game.legal_actions()) < 6
    assert game.state_key().isdigit()


@pytest.mark.parametrize("encode", ["text", "grid"])
@pytest.mark.parametrize("name", ["frozen_lake", "snake"])
def test_gymnasiums_checker_accepts_every_game(name, encode):
    check_env(to_gymnasium(make(name), encode=encode), skip_render_check=True)


@pytest.mark.parametrize("encode", ["text", "grid"])
@pytest.mark.parametrize("params", [{}, {"num_snakes": 4}], ids=["two", "four"])
def test_pettingzoos_test_accepts_snake(params, encode, capsys):
    parallel_api_test(to_pettingzoo(make("snake", **params), encode=encode), num_cycles=200)


def test_pettingzoos_test_accepts_a_game_for_one(capsys):
    parallel_api_test(to_pettingzoo(make("frozen_lake")), num_cycles=50)


def test_the_environment_plays_the_same_episode_as_the_game():
    env, game = to_gymnasium(make("frozen_lake", slippery=True)), make("frozen_lake", slippery=True)
    observation, info = env.reset(seed=3, options={"course": 2})
    assert (observation,) == game.reset(seed=3, course=2)
    assert info["seed"] == 3 and info["action_mask"].tolist() == [1, 1, 1, 1]
    while True:
        observation, reward, terminated, truncated, info = env.step(2)
        step = game.step(("right",))
        assert (observation, reward, terminated, truncated) == (
            step.observations[0],
            step.rewards[0],
            step.terminated,
            step.truncated,
        )
        if terminated or truncated:
            break
    assert info["action_mask"].tolist() == [0, 0, 0, 0]
    assert info["success"] == step.info["success"]


def test_without_a_seed_episodes_differ_and_repeat_after_a_seed():
    env = to_gymnasium(make("snake"))
    env.reset(seed=1)
    first = [env.reset()[1]["seed"] for _ in range(3)]
    env.reset(seed=1)
    assert [env.reset()[1]["seed"] for _ in range(3)] == first and len(set(first)) == 3


def test_given_opponents_play_their_seats():
    env = to_gymnasium(make("snake", num_apples=0), opponents={1: Always("up")})
    env.reset(seed=0)
    heads = []
    for action in (2, 3, 2):
        heads.append(re.search(r"Enemy snake 2: head \((\d), (\d)\)", env.game.observation(0)).groups())
        env.step(action)
    assert heads[0][0] == heads[1][0] == heads[2][0]
    assert [int(y) for _, y in heads] == [int(heads[0][1]) + k for k in range(3)]


def test_a_dead_opponent_is_not_asked():
    env = to_gymnasium(make("snake", num_snakes=3, num_apples=0), opponents={1: Always("up"), 2: Always("up")})
    env.reset(seed=0)
    env.game._state = env.game._state._replace(snakes=((50,), (), (5,)))
    _, reward, terminated, _, _ = env.step(0)
    assert (reward, terminated) == (0.0, False)


def test_the_default_opponent_is_drawn_from_seed_and_course():
    def episode(course):
        env = to_gymnasium(make("snake"))
        env.reset(seed=2, options={"course": course})
        return [env.step(0)[0] for _ in range(3)]

    assert episode(0) == episode(0)
    assert len({tuple(episode(course)) for course in range(5)}) > 1


def test_a_word_that_is_not_legal_now_becomes_no_action():
    words = ("south", "north", "east", "west", "pick up", "drop off")
    env = to_gymnasium(taxi(), actions=words)
    observation, info = env.reset(seed=0)
    illegal = int(np.flatnonzero(info["action_mask"] == 0)[0])
    after, reward, *_ = env.step(illegal)
    assert (after, reward) == (observation, 0.0)


def test_a_dead_snake_leaves_the_parallel_environment_and_the_others_play_on():
    env = to_pettingzoo(make("snake", num_snakes=3, num_apples=0))
    env.reset(seed=0)
    env.game._state = env.game._state._replace(snakes=((55,), (0,), (99,)))
    words = {"up": 0, "left": 2}
    _, rewards, terminations, truncations, infos = env.step(
        {"player_0": words["up"], "player_1": words["left"], "player_2": words["left"]}
    )
    assert rewards == {"player_0": 0.0, "player_1": -3.0, "player_2": 0.0}
    assert terminations == {"player_0": False, "player_1": True, "player_2": False}
    assert not any(truncations.values())
    assert env.agents == ["player_0", "player_2"]
    assert infos["player_1"]["action_mask"].tolist() == [0, 0, 0, 0]


def test_render_shows_the_picture_in_ansi_mode_only():
    env = to_gymnasium(make("frozen_lake", board=("SF", "HG")), render_mode="ansi")
    env.reset(seed=0)
    assert env.render() == "P _\nO G"
    assert to_gymnasium(make("frozen_lake")).render() is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: to_gymnasium(make("snake"), encode="pixels"),
            "encode='pixels' is not a kind of observation; use one of text, grid.",
        ),
        (
            lambda: to_gymnasium(cliff(), encode="grid"),
            "encode='grid' needs a game with grid_observation, which cliff_walking lacks; use 'text'.",
        ),
        (lambda: to_gymnasium(make("snake"), player=2), "player=2 is not a seat of snake; use 0 to 1."),
        (
            lambda: to_gymnasium(make("snake"), {0: Always("up")}),
            "opponents has a policy for seat 0, which no opponent of player 0 holds in snake; use 1.",
        ),
        (
            lambda: GymnasiumGame(lambda: None, actions={}, describe=lambda observation, info: ""),
            "actions={} leaves nothing to play; give at least one word and its action.",
        ),
    ],
    ids=["encode", "no grid", "player", "opponents", "actions"],
)
def test_bad_settings_are_refused(call, message):
    with pytest.raises(ConfigError, match=exact(message)):
        call()
