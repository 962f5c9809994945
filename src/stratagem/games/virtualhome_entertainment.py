"""Entertainment: enjoy chips and milk on the sofa while the television is on. Rules and text of one VirtualHome task.

The task of TWOSOME (Tan et al. 2024, arXiv:2401.14151) and POAD (Wen et al. 2024, arXiv:2405.15821), as their simulator
and their text behave. Some of it is a trap, which is kept: who sits can neither walk nor is offered to stand up, so
sitting down early loses; with nothing in hand beside the coffee table only rooms are offered; in the kitchen with one
item gone, the walk that is offered leads to the item that is gone.

An action is its index in ``ACTIONS``. Words are lowercase here; the papers write "TV" in the actions too.
"""

from __future__ import annotations

from typing import NamedTuple

from stratagem.games.virtualhome_food import ROOMS

__all__ = ["ACTIONS", "START", "EntertainmentState", "admissible", "advance", "picture", "prompt", "solved"]

ACTIONS = (
    *(f"walk to the {room}" for room in ROOMS),
    "walk to the chips",
    "walk to the milk",
    "walk to the coffee table",
    "walk to the tv",
    "walk to the sofa",
    "grab the chips",
    "grab the milk",
    "put the chips on the coffee table",
    "put the milk on the coffee table",
    "turn on the tv",
    "turn off the tv",
    "sit on the sofa",
    "stand up from the sofa",
)

_LIVING_ROOM, _KITCHEN = 0, 1
CHIPS, MILK, TABLE, TV, SOFA = range(5)
"""Things, in the order of the actions that walk to them; the first two can be carried."""


class EntertainmentState(NamedTuple):
    """What the rules look at; pairs are (chips, milk)."""

    room: int
    item_rooms: tuple[int, int]
    """Where each item was recorded last; follows an item in hand one walk behind."""
    held: tuple[bool, bool]
    on_table: tuple[bool, bool]
    close: frozenset[int]
    tv_on: bool
    facing: bool
    sitting: bool
    on_sofa: bool
    """Was on the sofa once; never cleared."""

    def sees(self, item: int) -> bool:
        """Return whether an item is seen."""
        return self.held[item] or self.item_rooms[item] == self.room

    def near(self, item: int) -> bool:
        """Return whether an item is seen and close."""
        return item in self.close and self.sees(item)


START = EntertainmentState(
    _KITCHEN, (_KITCHEN, _KITCHEN), (False, False), (False, False), frozenset(), False, False, False, False
)


def _with(pair: tuple[bool, bool], item: int, value: bool) -> tuple[bool, bool]:
    return (value, pair[1]) if item == CHIPS else (pair[0], value)


def _walk(state: EntertainmentState, action: int) -> EntertainmentState:
    thing = action - 4  # below 0: a room
    if state.sitting:
        return state
    if thing < 0:
        room = action
    elif thing in (CHIPS, MILK):
        if not state.sees(thing):
            return state
        room = state.item_rooms[thing]
    else:
        if state.room != _LIVING_ROOM:
            return state
        room = _LIVING_ROOM
    close = {item for item in (CHIPS, MILK) if state.held[item]}
    if thing >= 0:
        close.add(thing)
        if thing in (CHIPS, MILK) and state.on_table[thing]:
            close.add(TABLE)
    chips, milk = (state.room if state.held[item] else state.item_rooms[item] for item in (CHIPS, MILK))
    return state._replace(room=room, item_rooms=(chips, milk), close=frozenset(close), facing=False)


def advance(state: EntertainmentState, action: int) -> EntertainmentState:
    """Return the state after an action; one that cannot be done changes nothing.

    >>> advance(START, 0).room, advance(START, 7) == START
    (0, True)
    """
    if action < 9:
        return _walk(state, action)
    if action in (9, 10):
        item = action - 9
        if item in state.close and state.sees(item) and not state.held[item]:
            rooms = (state.room, state.item_rooms[1]) if item == CHIPS else (state.item_rooms[0], state.room)
            return state._replace(
                held=_with(state.held, item, True), on_table=_with(state.on_table, item, False), item_rooms=rooms
            )
    elif action in (11, 12):
        item = action - 11
        if state.held[item] and TABLE in state.close:
            return state._replace(held=_with(state.held, item, False), on_table=_with(state.on_table, item, True))
    elif action in (13, 14):
        if TV in state.close and not all(state.held) and state.tv_on != (action == 13):
            return state._replace(tv_on=action == 13)
    elif action == 15:
        if SOFA in state.close and not state.sitting:
            return state._replace(sitting=True, on_sofa=True, facing=True)
    elif action == 16:
        return state._replace(sitting=False)
    return state


def solved(state: EntertainmentState) -> bool:
    """Return whether everything is as the task wants it."""
    served = all(item in state.close or state.on_table[item] for item in (CHIPS, MILK))
    return state.room == _LIVING_ROOM and state.facing and state.tv_on and state.on_sofa and served


def admissible(state: EntertainmentState, *, full_hands_switch: bool = True) -> tuple[int, ...]:
    """Return the actions that the papers offer in a state, in their order.

    Args:
        state: where the player is.
        full_hands_switch: offer to switch the television with both hands full (which does nothing), as POAD's code
            does; TWOSOME's does not.
    """
    others = tuple(room for room in range(4) if room != state.room)
    if state.room == _KITCHEN:
        return (*others, *_kitchen_actions(state))
    if state.room != _LIVING_ROOM:
        return others
    if TABLE in state.close:
        if not any(state.held):
            return others
        puts = tuple(11 + item for item in (CHIPS, MILK) if state.held[item])
        one_served = _one_served(state)
        return (*others, 7, 8) if one_served else (*others, 7, 8, *puts)
    if TV in state.close:
        switch = (13, 14) if full_hands_switch or not all(state.held) else ()
        return (*others, 6, 8) if state.tv_on else (*others, 6, 8, *switch)
    if SOFA in state.close:
        if state.sitting:
            return others
        return (*others, 6, 7, 15, 16) if state.tv_on else (*others, 6, 7)
    return (*others, 6, 7, 8)


def _one_served(state: EntertainmentState) -> bool:
    chips, milk = (state.on_table[item] and state.sees(item) for item in (CHIPS, MILK))
    return (chips and state.held[MILK]) or (milk and state.held[CHIPS])


def _kitchen_actions(state: EntertainmentState) -> tuple[int, ...]:
    seen = [item for item in (CHIPS, MILK) if state.sees(item)]
    if not seen:
        return ()
    if len(seen) == 1:
        item = seen[0]
        if state.held[item]:
            return ()
        # The walk offered goes to the item that is not there: an error of the papers' text, kept.
        return (9 + item,) if state.near(item) else (5 - item,)
    walks = [4 + item for item in seen if not state.held[item] and not state.near(item)]
    grabs = [9 + item for item in seen if not state.held[item] and state.near(item)]
    return (*walks, *grabs)


_HELD = {
    (True, True): "grabbed the chips and the milk in hand. ",
    (True, False): "grabbed the chips in hand. ",
    (False, True): "grabbed the milk in hand. ",
}
_EMPTY = "Currently, you are not grabbing anything in hand. "


def _hand(state: EntertainmentState) -> str:
    return f"Currently, you have {_HELD[state.held]}" if any(state.held) else _EMPTY


def _hand_beside(state: EntertainmentState) -> str:
    """Return the hand as it is told beside furniture: chips are told twice, and the television comes in."""
    told = state.tv_on and TABLE not in state.close
    lead = f"Currently, {'the TV is turned on, ' if told else ''}you have "
    chips, milk = state.held
    if chips and milk:
        return lead + _HELD[state.held]
    if milk:
        served = state.on_table[CHIPS] and state.sees(CHIPS)
        return lead + ("the chips on the coffee table and the milk in your hand. " if served else _HELD[state.held])
    if chips:
        served = state.on_table[MILK] and state.sees(MILK)
        second = "the milk on the coffee table and the chips in your hand. " if served else _HELD[state.held]
        return lead + _HELD[state.held] + lead + second
    return ""


def _living_room(state: EntertainmentState) -> str:
    text = "and you notice a coffee table, a TV and a sofa. "
    if TABLE in state.close:
        # "The TV is not close" is the papers' way to say that one item is served and the other in hand.
        text += "The TV is not close to you. " if _one_served(state) else "The coffee table is close to you. "
        return text + (_hand_beside(state) or _EMPTY)
    if TV in state.close:
        text += "The sofa is not close to you. " if state.tv_on else "The TV is close to you. "
        return text + _hand_beside(state)
    if SOFA in state.close:
        text += "You are sitting on the sofa. " if state.sitting else "The sofa is close to you. "
        return text + _hand_beside(state)
    return f"{text}They are not close to you. {_hand(state)}"


_CLOSE = (
    "The chips are close to you. But you have not grabbed the chips. ",
    "The milk is close to you. But you have not grabbed the milk. ",
)
_FAR = ("The chips are not close to you. ", "The milk is not close to you. ")


def _kitchen(state: EntertainmentState) -> str:
    seen = [item for item in (CHIPS, MILK) if state.sees(item)]
    if not seen:
        return "and notice nothing. "
    if len(seen) == 1:
        item = seen[0]
        text = ("and only notice chips. ", "and notice milk. ")[item]
        if state.held[item]:
            return text + _hand(state)
        return text + (_CLOSE if state.near(item) else _FAR)[item]
    text = "and notice chips and milk. "
    if all(state.held):
        return text + _hand(state)
    if any(state.held):
        free = MILK if state.held[CHIPS] else CHIPS
        return text + (_CLOSE if state.near(free) else _FAR)[free] + _hand(state)
    near = [item for item in (CHIPS, MILK) if state.near(item)]
    if len(near) == 2:
        text += "They are close to you. But you have not grabbed the them. "
    else:
        text += _CLOSE[near[0]] if near else "But they are not close to you. "
    return text + _EMPTY


def prompt(state: EntertainmentState) -> str:
    """Return what the player reads; the action continues the last sentence."""
    if state.room == _KITCHEN:
        seen = _kitchen(state)
    elif state.room == _LIVING_ROOM:
        seen = _living_room(state)
    else:
        seen = f"and notice nothing. {_hand(state)}"
    return (
        "There are four rooms: the kitchen, bathroom, bedroom, and living room. "
        f"You are in the {ROOMS[state.room]} {seen}"
        "In order to enjoy the chips and the milk while watching TV, your next step is to"
    )


def picture(state: EntertainmentState) -> str:
    """Return the state for people, one line for each room."""
    names = ("chips", "milk", "coffee table", "TV", "sofa")
    lines = []
    for number, room in enumerate(ROOMS):
        things = []
        if number == state.room:
            held = [names[item] for item in (CHIPS, MILK) if state.held[item]]
            things.append(f"you{' with ' + ' and '.join(held) if held else ''}{', sitting' if state.sitting else ''}")
        if number == _LIVING_ROOM:
            served = [names[item] for item in (CHIPS, MILK) if state.on_table[item]]
            things += [
                f"coffee table{' with ' + ' and '.join(served) if served else ''}",
                f"TV ({'on' if state.tv_on else 'off'})",
                "sofa",
            ]
        things += [
            names[item]
            for item in (CHIPS, MILK)
            if state.item_rooms[item] == number and not state.held[item] and not state.on_table[item]
        ]
        lines.append(f"{room:12} {', '.join(things)}".rstrip())
    close = [names[thing] for thing in sorted(state.close)]
    return "\n".join([*lines, f"close to you: {', '.join(close) or 'nothing'}"])
