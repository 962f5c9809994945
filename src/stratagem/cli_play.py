"""The verb play: by hand in the terminal, or watching somebody."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np

from stratagem.agents.base import Policy
from stratagem.cli_players import find_contestant, parse_params
from stratagem.errors import ConfigError, StratagemError
from stratagem.evaluation.play import seat_opponents
from stratagem.games import make
from stratagem.games.base import Game, GameStep
from stratagem.rollout import Episode, Player, play_episodes

__all__ = ["HumanPolicy", "ShownGame", "play"]


_LONGEST_MENU = 200
"""With more words than this a menu helps nobody."""


class _QuitError(StratagemError):
    """The player has had enough; it passes through a rollout as every error of ours does."""


class HumanPolicy(Policy):
    """Asks whoever sits at the terminal: a word, its number, or the beginning of one word only."""

    name = "human"

    def act(self, game: Game, player: int, observation: str, rng: np.random.Generator) -> str | None:
        """Return what was typed; an empty line is "no action"."""
        legal = _in_the_order_of(observation, game.legal_actions(player))
        menu = "  ".join(f"{number} {word}" for number, word in enumerate(legal, start=1))
        if len(legal) > _LONGEST_MENU:
            menu = f"one of {len(legal)} commands, or the beginning of one"
        while True:
            try:
                typed = input(f"{menu}  (q quits) > ").strip().lower()
            except EOFError:
                raise _QuitError from None
            if typed in ("q", "quit"):
                raise _QuitError
            if typed == "":
                return None
            if typed.isdigit() and 1 <= int(typed) <= len(legal):
                return legal[int(typed) - 1]
            if typed in legal:
                return typed
            matches = [word for word in legal if word.lower() == typed] or [
                word for word in legal if word.lower().startswith(typed)
            ]
            if len(matches) == 1:
                return matches[0]
            print(f"{typed!r} is none of them; type a word or its number, or an empty line for no action.")


def _in_the_order_of(text: str, words: Sequence[str]) -> Sequence[str]:
    """Return words in the order in which a text lists them in quotes; as they are where it does not list them all."""
    if len(words) > _LONGEST_MENU or any(f'"{word}"' not in text for word in words):
        return words
    return sorted(words, key=lambda word: text.index(f'"{word}"'))


class ShownGame(Game):
    """A game that prints its picture after every step."""

    def __init__(self, game: Game, show: Callable[[str], None], *, delay: float = 0.0, shown: str = "") -> None:
        """Wrap a game.

        Args:
            game: the game that is played.
            show: takes the text.
            delay: seconds to wait after each step.
            shown: what is on the screen already; a first picture that is part of it is not shown again.
        """
        self._game = game
        self._show = show
        self._delay = delay
        self._shown = shown
        self._steps = 0
        self.name = game.name
        self.num_players = game.num_players
        self.max_steps = game.max_steps

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Start an episode and show it."""
        observations = self._game.reset(seed=seed, course=course)
        self._steps = 0
        picture = self._game.render()
        if picture not in self._shown:
            self._show(picture)
        time.sleep(self._delay)
        return observations

    def step(self, actions: Sequence[str | None]) -> GameStep:
        """Step and show what happened."""
        step = self._game.step(actions)
        self._steps += 1
        moves = ", ".join(action or "no action" for action in actions)
        rewards = ", ".join(f"{reward:+g}" for reward in step.rewards)
        self._show(f"\nstep {self._steps}: {moves} | reward {rewards}\n{self._game.render()}")
        time.sleep(self._delay)
        return step

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """Return the words that are legal now."""
        return self._game.legal_actions(player)

    def observation(self, player: int = 0) -> str:
        """Return what a player sees."""
        return self._game.observation(player)

    def state_key(self) -> str:
        """Return the true state."""
        return self._game.state_key()

    def render(self) -> str:
        """Return the picture."""
        return self._game.render()

    def default_opponent(self, player: int) -> str:
        """Return who plays a seat."""
        return self._game.default_opponent(player)

    def random_action(self, player: int, rng: np.random.Generator) -> str:
        """Return a random legal word."""
        return self._game.random_action(player, rng)

    def planner_action(self, player: int = 0) -> str | None:
        """Return the planner's word."""
        return self._game.planner_action(player)

    def optimal_return(self, *, gamma: float = 1.0) -> float | None:
        """Return the best expected return from here."""
        return self._game.optimal_return(gamma=gamma)

    def close(self) -> None:
        """Release the game."""
        self._game.close()


def play(arguments: argparse.Namespace) -> int:
    """Play one episode by hand or watch one."""
    if arguments.delay < 0:
        raise ConfigError(f"--delay {arguments.delay} is negative; use 0 or more seconds.")
    game = make(arguments.game, **parse_params(arguments.params))
    game.reset(seed=arguments.seed)
    optimum = game.optimal_return()
    player: Player
    told = ""
    if arguments.policy is None:
        player = HumanPolicy()
        told = game.observation(0)
        print(f"{told}\n")
    else:
        contestant = find_contestant(arguments.policy, arguments)
        print(f"{contestant.label} plays {arguments.game}, seed {arguments.seed}")
        player = contestant.load()
    shown = ShownGame(game, lambda text: print(text, flush=True), delay=arguments.delay, shown=told)
    episode = Episode(arguments.seed, 0, (arguments.seed, "play"))
    try:
        [trajectory] = play_episodes(lambda: shown, [player, *seat_opponents(game)], [episode])
    except _QuitError:
        print("\nbye")
        return 0
    ending = f"\nend: {trajectory.stop_reason}"
    if trajectory.success is not None:
        ending += ", success" if trajectory.success else ", no success"
    ending += f", return {trajectory.environment_return:+g} in {len(trajectory.steps)} steps"
    if trajectory.num_invalid and arguments.policy is not None:
        ending += f", {trajectory.num_invalid} without a valid action"
    if optimum is not None:
        ending += f" (best expected return {optimum:.3f})"
    print(ending)
    return 0
