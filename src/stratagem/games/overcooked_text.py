"""What a cook of the Overcooked kitchen reads: the papers' sentences and the words of the macro actions.

The sentences are those of POAD's public text of the kitchen, grammar included, made from what the cook sees; where
something is out of view the text is silent.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratagem.games.overcooked_rules import FOODS, Kitchen, State, cell_of, hand

__all__ = ["action_words", "observation_vector", "picture", "prompt"]

_ORDINALS = ("first", "second", "third", "fourth")

_ONE_HOT = (
    ("tomato",),
    ("lettuce",),
    ("onion",),
    ("tomato", "lettuce"),
    ("tomato", "onion"),
    ("lettuce", "onion"),
    ("tomato", "lettuce", "onion"),
)
"""The dishes in the order of the observation vector's last seven entries."""


def _article(food: str) -> str:
    return f"{'an' if food[0] in 'aeiou' else 'a'} {food}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _board(kitchen: Kitchen, number: int) -> str:
    return "cutting board" if len(kitchen.boards) == 1 else f"{_ORDINALS[number]} cutting board"


def _capitalised(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _things_seen(kitchen: Kitchen, state: State, cook: int) -> list[int | None]:
    """Return the cell of each thing, None where the cook does not see it."""
    seen = kitchen.views[state.cooks[cook]]
    return [cell if (cell := cell_of(state, number)) in seen else None for number in range(len(state.things))]


def _standing_at(kitchen: Kitchen, state: State, cook: int) -> int | None:
    """Return the number of the cutting board that the cook stands right of, the papers' "in front of"."""
    left = state.cooks[cook] - 1
    return kitchen.boards.index(left) if left in kitchen.boards else None


def _contents(kitchen: Kitchen, state: State) -> list[str]:
    return [food for number, food in enumerate(kitchen.foods) if state.things[number].in_bowl]


def _in_hand(kitchen: Kitchen, state: State, cook: int) -> str | None:
    held = hand(state, cook)
    if held is None:
        return None
    if held < len(kitchen.foods):
        return f"{'a chopped' if state.things[held].chopped else 'an unchopped'} {kitchen.foods[held]}"
    contents = _contents(kitchen, state)
    return f"a bowl containing chopped {_listed(contents)}" if contents else "a bowl"


def _on_board(kitchen: Kitchen, state: State, cells: Sequence[int | None], number: int) -> str | None:
    board, bowl = kitchen.boards[number], len(kitchen.foods)
    where = f"is on the {_board(kitchen, number)}."
    if cells[bowl] == board:
        contents = _contents(kitchen, state)
        if not contents:
            return f"A bowl {where}"
        # The papers' kitchen with one food has an article here, the one with three has none.
        article = "a " if len(kitchen.foods) == 1 else ""
        return f"A bowl containing {article}chopped {_listed(contents)} {where}"
    for food, name in enumerate(kitchen.foods):
        if cells[food] == board:
            return f"{'A chopped' if state.things[food].chopped else 'An unchopped'} {name} {where}"
    return None


def prompt(kitchen: Kitchen, state: State, cook: int) -> str:
    """Return what a cook reads; the action continues the last sentence."""
    cells = _things_seen(kitchen, state, cook)
    bowl = len(kitchen.foods)
    count = len(kitchen.boards)
    if count == 1:
        sentences = ["There is a fixed cutting board in the room."]
    else:
        sentences = [f"There are {('two', 'three', 'four')[count - 2]} fixed cutting boards in the room."]
    names = [*(_article(food) for food in kitchen.foods), "a bowl"]
    lying = [names[number] for number, cell in enumerate(cells) if cell == kitchen.homes[number]]
    if lying:
        place = "on the table." if len(lying) == 1 else "on the different tables."
        sentences.append(f"You notice {_listed(lying)} {place}")
    on_boards = (_on_board(kitchen, state, cells, number) for number in range(count))
    sentences += [sentence for sentence in on_boards if sentence is not None]
    others = [f"Another cook is {thing}." for thing in _others(kitchen, state, cook)]
    sentences += others
    held, at = _in_hand(kitchen, state, cook), _standing_at(kitchen, state, cook)
    if at is not None:
        front = f"Currently you are standing in front of the {_board(kitchen, at)}"
        sentences.append(f"{front}, carrying {held} in hand." if held else f"{front} without anything in hand.")
    elif held is None:
        sentences.append("Currently you don't have anything in hand.")
    else:
        full = hand(state, cook) == bowl and bool(_contents(kitchen, state))
        sentences.append(f"Currently you are carrying {held}{'' if full else ' in hand'}.")
    dish = _listed(kitchen.order)
    return " ".join([*sentences, f"To serve the dish of a bowl only containing chopped {dish}, you should first"])


def _others(kitchen: Kitchen, state: State, cook: int) -> list[str]:
    seen = kitchen.views[state.cooks[cook]]
    found = []
    for other, cell in enumerate(state.cooks):
        if other != cook and cell in seen:
            held = _in_hand(kitchen, state, other)
            found.append(f"near you, carrying {held}" if held else "near you without anything in hand")
    return found


def action_words(kitchen: Kitchen, state: State, cook: int) -> tuple[str, ...]:
    """Return the words of each macro action in this state, in the order of the macro actions."""
    held, bowl = hand(state, cook), len(kitchen.foods)
    cells = _things_seen(kitchen, state, cook)
    words = [f"put the {food} in the bowl" if held == bowl else f"pick up the {food}" for food in kitchen.foods]
    used = any(cell is not None and cell == cells[bowl] for cell in cells[:bowl])
    used = used and cells[bowl] != kitchen.service  # a dish that was served is nobody's bowl any more
    words.append("take the bowl" if used or len(kitchen.foods) == 1 else "take the empty bowl")
    for number in range(len(kitchen.boards)):
        if held == bowl:
            words.append(f"put the bowl on the {_board(kitchen, number)}")
        elif held is not None and not state.things[held].chopped:
            words.append(f"put the {kitchen.foods[held]} on the {_board(kitchen, number)}")
        else:
            words.append(f"walk to the {_board(kitchen, number)}")
    words.append("serve nothing" if held is None else "serve the dish")
    at = _standing_at(kitchen, state, cook)
    found = "nothing"
    if at is not None:
        for food, name in enumerate(kitchen.foods):
            if cells[food] == kitchen.boards[at] and not state.things[food].in_bowl:
                found = f"the {name}"
    words.append(f"chop {found}")
    return tuple(words)


def observation_vector(kitchen: Kitchen, state: State, cook: int) -> tuple[int, ...]:
    """Return the papers' vector: row and column of what is seen, zeros for what is not, and the dish as one-hot.

    For each food row, column and chops; then for the bowl, the boards and the serving counter row and column; then the
    cook's own row and column.
    """
    seen = kitchen.views[state.cooks[cook]]
    entries: list[int] = []

    def put(cell: int, *more: int) -> None:
        entries.extend((*divmod(cell, kitchen.width), *more) if cell in seen else (0, 0, *(0 for _ in more)))

    for food in range(len(kitchen.foods)):
        put(cell_of(state, food), state.things[food].chops)
    for cell in (cell_of(state, len(kitchen.foods)), *kitchen.boards, kitchen.service, state.cooks[cook]):
        put(cell)
    entries.extend(int(kitchen.order == dish) for dish in _ONE_HOT)
    return tuple(entries)


def picture(kitchen: Kitchen, state: State) -> str:
    """Return the kitchen for people: one letter for each cell, capital where food is chopped."""
    letters = ["_" if cell in kitchen.floor else "#" for cell in range(kitchen.width * kitchen.height)]
    for board in kitchen.boards:
        letters[board] = "k"
    letters[kitchen.service] = "s"
    notes = []
    for number, thing in enumerate(state.things):
        if thing.cell >= 0 and not thing.in_bowl:
            letter = (*(food[0] for food in FOODS if food in kitchen.foods), "b")[number]
            letters[thing.cell] = letter.upper() if thing.chopped else letter
    contents = _contents(kitchen, state)
    for cook, cell in enumerate(state.cooks):
        letters[cell] = str(cook + 1)
        notes.append(f"{cook + 1} holds {_in_hand(kitchen, state, cook) or 'nothing'}")
    if contents and state.things[-1].cook < 0:
        notes.append(f"the bowl holds chopped {_listed(contents)}")
    rows = [" ".join(letters[start : start + kitchen.width]) for start in range(0, len(letters), kitchen.width)]
    return "\n".join([*rows, *notes])
