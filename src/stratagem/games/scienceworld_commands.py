"""The commands of ScienceWorld: what a player is told of them, and a tuple of legal ones that asks the engine.

A state has hundreds to thousands of valid commands, and working them out takes longer than ten steps. Whether one text
is among them the engine's parser says, which also knows more names for things than it lists. So a :class:`Commands`
asks for each, and has the list made only for those who look at all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, SupportsIndex, overload

from stratagem.errors import GameError

__all__ = ["RULES", "Asked", "Commands"]

RULES = """Do a task of elementary science with text commands.
[Commands]
"look around"
"look at (object)"
"look in (object)"
"read (object)"
"inventory"
"task"
"go to (place)"
{teleport}"open (object)"
"close (object)"
"pick up (object)"
"put down (object)"
"move (object) to (object)"
"pour (object) into (object)"
"dunk (object) into (object)"
"mix (object)"
"activate (object)"
"deactivate (object)"
"use (object) on (object)"
"connect (object) to (object)"
"disconnect (object)"
"eat (object)"
"flush (object)"
"focus on (object)"
"wait" (10 steps)
"wait1" (1 step)
[Rules]
Things are called as they are described; "thermometer in inventory" says where one is.
Focus says which object the task is about: do it only where the task says so. The wrong one ends the task.
If a command could mean several things, answer with the number of the one that is meant.
What the game does not know is answered with "No known action matches that input." and counts as a step.
"""
"""What the full view shows first; ``{teleport}`` is one more command or nothing."""


class Asked(Protocol):
    """The game that knows."""

    @property
    def moment(self) -> tuple[int, int]:
        """Which state of which episode this is."""
        ...

    def knows(self, text: str) -> bool:
        """Return whether a command could be carried out now."""
        ...

    def valid_commands(self) -> tuple[str, ...]:
        """Return the list."""
        ...


class Commands(tuple[str, ...]):
    """The legal actions of one state; asked for one by one, and listed only where somebody looks at all of them."""

    _game: Asked
    _moment: tuple[int, int]
    _all: tuple[str, ...] | None

    def __new__(cls, game: Asked) -> Commands:
        """Return the commands of the game's present state."""
        commands = super().__new__(cls)
        commands._game, commands._moment, commands._all = game, game.moment, None
        return commands

    def _list(self) -> tuple[str, ...]:
        if self._all is None:
            self._check_moment()
            self._all = self._game.valid_commands()
        return self._all

    def _check_moment(self) -> None:
        if self._moment != self._game.moment:
            raise GameError("These are legal actions of an earlier state; call legal_actions() after each step.")

    def __contains__(self, word: object) -> bool:
        """Return whether the engine could carry a command out now."""
        if not isinstance(word, str):
            return False
        if self._all is not None and word in self._all:
            return True
        self._check_moment()
        return self._game.knows(word)

    def __iter__(self) -> Iterator[str]:
        """Go through the list."""
        return iter(self._list())

    def __len__(self) -> int:
        """Return how many the list has."""
        return len(self._list())

    def __bool__(self) -> bool:
        """Say that there are some, without the list."""
        return True

    @overload
    def __getitem__(self, place: SupportsIndex) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...

    def __getitem__(self, place: Any) -> Any:
        """Return one or several of the list."""
        return self._list()[place]

    def __eq__(self, other: object) -> bool:
        """Compare the lists."""
        return isinstance(other, tuple) and self._list() == tuple(other)

    def __hash__(self) -> int:
        """Return that of the list."""
        return hash(self._list())

    def __repr__(self) -> str:
        """Return the list."""
        return repr(self._list())

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the list only, to another process."""
        return tuple, (list(self._list()),)
