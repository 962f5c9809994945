"""The DQN baseline: what its network sees, how it is kept, and that it learns."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from stratagem.agents.base import make_policy
from stratagem.baselines.dqn import DQNConfig, DQNPolicy, Progress, load_policy, save_policy, train_dqn
from stratagem.baselines.egocentric import Egocentric, QNetwork, snake_view
from stratagem.cli import main
from stratagem.errors import ConfigError, ModelError
from stratagem.evaluation.panels import EvaluationResult, fixed_panel
from stratagem.evaluation.play import evaluate
from stratagem.games import make
from stratagem.games.adapters import to_gymnasium
from stratagem.games.snake import ACTIONS, State
from stratagem.games.snake_batch import SnakeBatch

SMALL = {"num_steps": 400, "num_boards": 8, "learning_starts": 100, "buffer_size": 1000, "batch_size": 16, "radius": 3}


def refused(message: str, kind: type[Exception] = ConfigError) -> pytest.RaisesExc[Exception]:
    return pytest.raises(kind, match=f"^{re.escape(message)}$")


def untrained(**settings: object) -> DQNPolicy:
    config = DQNConfig(**(SMALL | settings))  # type: ignore[arg-type]
    return DQNPolicy(QNetwork(config.radius, config.hidden, len(ACTIONS)), config)


# ---- what the network sees -------------------------------------------------------------------------------------------


def test_the_window_is_centred_on_the_own_head_and_everything_outside_is_fatal() -> None:
    game = make("snake", width=3, height=3, num_apples=1)
    game.reset(seed=0)
    # Rows from the top: 6 7 8 / 3 4 5 / 0 1 2. Own snake 0 (head), 1; enemy head 4, body 7; apple 8.
    game._state = State(((0, 1), (4, 7)), (8,))  # type: ignore[attr-defined]
    grid = torch.from_numpy(game.grid_observation())[None]  # type: ignore[attr-defined]
    window = Egocentric(2)(grid).reshape(4, 5, 5)
    fatal = [
        [1, 1, 0, 1, 0],  # off, off, then the top row: free, enemy body, apple
        [1, 1, 0, 1, 0],  # free, enemy head, free
        [1, 1, 1, 1, 0],  # own head in the middle, own body, free
        [1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1],
    ]
    assert window[0].tolist() == fatal
    for plane, place in ((1, (2, 3)), (2, (1, 3)), (3, (0, 4))):
        assert [tuple(index) for index in window[plane].nonzero().tolist()] == [place]


def test_a_wider_window_adds_nothing_but_what_is_off_the_board() -> None:
    grids = torch.from_numpy(SnakeBatch(16, 0, width=4, height=4).grids())
    narrow = Egocentric(3)(grids).reshape(16, 4, 7, 7)
    wide = Egocentric(5)(grids).reshape(16, 4, 11, 11)
    assert (wide[:, :, 2:-2, 2:-2] == narrow).all()
    frame = wide.clone()
    frame[:, :, 2:-2, 2:-2] = torch.tensor([1.0, 0.0, 0.0, 0.0])[None, :, None, None]
    assert (frame == torch.tensor([1.0, 0.0, 0.0, 0.0])[None, :, None, None]).all()


def test_frozen_lake_is_shown_as_a_head_fatal_cells_and_an_apple() -> None:
    game = make("frozen_lake", board=["SFH", "FFG"])
    game.reset(seed=0)
    view = snake_view(game.grid_observation())  # type: ignore[attr-defined]
    assert view.shape == (5, 2, 3)
    assert [np.argwhere(plane).tolist() for plane in view] == [[[0, 0]], [], [], [[0, 2]], [[1, 2]]]


def test_a_grid_of_another_game_is_refused() -> None:
    with refused(
        "A grid of 4 planes cannot be shown to a network of Snake; play Snake (5 planes) or Frozen Lake (3 planes)."
    ):
        snake_view(np.zeros((4, 3, 3), dtype=np.uint8))
    with refused("Game 'virtualhome' has no grid_observation for the DQN; play Snake or Frozen Lake."):
        untrained().act(make("virtualhome"), 0, "", np.random.default_rng(0))


def test_a_window_without_surroundings_is_refused() -> None:
    with refused("radius=0 shows nothing beside the head; set it to 1 or more."):
        Egocentric(0)


def test_the_policy_plays_the_action_of_the_highest_value() -> None:
    policy = untrained()
    game = make("Snake-Standard")
    game.reset(seed=3)
    for place, word in enumerate(ACTIONS):
        with torch.no_grad():
            policy.network.layers[-1].weight.zero_()  # type: ignore[operator]
            policy.network.layers[-1].bias.copy_(torch.eye(4)[place])  # type: ignore[operator]
        assert policy.act(game, 0, game.observation(0), np.random.default_rng(0)) == word


# ---- training --------------------------------------------------------------------------------------------------------


def test_the_environment_has_the_spaces_and_rewards_of_the_gymnasium_view() -> None:
    pytest.importorskip("stable_baselines3")
    from stratagem.baselines.snake_vector import SnakeVector

    single = to_gymnasium(make("Snake-Standard"), encode="grid")
    vector = SnakeVector(SnakeBatch(3, 0))
    assert vector.observation_space == single.observation_space
    assert vector.action_space == single.action_space
    grids = vector.reset()
    assert grids.shape == (3, *single.observation_space.shape)
    total, ended, finished = np.zeros(3), 0, 0
    while ended < 20:
        grids, rewards, dones, infos = vector.step(np.full(3, 3))
        total += rewards
        for board in np.flatnonzero(dones):
            assert vector.finished[finished] == pytest.approx(total[board])
            assert infos[board]["terminal_observation"].shape == grids[board].shape
            # A new start: own head on the board, and five apples.
            assert grids[board][0].sum() == 1 and grids[board][1].sum() == 0 and grids[board][4].sum() == 5
            total[board], finished = 0.0, finished + 1
            ended += 1


def test_training_is_repeatable_and_leaves_the_global_generators_alone() -> None:
    pytest.importorskip("stable_baselines3")
    config = DQNConfig(**SMALL, params={"width": 4, "height": 4, "num_apples": 2})  # type: ignore[arg-type]
    told: list[Progress] = []
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[union-attr, index]
    first = train_dqn(config, told.append, every_seconds=0.0)
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before  # type: ignore[union-attr, index]
    second = train_dqn(config)
    for name, tensor in first.network.state_dict().items():
        assert torch.equal(tensor, second.network.state_dict()[name]), name
    assert told[-1].steps >= 400 and told[-1].episodes > 0


@pytest.mark.slow
def test_a_small_board_is_learnt() -> None:
    pytest.importorskip("stable_baselines3")
    params = {"width": 5, "height": 5, "num_apples": 3, "num_snakes": 1, "max_steps": 20}
    config = DQNConfig(
        params=params, num_steps=40_000, num_boards=16, batch_size=64, radius=4, hidden=(64,), learning_starts=1000,
        buffer_size=20_000, target_update_rounds=800, learning_rate=2e-3, gamma=0.9,
    )  # fmt: skip
    policy = train_dqn(config)
    panel = fixed_panel("Snake-Standard", params, 50)
    result, _ = evaluate(panel, [policy], address=(0,))
    other, _ = evaluate(panel, [make_policy("random")], address=(0,))
    assert result.mean > other.mean + 1.0


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_saved_policy_plays_as_before(tmp_path: Path) -> None:
    policy = untrained(params={"width": 5})
    save_policy(policy, tmp_path / "new")
    loaded = load_policy(tmp_path / "new")
    grids = SnakeBatch(64, 0).grids()
    assert loaded.config == policy.config
    assert (loaded.actions(grids) == policy.actions(grids)).all()


def test_a_network_that_was_changed_is_refused(tmp_path: Path) -> None:
    save_policy(untrained(), tmp_path)
    path = tmp_path / "network.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    message = (
        f"{str(path)!r} is not the file that was saved: its hash is not that of dqn.json; restore both from a copy, or "
        "train again."
    )
    with refused(message, ModelError):
        load_policy(tmp_path)


def test_a_folder_without_a_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^'.*' holds no DQN that can be read \(FileNotFoundError: .*\); train one"):
        load_policy(tmp_path)
    (tmp_path / "dqn.json").write_text("{}")
    (tmp_path / "network.safetensors").write_bytes(b"")
    message = f"{str(tmp_path)!r} holds no DQN that can be read (KeyError: 'config'); "
    message += "train one with `stratagem baseline dqn`."
    with refused(message, ModelError):
        load_policy(tmp_path)


# ---- settings and the command ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"game": "frozen_lake"},
            "game='frozen_lake' is not Snake, which the DQN baseline is for; use Snake-Standard.",
        ),
        ({"n_steps": 0}, "n_steps=0 must be 1 or more."),
        (
            {"num_steps": 10},
            "num_steps=10 is less than one round on num_boards=64 boards; set num_steps higher.",
        ),
        ({"buffer_size": 255}, "buffer_size=255 is too small for batch_size=256 and num_boards=64; set it higher."),
        ({"gamma": 0.0}, "gamma=0.0 is not a discount; set gamma above 0 and at most 1."),
        ({"learning_rate": 0.0}, "learning_rate=0.0 is no step size; use a finite number above 0."),
        ({"exploration_final": 1.5}, "exploration_final=1.5 is not a share; set it between 0 and 1."),
        ({"params": {"width": 1}}, "width=1 is not a playable board; set width between 2 and 50."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_be_trained_are_refused(settings: dict[str, object], message: str) -> None:
    with refused(message):
        DQNConfig(**settings)  # type: ignore[arg-type]


def test_without_stable_baselines3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "stable_baselines3", None)
    with refused("The DQN baseline needs stable-baselines3; run `pip install -e '.[dqn]'` in a clone of Stratagem."):
        train_dqn(DQNConfig(**SMALL))  # type: ignore[arg-type]


def command_refused(capsys: pytest.CaptureFixture[str], message: str, *words: str) -> None:
    assert main(["baseline", *words]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_the_command_trains_saves_evaluates_and_evaluates_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    settings = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    assert main(["baseline", "dqn", *settings, "--seed", "5", "--episodes", "3", "--param", "max_steps=9"]) == 0
    printed = capsys.readouterr().out
    assert "saved in dqn" in printed
    assert "Snake-Standard: mean " in printed
    names = sorted(path.stem for path in (tmp_path / "dqn" / "evaluation").glob("*.json"))
    assert names == ["FrozenLake-NotSlippery", "FrozenLake-Slippery", "Snake-Poison", "Snake-Standard"]
    path = tmp_path / "dqn" / "evaluation" / "Snake-Standard.json"
    first = EvaluationResult.from_json(path.read_text())
    assert first.num_episodes == 3 and first.params == {"max_steps": 9}
    training = json.loads((tmp_path / "dqn" / "training.json").read_text())
    assert training["seed"] == 5 and training["minutes"] > 0 and training["provenance"]["versions"]["torch"]
    path.unlink()
    again = ["--load", "--panel", "Snake-Standard", "--episodes", "3", "--seed", "5", "--param", "max_steps=9"]
    assert main(["baseline", "dqn", *again]) == 0
    assert EvaluationResult.from_json(path.read_text()) == first
    capsys.readouterr()
    command_refused(
        capsys,
        "--out 'dqn' holds a trained network; name another folder, or evaluate that one with --load.",
        "dqn",
    )


def test_commands_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command_refused(capsys, "Unknown baseline 'dqm'. Did you mean 'dqn'? Available: dqn.", "dqm")
    command_refused(capsys, "--episodes 0 plays nothing; set it to 1 or more.", "dqn", "--episodes", "0")
    command_refused(
        capsys,
        "--panel 'Overcooked-TomatoSalad' has no grid that the DQN can read; use variants of Snake and Frozen Lake.",
        *("dqn", "--panel", "Overcooked-TomatoSalad"),
    )
