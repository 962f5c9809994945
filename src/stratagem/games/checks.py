"""Say what a game's author forgot: :func:`check_game` plays a game and names the first rule that it breaks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem.errors import GameError
from stratagem.games.base import Game, GameStep
from stratagem.seeding import generator

__all__ = ["check_game"]

Record = tuple[Any, ...]


def check_game(make_game: Callable[[], Game], *, num_seeds: int = 3) -> None:
    """Play a few episodes and refuse the first breach of the contract of :class:`stratagem.games.base.Game`.

    Args:
        make_game: returns a new game at each call: a class, or ``lambda: make("snake", width=5)``.
        num_seeds: start states to look at.

    Raises:
        GameError: the contract is broken; the message says what was probably forgotten.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    game = make_game()
    if not isinstance(game, Game):
        raise GameError(f"make_game returned {type(game).__name__}, not a Game; derive the class from Game.")
    if not isinstance(getattr(game, "name", None), str):
        raise GameError(f"{type(game).__name__} has no name; set name = '...' in the class body.")
    _refused(game, (None,) * game.num_players, "step before reset")
    for seed in range(num_seeds):
        _check_start(game, make_game, seed)
        _check_no_action(game, seed)
        first = _play(game, seed, course=0)
        if _play(game, seed, course=0) != first:
            raise GameError(
                f"{game.name}: the same actions after reset(seed={seed}, course=0) led to two different episodes; "
                "draw chance from generator(seed, ..., course) made in reset, and forget the episode before."
            )
        fresh = make_game()
        if _play(fresh, seed, course=0) != first:
            raise GameError(
                f"{game.name}: a new game plays seed={seed}, course=0 differently from a used one; "
                "keep nothing from one episode to the next."
            )
        fresh.close()
        _play(game, seed, course=1)
    game.close()
    game.close()
    same_numpy = all(np.array_equal(a, b) for a, b in zip(numpy_state, np.random.get_state(), strict=True))
    if random.getstate() != python_state or not same_numpy:
        raise GameError(
            f"{game.name}: the global random state of random or numpy changed; "
            "draw from a generator of the game's own, made in reset by stratagem.seeding.generator."
        )


def _check_start(game: Game, make_game: Callable[[], Game], seed: int) -> None:
    observations = game.reset(seed=seed, course=0)
    _check_texts(game, observations, "reset")
    if (_seen(game), game.state_key()) != (_seen(game), game.state_key()):
        raise GameError(
            f"{game.name}: reading observation, render or state_key twice gives two answers; reading must not change "
            "the state or draw random numbers."
        )
    start = (tuple(observations), game.state_key(), game.render())
    for course in (0, 1):
        again = (tuple(game.reset(seed=seed, course=course)), game.state_key(), game.render())
        if again != start:
            why = (
                "draw the start from generator(seed, ...) made in reset"
                if course == 0
                else "only what happens after the start may depend on course"
            )
            raise GameError(
                f"{game.name}: reset(seed={seed}, course={course}) starts differently from "
                f"reset(seed={seed}, course=0); {why}."
            )
    other = make_game()
    other.reset(seed=seed)
    if other.state_key() != start[1]:
        raise GameError(
            f"{game.name}: state_key of two games in the same start (seed={seed}) differs; "
            "build it from the state alone, in a fixed order, without ids or counters."
        )
    other.close()


def _play(game: Game, seed: int, *, course: int) -> list[Record]:
    rng = generator(seed, "check_game", course)
    records: list[Record] = [(tuple(game.reset(seed=seed, course=course)), game.state_key())]
    for number in range(1, game.max_steps + 1):
        actions = tuple(_choose(game, player, rng) for player in range(game.num_players))
        if all(action is None for action in actions):
            raise GameError(
                f"{game.name}: no player has a legal action after {number - 1} step(s), yet the episode has not ended; "
                "return terminated=True from the step that leaves nothing to do."
            )
        if number == 1:
            _refused(game, ("no such action", *actions[1:]), "the illegal word 'no such action'")
            _refused(game, (*actions, actions[0]), f"{game.num_players + 1} actions for {game.num_players} player(s)")
        step = game.step(actions)
        _check_step(game, step)
        if step.observations != tuple(game.observation(player) for player in range(game.num_players)):
            raise GameError(
                f"{game.name}: observation(player) differs from what step returned; build both by the same function."
            )
        records.append((step.observations, step.rewards, step.terminated, step.truncated, game.state_key()))
        if step.terminated or step.truncated:
            _check_end(game)
            return records
    raise GameError(
        f"{game.name}: the episode of seed={seed} did not end within max_steps={game.max_steps} steps; "
        "count steps in step and return truncated=True at max_steps."
    )


def _choose(game: Game, player: int, rng: np.random.Generator) -> str | None:
    legal = game.legal_actions(player)
    if not isinstance(legal, tuple) or any(not isinstance(word, str) for word in legal):
        raise GameError(f"{game.name}: legal_actions({player}) returned {legal!r}; return a tuple of words.")
    bad = [word for word in legal if not word or word != word.strip().lower()]
    if bad:
        raise GameError(
            f"{game.name}: the legal action {bad[0]!r} is empty, padded or not lowercase, so no answer can match it; "
            "use stripped lowercase words."
        )
    tagged = [word for word in legal if "<action>" in word or "</action>" in word]
    if tagged:
        raise GameError(
            f"{game.name}: the legal action {tagged[0]!r} holds the tag that answers end with, so no answer can match "
            "it; use words without <action> and </action>."
        )
    if len(set(legal)) != len(legal):
        raise GameError(f"{game.name}: legal_actions({player}) names a word twice in {legal!r}; name each once.")
    if not legal:
        return None
    for source, word in (
        ("random_action", game.random_action(player, generator(0, "check_game"))),
        ("planner_action", game.planner_action(player)),
    ):
        if word is not None and word not in legal:
            raise GameError(f"{game.name}: {source}({player}) returned {word!r}, which is not among {legal!r}.")
    return legal[int(rng.integers(len(legal)))]


def _check_texts(game: Game, observations: Any, source: str) -> None:
    if not isinstance(observations, tuple) or len(observations) != game.num_players:
        count = len(observations) if isinstance(observations, tuple) else type(observations).__name__
        raise GameError(
            f"{game.name}: {source} returned {count} observation(s) for {game.num_players} player(s); "
            "return a tuple with one text for each player."
        )
    if any(not isinstance(text, str) or not text.strip() for text in observations):
        raise GameError(f"{game.name}: {source} returned an observation that is not a text; return non-empty strings.")
    for reading in (game.render(), game.state_key()):
        if not isinstance(reading, str):
            raise GameError(
                f"{game.name}: render or state_key returned {type(reading).__name__}; return plain text (str)."
            )


def _check_step(game: Game, step: GameStep) -> None:
    _check_texts(game, step.observations, "step")
    if len(step.rewards) != game.num_players:
        raise GameError(
            f"{game.name}: step returned {len(step.rewards)} reward(s) for {game.num_players} player(s); "
            "return a tuple with one number for each player."
        )
    if not all(math.isfinite(reward) for reward in step.rewards):
        raise GameError(f"{game.name}: step returned rewards={step.rewards!r}; every reward must be a finite number.")
    if step.terminated and step.truncated:
        raise GameError(
            f"{game.name}: a step is both terminated and truncated; "
            "truncated means that the limit was reached in a state that is not terminal."
        )
    if not isinstance(step.info.get("success", True), bool):
        raise GameError(
            f"{game.name}: info['success']={step.info['success']!r} is not a bool; "
            "give True or False, or leave the key out."
        )


def _check_end(game: Game) -> None:
    _refused(game, (None,) * game.num_players, "step after the end")
    for player in range(game.num_players):
        if game.legal_actions(player):
            raise GameError(
                f"{game.name}: legal_actions({player}) is {game.legal_actions(player)!r} after the end; return ()."
            )


def _check_no_action(game: Game, seed: int) -> None:
    game.reset(seed=seed)
    before, key = _seen(game), game.state_key()
    try:
        game.step((None,) * game.num_players)
    except Exception as error:
        raise GameError(
            f"{game.name}: step raised {type(error).__name__} for the action None; "
            "None means no action and must always be accepted."
        ) from error
    if _seen(game) == before and game.state_key() != key:
        raise GameError(
            f"{game.name}: state_key changed from {key!r} to {game.state_key()!r} while nothing that is seen changed; "
            "leave step counters and history out of it."
        )


def _seen(game: Game) -> Record:
    return (tuple(game.observation(player) for player in range(game.num_players)), game.render())


def _refused(game: Game, actions: tuple[str | None, ...], what: str) -> None:
    try:
        game.step(actions)
    except GameError:
        return
    except Exception as error:
        raise GameError(
            f"{game.name}: {what} raised {type(error).__name__}, not GameError; "
            "call check_joint_action(self, actions, ...) first in step."
        ) from error
    raise GameError(
        f"{game.name}: {what} was accepted; call check_joint_action(self, actions, ...) first in step to refuse it."
    )
