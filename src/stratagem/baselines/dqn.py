"""A Deep Q-Network on Snake: how far a small network without language gets.

Mnih et al. 2013 (arXiv:1312.5602) in the implementation of stable-baselines3 (the extra ``dqn``), for the row "DQN" of
Dilkes et al. 2025 (arXiv:2508.10839), who say of theirs only that it is one. **Ours**: the network of
:mod:`stratagem.baselines.egocentric`, n-step returns, many boards side by side
(:class:`stratagem.games.snake_batch.SnakeBatch`), and a learning rate that falls to zero. Rewards are the game's own.

The weights are kept as safetensors with the settings beside them and a hash of both; nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from stratagem.agents.base import Policy
from stratagem.baselines.egocentric import QNetwork, snake_view
from stratagem.errors import ConfigError, ModelError
from stratagem.files import atomic_write_bytes, atomic_write_json
from stratagem.games import VARIANTS, make
from stratagem.games.base import Game
from stratagem.games.snake import ACTIONS
from stratagem.games.snake_batch import SnakeBatch
from stratagem.seeding import derive_seed

__all__ = ["DQNConfig", "DQNPolicy", "Progress", "load_policy", "save_policy", "train_dqn"]

_NEEDS = "The DQN baseline needs stable-baselines3; run `pip install -e '.[dqn]'` in a clone of Stratagem."
_FORMAT = 1


@dataclass(frozen=True)
class DQNConfig:
    """Settings of the DQN baseline. The paper gives none; these are ours."""

    game: str = "Snake-Standard"
    """Snake or a variant of it."""
    params: dict[str, Any] = field(default_factory=dict)
    """Settings of the game."""
    num_steps: int = 600_000
    """Rounds played in training, over all boards."""
    num_boards: int = 64
    """Boards that are played side by side; each round of all of them is followed by ``updates_per_round``."""
    updates_per_round: int = 1
    """Steps of the optimizer after each round."""
    batch_size: int = 256
    """Transitions in a step of the optimizer."""
    buffer_size: int = 300_000
    """Transitions that are remembered."""
    learning_starts: int = 20_000
    """Rounds played at random before the first step of the optimizer."""
    learning_rate: float = 5e-4
    """Adam's; falls linearly to zero."""
    gamma: float = 0.97
    """Discount of what is learnt; results are undiscounted."""
    n_steps: int = 3
    """Rewards that are summed up before the target network's value is taken."""
    target_update_rounds: int = 16_000
    """Rounds played between copies of the network to the target network."""
    exploration_fraction: float = 0.1
    """Share of the training in which the share of random moves falls from 1 to ``exploration_final``."""
    exploration_final: float = 0.02
    """Share of random moves from then on."""
    radius: int = 9
    """Of the window around the head; 9 shows all of a 10x10 board."""
    hidden: tuple[int, ...] = (256, 128)
    """Widths of the hidden layers."""
    seed: int = 0
    """Of weights, exploration and boards."""

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        if VARIANTS.get(self.game, (self.game, {}))[0] != "snake":
            raise ConfigError(f"game={self.game!r} is not Snake, which the DQN baseline is for; use Snake-Standard.")
        rules = make(self.game, **self.params)
        rules.close()
        for name in ("num_boards", "updates_per_round", "batch_size", "n_steps", "target_update_rounds", "radius"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be 1 or more.")
        if self.num_steps < self.num_boards:
            raise ConfigError(
                f"num_steps={self.num_steps!r} is less than one round on num_boards={self.num_boards!r} boards; "
                "set num_steps higher."
            )
        if self.buffer_size < max(self.batch_size, self.num_boards * (self.n_steps + 1)):
            raise ConfigError(
                f"buffer_size={self.buffer_size!r} is too small for batch_size={self.batch_size!r} and "
                f"num_boards={self.num_boards!r}; set it higher."
            )
        if not 0 < self.gamma <= 1:
            raise ConfigError(f"gamma={self.gamma!r} is not a discount; set gamma above 0 and at most 1.")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ConfigError(f"learning_rate={self.learning_rate!r} is no step size; use a finite number above 0.")
        for name in ("exploration_fraction", "exploration_final"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not a share; set it between 0 and 1.")


@dataclass(frozen=True)
class Progress:
    """How far a training is."""

    steps: int
    """Rounds played."""
    episodes: int
    """Episodes that have ended."""
    recent_return: float
    """Mean return of the last episodes, random moves included; nan before the first ended."""
    seconds: float


class DQNPolicy(Policy):
    """Play the action of the highest value; Frozen Lake is shown to the network in the planes of Snake."""

    name = "dqn"

    def __init__(self, network: QNetwork, config: DQNConfig) -> None:
        """Take a trained network."""
        self.network = network.eval()
        self.config = config

    def act(self, game: Game, player: int, observation: str, rng: np.random.Generator) -> str | None:
        """Return the best action.

        Raises:
            ConfigError: the game has no grid that the network can read.
        """
        if not hasattr(game, "grid_observation"):
            raise ConfigError(f"Game {game.name!r} has no grid_observation for the DQN; play Snake or Frozen Lake.")
        return ACTIONS[int(self.actions(snake_view(game.grid_observation(player))[None])[0])]

    def actions(self, grids: np.ndarray) -> np.ndarray:
        """Return the place in ``ACTIONS`` of the best action for each of the grids [B, 5, H, W]."""
        with torch.inference_mode():
            best: np.ndarray = self.network(torch.from_numpy(np.ascontiguousarray(grids))).argmax(dim=1).numpy()
        return best


@contextlib.contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """Seed the global generators, which stable-baselines3 draws from, and put them back afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def train_dqn(
    config: DQNConfig, on_progress: Callable[[Progress], None] | None = None, *, every_seconds: float = 10.0
) -> DQNPolicy:
    """Train a network and return it as a policy.

    Args:
        config: the settings.
        on_progress: told how far it is now and then.
        every_seconds: how often.

    Raises:
        ConfigError: stable-baselines3 is not installed.
    """
    try:
        from stable_baselines3 import DQN
        from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

        from stratagem.baselines.snake_vector import SnakeVector
    except ImportError:
        raise ConfigError(_NEEDS) from None
    from stratagem.baselines.egocentric import Egocentric

    class Window(BaseFeaturesExtractor):  # type: ignore[misc]
        """The first layer of :class:`QNetwork`, as stable-baselines3 takes it."""

        def __init__(self, space: Any, radius: int) -> None:
            window = Egocentric(radius)
            super().__init__(space, window.num_features)
            self.window = window

        def forward(self, grids: torch.Tensor) -> torch.Tensor:
            windows: torch.Tensor = self.window(grids)
            return windows

    preset = VARIANTS.get(config.game, (config.game, {}))[1]
    environment = SnakeVector(SnakeBatch(config.num_boards, "dqn", config.seed, **(preset | config.params)))
    start = told = time.perf_counter()

    def tell(values: Mapping[str, Any], _: Any) -> bool:
        nonlocal told
        now = time.perf_counter()
        if on_progress is not None and now - told >= every_seconds:
            told = now
            on_progress(_progress(values["self"].num_timesteps, environment.finished, now - start))
        return True

    with _global_seed(derive_seed("dqn", config.seed)):
        learner = DQN(
            "MlpPolicy",
            environment,
            learning_rate=lambda left: config.learning_rate * left,
            buffer_size=config.buffer_size,
            learning_starts=config.learning_starts,
            batch_size=config.batch_size,
            gamma=config.gamma,
            train_freq=1,
            gradient_steps=config.updates_per_round,
            n_steps=config.n_steps,
            target_update_interval=config.target_update_rounds,
            exploration_fraction=config.exploration_fraction,
            exploration_final_eps=config.exploration_final,
            policy_kwargs={
                "features_extractor_class": Window,
                "features_extractor_kwargs": {"radius": config.radius},
                "net_arch": list(config.hidden),
            },
            device="cpu",
        )
        learner.action_space.seed(config.seed)  # random moves come from a generator of its own
        learner.learn(config.num_steps, callback=tell)
    if on_progress is not None:
        on_progress(_progress(learner.num_timesteps, environment.finished, time.perf_counter() - start))
    network = _empty_network(config)
    network.layers.load_state_dict(learner.q_net.q_net.state_dict())
    return DQNPolicy(network, config)


def _empty_network(config: DQNConfig) -> QNetwork:
    """Return a network whose weights are about to be replaced, without touching the global generator."""
    with torch.random.fork_rng(devices=[]):
        return QNetwork(config.radius, config.hidden, len(ACTIONS))


def _progress(steps: int, finished: list[float], seconds: float) -> Progress:
    recent = finished[-500:]
    return Progress(steps, len(finished), sum(recent) / len(recent) if recent else math.nan, seconds)


# ---- files -------------------------------------------------------------------------------------------------------


def save_policy(policy: DQNPolicy, folder: Path) -> None:
    """Write ``network.safetensors`` and ``dqn.json`` (settings and hash) into a folder, made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    content = save_tensors({name: tensor.contiguous() for name, tensor in policy.network.state_dict().items()})
    atomic_write_bytes(folder / "network.safetensors", content)
    atomic_write_json(
        folder / "dqn.json",
        {
            "format": _FORMAT,
            "sha256": hashlib.sha256(content).hexdigest(),
            "config": dataclasses.asdict(policy.config),
        },
    )


def load_policy(folder: Path) -> DQNPolicy:
    """Read what :func:`save_policy` wrote.

    Raises:
        ModelError: a file is missing, damaged, or of another network.
    """
    try:
        header = json.loads((folder / "dqn.json").read_text(encoding="utf-8"))
        content = (folder / "network.safetensors").read_bytes()
        settings = dict(header["config"])
        settings["hidden"] = tuple(settings["hidden"])
        config = DQNConfig(**settings)
        expected = header["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{str(folder)!r} holds no DQN that can be read ({type(error).__name__}: {error}); train one with "
            "`stratagem baseline dqn`."
        ) from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise ModelError(
            f"{str(folder / 'network.safetensors')!r} is not the file that was saved: its hash is not that of "
            "dqn.json; restore both from a copy, or train again."
        )
    network = _empty_network(config)
    network.load_state_dict(load_tensors(content))
    return DQNPolicy(network, config)
