"""The rules of the Overcooked kitchen: cells, things, primitive moves, and macro actions that steer by memory.

The kitchen of TWOSOME (Tan et al. 2024, arXiv:2401.14151) and POAD (Wen et al. 2024, arXiv:2405.15821): counters with
food and a bowl around a floor, cutting boards and a counter that serves. A cook moves one cell, or acts on the cell it
moves against, in each primitive step. A macro action ("get the tomato") is played until it ends; where it goes is what
the cook remembers, not what is true.

A cell is the integer ``row * width + column``. Things are the foods in the order of ``FOODS`` and then the bowl. What
chance decides: nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from stratagem.errors import ConfigError

__all__ = [
    "CHOPS",
    "FOODS",
    "LAYOUTS",
    "VIEW",
    "Kitchen",
    "Moment",
    "State",
    "Thing",
    "advance",
    "cell_of",
    "hand",
    "macros",
    "read_kitchen",
    "start_state",
]

FOODS = ("tomato", "lettuce", "onion")

CHOPS = 3
"""Chops that cut a food."""

VIEW = 2
"""A cook sees this many rows and columns away."""

STEP_REWARD, CHOP_REWARD, DISH_REWARD, MISTAKE_REWARD = -0.001, 0.2, 1.0, -0.1

MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))
"""Right, left, down, up; (rows, columns). The order in which a way is looked for."""

LAYOUTS: dict[str, tuple[str, ...]] = {
    "tomato": ("#####t#", "k___1_#", "#_____#", "s_____#", "#___2_#", "#_____#", "#####b#"),
    "tomato_lettuce": ("#####t#", "k___1_l", "k_____o", "s_____#", "#___2_#", "#_____#", "#####b#"),
    "large_tomato": (
        "#######t#",
        "k_____1_#",
        "#_______#",
        "#_______#",
        "s_______#",
        "#_______#",
        "#_____2_#",
        "#_______#",
        "#######b#",
    ),
    "large_tomato_lettuce": (
        "#######t#",
        "k_____1_l",
        "k_______o",
        "#_______#",
        "s_______#",
        "#_______#",
        "#_____2_#",
        "#_______#",
        "#######b#",
    ),
}
"""Kitchens by name; the first two are the papers' map A with a place for a second cook."""


@dataclass(frozen=True, eq=False)
class Kitchen:
    """What never changes in an episode; equal arguments of :func:`read_kitchen` give the same object."""

    width: int
    height: int
    floor: frozenset[int]
    boards: tuple[int, ...]
    service: int
    foods: tuple[str, ...]
    """In the order of ``FOODS``."""
    homes: tuple[int, ...]
    """Cell in which each thing starts: foods, then the bowl."""
    starts: tuple[int, ...]
    """Cell in which each cook starts."""
    order: tuple[str, ...]
    """Foods of the dish, in the order of ``FOODS``."""
    views: tuple[frozenset[int], ...]
    """The cells that are seen from each cell."""
    distances: tuple[tuple[int, ...], ...]
    """Rows plus columns between two cells."""


class Thing(NamedTuple):
    """Where a food or the bowl is."""

    cell: int
    """On a counter or board; -1 where someone or the bowl holds it."""
    cook: int = -1
    """Who holds it."""
    in_bowl: bool = False
    chops: int = 0

    @property
    def chopped(self) -> bool:
        """Whether it is cut."""
        return self.chops >= CHOPS


class State(NamedTuple):
    """What changes."""

    cooks: tuple[int, ...]
    """Cell of each cook."""
    things: tuple[Thing, ...]
    memory: tuple[tuple[int, ...], ...]
    """For each cook the cell where it believes each thing."""


class Moment(NamedTuple):
    """What one primitive step led to."""

    state: State
    reward: float
    served: bool
    ended: tuple[bool, ...]
    """Whether the macro action of each cook ended."""


@lru_cache(maxsize=64)
def read_kitchen(rows: tuple[str, ...], order: tuple[str, ...], num_cooks: int) -> Kitchen:
    """Read a kitchen from rows of letters.

    ``#`` counter, ``_`` floor, ``t`` ``l`` ``o`` a counter with tomato, lettuce or onion, ``b`` one with the bowl,
    ``k`` cutting board, ``s`` where dishes are served, ``1`` and ``2`` where the cooks start.

    Raises:
        ConfigError: something is missing, unknown or there too often.
    """
    shown = "/".join(rows)
    width = len(rows[0]) if rows else 0
    if len(rows) < 3 or width < 3 or any(len(row) != width for row in rows):
        raise ConfigError(f"layout={shown!r} is not a rectangle of at least 3x3; give rows of equal length.")
    text = "".join(rows)
    unknown = sorted(set(text) - set("#_tlobks12"))
    if unknown:
        raise ConfigError(f"layout={shown!r} holds {unknown[0]!r}; use only # _ t l o b k s 1 2.")
    rim = (*range(width), *range(len(text) - width, len(text)), *range(0, len(text), width))
    if any(text[cell] in "_12" for cell in (*rim, *range(width - 1, len(text), width))):
        raise ConfigError(f"layout={shown!r} has floor at its edge; put counters (#) all around.")
    foods = tuple(food for food in FOODS if food[0] in text)
    cooks = "12"[:num_cooks]
    for letters, count in (("b", 1), ("s", 1), (cooks, 1), ("".join(food[0] for food in foods), 1)):
        for letter in letters:
            if text.count(letter) != count:
                raise ConfigError(f"layout={shown!r} holds {letter!r} {text.count(letter)} times; write it once.")
    if not 1 <= text.count("k") <= 4:
        raise ConfigError(f"layout={shown!r} has {text.count('k')} cutting boards (k); give it one to four.")
    missing = [food for food in order if food not in foods]
    if missing or not order:
        raise ConfigError(
            f"order={list(order)!r} cannot be cooked from {', '.join(foods) or 'nothing'}; name foods of the layout."
        )
    floor = frozenset(cell for cell, letter in enumerate(text) if letter in "_12")
    places = [divmod(cell, width) for cell in range(len(text))]
    return Kitchen(
        width=width,
        height=len(rows),
        floor=floor,
        boards=tuple(cell for cell, letter in enumerate(text) if letter == "k"),
        service=text.index("s"),
        foods=foods,
        homes=(*(text.index(food[0]) for food in foods), text.index("b")),
        starts=tuple(text.index(cook) for cook in cooks),
        order=tuple(food for food in foods if food in order),
        views=tuple(
            frozenset(c for c, (x, y) in enumerate(places) if abs(x - row) <= VIEW and abs(y - column) <= VIEW)
            for row, column in places
        ),
        distances=tuple(tuple(abs(x - row) + abs(y - column) for x, y in places) for row, column in places),
    )


def start_state(kitchen: Kitchen) -> State:
    """Return the start; every cook knows where everything is."""
    things = tuple(Thing(home) for home in kitchen.homes)
    return State(kitchen.starts, things, (kitchen.homes,) * len(kitchen.starts))


def macros(kitchen: Kitchen) -> tuple[str, ...]:
    """Return the names of the macro actions, as in the recorded data."""
    return (
        *(f"get {food}" for food in kitchen.foods),
        "get plate 1",
        *(f"go to knife {number}" for number in range(1, len(kitchen.boards) + 1)),
        "deliver",
        "chop",
    )


def cell_of(state: State, number: int) -> int:
    """Return the cell of a thing; what is carried is where its cook is."""
    thing = state.things[number]
    if thing.in_bowl:
        return cell_of(state, len(state.things) - 1)
    return state.cooks[thing.cook] if thing.cook >= 0 else thing.cell


def hand(state: State, cook: int) -> int | None:
    """Return the thing in a cook's hand; the bowl where food in it is carried."""
    return next((number for number, thing in enumerate(state.things) if thing.cook == cook), None)


@lru_cache(maxsize=65536)
def _first_step(kitchen: Kitchen, start: int, goal: int, others: frozenset[int]) -> int | None:
    """Return the first cell of a shortest way to a goal that itself cannot be entered; None without one.

    A* with the Manhattan distance; of equally long ways one through fewer cooks, then the one looked at last. That rule
    is the only one of those tried that walks as in all recorded episodes.
    """
    ways = [(0, 0, 0, start, 0, -1)]  # estimate, cooks passed, newest first, cell, length, first cell
    seen = {start}
    while ways:
        _, through, _, here, length, first = heapq.heappop(ways)
        if here == goal:
            return first
        for rows, columns in MOVES:
            cell = here + rows * kitchen.width + columns
            if cell in seen or (cell not in kitchen.floor and cell != goal):
                continue
            seen.add(cell)
            estimate = length + 1 + kitchen.distances[cell][goal]
            way = (estimate, through + (cell in others), -len(seen), cell, length + 1, cell if first < 0 else first)
            heapq.heappush(ways, way)
    return None


class _Plan(NamedTuple):
    target: int | None
    """Cell that a cook walks to; None is to stay."""
    acts: bool
    """Whether it acts on the target once it stands beside it."""
    again: bool = False
    """Whether the macro goes on after that."""


_STAY = _Plan(None, False)


def _plan(kitchen: Kitchen, state: State, cook: int, macro: str, elapsed: int) -> _Plan:
    """Return what a cook that has played a macro action for some steps is up to now."""
    here = state.cooks[cook]
    held = hand(state, cook)
    if macro == "chop":
        for rows, columns in MOVES:
            cell = here + rows * kitchen.width + columns
            if cell in kitchen.boards:
                for food in _on(state, cell):
                    if food < len(kitchen.foods) and not state.things[food].chopped:
                        # With something in hand the time passes and nothing is cut.
                        last = elapsed + 1 >= CHOPS or (held is None and state.things[food].chops + 1 >= CHOPS)
                        return _Plan(cell, held is None, again=not last)
        return _STAY
    if macro == "deliver":
        return _Plan(kitchen.service, held is not None)
    if macro.startswith("go to knife"):
        return _Plan(kitchen.boards[int(macro.rsplit(" ", 1)[1]) - 1], held is not None)
    bowl = len(kitchen.foods)
    number = bowl if macro == "get plate 1" else kitchen.foods.index(macro.removeprefix("get "))
    target = state.memory[cook][number]
    if target == here:
        return _STAY
    if number == bowl:
        food = held is not None and held != bowl
        chopped = held is not None and state.things[held].chopped
        there = cell_of(state, number) == target  # with two cooks it may be gone
        return _Plan(target, there and (not food or chopped), again=there and food and chopped)
    thing = state.things[number]
    actual = cell_of(state, number)
    if thing.in_bowl and actual in kitchen.views[here]:
        return _STAY
    raw = actual in kitchen.boards and not thing.chopped
    return _Plan(target, not raw and actual == target)


def _on(state: State, cell: int) -> list[int]:
    """Return the things that lie on a counter or board; food in the bowl is not counted."""
    return [number for number, thing in enumerate(state.things) if thing.cell == cell and not thing.in_bowl]


def advance(kitchen: Kitchen, state: State, playing: Sequence[str | None], elapsed: Sequence[int]) -> Moment:
    """Play one primitive step of all cooks, the first cook first.

    Args:
        kitchen: from :func:`read_kitchen`.
        state: before the step.
        playing: macro action of each cook; None stands still.
        elapsed: primitive steps that each cook has played its macro action for.
    """
    reward, served = STEP_REWARD, False
    ended = []
    for cook, macro in enumerate(playing):
        if macro is None:
            ended.append(True)
            continue
        plan = _plan(kitchen, state, cook, macro, elapsed[cook])
        if plan.target is None:
            ended.append(True)
            continue
        others = frozenset(cell for number, cell in enumerate(state.cooks) if number != cook)
        if kitchen.distances[state.cooks[cook]][plan.target] == 1:
            if plan.acts:
                state, earned, served_now = _act(kitchen, state, cook, plan.target)
                reward += earned
                served |= served_now
            ended.append(not plan.again)
            continue
        cell = _first_step(kitchen, state.cooks[cook], plan.target, others)
        if cell is None or cell in others:  # no way, or the other cook is in it
            ended.append(True)
            continue
        state = state._replace(cooks=(*state.cooks[:cook], cell, *state.cooks[cook + 1 :]))
        # Whoever would do nothing on arrival has arrived. Holding raw food beside the bowl, a cook still waits a step.
        waits = macro == "get plate 1"
        arrived = kitchen.distances[state.cooks[cook]][plan.target] == 1
        ended.append(arrived and not waits and not _plan(kitchen, state, cook, macro, elapsed[cook]).acts)
    return Moment(_remember(kitchen, state), reward, served, tuple(ended))


def _remember(kitchen: Kitchen, state: State) -> State:
    memory = []
    for cook, believed in enumerate(state.memory):
        seen = kitchen.views[state.cooks[cook]]
        cells = []
        for number, cell in enumerate(believed):
            actual = cell_of(state, number)
            if actual in seen:
                cell = actual
            elif cell in seen:
                cell = kitchen.homes[number]
            cells.append(cell)
        memory.append(tuple(cells))
    return state._replace(memory=tuple(memory))


def _act(kitchen: Kitchen, state: State, cook: int, cell: int) -> tuple[State, float, bool]:
    """Act on the cell beside a cook: pick up, chop, put down, combine or serve."""
    things = list(state.things)
    bowl = len(kitchen.foods)
    held = hand(state, cook)
    lying = _on(state, cell)
    reward, served = 0.0, False
    if held is None:
        if lying:
            found = lying[0]
            if cell in kitchen.boards and found != bowl and not things[found].chopped:
                things[found] = things[found]._replace(chops=things[found].chops + 1)
                if things[found].chopped and kitchen.foods[found] in kitchen.order:
                    reward = CHOP_REWARD
            else:
                things[found] = things[found]._replace(cell=-1, cook=cook)
    elif cell == kitchen.service:
        inside = tuple(food for number, food in enumerate(kitchen.foods) if things[number].in_bowl)
        if held == bowl and inside == kitchen.order:
            reward, served = DISH_REWARD, True
            things[bowl] = Thing(cell)
        else:
            reward = MISTAKE_REWARD
            for number, thing in enumerate(things):
                if number == held or (held == bowl and thing.in_bowl):
                    things[number] = Thing(kitchen.homes[number])
    elif not lying:
        if cell not in kitchen.floor:
            things[held] = things[held]._replace(cell=cell, cook=-1)
    elif held == bowl and things[lying[0]].chopped:
        things[lying[0]] = things[lying[0]]._replace(cell=-1, in_bowl=True)
    elif lying[0] == bowl and things[held].chopped:
        things[held] = things[held]._replace(cook=-1, in_bowl=True)
        if cell in kitchen.boards:
            things[bowl] = things[bowl]._replace(cell=-1, cook=cook)
    return state._replace(things=tuple(things)), reward, served
