"""Food Preparation: put an item into an appliance and close it. Rules and text of one VirtualHome task.

The task of TWOSOME (Tan et al. 2024, arXiv:2401.14151) and POAD (Wen et al. 2024, arXiv:2405.15821), as their simulator
behaves and not as one would like it to: what was recorded from it decides. Two things surprise.

- Walking to an item that is in hand goes to the room in which the item was recorded last; that can be another room.
- A walk ends every closeness except that to what is in hand, also a walk from the kitchen to the kitchen.

An action is its index in :func:`actions`. The spelling "opend" is the papers'.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ROOMS", "START", "FoodState", "actions", "admissible", "advance", "bits", "picture", "prompt", "solved"]

ROOMS = ("living room", "kitchen", "bathroom", "bedroom")
"""In the order of the actions that walk to them."""

_KITCHEN = 1


class FoodState(NamedTuple):
    """What the rules look at."""

    room: int
    """Index into ``ROOMS``."""
    item_room: int
    """Where the item was recorded last; follows an item in hand one walk behind."""
    close_item: bool
    close_appliance: bool
    holding: bool
    opened: bool
    inside: bool

    @property
    def visible(self) -> bool:
        """Whether the item is seen."""
        return self.holding or (self.room == _KITCHEN and (self.opened or not self.inside))


START = FoodState(_KITCHEN, _KITCHEN, False, False, False, False, False)


def actions(item: str, appliance: str) -> tuple[str, ...]:
    """Return the words of all ten actions."""
    return (
        *(f"walk to the {room}" for room in ROOMS),
        f"walk to the {item}",
        f"walk to the {appliance}",
        f"grab the {item}",
        f"put the {item} in the {appliance}",
        f"open the {appliance}",
        f"close the {appliance}",
    )


def advance(state: FoodState, action: int) -> FoodState:
    """Return the state after an action; one that cannot be done changes nothing.

    >>> advance(START, 4).close_item, advance(START, 6) == START
    (True, True)
    """
    room, item_room, close_item, close_appliance, holding, opened, inside = state
    if action < 4:
        return FoodState(action, room if holding else item_room, holding, False, holding, opened, inside)
    if action == 4 and state.visible:
        if holding:
            return FoodState(item_room, room, True, False, holding, opened, inside)
        return state._replace(close_item=True, close_appliance=inside)
    if action == 5 and room == _KITCHEN:
        return state._replace(
            item_room=room if holding else item_room, close_appliance=True, close_item=holding or inside
        )
    if action == 6 and close_item and state.visible and not holding:
        return state._replace(holding=True, inside=False)
    if action == 7 and holding and close_appliance and opened:
        return state._replace(holding=False, inside=True)
    if action == 8 and close_appliance and not opened:
        return state._replace(opened=True)
    if action == 9 and close_appliance and opened:
        return state._replace(opened=False)
    return state


def solved(state: FoodState) -> bool:
    """Return whether the item is in the closed appliance and the player stands in the kitchen."""
    return state.room == _KITCHEN and not state.visible


def bits(state: FoodState) -> tuple[int, ...]:
    """Return the eleven observation bits of the papers' code.

    They are: in kitchen, bathroom, bedroom, living room; item seen, close, in hand; appliance seen, close, open; item
    in it.
    """
    room, seen, kitchen = state.room, state.visible, state.room == _KITCHEN
    return tuple(
        int(bit)
        for bit in (
            kitchen,
            room == 2,
            room == 3,
            room == 0,
            seen,
            seen and state.close_item,
            state.holding,
            kitchen,
            state.close_appliance,
            kitchen and state.opened,
            seen and state.inside,
        )
    )


def admissible(state: FoodState) -> tuple[int, ...]:
    """Return the actions that the papers offer in a state, in their order."""
    others = tuple(room for room in range(4) if room != state.room)
    if state.room != _KITCHEN or not state.visible:
        return others
    if state.holding:
        return (*others, 4, 7, 8, 9) if state.close_appliance else (*others, 4, 5)
    if state.close_item and state.close_appliance:
        return (*others, 8, 9) if state.opened else (*others, 9)
    if state.close_item:
        return (*others, 5, 6)
    return (*others, 4, 8, 9) if state.close_appliance else (*others, 4, 5)


def prompt(state: FoodState, item: str, appliance: str) -> str:
    """Return what the player reads; the action continues the last sentence."""
    rooms = "There are four rooms: the kitchen, bathroom, bedroom, and living room."
    parts = [rooms, f"You are in the {ROOMS[state.room]}."]
    held = f"Currently, you have grabbed the {item} in hand."
    empty = "Currently, you are not grabbing anything in hand."
    if state.room != _KITCHEN:
        parts += ["and notice nothing useful.", held if state.holding else empty]
    else:
        seen = state.visible
        close_item = state.close_item and seen
        parts.append(f"You notice {item} and {appliance}." if seen else f"The {item} is in the {appliance}.")
        if state.holding:
            parts += [held, f"The {appliance} is {'' if state.close_appliance else 'not '}close to you."]
        elif not close_item and not state.close_appliance:
            parts += [empty, f"The {item} and the {appliance} are not close to you."]
        elif not (close_item and state.close_appliance):
            parts += [empty, f"The {item if close_item else appliance} is close to you."]
        parts.append(f"The {appliance} is {('opened' if state.opened else 'not opend') if seen else 'closed'}.")
    parts.append(f"In order to heat up the {item} in the {appliance}, your next step is to")
    return " ".join(parts)


def picture(state: FoodState, item: str, appliance: str) -> str:
    """Return the state for people, one line for each room."""
    lines = []
    for number, room in enumerate(ROOMS):
        things = ["you"] if number == state.room else []
        if number == state.room and state.holding:
            things[0] += f" with the {item}"
        if number == _KITCHEN:
            inside = f", {item} in it" if state.inside else ""
            things.append(f"{appliance} ({'open' if state.opened else 'closed'}{inside})")
            if not state.holding and not state.inside:
                things.append(item)
        lines.append(f"{room:12} {', '.join(things)}".rstrip())
    close = [name for name, is_close in ((item, state.close_item), (appliance, state.close_appliance)) if is_close]
    return "\n".join([*lines, f"close to you: {', '.join(close) or 'nothing'}"])
