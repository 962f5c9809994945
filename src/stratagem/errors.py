"""The error tree, and how names are suggested.

::

    StratagemError
    |-- ConfigError (ValueError)      a setting is wrong: unknown key, bad value, impossible combination
    |   `-- UnknownNameError          a name that is not in a table; carries the nearest names
    |-- GameError (RuntimeError)      a game broke its contract, raised, hung or exited
    |-- ModelError (RuntimeError)     weights or a server are missing, damaged or do not answer
    `-- RunError (RuntimeError)       a run folder cannot be made, continued or read

Only these reach a user as one line without a traceback. A malformed completion is never an error: it is data
(:class:`stratagem.types.Step` with ``action=None`` and a ``parse_error``). Every message says what is wrong, what was
expected and how to fix it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["ConfigError", "GameError", "ModelError", "RunError", "StratagemError", "UnknownNameError"]


class StratagemError(Exception):
    """Base of every error that the library raises for its user."""


class ConfigError(StratagemError, ValueError):
    """A setting is unknown, has a bad value, or does not go with another setting."""


class UnknownNameError(ConfigError):
    """A name that no table holds; the message suggests the nearest ones."""

    def __init__(self, kind: str, name: str, available: Iterable[str]) -> None:
        """Say which names exist.

        Args:
            kind: what was looked up, in words: ``"game"``, ``"recipe key"``.
            name: what the user wrote.
            available: every name that would have worked.
        """
        names = sorted(available)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        super().__init__(f"Unknown {kind} {name!r}.{hint} Available: {', '.join(names) or 'none'}.")
        self.name = name
        self.available = names


class GameError(StratagemError, RuntimeError):
    """A game broke its contract, raised, hung or exited."""


class ModelError(StratagemError, RuntimeError):
    """Weights or a model server are missing, damaged or do not answer."""


class RunError(StratagemError, RuntimeError):
    """A run folder cannot be made, continued or read."""
