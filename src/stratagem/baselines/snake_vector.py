"""Batched Snake as a vectorised environment of stable-baselines3; imported only where that is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from stratagem.games.snake import ACTIONS
from stratagem.games.snake_batch import SnakeBatch

__all__ = ["SnakeVector"]


class SnakeVector(VecEnv):  # type: ignore[misc]
    """Boards that start anew by themselves; rewards are the game's own, without shaping.

    Observations are those of ``to_gymnasium(game, encode="grid")``, and the enemy is the game's default opponent.
    """

    def __init__(self, batch: SnakeBatch) -> None:
        """Take a batch of boards over."""
        self.batch = batch
        shape = (5, batch.rules.height, batch.rules.width)
        super().__init__(batch.num_boards, spaces.Box(0, 1, shape=shape, dtype=np.uint8), spaces.Discrete(len(ACTIONS)))
        self.returns = np.zeros(batch.num_boards)
        self.finished: list[float] = []
        """Returns of the episodes that have ended, oldest first."""
        self._actions = np.zeros(batch.num_boards, dtype=np.int64)

    def reset(self) -> np.ndarray:
        """Start every board anew."""
        self.batch.restart(np.ones(self.num_envs, dtype=bool))
        self.returns[:] = 0.0
        return self.batch.grids()

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the moves."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Play a round; an ended board is seen at its next start, its last grid goes into the info."""
        rewards, terminated, truncated, _ = self.batch.step(self._actions)
        self.returns += rewards
        ended = terminated | truncated
        grids = self.batch.grids()
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if ended.any():
            for board in np.flatnonzero(ended):
                infos[board] = {"terminal_observation": grids[board], "TimeLimit.truncated": bool(truncated[board])}
            self.finished += self.returns[ended].tolist()
            self.returns[ended] = 0.0
            self.batch.restart(ended)
            grids = self.batch.grids()
        return grids, rewards.astype(np.float32), ended, infos

    def close(self) -> None:
        """Do nothing: a batch holds no resources."""

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Do nothing: the batch's address fixes its random numbers."""
        return [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute, the same for each board."""
        return [getattr(self, attr_name, None)] * len(self._get_indices(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: boards share their settings."""
        raise AttributeError(f"{attr_name} of a board cannot be set; make a SnakeBatch with other settings.")

    def env_method(self, method_name: str, *arguments: Any, indices: Any = None, **settings: Any) -> list[Any]:
        """Refuse: boards have no methods of their own."""
        raise AttributeError(f"{method_name} is no method of a board; boards are played together.")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Return False for each board."""
        return [False] * len(self._get_indices(indices))
