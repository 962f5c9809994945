"""To and from the interfaces of Gymnasium and PettingZoo.

:class:`GymnasiumGame` makes a text game of any Gymnasium environment; :func:`to_gymnasium` and :func:`to_pettingzoo`
give a game to libraries that expect theirs (the DQN baseline does). This module is not imported by
:mod:`stratagem.games`, so that games need neither library's wrappers.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from stratagem.errors import ConfigError
from stratagem.games.base import Game, GameStep, check_joint_action
from stratagem.seeding import generator

if TYPE_CHECKING:
    from stratagem.agents.base import Policy

__all__ = ["GameEnv", "GameParallelEnv", "GymnasiumGame", "to_gymnasium", "to_pettingzoo"]

MAX_TEXT = 100_000
"""Longest observation of the ``Text`` spaces, in characters."""

ENCODINGS = ("text", "grid")


class GymnasiumGame(Game):
    """A Gymnasium environment with words: a one-player text game.

    ``seed`` goes to the environment's ``reset``. Course 0 is Gymnasium's own episode of that seed; for another course
    the environment's ``np_random`` is replaced after the reset, so an environment with a different source of randomness
    ignores ``course``. ``None`` ("no action") leaves the environment alone and counts as a step.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        *,
        actions: Mapping[str, Any],
        describe: Callable[[Any, Mapping[str, Any]], str],
        rules: str = "",
        name: str = "gymnasium",
        max_steps: int = 100,
        legal: Callable[[Any, Mapping[str, Any]], Sequence[str]] | None = None,
        state_key: Callable[[Any], str] | None = None,
    ) -> None:
        """Set how the environment is told in words.

        Args:
            make_env: returns the environment.
            actions: the environment's action for each word.
            describe: text of an observation and the info that came with it.
            rules: text before every observation: what never changes.
            name: name in messages and records.
            max_steps: an episode is truncated after this many steps, if the environment does not end it before.
            legal: the words that are legal now, from observation and info; all of ``actions`` where not given.
            state_key: the true state from the unwrapped environment; the described observation where not given.
        """
        if not actions:
            raise ConfigError("actions={} leaves nothing to play; give at least one word and its action.")
        self.name = name
        self.max_steps = max_steps
        self._env = make_env()
        self._actions = dict(actions)
        self._describe = describe
        self._rules = rules
        self._legal = legal
        self._key = state_key
        self._seen: Any = None
        self._info: Mapping[str, Any] = {}
        self._steps = 0
        self._started = False
        self._over = False

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Reset the environment."""
        self._seen, self._info = self._env.reset(seed=seed)
        if course:
            self._env.unwrapped.np_random = generator(seed, "gymnasium", "course", course)
        self._steps, self._started, self._over = 0, True, False
        return (self.observation(),)

    def step(self, actions: Sequence[str | None]) -> GameStep:
        """Step the environment with the action that the word stands for."""
        check_joint_action(self, actions, started=self._started, over=self._over)
        reward, terminated, truncated = 0.0, False, False
        if actions[0] is not None:
            action = self._actions[actions[0]]
            self._seen, reward, terminated, truncated, self._info = self._env.step(action)
        self._steps += 1
        truncated = not terminated and (bool(truncated) or self._steps >= self.max_steps)
        self._over = terminated or truncated
        info: dict[str, Any] = {}
        if self._over and "is_success" in self._info:
            info["success"] = bool(self._info["is_success"])
        return GameStep((self.observation(),), (float(reward),), bool(terminated), truncated, info)

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """Return the legal words."""
        if self._over:
            return ()
        return tuple(self._actions) if self._legal is None else tuple(self._legal(self._seen, self._info))

    def observation(self, player: int = 0) -> str:
        """Return the rules and the described observation."""
        text = self._describe(self._seen, self._info)
        return f"{self._rules}\n{text}" if self._rules else text

    def state_key(self) -> str:
        """Return the true state as text."""
        return self._describe(self._seen, self._info) if self._key is None else self._key(self._env.unwrapped)

    def render(self) -> str:
        """Return the described observation."""
        return self._describe(self._seen, self._info)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _action_words(game: Game, player: int, actions: Sequence[str] | None) -> tuple[str, ...]:
    if actions is None:
        game.reset(seed=0)
        actions = game.legal_actions(player)
    return tuple(actions)


def _observation_space(game: Game, player: int, encode: str) -> Any:
    if encode not in ENCODINGS:
        raise ConfigError(f"encode={encode!r} is not a kind of observation; use one of {', '.join(ENCODINGS)}.")
    if encode == "text":
        return spaces.Text(min_length=1, max_length=MAX_TEXT, charset=string.printable)
    if not hasattr(game, "grid_observation"):
        raise ConfigError(f"encode='grid' needs a game with grid_observation, which {game.name} lacks; use 'text'.")
    game.reset(seed=0)
    return spaces.Box(0, 1, shape=game.grid_observation(player).shape, dtype=np.uint8)


def _observe(game: Game, player: int, encode: str) -> Any:
    return game.observation(player) if encode == "text" else game.grid_observation(player)  # type: ignore[attr-defined]


def _mask(game: Game, player: int, words: Sequence[str]) -> np.ndarray:
    legal = game.legal_actions(player)
    return np.array([word in legal for word in words], dtype=np.int8)


def _word(game: Game, player: int, words: Sequence[str], action: Any) -> str | None:
    word = words[int(action)]
    return word if word in game.legal_actions(player) else None


class GameEnv(gymnasium.Env):  # type: ignore[misc]
    """One seat of a game as a Gymnasium environment; made by :func:`to_gymnasium`."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 (Gymnasium's own convention)

    def __init__(
        self,
        game: Game,
        *,
        player: int,
        opponents: Mapping[int, Policy],
        encode: str,
        actions: Sequence[str] | None,
        render_mode: str | None,
    ) -> None:
        self.game = game
        self.player = player
        self.words = _action_words(game, player, actions)
        self.opponents = dict(opponents)
        self.encode = encode
        self.render_mode = render_mode
        self.observation_space = _observation_space(game, player, encode)
        self.action_space = spaces.Discrete(len(self.words))
        self._rngs: dict[int, np.random.Generator] = {}

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the episode of ``seed`` (and of ``options["course"]``); without a seed, draw one."""
        super().reset(seed=seed)
        episode = int(self.np_random.integers(2**31)) if seed is None else seed
        course = int((options or {}).get("course", 0))
        self.game.reset(seed=episode, course=course)
        self._rngs = {seat: generator(episode, "opponent", seat, course) for seat in self.opponents}
        return _observe(self.game, self.player, self.encode), {"action_mask": self._mask(), "seed": episode}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play the word ``words[action]``; a word that is not legal now becomes no action."""
        joint: list[str | None] = [None] * self.game.num_players
        joint[self.player] = _word(self.game, self.player, self.words, action)
        for seat, policy in self.opponents.items():
            if self.game.legal_actions(seat):
                joint[seat] = policy.act(self.game, seat, self.game.observation(seat), self._rngs[seat])
        step = self.game.step(joint)
        out = not step.truncated and not self.game.legal_actions(self.player)
        info = {**step.info, "action_mask": self._mask()}
        reward = step.rewards[self.player]
        return _observe(self.game, self.player, self.encode), reward, step.terminated or out, step.truncated, info

    def render(self) -> str | None:
        """Return the game's picture where the render mode is ``ansi``."""
        return self.game.render() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the game."""
        self.game.close()

    def _mask(self) -> np.ndarray:
        return _mask(self.game, self.player, self.words)


def to_gymnasium(
    game: Game,
    opponents: Mapping[int, Policy] | None = None,
    *,
    player: int = 0,
    encode: str = "text",
    actions: Sequence[str] | None = None,
    render_mode: str | None = None,
) -> GameEnv:
    """Return one seat of ``game`` as a Gymnasium environment.

    Args:
        game: the game; the environment owns it from now on.
        opponents: a policy for each other seat; the game's default opponents where not given.
        player: the seat that the environment's actions play.
        encode: ``"text"`` for the observation text, ``"grid"`` for uint8 planes [C, H, W].
        actions: the words of the discrete actions in order; the words that are legal at the start where not given.
        render_mode: ``"ansi"`` or ``None``.

    Raises:
        ConfigError: an impossible seat or encoding.
    """
    from stratagem.agents.base import make_policy

    others = [seat for seat in range(game.num_players) if seat != player]
    if not 0 <= player < game.num_players:
        raise ConfigError(f"player={player!r} is not a seat of {game.name}; use 0 to {game.num_players - 1}.")
    unknown = [seat for seat in opponents or {} if seat not in others]
    if unknown:
        raise ConfigError(
            f"opponents has a policy for seat {unknown[0]}, which no opponent of player {player} holds in {game.name}; "
            f"use {', '.join(map(str, others)) or 'none'}."
        )
    policies = {seat: (opponents or {}).get(seat) or make_policy(game.default_opponent(seat)) for seat in others}
    return GameEnv(game, player=player, opponents=policies, encode=encode, actions=actions, render_mode=render_mode)


class GameParallelEnv(ParallelEnv):  # type: ignore[misc]
    """All seats of a game as a PettingZoo parallel environment; made by :func:`to_pettingzoo`."""

    def __init__(self, game: Game, *, encode: str, actions: Sequence[str] | None, render_mode: str | None) -> None:
        self.metadata = {"render_modes": ["ansi"], "name": game.name, "is_parallelizable": True}
        self.game = game
        self.encode = encode
        self.render_mode = render_mode
        self.possible_agents = [f"player_{seat}" for seat in range(game.num_players)]
        self.agents: list[str] = []
        self._seats = {agent: seat for seat, agent in enumerate(self.possible_agents)}
        self._words = {agent: _action_words(game, seat, actions) for agent, seat in self._seats.items()}
        self.observation_spaces = {a: _observation_space(game, seat, encode) for a, seat in self._seats.items()}
        self.action_spaces = {agent: spaces.Discrete(len(words)) for agent, words in self._words.items()}
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        """Return the observation space of ``agent``."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """Return the action space of ``agent``."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start the episode of ``seed`` (and of ``options["course"]``); without a seed, draw one."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        episode = int(self._rng.integers(2**31)) if seed is None else seed
        self.game.reset(seed=episode, course=int((options or {}).get("course", 0)))
        self.agents = list(self.possible_agents)
        return self._observations(), self._infos({})

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Play one word for each living agent; a word that is not legal now becomes no action."""
        joint: list[str | None] = [None] * self.game.num_players
        for agent in self.agents:
            joint[self._seats[agent]] = _word(self.game, self._seats[agent], self._words[agent], actions[agent])
        step = self.game.step(joint)
        observations, infos = self._observations(), self._infos(step.info)
        rewards = {agent: step.rewards[self._seats[agent]] for agent in self.agents}
        truncations = {agent: step.truncated for agent in self.agents}
        # A seat that is out while the others play on ends here; truncation ends all seats.
        terminations = {
            agent: not step.truncated and not self.game.legal_actions(self._seats[agent]) for agent in self.agents
        }
        self.agents = [agent for agent in self.agents if not (terminations[agent] or truncations[agent])]
        return observations, rewards, terminations, truncations, infos

    def render(self) -> str | None:
        """Return the game's picture where the render mode is ``ansi``."""
        return self.game.render() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the game."""
        self.game.close()

    def _observations(self) -> dict[str, Any]:
        return {agent: _observe(self.game, self._seats[agent], self.encode) for agent in self.agents}

    def _infos(self, info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return {
            agent: {**info, "action_mask": _mask(self.game, self._seats[agent], self._words[agent])}
            for agent in self.agents
        }


def to_pettingzoo(
    game: Game, *, encode: str = "text", actions: Sequence[str] | None = None, render_mode: str | None = None
) -> GameParallelEnv:
    """Return all seats of ``game`` as a PettingZoo parallel environment with agents ``player_0``, ``player_1``, ...

    Args:
        game: the game; the environment owns it from now on.
        encode: ``"text"`` for the observation text, ``"grid"`` for uint8 planes [C, H, W].
        actions: the words of the discrete actions in order; each seat's words at the start where not given.
        render_mode: ``"ansi"`` or ``None``.
    """
    return GameParallelEnv(game, encode=encode, actions=actions, render_mode=render_mode)
