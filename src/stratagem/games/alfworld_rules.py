"""The rules of ALFWorld as pure functions: a household, its state, what a command does and what is read then.

ALFWorld (Shridhar et al. 2021, arXiv:2010.03768) is a household described in PDDL and read as text by TextWorld. This
file is the same household without either: :func:`advance` takes a state and a command to the next state and the reply,
word for word that of the original engine. See ``docs/games/alfworld.md`` for what was compared, with counts.

Receptacles and objects are numbered in the order in which every listing names them. A state is a tuple of small
integers, so it can be compared, hashed and kept; sets of objects or receptacles are bit masks. Peculiarities of the
original that are kept: an object can be in several receptacles at once and taking it removes it from one; receptacles
that share a place cannot be walked between; cleaning, heating and cooling look at no door; a lamp in a closed
receptacle can be switched on; only what is held can be examined; ``look`` tells nothing of the room; every article is
"a".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = [
    "NOTHING_HAPPENS",
    "TASK_TYPES",
    "WORDINGS",
    "Outcome",
    "State",
    "World",
    "admissible_commands",
    "advance",
    "build_world",
    "describe",
    "is_won",
    "listing",
    "start_state",
]

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

WORDINGS = ("put", "move")
"""``put X in/on Y`` of alfworld 0.3, ``move X to Y`` of alfworld 0.4 and later."""

NOTHING_HAPPENS = "Nothing happens."

_KNIVES = ("Knife", "ButterKnife")

_HELP = "".join(
    f"\n  {command + ':':<{32 if command.startswith('move') else 34}}{meaning}"  # the original's column slips there
    for command, meaning in (
        ("look", "look around your current location"),
        ("inventory", "check your current inventory"),
        ("go to (receptacle)", "move to a receptacle"),
        ("open (receptacle)", "open a receptacle"),
        ("close (receptacle)", "close a receptacle"),
        ("take (object) from (receptacle)", "take an object from a receptacle"),
        ("move (object) to (receptacle)", "place an object in or on a receptacle"),
        ("examine (something)", "examine a receptacle or an object"),
        ("use (object)", "use an object"),
        ("heat (object) with (receptacle)", "heat an object using a receptacle"),
        ("clean (object) with (receptacle)", "clean an object using a receptacle"),
        ("cool (object) with (receptacle)", "cool an object using a receptacle"),
        ("slice (object) with (object)", "slice an object using a sharp object"),
    )
)


class State(NamedTuple):
    """All that commands change."""

    place: int
    """Where the agent stands, an index of ``World.here``; -1 in the middle of the room."""
    held: int
    """The object in the hand; -1 for none."""
    contents: tuple[tuple[int, ...], ...]
    """Objects of each receptacle, ascending."""
    opened: int
    """Mask of receptacles."""
    hot: int
    """Mask of objects, as all that follow."""
    cool: int
    clean: int
    toggled: int
    sliced: int
    missing: tuple[tuple[int, int], ...]
    """(object, receptacle) pairs: was taken from there and not put back. Only where receptacles share a place, for
    ``look`` names there what was moved from one to another."""


class Outcome(NamedTuple):
    """What one command led to."""

    state: State
    reply: str
    shown: int
    """The receptacle whose contents the reply tells; -1 for none."""
    changed: bool
    """Whether the state may now satisfy the goal."""


@dataclass(frozen=True)
class World:
    """What no command changes; made by :func:`build_world`."""

    key: str
    """``split/task/trial`` of the game."""
    task_type: str
    task: str
    """The sentence that states the goal."""
    goal: tuple[str, str]
    """Type of the object, and of the receptacle (of the lamp in ``look_at_obj_in_light``)."""
    receptacles: tuple[str, ...]
    receptacle_types: tuple[str, ...]
    openable: tuple[bool, ...]
    places: tuple[int, ...]
    """Where each receptacle stands."""
    here: tuple[tuple[int, ...], ...]
    """Receptacles of each place."""
    objects: tuple[str, ...]
    object_types: tuple[str, ...]
    traits: Mapping[str, int]
    """Letter -> mask of objects: pickupable, cleanable, heatable, koolable, toggleable, sliceable, receptacle."""
    accepts: tuple[frozenset[str], ...]
    """Types of objects that may be put into each receptacle."""
    goal_objects: tuple[int, ...]
    goal_receptacles: tuple[int, ...]
    lamps: tuple[int, ...]
    """Objects of the goal's lamp type that can be switched on."""
    receptacle_index: Mapping[str, int]
    object_index: Mapping[str, int]
    start: State
    walkthrough: tuple[str, ...]
    """Recorded commands that win, in the wording of 0.4; may be empty."""


def listing(names: Sequence[str]) -> str:
    """Return names as the engine lists them.

    >>> listing(["cup 2", "cup 1", "fork 1"])
    'a cup 2, a cup 1, and a fork 1'
    """
    if not names:
        return "nothing"
    if len(names) == 1:
        return f"a {names[0]}"
    return f"a {', a '.join(names[:-1])}, and a {names[-1]}"


def build_world(record: Mapping[str, Any]) -> World:
    """Return the household of one record of the compact format (see :mod:`stratagem.games.alfworld_data`)."""
    receptacles, objects = record["recs"], record["objs"]
    at = {name: number for number, name in enumerate(dict.fromkeys(receptacle[3] for receptacle in receptacles))}
    places = tuple(at[receptacle[3]] for receptacle in receptacles)
    here: list[list[int]] = [[] for _ in at]
    for index, place in enumerate(places):
        here[place].append(index)
    contents: list[list[int]] = [[] for _ in receptacles]
    traits = dict.fromkeys("pchktsrK", 0)
    for index, (_, _, inside, letters) in enumerate(objects):
        for receptacle in inside:
            contents[receptacle].append(index)
        for letter in letters:
            traits[letter] |= 1 << index
    accepts = {kind: frozenset(kinds) for kind, kinds in record["can"].items()}
    types = tuple(receptacle[1] for receptacle in receptacles)
    goal_object, goal_target = record["goal"]
    start = State(at.get(record["agent"], -1), -1, tuple(map(tuple, contents)), 0, 0, traits.pop("K"), 0, 0, 0, ())
    return World(
        key=record["key"],
        task_type=record["type"],
        task=record["task"],
        goal=(goal_object, goal_target),
        receptacles=tuple(receptacle[0] for receptacle in receptacles),
        receptacle_types=types,
        openable=tuple(bool(receptacle[2]) for receptacle in receptacles),
        places=places,
        here=tuple(map(tuple, here)),
        objects=tuple(item[0] for item in objects),
        object_types=tuple(item[1] for item in objects),
        traits=traits,
        accepts=tuple(accepts.get(kind, frozenset()) for kind in types),
        goal_objects=tuple(index for index, item in enumerate(objects) if item[1] == goal_object),
        goal_receptacles=tuple(index for index, kind in enumerate(types) if kind == goal_target),
        lamps=tuple(index for index, item in enumerate(objects) if item[1] == goal_target and "t" in item[3]),
        receptacle_index={receptacle[0]: index for index, receptacle in enumerate(receptacles)},
        object_index={item[0]: index for index, item in enumerate(objects)},
        start=start,
        walkthrough=tuple(record.get("walk", ())),
    )


def start_state(world: World) -> State:
    """Return the state in which an episode begins."""
    return world.start


def room_text(world: World) -> str:
    """Return the first sentence of a game."""
    return f"You are in the middle of a room. Looking quickly around you, you see {listing(world.receptacles)}."


def first_reply(world: World) -> str:
    """Return the text with which the engine begins."""
    return f"-= Welcome to TextWorld, ALFRED! =-\n\n{room_text(world)}\n\nYour task is to: {world.task}"


def describe(world: World, state: State, receptacle: int) -> str:
    """Return what is seen at a receptacle."""
    name = world.receptacles[receptacle]
    if not world.openable[receptacle]:
        start = f"On the {name}"
    elif state.opened >> receptacle & 1:
        start = f"The {name} is open. In it"
    else:
        return f"The {name} is closed."
    objects = world.objects
    return f"{start}, you see {listing([objects[index] for index in state.contents[receptacle]])}."


def _told(world: World, state: State, receptacle: int) -> int:
    """Return the receptacle if :func:`describe` tells its contents, else -1."""
    return -1 if world.openable[receptacle] and not state.opened >> receptacle & 1 else receptacle


def is_reachable(world: World, state: State, receptacle: int) -> bool:
    """Return whether hands get into it: the agent stands there and no door is shut."""
    return state.place == world.places[receptacle] and (
        not world.openable[receptacle] or bool(state.opened >> receptacle & 1)
    )


def advance(world: World, state: State, command: str, wording: str = "put") -> Outcome | None:
    """Carry out a command.

    Args:
        world: the household.
        state: before the command.
        command: any text.
        wording: one of :data:`WORDINGS`.

    Returns:
        What it led to, or None where the engine says "Nothing happens.".
    """
    verb, _, rest = command.partition(" ")
    known = world.receptacle_index
    if verb == "go":
        receptacle = known.get(rest[3:], -1) if rest.startswith("to ") else -1
        if receptacle < 0 or world.places[receptacle] == state.place:
            return None
        state = state._replace(place=world.places[receptacle])
        return Outcome(state, describe(world, state, receptacle), _told(world, state, receptacle), True)
    if verb in ("open", "close"):
        return _door(world, state, verb, known.get(rest, -1))
    if verb == "take":
        name, _, target = rest.partition(" from ")
        return _take(world, state, world.object_index.get(name, -1), known.get(target, -1))
    if verb == wording:
        name, _, target = rest.partition(" in/on " if wording == "put" else " to ")
        return _put(world, state, world.object_index.get(name, -1), known.get(target, -1), wording)
    if verb in ("clean", "heat", "cool"):
        name, _, target = rest.partition(" with ")
        return _treat(world, state, verb, world.object_index.get(name, -1), known.get(target, -1), wording)
    if verb == "use":
        return _use(world, state, world.object_index.get(rest, -1))
    if verb == "examine":
        return _examine(world, state, rest)
    if verb == "slice":
        name, _, tool = rest.partition(" with ")
        return _slice(world, state, world.object_index.get(name, -1), world.object_index.get(tool, -1))
    return _look(world, state, command, wording)


def _door(world: World, state: State, verb: str, receptacle: int) -> Outcome | None:
    if receptacle < 0 or not world.openable[receptacle] or world.places[receptacle] != state.place:
        return None
    if bool(state.opened >> receptacle & 1) is (verb == "open"):
        return None
    state = state._replace(opened=state.opened ^ 1 << receptacle)
    reply = f"You {verb} the {world.receptacles[receptacle]}."
    if verb == "close":
        return Outcome(state, reply, -1, False)
    return Outcome(state, f"{reply} {describe(world, state, receptacle)}", receptacle, False)


def _with_contents(state: State, receptacle: int, inside: tuple[int, ...], held: int) -> State:
    contents = (*state.contents[:receptacle], inside, *state.contents[receptacle + 1 :])
    return state._replace(contents=contents, held=held)


def _take(world: World, state: State, item: int, receptacle: int) -> Outcome | None:
    if item < 0 or receptacle < 0 or state.held >= 0 or not world.traits["p"] >> item & 1:
        return None
    inside = state.contents[receptacle]
    if item not in inside or not is_reachable(world, state, receptacle):
        return None
    state = _with_contents(state, receptacle, tuple(index for index in inside if index != item), item)
    if len(world.here[state.place]) > 1:
        state = state._replace(missing=tuple(sorted({*state.missing, (item, receptacle)})))
    return Outcome(state, f"You pick up the {world.objects[item]} from the {world.receptacles[receptacle]}.", -1, True)


def _put(world: World, state: State, item: int, receptacle: int, wording: str) -> Outcome | None:
    if item < 0 or receptacle < 0 or state.held != item or not is_reachable(world, state, receptacle):
        return None
    if world.object_types[item] not in world.accepts[receptacle]:
        return None
    state = _with_contents(state, receptacle, tuple(sorted({*state.contents[receptacle], item})), -1)
    if state.missing:
        state = state._replace(missing=tuple(pair for pair in state.missing if pair != (item, receptacle)))
    name, target = world.objects[item], world.receptacles[receptacle]
    reply = f"You put the {name} in/on the {target}." if wording == "put" else f"You move the {name} to the {target}."
    return Outcome(state, reply, -1, True)


def _treatment(world: World, receptacle: int, wording: str) -> tuple[str, str]:
    """Return the verb that a receptacle serves and the trait that it asks for; empty for none."""
    kind = world.receptacle_types[receptacle]
    if kind == "SinkBasin" or (kind == "Sink" and wording == "move"):
        return "clean", "c"
    return {"Microwave": ("heat", "h"), "Fridge": ("cool", "k")}.get(kind, ("", ""))


def _treat(world: World, state: State, verb: str, item: int, receptacle: int, wording: str) -> Outcome | None:
    if item < 0 or receptacle < 0 or state.held != item or world.places[receptacle] != state.place:
        return None
    served, trait = _treatment(world, receptacle, wording)
    if served != verb or not world.traits[trait] >> item & 1:
        return None
    bit = 1 << item
    if verb == "clean":
        state = state._replace(clean=state.clean | bit)
    elif verb == "heat":
        state = state._replace(hot=state.hot | bit, cool=state.cool & ~bit)
    else:
        state = state._replace(cool=state.cool | bit, hot=state.hot & ~bit)
    reply = f"You {verb} the {world.objects[item]} using the {world.receptacles[receptacle]}."
    return Outcome(state, reply, -1, True)


def _is_here(world: World, state: State, item: int) -> bool:
    """Return whether an object is in a receptacle, open or closed, where the agent stands."""
    return state.place >= 0 and any(item in state.contents[receptacle] for receptacle in world.here[state.place])


def _use(world: World, state: State, item: int) -> Outcome | None:
    if item < 0 or not world.traits["t"] >> item & 1 or not _is_here(world, state, item):
        return None
    state = state._replace(toggled=state.toggled | 1 << item)
    return Outcome(state, f"You turn on the {world.objects[item]}.", -1, True)


def _slice(world: World, state: State, item: int, tool: int) -> Outcome | None:
    if item < 0 or tool < 0 or state.held != tool or world.object_types[tool] not in _KNIVES:
        return None
    if not world.traits["s"] >> item & 1 or not _is_here(world, state, item):
        return None
    state = state._replace(sliced=state.sliced | 1 << item)
    return Outcome(state, f"You sliced the {world.objects[item]} with the {world.objects[tool]}.", -1, False)


def _examine(world: World, state: State, name: str) -> Outcome | None:
    receptacle = world.receptacle_index.get(name, -1)
    if receptacle >= 0:
        if world.places[receptacle] != state.place:
            return None
        return Outcome(state, describe(world, state, receptacle), _told(world, state, receptacle), False)
    item = world.object_index.get(name, -1)
    if item < 0 or item != state.held:
        return None
    return Outcome(state, _object_text(world, state, item), -1, False)


def _object_text(world: World, state: State, item: int) -> str:
    name, bit = world.objects[item], 1 << item
    if world.traits["r"] & bit:
        return f"This is a normal {name}. In it, you see nothing."
    clean, sliced = bool(state.clean & bit), bool(state.sliced & bit)
    warmth = "hot" if state.hot & bit else "cool" if state.cool & bit else ""
    words = " and ".join(word for word in (warmth, "clean" if clean else "") if word)
    if words:
        words = f"{words} sliced" if sliced else "cold" if words == "cool" else words
        return f"This is a {words} {name}."
    if world.traits["t"] & bit:
        return f"This {name} is {'on' if state.toggled & bit else 'off'}."
    return f"This is a sliced {name}." if sliced else f"There's nothing special about {name}."


def _look(world: World, state: State, command: str, wording: str) -> Outcome | None:
    if command == "look":
        reply = "You are in the middle of a room. Looking quickly around you, you see nothing."
        if state.place >= 0:
            around = [world.receptacles[receptacle] for receptacle in world.here[state.place]]
            names = around[0] if len(around) == 1 else f"{', '.join(around[:-1])}, and {around[-1]}"
            reply = f"You are facing the {names}. Next to it, you see {listing(_moved(world, state))}."
    elif command == "inventory":
        held = state.held
        reply = f"You are carrying: a {world.objects[held]}." if held >= 0 else "You are not carrying anything."
    elif command == "help" and wording == "move":
        reply = f"Available commands:{_HELP}\n"
    else:
        return None
    return Outcome(state, reply, -1, False)


def _moved(world: World, state: State) -> list[str]:
    """Return what was taken from one receptacle where the agent stands and lies in another one there."""
    around = world.here[state.place]
    lost = sorted({item for item, receptacle in state.missing if receptacle in around and item != state.held})
    return [world.objects[item] for item in lost if _is_here(world, state, item)]


def is_won(world: World, state: State) -> bool:
    """Return whether the state satisfies the goal."""
    if world.task_type == "look_at_obj_in_light":
        if state.held not in world.goal_objects or state.place < 0:
            return False
        return any(state.toggled >> lamp & 1 and _is_here(world, state, lamp) for lamp in world.lamps)
    fit = world.goal_objects
    mask = treated(world, state)
    if mask >= 0:
        fit = tuple(item for item in fit if mask >> item & 1)
    needed = 2 if world.task_type == "pick_two_obj_and_place" else 1
    if len(fit) < needed:
        return False
    return any(
        sum(item in state.contents[receptacle] for item in fit) >= needed for receptacle in world.goal_receptacles
    )


def treated(world: World, state: State) -> int:
    """Return the mask of objects in the condition that the goal asks for; -1 (all) where it asks for none."""
    if world.task_type == "pick_clean_then_place_in_recep":
        return state.clean
    if world.task_type == "pick_heat_then_place_in_recep":
        return state.hot
    if world.task_type == "pick_cool_then_place_in_recep":
        return state.cool
    return -1


def admissible_commands(world: World, state: State, wording: str = "put") -> tuple[str, ...]:
    """Return every command that does not end in "Nothing happens.", in alphabetical order."""
    names, objects, traits, held = world.receptacles, world.objects, world.traits, state.held
    found = {"look", "inventory"} | ({"help"} if wording == "move" else set())
    found.update(f"go to {name}" for name, place in zip(names, world.places, strict=True) if place != state.place)
    for receptacle in world.here[state.place] if state.place >= 0 else ():
        name, inside = names[receptacle], state.contents[receptacle]
        found.add(f"examine {name}")
        if world.openable[receptacle]:
            found.add(f"{'close' if state.opened >> receptacle & 1 else 'open'} {name}")
        found.update(f"use {objects[item]}" for item in inside if traits["t"] >> item & 1)
        if is_reachable(world, state, receptacle):
            if held < 0:
                found.update(f"take {objects[item]} from {name}" for item in inside if traits["p"] >> item & 1)
            elif world.object_types[held] in world.accepts[receptacle]:
                found.add(f"{wording} {objects[held]} {'in/on' if wording == 'put' else 'to'} {name}")
        if held >= 0:
            verb, trait = _treatment(world, receptacle, wording)
            if verb and traits[trait] >> held & 1:
                found.add(f"{verb} {objects[held]} with {name}")
            if world.object_types[held] in _KNIVES:
                found.update(
                    f"slice {objects[item]} with {objects[held]}" for item in inside if traits["s"] >> item & 1
                )
    if held >= 0:
        found.add(f"examine {objects[held]}")
    return tuple(sorted(found))
