"""A hand-written expert for ALFWorld that searches, and knows only what was seen.

Like the expert that comes with ALFWorld it walks from receptacle to receptacle until it finds what the task asks for.
It differs in the order: places where such an object is likely come first, a closed one counts as two steps, and what
was seen on the way is remembered. :func:`expert_command` is a function of the state and of which receptacles have been
seen, so it goes on sensibly from wherever another player left off.
"""

from __future__ import annotations

from stratagem.games.alfworld_facts import LIKELY
from stratagem.games.alfworld_rules import State, World, is_reachable, treated

__all__ = ["ALL_SEEN", "expert_command"]

ALL_SEEN = -1
"""The mask for an expert that knows where everything is."""

_TREATMENTS = {
    "pick_clean_then_place_in_recep": ("clean", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("heat", "Microwave"),
    "pick_cool_then_place_in_recep": ("cool", "Fridge"),
}


def expert_command(world: World, state: State, seen: int, wording: str = "put") -> str | None:
    """Return the next command, or None where the expert is at a loss.

    Args:
        world: the household.
        state: now.
        seen: mask of the receptacles whose contents were told; what is in the others is not looked at.
        wording: how putting is worded.
    """
    if world.task_type == "look_at_obj_in_light":
        return _look_at(world, state, seen, wording)
    if state.held < 0:
        return _fetch(world, state, seen)
    if state.held not in world.goal_objects:
        return _drop(world, state, wording)
    verb, tool = _TREATMENTS.get(world.task_type, ("", ""))
    if verb and not treated(world, state) >> state.held & 1:
        tools = [index for index, kind in enumerate(world.receptacle_types) if kind == tool]
        if not tools:
            return None
        target = _nearest(world, state, tools)
        if world.places[target] != state.place:
            return f"go to {world.receptacles[target]}"
        return f"{verb} {world.objects[state.held]} with {world.receptacles[target]}"
    return _reach(world, state, _target(world, state), _put(world, _target(world, state), state.held, wording))


def _target(world: World, state: State) -> int:
    """Return where goal objects go: where most of them are, else where the agent stands, else open ones first."""
    kind = world.object_types[state.held]
    fit = [r for r in world.goal_receptacles if kind in world.accepts[r]] or list(world.goal_receptacles)
    return max(
        fit,
        key=lambda r: (
            sum(item in state.contents[r] for item in world.goal_objects),
            world.places[r] == state.place,
            not world.openable[r] or state.opened >> r & 1,
        ),
    )


def _put(world: World, receptacle: int, item: int, wording: str) -> str:
    between = "in/on" if wording == "put" else "to"
    return f"{wording} {world.objects[item]} {between} {world.receptacles[receptacle]}"


def _nearest(world: World, state: State, receptacles: list[int]) -> int:
    """Return one where the agent stands, else the first."""
    return next((r for r in receptacles if world.places[r] == state.place), receptacles[0])


def _reach(world: World, state: State, receptacle: int, command: str) -> str:
    """Return ``command`` where the receptacle can be reached into, else the next command on the way there."""
    name = world.receptacles[receptacle]
    if world.places[receptacle] != state.place:
        return f"go to {name}"
    return command if is_reachable(world, state, receptacle) else f"open {name}"


def _fetch(world: World, state: State, seen: int) -> str | None:
    """Return the next command towards having an object of the goal in the hand."""
    two = world.task_type == "pick_two_obj_and_place"
    done: set[int] = set()  # what is already where it should be
    if two:
        done = set(state.contents[max(world.goal_receptacles, key=lambda r: _count(world, state, r))])
    good = treated(world, state)
    known = [
        (bool(good >> item & 1), world.places[r] == state.place, -r, -item)
        for r in range(len(world.receptacles))
        if seen >> r & 1
        for item in state.contents[r]
        if item in world.goal_objects and item not in done and world.traits["p"] >> item & 1
    ]
    if known:
        _, _, receptacle, item = max(known)
        name, target = world.objects[-item], world.receptacles[-receptacle]
        return _reach(world, state, -receptacle, f"take {name} from {target}")
    return _search(world, state, seen, world.goal[0])


def _count(world: World, state: State, receptacle: int) -> int:
    return sum(item in state.contents[receptacle] for item in world.goal_objects)


def _search(world: World, state: State, seen: int, kind: str) -> str | None:
    """Return the next command towards seeing what may hold an object of a type."""
    likely = LIKELY.get(kind, {})
    best, best_value = -1, 0.0
    for receptacle, place in enumerate(world.places):
        if seen >> receptacle & 1:
            continue
        shut = world.openable[receptacle] and not state.opened >> receptacle & 1
        cost = (place != state.place) + bool(shut) or 1
        value = (likely.get(world.receptacle_types[receptacle], 0) + 0.01) / cost
        if value > best_value:
            best, best_value = receptacle, value
    if best < 0:
        return None
    name = world.receptacles[best]
    if world.places[best] != state.place:
        return f"go to {name}"
    return f"open {name}" if world.openable[best] and not state.opened >> best & 1 else f"examine {name}"


def _drop(world: World, state: State, wording: str) -> str | None:
    """Return the next command towards an empty hand."""
    kind = world.object_types[state.held]
    fit = [r for r in range(len(world.receptacles)) if kind in world.accepts[r]]
    if not fit:
        return None
    target = max(
        fit, key=lambda r: (is_reachable(world, state, r), world.places[r] == state.place, not world.openable[r], -r)
    )
    return _reach(world, state, target, _put(world, target, state.held, wording))


def _look_at(world: World, state: State, seen: int, wording: str) -> str | None:
    if state.held >= 0 and state.held not in world.goal_objects:
        return _drop(world, state, wording)
    if state.held < 0:
        return _fetch(world, state, seen)
    lit = [
        (world.places[r] == state.place, -r, lamp)
        for lamp in world.lamps
        for r in range(len(world.receptacles))
        if seen >> r & 1 and lamp in state.contents[r]
    ]
    if not lit:
        return _search(world, state, seen, world.goal[1])
    there, receptacle, lamp = max(lit)
    return f"use {world.objects[lamp]}" if there else f"go to {world.receptacles[-receptacle]}"
