import re
import subprocess
import sys

import numpy as np
import pytest

from stratagem.errors import ConfigError, UnknownNameError
from stratagem.games import GAMES, VARIANTS, make, parameters
from stratagem.games.checks import check_game

NEED_DATA = ("ALFWorld", "scienceworld", "ScienceWorld", "ScienceWorld-Seen", "ScienceWorld-Unseen")
NAMES = [name for name in (*GAMES, *VARIANTS) if name not in NEED_DATA]

EPISODES = """
import hashlib, sys
from stratagem.games import make
from stratagem.seeding import generator
for name in sys.argv[1:]:
    digest = hashlib.sha256()
    for seed in range(3):
        game = make(name)
        digest.update(repr(game.reset(seed=seed, course=7)).encode())
        rng = generator("test", seed)
        while True:
            step = game.step([game.random_action(p, rng) for p in range(game.num_players)])
            digest.update(repr((step, game.state_key())).encode())
            if step.terminated or step.truncated:
                break
    print(name, digest.hexdigest())
"""


def exact(message: str) -> str:
    return f"^{re.escape(message)}$"


def test_a_game_of_another_package_is_made_by_module_and_class(tmp_path, monkeypatch):
    (tmp_path / "lake_of_mine.py").write_text(
        "from stratagem.games.base import Game\n"
        "from stratagem.games.frozen_lake import FrozenLake\n"
        "class Pond(FrozenLake):\n    name = 'pond'\n"
        "class Half(Game):\n    name = 'half'\n"
        "class Asks(FrozenLake):\n    def __init__(self, depth):\n        super().__init__()\n"
        "NUMBER = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert make("lake_of_mine:Pond", size=3).name == "pond"
    assert parameters("lake_of_mine:Pond")["size"] == 4
    with pytest.raises(
        ConfigError, match=exact("Game 'lake_of_mine:Sea': module 'lake_of_mine' has no 'Sea'; name a class of it.")
    ):
        make("lake_of_mine:Sea")
    with pytest.raises(ConfigError, match=r"'lake_of_mine:NUMBER' is no subclass of stratagem\.games\.Game"):
        make("lake_of_mine:NUMBER")
    with pytest.raises(ConfigError, match=r"Game 'lake_of_mine:Half' lacks .*legal_actions"):
        make("lake_of_mine:Half")
    with pytest.raises(ConfigError, match="'lake_of_mine:Asks': parameter 'depth' has no default value; give it one"):
        make("lake_of_mine:Asks")
    with pytest.raises(ConfigError, match=exact("Game '.lake_of_mine:Pond': module")[:-1]):
        make(".lake_of_mine:Pond")
    with pytest.raises(ConfigError, match="module 'not_there' cannot be imported"):
        make("not_there:Game")
    with pytest.raises(ConfigError, match=r"sizes=3 is not a parameter of lake_of_mine:Pond\. Did you mean 'size'"):
        make("lake_of_mine:Pond", sizes=3)


@pytest.mark.parametrize("name", NAMES)
def test_every_registered_game_keeps_the_contract(name):
    check_game(lambda: make(name))


def test_the_same_seed_gives_the_same_episode_in_another_process(capsys, monkeypatch):
    command = [sys.executable, "-c", EPISODES, *NAMES]
    other = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    monkeypatch.setattr(sys, "argv", ["-c", *NAMES])
    exec(EPISODES, {})
    here = capsys.readouterr().out
    assert here == other
    assert len(set(here.split()[1::2])) == len(NAMES) - len(
        set(GAMES) - set(NEED_DATA)
    )  # each game equals one of its variants


def test_importing_games_imports_no_torch_and_no_transformers():
    code = (
        "import sys, stratagem.games, stratagem.games.checks, stratagem.games.adapters, stratagem.games.worker\n"
        "print([m for m in ('torch', 'transformers', 'pygame') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("game", "params", "message"),
    [
        ("frozen_lake", {"size": "3"}, "size='3' is of another kind; write an integer."),
        ("frozen_lake", {"size": 4.5}, "size=4.5 is of another kind; write an integer."),
        ("frozen_lake", {"size": True}, "size=True is of another kind; write an integer."),
        ("frozen_lake", {"slippery": 3}, "slippery=3 is of another kind; write true or false."),
        ("frozen_lake", {"hole_probability": "x"}, "hole_probability='x' is of another kind; write a number."),
        ("frozen_lake", {"board": "SF"}, "board='SF' is of another kind; write a list or nothing."),
        ("snake", {"apple_reward": float("inf")}, "apple_reward=inf is not finite; write a number that is."),
        ("snake", {"apple_reward": [1]}, "apple_reward=[1] is of another kind; write a number."),
    ],
)
def test_a_setting_of_another_kind_is_refused(game, params, message):
    with pytest.raises(ConfigError, match=exact(message)):
        make(game, **params)


def test_a_whole_number_and_a_number_of_numpy_are_numbers():
    assert make("frozen_lake", size=np.int64(3), success_rate=1).size == 3


def test_a_variant_is_its_game_with_a_preset_that_parameters_override():
    game = make("FrozenLake-Slippery", max_steps=7)
    assert (game.name, game.slippery, game.max_steps) == ("frozen_lake", True, 7)
    assert make("FrozenLake-Slippery", slippery=False).slippery is False
    assert make("Snake-Poison").apple_reward == -1.0
    assert make("Snake-Standard").apple_reward == 1.0


def test_parameters_shows_defaults_with_the_preset_applied():
    assert parameters("frozen_lake")["slippery"] is False
    assert parameters("FrozenLake-Slippery")["slippery"] is True
    assert parameters("snake")["num_apples"] == 5


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("frozenlake", " Did you mean 'frozen_lake'?"),
        ("Snake-Posion", " Did you mean 'Snake-Poison'?"),
        ("chess", ""),
    ],
)
def test_an_unknown_game_is_refused_with_the_nearest_name(name, hint):
    message = f"Unknown game '{name}'.{hint} Available: {', '.join(sorted([*GAMES, *VARIANTS]))}."
    for call in (make, parameters):
        with pytest.raises(UnknownNameError, match=exact(message)):
            call(name)


def test_an_unknown_parameter_is_refused_with_the_nearest_one():
    message = (
        "slipery=True is not a parameter of FrozenLake-Slippery. Did you mean 'slippery'? Parameters: size, "
        "hole_probability, slippery, board, max_steps, success_rate, coordinates, grid."
    )
    with pytest.raises(ConfigError, match=exact(message)):
        make("FrozenLake-Slippery", slipery=True)
