"""A game in a process of its own, so that a game that raises, hangs or exits costs its own episode only.

::

    with contextlib.closing(GameWorker(("snake", {"width": 8}), timeout_s=5.0)) as game:
        game.reset(seed=0)

The process is started with ``spawn``: a script that makes workers needs ``if __name__ == "__main__":`` around what it
runs. A worker is made for slow or fragile games; a move of Snake is far cheaper than the trip to another process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from stratagem.errors import ConfigError, GameError, StratagemError
from stratagem.games.base import Game, GameStep

__all__ = ["GameWorker"]

Maker = Callable[[], Game] | tuple[str, Mapping[str, Any]]

JOIN_S = 5.0
"""How long a process may take to end by itself when it is closed."""


class GameWorker(Game):
    """The game that ``make_game`` makes, played in another process.

    A :class:`GameError` that the game itself raises (an illegal word) passes through and the episode goes on. Any other
    exception, an answer later than ``timeout_s`` or the end of the process becomes a :class:`GameError`, the process is
    killed, and the next ``reset`` starts a new one.
    """

    def __init__(self, make_game: Maker, *, timeout_s: float = 60.0, start_timeout_s: float = 120.0) -> None:
        """Start the process and make the game in it.

        Args:
            make_game: a function of no arguments that can be pickled (defined at the top of a module), or the name and
                parameters for :func:`stratagem.games.make`.
            timeout_s: how long one call may take.
            start_timeout_s: how long starting Python and making the game may take.
        """
        for key, value in (("timeout_s", timeout_s), ("start_timeout_s", start_timeout_s)):
            if value <= 0:
                raise ConfigError(f"{key}={value!r} leaves no time to answer; set it to a positive number of seconds.")
        try:
            pickle.dumps(make_game)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"make_game={make_game!r} cannot be sent to another process; "
                "use a function defined at the top of a module or a pair (name, params)."
            ) from error
        self.name = make_game[0] if isinstance(make_game, tuple) else getattr(make_game, "__name__", "game")
        self.timeout_s = timeout_s
        self.start_timeout_s = start_timeout_s
        self._make_game = make_game
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._closed = False
        self._start()

    @property
    def pid(self) -> int | None:
        """The id of the game's process, ``None`` while there is none."""
        return None if self._process is None else self._process.pid

    def reset(self, *, seed: int, course: int = 0) -> tuple[str, ...]:
        """Start an episode, in a new process where the last one failed."""
        if self._closed:
            raise GameError(f"{self.name} was closed; make a new GameWorker.")
        if self._process is None:
            self._start()
        observations: tuple[str, ...] = self._call("reset", seed=seed, course=course)
        return observations

    def step(self, actions: Sequence[str | None]) -> GameStep:
        """Apply one joint action."""
        step: GameStep = self._call("step", tuple(actions))
        return step

    def legal_actions(self, player: int = 0) -> tuple[str, ...]:
        """Return the words that ``player`` may choose."""
        words: tuple[str, ...] = self._call("legal_actions", player)
        return words

    def observation(self, player: int = 0) -> str:
        """Return what ``player`` sees."""
        return str(self._call("observation", player))

    def state_key(self) -> str:
        """Return the true state as text."""
        return str(self._call("state_key"))

    def render(self) -> str:
        """Return a picture of the state."""
        return str(self._call("render"))

    def default_opponent(self, player: int) -> str:
        """Return the name of the policy that plays ``player``."""
        return str(self._call("default_opponent", player))

    def random_action(self, player: int, rng: Any) -> str:
        """Return a random legal word; ``rng`` moves on as if it had been used here."""
        word, state = self._call("random_action", player, rng)
        rng.bit_generator.state = state
        return str(word)

    def planner_action(self, player: int = 0) -> str | None:
        """Return the planner's action."""
        word: str | None = self._call("planner_action", player)
        return word

    def optimal_return(self, *, gamma: float = 1.0) -> float | None:
        """Return the best expected return from the current state."""
        value: float | None = self._call("optimal_return", gamma=gamma)
        return value

    def close(self) -> None:
        """Close the game and end its process; killed if it does not end by itself."""
        if self._connection is not None:
            try:
                self._connection.send(None)
            except OSError:
                pass
            else:
                assert self._process is not None
                self._process.join(min(JOIN_S, self.timeout_s))
        self._end()
        self._closed = True

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._make_game), name=f"game-{self.name}", daemon=True
        )
        self._process.start()
        theirs.close()
        self._connection = ours
        self.name, self.num_players, self.max_steps = self._answer("the start", self.start_timeout_s)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._connection is None:
            raise GameError(f"{self.name} has no process after a failure; call reset(seed=...) to start a new one.")
        with contextlib.suppress(OSError):  # The process is gone; reading the answer says how.
            self._connection.send((method, args, kwargs))
        return self._answer(method, self.timeout_s)

    def _answer(self, what: str, timeout_s: float) -> Any:
        assert self._connection is not None and self._process is not None
        try:
            if not self._connection.poll(timeout_s):
                self._end()
                raise GameError(
                    f"{self.name} did not answer {what} within {timeout_s:g} s and was killed; "
                    "raise timeout_s if the game is merely slow."
                )
            kind, value, trace = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(JOIN_S)
            code = self._process.exitcode
            self._end()
            raise GameError(
                f"{self.name} exited with code {code} during {what}; "
                "a game must neither exit nor crash: see its output above."
            ) from error
        if kind == "answer":
            return value
        if kind == "refusal" and what != "the start":
            raise value
        self._end()
        if kind == "refusal":
            raise value
        failure = GameError(f"{self.name} raised {value} during {what}; the error is in the game itself.")
        failure.add_note(f"In the game's process:\n{trace}")
        raise failure

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        self._connection = self._process = None


def _serve(connection: Connection, make_game: Maker) -> None:
    # Runs in the game's process: one answer for each request, until None or until the other end is gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes us.
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        if isinstance(make_game, tuple):
            from stratagem.games import make

            game = make(make_game[0], **make_game[1])
        else:
            game = make_game()
        connection.send(("answer", (game.name, game.num_players, game.max_steps), ""))
    except Exception as error:
        connection.send(_failure(error))
        return
    while True:
        try:
            request = connection.recv()
        except EOFError:
            request = None
        if request is None:
            game.close()
            return
        method, args, kwargs = request
        try:
            value = getattr(game, method)(*args, **kwargs)
            if method == "random_action":
                value = (value, args[1].bit_generator.state)
            connection.send(("answer", value, ""))
        except Exception as error:
            connection.send(_failure(error))


def _failure(error: Exception) -> tuple[str, Any, str]:
    if isinstance(error, StratagemError):
        # Rebuilt by message: subclasses may take other arguments than pickle gives them.
        plain = ConfigError if isinstance(error, ConfigError) else GameError
        return "refusal", plain(str(error)), ""
    return "failure", f"{type(error).__name__}: {error}", traceback.format_exc()


def _exit_with_parent() -> None:
    # A game that hangs would outlive a parent that was killed.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
