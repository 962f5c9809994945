"""Games with text, by name.

``GAMES`` holds the games and ``VARIANTS`` the named settings of papers; :func:`make` accepts both. Adding a game is one
file and one line here.
"""

from __future__ import annotations

import difflib
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

__all__ = ["GAMES", "VARIANTS", "Game", "GameStep", "make", "parameters"]

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


def parameters(name: str) -> dict[str, Any]:
    """Return the parameters of a game or variant with their defaults.

    >>> parameters("FrozenLake-Slippery")["slippery"]
    True

    Raises:
        UnknownNameError: neither a game nor a variant.
    """
    if name not in GAMES and name not in VARIANTS:
        raise UnknownNameError("game", name, (*GAMES, *VARIANTS))
    game, preset = VARIANTS.get(name, (name, {}))
    signature = inspect.signature(GAMES[game])
    return {key: parameter.default for key, parameter in signature.parameters.items()} | preset


def make(name: str, **params: Any) -> Game:
    """Return a new game by name; ``params`` go over the variant's preset.

    >>> make("frozen_lake", size=8).max_steps
    20

    Raises:
        UnknownNameError: neither a game nor a variant; the nearest name is suggested.
        ConfigError: a parameter that the game does not have, or a bad value of one.
    """
    known = parameters(name)
    for key in params:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"{key}={params[key]!r} is not a parameter of {name}.{hint} Parameters: {', '.join(known)}."
            )
    game, preset = VARIANTS.get(name, (name, {}))
    hints = typing.get_type_hints(GAMES[game].__init__)
    for key, value in params.items():
        _check_type(key, value, hints.get(key, Any))
    return GAMES[game](**(preset | params))


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
