"""Facts about the households of ALFWorld: what may lie where, what usually does, and what can be done with it.

Counted over the games of ALFWorld (MIT licence), whose rooms and objects are those of ALFRED and AI2-THOR.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ACCEPTS", "LIKELY", "TRAITS_OF"]


def _words(table: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(words.split()) for key, words in table.items()}


def _numbers(table: Mapping[str, str]) -> dict[str, dict[str, int]]:
    return {
        key: {word: int(number) for word, _, number in (entry.partition(":") for entry in entries)}
        for key, entries in _words(table).items()
    }


ACCEPTS: dict[str, tuple[str, ...]] = _words(
    {
        "ArmChair": "Book Box CellPhone Cloth CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
        "BathtubBasin": "Cloth DishSponge HandTowel SoapBar",
        "Bed": "BaseballBat BasketBall Book CellPhone Laptop Pillow TennisRacket",
        "Cabinet": (
            "Book Bowl Box CD Candle Cloth Cup DishSponge Glassbottle HandTowel Kettle Ladle Mug Newspaper Pan "
            "PepperShaker Plate Plunger Pot SaltShaker SoapBar SoapBottle SprayBottle TissueBox ToiletPaper Vase "
            "WateringCan WineBottle"
        ),
        "Cart": "Candle Cloth DishSponge HandTowel Plunger SoapBar SoapBottle SprayBottle TissueBox ToiletPaper",
        "CoffeeMachine": "Mug",
        "CoffeeTable": (
            "Book Bowl Box Candle CellPhone CreditCard KeyChain Laptop Newspaper Pen Pencil Plate RemoteControl "
            "Statue TissueBox Vase Watch WateringCan"
        ),
        "CounterTop": (
            "AlarmClock Apple Book Bowl Bread ButterKnife CD Candle CellPhone Cloth CreditCard Cup DishSponge Egg "
            "Fork Glassbottle HandTowel Kettle KeyChain Knife Ladle Laptop Lettuce Mug Pan Pen Pencil "
            "PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon SprayBottle "
            "Statue TissueBox ToiletPaper Tomato Vase WineBottle"
        ),
        "Desk": (
            "AlarmClock BasketBall Book Bowl Box CD CellPhone Cloth CreditCard KeyChain Laptop Mug Pen Pencil "
            "RemoteControl Statue TennisRacket TissueBox Vase Watch WateringCan"
        ),
        "DiningTable": (
            "AlarmClock Apple BaseballBat BasketBall Book Bowl Box Bread ButterKnife CD Candle CellPhone Cloth "
            "CreditCard Cup DishSponge Egg Fork Glassbottle Kettle KeyChain Knife Ladle Laptop Lettuce Mug "
            "Newspaper Pan Pen Pencil PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBottle Spatula "
            "Spoon SprayBottle Statue TennisRacket TissueBox Tomato Vase Watch WateringCan WineBottle"
        ),
        "Drawer": (
            "Book ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Fork HandTowel KeyChain Knife Ladle "
            "Newspaper Pen Pencil PepperShaker RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon "
            "SprayBottle TissueBox ToiletPaper Watch WateringCan"
        ),
        "Dresser": (
            "AlarmClock BasketBall Book Bowl Box CD Candle CellPhone Cloth CreditCard KeyChain Laptop Mug "
            "Newspaper Pen Pencil Plate RemoteControl SprayBottle Statue TennisRacket TissueBox ToiletPaper Vase "
            "Watch WateringCan"
        ),
        "Fridge": "Apple Bowl Bread Cup Egg Glassbottle Lettuce Mug Pan Plate Pot Potato Tomato WineBottle",
        "GarbageCan": (
            "Apple Bread CD Cloth DishSponge Egg HandTowel Lettuce Newspaper Pen Pencil Potato SoapBar SoapBottle "
            "SprayBottle TissueBox ToiletPaper Tomato WineBottle"
        ),
        "HandTowelHolder": "HandTowel",
        "LaundryHamper": "Cloth",
        "Microwave": "Apple Bowl Bread Cup Egg Glassbottle Mug Plate Potato Tomato",
        "Ottoman": "Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
        "Safe": "CD CellPhone CreditCard KeyChain Statue Vase Watch",
        "Shelf": (
            "AlarmClock Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup DishSponge Glassbottle HandTowel "
            "Kettle KeyChain Mug Newspaper Pen Pencil PepperShaker Plate Pot RemoteControl SaltShaker SoapBar "
            "SoapBottle SprayBottle Statue TissueBox ToiletPaper Vase Watch WateringCan WineBottle"
        ),
        "SideTable": (
            "AlarmClock Apple BaseballBat BasketBall Book Bowl Box Bread ButterKnife CD Candle CellPhone Cloth "
            "CreditCard Cup DishSponge Egg Fork HandTowel Kettle KeyChain Knife Laptop Lettuce Mug Newspaper Pan "
            "Pen Pencil PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon "
            "SprayBottle Statue TennisRacket TissueBox ToiletPaper Tomato Vase Watch WateringCan WineBottle"
        ),
        "SinkBasin": (
            "Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Glassbottle HandTowel Kettle Knife Ladle "
            "Lettuce Mug Pan Plate Pot Potato SoapBar Spatula Spoon Tomato"
        ),
        "Sofa": "Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
        "StoveBurner": "Kettle Pan Pot",
        "TVStand": "TissueBox",
        "ToiletPaperHanger": "ToiletPaper",
        "Toilet": "Candle Cloth DishSponge HandTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper",
        "TowelHolder": "Towel",
    }
)
"""Type of receptacle -> types of objects that may be put there, over all games."""

LIKELY: dict[str, dict[str, int]] = _numbers(
    {
        "AlarmClock": "DiningTable:97 Desk:75 CounterTop:71 Dresser:57 SideTable:39 Shelf:12",
        "Apple": "Fridge:49 DiningTable:40 SideTable:34 Microwave:26 GarbageCan:25 CounterTop:21 SinkBasin:18",
        "Book": (
            "Bed:82 CoffeeTable:61 Desk:46 CounterTop:38 DiningTable:35 Sofa:30 Dresser:25 ArmChair:14 "
            "SideTable:8 TVStand:8 Drawer:3 Cabinet:3 Shelf:1"
        ),
        "Bowl": (
            "Desk:95 CoffeeTable:49 DiningTable:41 Fridge:40 Dresser:38 TVStand:37 CounterTop:18 Shelf:10 "
            "SideTable:8 SinkBasin:6 Cabinet:5 Microwave:5"
        ),
        "Box": (
            "DiningTable:48 CoffeeTable:27 Sofa:24 Desk:14 TVStand:8 SideTable:5 Ottoman:5 Dresser:5 Cabinet:5 "
            "ArmChair:3 Shelf:2"
        ),
        "Bread": "DiningTable:64 CounterTop:38 Fridge:19 SideTable:10 GarbageCan:1",
        "ButterKnife": "DiningTable:62 CounterTop:46 SideTable:30 SinkBasin:10 Drawer:3",
        "CD": (
            "DiningTable:83 Dresser:48 Desk:46 SideTable:27 GarbageCan:14 Drawer:9 ArmChair:9 Cabinet:8 Safe:6 Shelf:4"
        ),
        "Candle": (
            "SideTable:76 CounterTop:57 Toilet:56 CoffeeTable:45 Cart:39 TVStand:33 DiningTable:33 Dresser:25 "
            "Shelf:25 Cabinet:13 Drawer:9"
        ),
        "CellPhone": (
            "Bed:52 Desk:47 DiningTable:47 Dresser:41 Ottoman:41 CoffeeTable:40 TVStand:30 CounterTop:29 Sofa:26 "
            "Safe:25 SideTable:21 ArmChair:18 Shelf:5 Drawer:5"
        ),
        "Cloth": (
            "BathtubBasin:87 Cart:33 CounterTop:32 Cabinet:19 Dresser:14 SinkBasin:11 Drawer:8 Toilet:6 Shelf:5 "
            "SideTable:1"
        ),
        "CreditCard": (
            "Desk:46 Dresser:43 DiningTable:41 TVStand:37 Sofa:35 CoffeeTable:32 CounterTop:32 SideTable:25 "
            "ArmChair:21 Ottoman:19 Shelf:10 Drawer:9"
        ),
        "Cup": "Fridge:41 DiningTable:38 SideTable:33 SinkBasin:18 CounterTop:18 Microwave:14 Shelf:6 Cabinet:3",
        "DeskLamp": "SideTable:42 Desk:40 Dresser:36 CoffeeTable:16 Shelf:4",
        "DishSponge": (
            "BathtubBasin:44 DiningTable:33 Cart:31 CounterTop:23 Toilet:16 SinkBasin:15 SideTable:14 "
            "GarbageCan:11 Shelf:10 Drawer:7 Cabinet:3"
        ),
        "Egg": "Fridge:50 DiningTable:31 SideTable:28 GarbageCan:25 SinkBasin:25 Microwave:23 CounterTop:20",
        "FloorLamp": "SinkBasin:41",
        "Fork": "DiningTable:59 CounterTop:37 SideTable:27 SinkBasin:17 Drawer:7",
        "Glassbottle": "DiningTable:44 CounterTop:20 SinkBasin:18 Fridge:18 GarbageCan:14 Shelf:9 Cabinet:4",
        "HandTowel": "HandTowelHolder:79 CounterTop:5",
        "Kettle": "DiningTable:24 StoveBurner:17 CounterTop:17 Cabinet:3 SinkBasin:3 Shelf:1",
        "KeyChain": (
            "Desk:44 Safe:44 Dresser:41 CoffeeTable:32 DiningTable:31 TVStand:29 SideTable:25 Ottoman:19 Sofa:16 "
            "ArmChair:12 Drawer:8 Shelf:8 CounterTop:5 Cabinet:2"
        ),
        "Knife": "DiningTable:62 CounterTop:39 SideTable:14 SinkBasin:9 Drawer:6",
        "Ladle": "DiningTable:64 CounterTop:34 Cabinet:4 Drawer:4 SinkBasin:4",
        "Laptop": (
            "Bed:103 CounterTop:52 DiningTable:46 Desk:38 CoffeeTable:34 Sofa:32 Ottoman:19 Dresser:17 TVStand:17 "
            "ArmChair:5 SideTable:4"
        ),
        "Lettuce": "DiningTable:66 Fridge:41 CounterTop:32 SideTable:24 SinkBasin:9 GarbageCan:2",
        "Mug": (
            "Desk:86 Dresser:47 CoffeeMachine:38 DiningTable:33 Fridge:30 SideTable:28 CounterTop:27 Microwave:16 "
            "SinkBasin:13 Shelf:8 Cabinet:3"
        ),
        "Newspaper": (
            "DiningTable:57 Dresser:46 CoffeeTable:34 Sofa:30 Ottoman:25 TVStand:18 SideTable:14 Shelf:12 "
            "ArmChair:12 Drawer:1"
        ),
        "Pan": "CounterTop:26 StoveBurner:23 DiningTable:10 Fridge:7 Cabinet:1",
        "PaperTowelRoll": "DiningTable:41 Toilet:25 SideTable:23 CounterTop:22 Cart:21 GarbageCan:14 Shelf:10",
        "Pen": (
            "DiningTable:91 Desk:75 CoffeeTable:65 Dresser:63 CounterTop:36 SideTable:32 TVStand:24 Shelf:11 "
            "Drawer:7 GarbageCan:5"
        ),
        "Pencil": (
            "DiningTable:67 Desk:61 CoffeeTable:54 Dresser:44 SideTable:40 CounterTop:28 TVStand:20 Shelf:12 "
            "GarbageCan:11 Drawer:7"
        ),
        "PepperShaker": "DiningTable:45 SideTable:43 CounterTop:28 Shelf:10 Cabinet:5 Drawer:5",
        "Pillow": "Bed:145 Sofa:76 ArmChair:14 Ottoman:2",
        "Plate": (
            "DiningTable:41 CoffeeTable:31 CounterTop:23 TVStand:18 Fridge:16 Dresser:10 SideTable:8 Shelf:6 "
            "Cabinet:5 SinkBasin:4 Microwave:1"
        ),
        "Pot": "StoveBurner:33 CounterTop:11 DiningTable:10 Fridge:8 SinkBasin:1 Shelf:1",
        "Potato": "Fridge:51 DiningTable:42 CounterTop:24 SideTable:23 SinkBasin:21 Microwave:20 GarbageCan:12",
        "RemoteControl": (
            "Desk:67 CounterTop:62 CoffeeTable:46 TVStand:39 Dresser:38 DiningTable:37 Sofa:30 Ottoman:22 "
            "SideTable:16 ArmChair:11 Drawer:4 Shelf:3"
        ),
        "SaltShaker": "DiningTable:46 SideTable:43 CounterTop:27 Shelf:9 Cabinet:5 Drawer:5",
        "SoapBar": (
            "SideTable:62 CounterTop:38 BathtubBasin:35 Cart:33 Toilet:30 SinkBasin:20 Shelf:15 GarbageCan:13 "
            "Cabinet:12 Drawer:8"
        ),
        "SoapBottle": (
            "DiningTable:52 Dresser:51 Toilet:43 CounterTop:31 SideTable:27 Cart:24 GarbageCan:19 Shelf:16 "
            "Cabinet:5 Drawer:1"
        ),
        "Spatula": "DiningTable:62 CounterTop:37 SinkBasin:16 SideTable:11 Drawer:7",
        "Spoon": "DiningTable:56 CounterTop:32 SideTable:32 SinkBasin:21 Drawer:9",
        "SprayBottle": (
            "SideTable:88 Cart:87 Toilet:54 CounterTop:50 Dresser:40 DiningTable:37 Shelf:27 GarbageCan:21 Cabinet:8"
        ),
        "Statue": "DiningTable:68 Desk:66 CoffeeTable:58 TVStand:45 Dresser:43 CounterTop:34 SideTable:25 Shelf:20",
        "TeddyBear": "Bed:62",
        "TissueBox": (
            "Desk:83 CoffeeTable:82 CounterTop:77 DiningTable:63 Cart:43 TVStand:34 Shelf:25 SideTable:21 "
            "Dresser:17 Cabinet:10 Drawer:6 Toilet:5 GarbageCan:1"
        ),
        "ToiletPaper": (
            "Toilet:46 CounterTop:44 Dresser:42 SideTable:40 Cart:37 ToiletPaperHanger:23 Shelf:21 GarbageCan:19 "
            "Cabinet:11 Drawer:8"
        ),
        "Tomato": "Fridge:66 DiningTable:52 SideTable:29 CounterTop:26 GarbageCan:18 SinkBasin:13",
        "Towel": "TowelHolder:87 CounterTop:3",
        "Vase": (
            "Dresser:103 CoffeeTable:55 DiningTable:49 Desk:43 CounterTop:32 TVStand:30 Shelf:24 SideTable:20 Cabinet:6"
        ),
        "Watch": "Desk:63 TVStand:59 DiningTable:51 Dresser:48 CoffeeTable:46 SideTable:25 Drawer:10 Shelf:5",
        "WateringCan": "Shelf:19 CoffeeTable:17 SideTable:1",
        "WineBottle": "DiningTable:61 CounterTop:37 GarbageCan:17 Shelf:6 Cabinet:4 Fridge:3 SideTable:2",
    }
)
"""Type of object -> type of receptacle -> objects of the type in a hundred such receptacles at the start of a game.

Counted over the training games that have such an object at all.
"""

_TRAITS = _words(
    {
        "p": (
            "AlarmClock BaseballBat BasketBall Book Boots CD Candle CellPhone CreditCard Footstool Glassbottle "
            "HandTowel KeyChain Laptop Newspaper PaperTowelRoll Pen Pencil PepperShaker Pillow Plunger "
            "RemoteControl SaltShaker ScrubBrush SoapBottle SprayBottle Statue TeddyBear TennisRacket TissueBox "
            "ToiletPaper Towel Vase Watch WateringCan"
        ),
        "pc": "ButterKnife Cloth DishSponge Fork Kettle Knife Ladle SoapBar Spatula Spoon",
        "pchkr": "Cup Mug Plate",
        "pchks": "Apple Egg Potato Tomato",
        "pckr": "Bowl Pan Pot",
        "pcks": "Lettuce",
        "phks": "Bread",
        "pk": "WineBottle",
        "pr": "Box",
        "t": "DeskLamp FloorLamp",
    }
)

TRAITS_OF: dict[str, str] = {kind: letters for letters, kinds in _TRAITS.items() for kind in kinds}
"""Type of object -> its letters in a record (see ``alfworld_pddl.TRAITS``); types without any are left out."""
