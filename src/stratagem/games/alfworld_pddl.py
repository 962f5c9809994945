"""One official ALFWorld file (``game.tw-pddl``) to one record of the compact format.

An official file is JSON: a PDDL domain and a text grammar that are the same in every game, a PDDL problem, and a
walkthrough. Only problem, task sentence and walkthrough differ. :func:`record_of` keeps what a game needs of them: a
quarter of a kB compressed instead of nine.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

__all__ = ["TRAITS", "record_of"]

TRAITS = (
    ("p", "pickupable"),
    ("c", "cleanable"),
    ("h", "heatable"),
    ("k", "coolable"),
    ("t", "toggleable"),
    ("s", "sliceable"),
    ("r", "isReceptacleObject"),
    ("K", "isCool"),
)
"""Letter of an object's trait in a record, and its PDDL predicate."""

_FACT = re.compile(r"\((\w+)((?: +[\w.]+)+)\s*\)")
_TASK = re.compile(r"Your task is to: (.*?)\"", re.S)


def record_of(key: str, game: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of an official game.

    Args:
        key: ``split/task/trial``; the task type is the beginning of the task.
        game: the parsed JSON of ``game.tw-pddl``.

    Raises:
        KeyError, ValueError: a part is missing.
    """
    before, _, goal = game["pddl_problem"].partition("(:goal")
    facts: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name, arguments in _FACT.findall(before.partition("(:init")[2]):
        facts[name].append(tuple(arguments.split()))
    receptacle_types = {entity: _bare(kind) for entity, kind in facts["receptacleType"]}
    object_types = {entity: _bare(kind) for entity, kind in facts["objectType"]}
    place = {entity: where.removeprefix("loc_") for entity, where in facts["receptacleAtLocation"]}
    names = _names({**receptacle_types, **object_types})
    receptacles = sorted(receptacle_types, key=str.lower)
    objects = sorted(object_types, key=str.lower)
    openable = {arguments[0] for arguments in facts["openable"]}
    number = {receptacle: index for index, receptacle in enumerate(receptacles)}
    inside: dict[str, dict[int, None]] = defaultdict(dict)  # a set that keeps the order of the file
    for item, receptacle in facts["inReceptacle"]:
        inside[item][number[receptacle]] = None
    having = {letter: {arguments[0] for arguments in facts[predicate]} for letter, predicate in TRAITS}
    accepted: dict[str, set[str]] = defaultdict(set)
    for receptacle, item in facts["canContain"]:
        accepted[_bare(receptacle)].add(_bare(item))
    task = _TASK.search(game["grammar"])
    if task is None or not receptacles or not objects:
        raise ValueError("no task sentence, receptacles or objects")
    task_type = key.split("/")[1].split("-")[0]
    record: dict[str, Any] = {
        "key": key,
        "type": task_type,
        "task": task[1],
        "goal": _goal(goal, task_type),
        "agent": facts["atLocation"][0][1].removeprefix("loc_"),
        "recs": [[names[r], receptacle_types[r], r in openable, place[r]] for r in receptacles],
        "objs": [
            [names[o], object_types[o], list(inside[o]), "".join(x for x, _ in TRAITS if o in having[x])]
            for o in objects
        ],
        "can": {receptacle: sorted(accepted[receptacle]) for receptacle in sorted(accepted)},
        "walk": list(game["walkthrough"]),
    }
    nested = [[names[inner], names[outer]] for inner, outer in facts["inReceptacleObject"]]
    return record | ({"inobj": nested} if nested else {})


def _bare(kind: str) -> str:
    return kind.removesuffix("Type")


def _names(types: Mapping[str, str]) -> dict[str, str]:
    """Return what the text calls each entity: the last of a class in the order of the identifiers is number 1."""
    of_class: dict[str, list[str]] = defaultdict(list)
    for entity in sorted(types, key=str.lower):
        word = entity.partition("_bar_")[0].lower()
        of_class[word + "basin" if "basin" in entity.lower() else word].append(entity)
    return {
        entity: f"{word} {len(entities) - position}"
        for word, entities in of_class.items()
        for position, entity in enumerate(entities)
    }


def _goal(text: str, task_type: str) -> list[str]:
    objects = re.findall(r"\(objectType \?\w+ (\w+)\)", text)
    if task_type == "look_at_obj_in_light":
        lamp = re.search(r"\(objectType (\?\w+) (\w+)\)\s*\(toggleable \1\)", text)
        if lamp is None:
            raise ValueError("no lamp in the goal")
        return [_bare(next(kind for kind in objects if kind != lamp[2])), _bare(lamp[2])]
    return [_bare(objects[0]), _bare(re.findall(r"\(receptacleType \?\w+ (\w+)\)", text)[0])]
