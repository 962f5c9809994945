"""Training on several variants of a game."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratagem.cli import main
from stratagem.data.trajectories import read_trajectories
from stratagem.errors import ConfigError
from stratagem.games import make
from stratagem.games.checks import check_game
from stratagem.games.mixture import Mixture
from stratagem.recipe import load_recipe
from stratagem.runs.experiment import build_experiment


def lakes() -> Mixture:
    return Mixture([make("FrozenLake-NotSlippery"), make("FrozenLake-Slippery")])


def test_it_keeps_the_promises_of_a_game() -> None:
    check_game(lakes)


def test_the_seed_alone_says_which_game_it_is_and_both_come() -> None:
    game = lakes()
    places = []
    for seed in range(40):
        (text,) = game.reset(seed=seed)
        place = game.games.index(game.current)
        places.append(place)
        again = lakes()
        assert again.reset(seed=seed, course=7) == (text,)
        assert again.games.index(again.current) == place
        alone = make(("FrozenLake-NotSlippery", "FrozenLake-Slippery")[place])
        assert alone.reset(seed=seed) == (text,)
        assert alone.state_key() == game.state_key()
    assert 10 < sum(places) < 30


def test_games_for_different_numbers_of_players_do_not_mix() -> None:
    message = "A mixture of games for [2, 3] players; give one game or more, all for as many players."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Mixture([make("snake"), make("snake", num_snakes=3)])


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        (
            '["Snake-Poison"]',
            "game.mix names 'Snake-Poison', which is another game than 'FrozenLake-NotSlippery'; name variants of the "
            "same game.",
        ),
        ('["FrozenLake-NotSlippery"]', "game.mix names 'FrozenLake-NotSlippery' twice; name each variant once."),
    ],
)
def test_other_games_and_repetitions_are_refused(mix: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "frozen_lake_demo", "--set", f"game.mix={mix}", "--dry-run"]) != 0
    assert message in capsys.readouterr().err


def test_variants_share_the_settings_that_they_do_not_fix_and_the_starts_of_panels_are_left_out() -> None:
    recipe = load_recipe("snake", ['game.mix=["Snake-Poison"]', "evaluation.num_episodes=3"])
    experiment = build_experiment(recipe)
    game = experiment.make_game()
    assert isinstance(game, Mixture)
    assert [one.apple_reward for one in game.games] == [1.0, -1.0]  # type: ignore[attr-defined]
    assert [one.coordinates for one in game.games] == [False, False]  # type: ignore[attr-defined]
    alone = build_experiment(load_recipe("snake", ["evaluation.num_episodes=3"]))
    assert experiment.excluded_starts == alone.excluded_starts
    assert len(experiment.excluded_starts) == 3


def test_a_run_meets_both_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ['game.mix=["FrozenLake-Slippery"]', "algorithm.num_groups=6", "algorithm.num_iterations=1"]
    words = [word for change in changes for word in ("--set", change)]
    assert main(["train", "tiny", "--name", "mixed", *words]) == 0
    groups = read_trajectories(tmp_path / "runs" / "mixed" / "trajectories")
    rules = [{"is slippery" in step.observation for t in one.group.trajectories for step in t.steps} for one in groups]
    assert all(len(found) == 1 for found in rules)  # a group plays by the same rules
    assert {found.pop() for found in rules} == {True, False}
