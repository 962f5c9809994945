"""Games with text, by name.

``GAMES`` holds the games and ``VARIANTS`` the named settings of papers; :func:`make` accepts both, and the class of a
game from another package as ``"package.module:Class"``. Adding a game here is one file and one line.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import numbers
import types
import typing
from collections.abc import Sequence
from typing import Any

from stratagem.errors import ConfigError, UnknownNameError
from stratagem.games.alfworld import ALFWorld
from stratagem.games.base import Game, GameStep
from stratagem.games.frozen_lake import FrozenLake
from stratagem.games.overcooked import Overcooked
from stratagem.games.scienceworld import ScienceWorld
from stratagem.games.snake import Snake
from stratagem.games.virtualhome import VirtualHome

__all__ = ["GAMES", "VARIANTS", "Game", "GameStep", "game_class", "make", "parameters"]

GAMES: dict[str, type[Game]] = {
    "frozen_lake": FrozenLake,
    "overcooked": Overcooked,
    "snake": Snake,
    "virtualhome": VirtualHome,
    "alfworld": ALFWorld,
    "scienceworld": ScienceWorld,
}

_KINDS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (numbers.Integral, "an integer"),
    float: (numbers.Real, "a number"),
    str: (str, "a string"),
    types.NoneType: (types.NoneType, "nothing"),
    Sequence: ((list, tuple), "a list"),
}
"""Annotation of a game's setting -> what is taken for it, and that in words; any other annotation takes anything."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "FrozenLake-NotSlippery": ("frozen_lake", {"slippery": False}),
    "FrozenLake-Slippery": ("frozen_lake", {"slippery": True}),
    "Overcooked-TomatoSalad": ("overcooked", {"layout": "tomato", "order": ("tomato",)}),
    "Overcooked-TomatoLettuceSalad": ("overcooked", {"layout": "tomato_lettuce", "order": ("tomato", "lettuce")}),
    "Snake-Standard": ("snake", {"apple_reward": 1.0}),
    "Snake-Poison": ("snake", {"apple_reward": -1.0}),
    "VirtualHome-FoodPreparation": ("virtualhome", {"task": "food_preparation"}),
    "VirtualHome-FoodPreparation-Cheese": ("virtualhome", {"item": "cheese"}),
    "VirtualHome-FoodPreparation-Hamburger": ("virtualhome", {"item": "hamburger"}),
    "VirtualHome-FoodPreparation-ApplePie": ("virtualhome", {"item": "apple pie"}),
    "VirtualHome-FoodPreparation-Pizza": ("virtualhome", {"item": "pizza"}),
    "VirtualHome-FoodPreparation-WashingPlate": ("virtualhome", {"item": "dishes", "appliance": "dishwasher"}),
    "VirtualHome-FoodPreparation-Laundry": ("virtualhome", {"item": "clothes", "appliance": "washing machine"}),
    "VirtualHome-Entertainment": ("virtualhome", {"task": "entertainment"}),
    "ALFWorld-Generated": ("alfworld", {"source": "generated", "split": "train"}),
    "ALFWorld-Generated-Unseen": ("alfworld", {"source": "generated", "split": "valid_unseen"}),
    "ALFWorld": ("alfworld", {"source": "data"}),
    "ScienceWorld": ("scienceworld", {"split": "train"}),
    "ScienceWorld-Seen": ("scienceworld", {"split": "seen"}),
    "ScienceWorld-Unseen": ("scienceworld", {"split": "unseen"}),
}


def game_class(name: str) -> type[Game]:
    """Return the class of a game, of the game of a variant, or of ``"package.module:Class"``.

    >>> game_class("FrozenLake-Slippery").__name__
    'FrozenLake'
    >>> game_class("stratagem.games.snake:Snake").__name__
    'Snake'

    Raises:
        UnknownNameError: neither a game nor a variant; the nearest name is suggested.
        ConfigError: the module cannot be imported or holds no such game.
    """
    if ":" not in name:
        if name not in GAMES and name not in VARIANTS:
            raise UnknownNameError("game", name, (*GAMES, *VARIANTS))
        return GAMES[VARIANTS.get(name, (name, {}))[0]]
    module, _, attribute = name.partition(":")
    try:
        imported = importlib.import_module(module)
    except (ImportError, ValueError, TypeError) as error:
        raise ConfigError(
            f"Game {name!r}: module {module!r} cannot be imported ({error}). Write it as package.module:Class, and "
            "install the package or put the folder of the module into PYTHONPATH."
        ) from error
    if not hasattr(imported, attribute):
        raise ConfigError(f"Game {name!r}: module {module!r} has no {attribute!r}; name a class of it.")
    found = getattr(imported, attribute)
    if not (isinstance(found, type) and issubclass(found, Game)):
        raise ConfigError(f"Game {name!r} is no subclass of stratagem.games.Game; name the class of a game.")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    missing += [] if hasattr(found, "name") and hasattr(found, "max_steps") else ["name", "max_steps"]
    if missing:
        raise ConfigError(f"Game {name!r} lacks {', '.join(missing)}; add them, check_game says how a game behaves.")
    for parameter in inspect.signature(found).parameters.values():
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            raise ConfigError(f"Game {name!r}: parameter {parameter.name!r} has no default value; give it one.")
    return found


def parameters(name: str) -> dict[str, Any]:
    """Return the parameters of a game or variant with their defaults.

    >>> parameters("FrozenLake-Slippery")["slippery"]
    True

    Raises:
        ConfigError: see :func:`game_class`.
    """
    signature = inspect.signature(game_class(name))
    preset = VARIANTS.get(name, (name, {}))[1]
    return {key: parameter.default for key, parameter in signature.parameters.items()} | preset


def make(name: str, **params: Any) -> Game:
    """Return a new game by name; ``params`` go over the variant's preset.

    >>> make("frozen_lake", size=8).max_steps
    20

    Raises:
        ConfigError: no such game (see :func:`game_class`), a parameter that it does not have, or a bad value of one.
    """
    known = parameters(name)
    for key in params:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"{key}={params[key]!r} is not a parameter of {name}.{hint} Parameters: {', '.join(known)}."
            )
    game, preset = game_class(name), VARIANTS.get(name, (name, {}))[1]
    hints = typing.get_type_hints(game.__init__)
    for key, value in params.items():
        _check_type(key, value, hints.get(key, Any))
    return game(**(preset | params))


def _check_type(key: str, value: Any, hint: Any) -> None:
    """Refuse a setting from a recipe or a command line that is of another kind than the game's signature says."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    words = []
    for kind in kinds:
        accepted, word = _KINDS.get(typing.get_origin(kind) or kind, (object, ""))
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key}={value!r} is not finite; write a number that is.")
        if isinstance(value, accepted) and (isinstance(value, bool) is (kind is bool) or accepted is object):
            return
        words.append(word)
    raise ConfigError(f"{key}={value!r} is of another kind; write {' or '.join(words)}.")
