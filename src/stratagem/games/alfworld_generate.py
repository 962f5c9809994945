"""Generated ALFWorld households: nothing to download, as many as there are seeds.

A household is a layout (a room with its receptacles), objects in it, and a task. Of each of the four kinds of room
there are 30 layouts; the first 24 are for training (``train`` and ``valid_seen``), the last 6 are for evaluation only
(``valid_unseen``), and no two layouts of a kind have the same receptacles. Objects lie where they do in ALFWorld, drawn
by :data:`~stratagem.games.alfworld_facts.LIKELY`; what may be put where is
:data:`~stratagem.games.alfworld_facts.ACCEPTS`. A task is drawn so that the household has what it takes and the goal is
not reached at the start, so every household can be solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from stratagem.games.alfworld_facts import ACCEPTS, LIKELY, TRAITS_OF
from stratagem.games.alfworld_rules import TASK_TYPES
from stratagem.seeding import generator

__all__ = ["NUM_LAYOUTS", "NUM_TRAIN_LAYOUTS", "Layout", "generate_record", "layouts"]

NUM_LAYOUTS = 30
NUM_TRAIN_LAYOUTS = 24

_RECEPTACLES = {
    "kitchen": (
        "Cabinet:100:4:20 CoffeeMachine:100:1:1 CounterTop:100:1:4 DiningTable:55:1:2 Drawer:95:1:12 Fridge:100:1:1 "
        "GarbageCan:100:1:1 Microwave:100:1:1 Safe:5:1:1 Shelf:20:3:3 SideTable:10:1:1 SinkBasin:100:1:1 "
        "StoveBurner:100:4:4 Toaster:100:1:1"
    ),
    "living": (
        "ArmChair:95:1:2 Cabinet:15:1:8 CoffeeTable:80:1:2 Desk:5:1:1 DiningTable:50:1:2 Drawer:80:1:8 Dresser:35:1:2 "
        "GarbageCan:100:1:1 Ottoman:15:1:1 Safe:5:1:1 Shelf:40:1:12 SideTable:80:1:3 Sofa:100:1:2 TVStand:45:1:2"
    ),
    "bed": (
        "ArmChair:20:1:2 Bed:100:1:2 Cabinet:15:1:4 Desk:70:1:2 DiningTable:15:1:1 Drawer:100:2:12 Dresser:45:1:2 "
        "GarbageCan:100:1:1 LaundryHamper:30:1:1 Safe:20:1:1 Shelf:70:1:9 SideTable:65:1:2"
    ),
    "bath": (
        "BathtubBasin:70:1:1 Cabinet:65:1:6 Cart:5:1:1 CounterTop:90:1:2 Drawer:55:1:8 Dresser:5:1:1 "
        "GarbageCan:100:1:1 HandTowelHolder:100:1:2 Shelf:25:1:4 SideTable:10:1:1 SinkBasin:100:1:2 Toilet:100:1:1 "
        "ToiletPaperHanger:100:1:1 TowelHolder:100:1:2"
    ),
}
"""Kind of room -> type:percent of the rooms that have it:fewest:most."""

_OBJECTS = {
    "kitchen": (
        "Apple:100:3 Bowl:100:3 Bread:100:2 ButterKnife:95:3 Chair:80:3 Cup:100:3 DishSponge:100:3 Egg:100:3 "
        "Fork:100:3 Glassbottle:25:3 Kettle:50:2 Knife:100:3 Ladle:35:3 Lettuce:100:3 Mug:100:3 Pan:100:2 "
        "PaperTowelRoll:40:1 PepperShaker:100:3 Plate:100:3 Pot:100:2 Potato:100:3 SaltShaker:100:3 SoapBottle:100:3 "
        "Spatula:100:3 Spoon:100:3 StoveKnob:100:4 Tomato:100:3 Vase:20:3 Window:70:2 WineBottle:40:3"
    ),
    "living": (
        "Book:25:3 Boots:20:1 Bowl:10:3 Box:100:2 Candle:10:3 CellPhone:25:3 CreditCard:100:3 DeskLamp:30:1 "
        "FloorLamp:70:1 HousePlant:80:1 KeyChain:100:3 Laptop:100:2 Newspaper:60:3 Painting:90:2 Pen:20:3 Pencil:15:3 "
        "Pillow:100:2 Plate:35:3 RemoteControl:100:3 Statue:95:3 Television:95:1 TissueBox:35:3 Vase:60:3 Watch:50:3 "
        "WateringCan:45:1 Window:80:3"
    ),
    "bed": (
        "AlarmClock:100:3 BaseballBat:45:1 BasketBall:40:1 Blinds:60:1 Book:100:3 Boots:10:1 Bowl:45:2 Box:45:1 "
        "CD:100:3 CellPhone:100:3 Chair:60:2 Cloth:15:2 CreditCard:100:3 DeskLamp:70:1 KeyChain:100:3 Laptop:100:2 "
        "LightSwitch:100:1 Mirror:50:1 Mug:55:3 Pen:100:3 Pencil:100:3 Pillow:100:3 RemoteControl:10:2 Statue:15:2 "
        "TeddyBear:35:1 TennisRacket:40:1 TissueBox:15:3 Watch:5:3 Window:80:2"
    ),
    "bath": (
        "Candle:100:3 Cloth:100:3 DishSponge:25:3 HandTowel:100:2 LightSwitch:100:1 Mirror:95:1 PaperTowelRoll:15:1 "
        "Plunger:100:1 ScrubBrush:100:1 ShowerDoor:50:1 Sink:100:1 SoapBar:100:3 SoapBottle:100:3 SprayBottle:100:3 "
        "TissueBox:25:3 ToiletPaper:100:3 Towel:100:1"
    ),
}
"""Kind of room -> type:percent of the rooms that have it:most."""

_FIRST_NUMBER = {"kitchen": 1, "living": 201, "bed": 301, "bath": 401}
_ROOMS_OF = {
    "pick_and_place_simple": ("kitchen", "living", "bed", "bath"),
    "look_at_obj_in_light": ("bed", "living"),
    "pick_clean_then_place_in_recep": ("kitchen", "bath"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "living", "bed", "bath"),
}
_SENTENCES = {
    "pick_and_place_simple": ("put a {0} in {1}.", "put some {0} on {1}."),
    "look_at_obj_in_light": ("look at {0} under the {1}.", "examine the {0} with the {1}."),
    "pick_clean_then_place_in_recep": ("put a clean {0} in {1}.", "clean some {0} and put it in {1}."),
    "pick_heat_then_place_in_recep": ("put a hot {0} in {1}.", "heat some {0} and put it in {1}."),
    "pick_cool_then_place_in_recep": ("put a cool {0} in {1}.", "cool some {0} and put it in {1}."),
    "pick_two_obj_and_place": ("put two {0} in {1}.", "find two {0} and put them in {1}."),
}
_TRAIT_AND_TOOL = {
    "pick_clean_then_place_in_recep": ("c", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("h", "Microwave"),
    "pick_cool_then_place_in_recep": ("k", "Fridge"),
}
_ALWAYS_OPENABLE = ("Fridge", "Microwave", "Safe")
_SOMETIMES_OPENABLE = ("Cabinet", "Drawer")
_OPENABLE_SHARE = 0.83
_SHARED_PLACE = 0.15
"""Chance that a cabinet, drawer, shelf or burner stands where its neighbour does."""


@dataclass(frozen=True)
class Layout:
    """A room and its receptacles."""

    room: str
    number: int
    """As AI2-THOR numbers rooms: kitchens from 1, living rooms from 201, bedrooms from 301, bathrooms from 401."""
    receptacles: tuple[tuple[str, str, bool, str], ...]
    """Name, type, whether it can be opened, place."""

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """Types and how many there are of each."""
        kinds = [receptacle[1] for receptacle in self.receptacles]
        return tuple((kind, kinds.count(kind)) for kind in dict.fromkeys(kinds))


@lru_cache(maxsize=8)
def layouts(room: str) -> tuple[Layout, ...]:
    """Return the 30 layouts of a kind of room; no two have the same receptacles."""
    found: list[Layout] = []
    known: set[tuple[tuple[str, int], ...]] = set()
    attempt = 0
    while len(found) < NUM_LAYOUTS:
        layout = _layout(room, _FIRST_NUMBER[room] + len(found), generator("alfworld", "layout", room, attempt))
        attempt += 1
        if layout.counts not in known:
            known.add(layout.counts)
            found.append(layout)
    return tuple(found)


def _layout(room: str, number: int, rng: np.random.Generator) -> Layout:
    receptacles = []
    place = 0
    for entry in _RECEPTACLES[room].split():
        kind, percent, fewest, most = entry.split(":")
        if rng.random() * 100 >= int(percent):
            continue
        count = int(rng.integers(int(fewest), int(most) + 1))
        for position in range(count):
            shares = position > 0 and kind in ("Cabinet", "Drawer", "Shelf", "StoveBurner")
            if not (shares and rng.random() < _SHARED_PLACE):
                place += 1
            openable = kind in _ALWAYS_OPENABLE or (kind in _SOMETIMES_OPENABLE and rng.random() < _OPENABLE_SHARE)
            receptacles.append((f"{kind.lower()} {count - position}", kind, openable, f"place_{place}"))
    return Layout(room, number, tuple(receptacles))


def generate_record(seed: int, split: str, task_types: Sequence[str] = TASK_TYPES) -> dict[str, Any]:
    """Return the household of a seed as a record of the compact format (without a walkthrough).

    Args:
        seed: draws layout, objects and task.
        split: ``train``, ``valid_seen`` (training layouts, other objects and tasks) or ``valid_unseen``.
        task_types: one of them is drawn, each with the same chance.
    """
    rng = generator("alfworld", "household", split, seed)
    task_type = task_types[int(rng.integers(len(task_types)))]
    while True:
        room = _pick(rng, _ROOMS_OF[task_type])
        numbers = range(NUM_TRAIN_LAYOUTS, NUM_LAYOUTS) if split == "valid_unseen" else range(NUM_TRAIN_LAYOUTS)
        layout = layouts(room)[_pick(rng, numbers)]
        goals = _goals(layout, task_type)
        if goals:
            break
    # The type first, then where it goes: else the types that go in most places would be most tasks.
    item = _pick(rng, tuple(dict.fromkeys(goal[0] for goal in goals)))
    target = _pick(rng, tuple(goal[1] for goal in goals if goal[0] == item))
    counts = _counts(layout.room, rng)
    counts[item] = max(counts.get(item, 0), 2 if task_type == "pick_two_obj_and_place" else 1)
    if task_type == "look_at_obj_in_light":
        counts[target] = max(counts.get(target, 0), 1)
    objects = []
    for kind in sorted(counts, key=str.lower):
        for number in range(counts[kind], 0, -1):
            where = _place(layout, kind, target if kind == item else "", rng)
            objects.append([f"{kind.lower()} {number}", kind, where, TRAITS_OF.get(kind, "")])
    sentence = _pick(rng, _SENTENCES[task_type]).format(item.lower(), target.lower())
    kinds = [kind for kind, _ in layout.counts]
    return {
        "key": f"{split}/{task_type}-{item}-None-{target}-{layout.number}/generated_{seed}",
        "type": task_type,
        "task": sentence,
        "goal": [item, target],
        "agent": "start",
        "recs": [list(receptacle) for receptacle in layout.receptacles],
        "objs": objects,
        "can": {kind: [item for item in ACCEPTS.get(kind, ()) if item in counts] for kind in kinds if kind in ACCEPTS},
    }


def _pick(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _goals(layout: Layout, task_type: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs (object, receptacle or lamp) that make a solvable task here."""
    kinds = [kind for kind, _ in layout.counts]
    items = [entry.split(":")[0] for entry in _OBJECTS[layout.room].split()]
    items = [item for item in items if "p" in TRAITS_OF.get(item, "")]
    if task_type == "look_at_obj_in_light":
        lit = any(kind in LIKELY["DeskLamp"] for kind in kinds)
        return tuple((item, "DeskLamp") for item in items if lit and _likely(kinds, item, ""))
    trait, tool = _TRAIT_AND_TOOL.get(task_type, ("p", ""))
    return tuple(
        (item, kind)
        for item in items
        for kind in kinds
        if trait in TRAITS_OF[item] and kind != tool and item in ACCEPTS.get(kind, ()) and _likely(kinds, item, kind)
    )


def _likely(kinds: Sequence[str], item: str, without: str) -> bool:
    """Return whether an object can lie somewhere else than where it is to go."""
    return any(kind != without and LIKELY.get(item, {}).get(kind, 0) > 0 for kind in kinds)


def _counts(room: str, rng: np.random.Generator) -> dict[str, int]:
    counts = {}
    for entry in _OBJECTS[room].split():
        kind, percent, most = entry.split(":")
        there, count = rng.random() * 100 < int(percent), int(rng.integers(1, int(most) + 1))
        if there:
            counts[kind] = count
    return counts


def _place(layout: Layout, kind: str, without: str, rng: np.random.Generator) -> list[int]:
    """Return where an object lies: one receptacle, or none for what stands on the floor or hangs on the wall."""
    likely = LIKELY.get(kind, {})
    weights = np.array([0 if r[1] == without else likely.get(r[1], 0) for r in layout.receptacles], dtype=np.float64)
    luck = rng.random() * weights.sum()
    if not weights.any():
        return []
    return [min(int(np.searchsorted(np.cumsum(weights), luck, side="right")), len(weights) - 1)]
