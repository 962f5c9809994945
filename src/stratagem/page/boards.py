"""Boards as SVG, drawn from the state that a trajectory holds, so that no game is played again.

Colours are classes of the style sheet, and each kind of cell has its own shape or letter: colour is never the only cue.
A game that is not known here, or a state that does not read as expected, is shown as text by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

__all__ = ["draw_board", "grid_of"]

_CELL = 40
_MOVES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


def draw_board(
    game: str, state_key: str, *, action: str | None = None, trail: Sequence[str] = (), params: Mapping[str, Any] = {}
) -> Markup | None:
    """Return a picture of a state, or None where this game has none.

    Args:
        game: the name in a trajectory.
        state_key: the state.
        action: what is done next; drawn as an arrow where it is a direction.
        trail: states that were passed before.
        params: settings of the game, for what a state does not say (the walls of a kitchen).
    """
    draw = _GAMES.get(game)
    return None if draw is None else draw(state_key, action, trail, params)


def grid_of(observation: str) -> str:
    """Return the lines after ``State:``, or else the last lines of an observation."""
    _, found, grid = observation.rpartition("\nState:\n")
    return grid if found else "\n".join(observation.splitlines()[-12:])


def _svg(width: int, height: int, label: str, parts: Sequence[str]) -> Markup:
    return Markup('<svg class="board" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">{3}</svg>').format(
        width * _CELL, height * _CELL, label, Markup("").join(map(Markup, parts))
    )


def _cells(cells: Sequence[tuple[int, int]], kind: str, inset: int = 1) -> str:
    """Return one path with a rounded square in each cell (column, row from the top)."""
    side = _CELL - 2 * inset - 8
    square = f"h{side}q4 0 4 4v{side}q0 4 -4 4h-{side}q-4 0 -4 -4v-{side}q0 -4 4 -4z"
    squares = (f"M{x * _CELL + inset + 4} {y * _CELL + inset}{square}" for x, y in cells)
    return f'<path class="{kind}" d="{"".join(squares)}"/>' if cells else ""


def _circle(x: int, y: int, radius: float, kind: str) -> str:
    return f'<circle class="{kind}" cx="{(x + 0.5) * _CELL:g}" cy="{(y + 0.5) * _CELL:g}" r="{radius:g}"/>'


def _letter(x: int, y: int, text: str, kind: str = "mark") -> str:
    return f'<text class="{kind}" x="{(x + 0.5) * _CELL:g}" y="{(y + 0.5) * _CELL + 6:g}">{escape(text)}</text>'


def _arrow(x: int, y: int, action: str | None) -> str:
    if action not in _MOVES:
        return ""
    dx, dy = _MOVES[action]
    cx, cy = (x + 0.5) * _CELL, (y + 0.5) * _CELL
    tip = (cx + 31 * dx, cy + 31 * dy)
    base = (cx + 21 * dx, cy + 21 * dy)
    corners = " ".join(f"{px:g},{py:g}" for px, py in (tip, _aside(base, dx, dy, 6), _aside(base, dx, dy, -6)))
    return (
        f'<path class="arrow" d="M{cx + 11 * dx:g} {cy + 11 * dy:g}L{base[0]:g} {base[1]:g}"/>'
        f'<polygon class="tip" points="{corners}"/>'
    )


def _aside(point: tuple[float, float], dx: int, dy: int, by: float) -> tuple[float, float]:
    return (point[0] - dy * by, point[1] + dx * by)


def _line(cells: Sequence[tuple[int, int]], kind: str) -> str:
    points = " ".join(f"{(x + 0.5) * _CELL:g},{(y + 0.5) * _CELL:g}" for x, y in cells)
    return f'<polyline class="{kind}" points="{points}"/>' if len(cells) > 1 else ""


# ---- Frozen Lake -----------------------------------------------------------------------------------------------------

_LAKE = re.compile(r"([SFHG]+(?:/[SFHG]+)*) \((\d+), (\d+)\)")


def _lake_place(state_key: str) -> tuple[list[str], int, int] | None:
    match = _LAKE.fullmatch(state_key)
    if match is None:
        return None
    rows = match[1].split("/")
    x, y = int(match[2]), len(rows) - 1 - int(match[3])  # (0, 0) is at the bottom left
    if len({len(row) for row in rows}) > 1 or not (0 <= y < len(rows) and x < len(rows[0])):
        return None
    return rows, x, y


def _frozen_lake(state_key: str, action: str | None, trail: Sequence[str], params: Mapping[str, Any]) -> Markup | None:
    place = _lake_place(state_key)
    if place is None:
        return None
    rows, x, y = place
    kinds: dict[str, list[tuple[int, int]]] = {"S": [], "F": [], "H": [], "G": []}
    for row, letters in enumerate(rows):
        for column, letter in enumerate(letters):
            kinds[letter].append((column, row))
    passed = [(at[1], at[2]) for key in trail if (at := _lake_place(key)) is not None]
    parts = [_cells(kinds["F"] + kinds["S"] + kinds["H"], "ice"), _cells(kinds["G"], "goal")]
    for column, row in kinds["H"]:
        parts.append(_circle(column, row, 15, "hole"))
    for column, row in kinds["S"]:
        parts.append(f'<text class="small corner" x="{column * _CELL + 5}" y="{row * _CELL + 10}">start</text>')
    for column, row in kinds["G"]:
        parts.append(f'<path class="flag" d="M{column * _CELL + 14} {row * _CELL + 32}v-24h16l-5 6 5 6h-14"/>')
    parts += [_line([*passed, (x, y)], "trail"), _circle(x, y, 11, "player"), _arrow(x, y, action)]
    label = f"Frozen Lake: player at column {x}, row {len(rows) - 1 - y}" + (f", goes {action}" if action else "")
    return _svg(len(rows[0]), len(rows), label, parts)


# ---- Snake -----------------------------------------------------------------------------------------------------------

_SNAKE = re.compile(r"(\d+)x(\d+) (.*) apples (.*)")
_PAIR = re.compile(r"\((\d+), (\d+)\)")


def _snake(state_key: str, action: str | None, trail: Sequence[str], params: Mapping[str, Any]) -> Markup | None:
    match = _SNAKE.fullmatch(state_key)
    if match is None or not 0 < int(match[1]) <= 64 or not 0 < int(match[2]) <= 64:
        return None
    width, height = int(match[1]), int(match[2])

    def places(text: str) -> list[tuple[int, int]]:
        return [(int(x), height - 1 - int(y)) for x, y in _PAIR.findall(text)]

    snakes = [places(text) for text in match[3].split(" | ")]
    parts = [_cells([(x, y) for y in range(height) for x in range(width)], "field")]
    for x, y in places(match[4]):
        parts.append(_circle(x, y, 12, "apple"))
        parts.append(f'<path class="leaf" d="M{x * _CELL + 20} {y * _CELL + 9}q1 -6 8 -6q-1 6 -8 6z"/>')
    for seat, snake in enumerate(snakes):
        if not snake:
            continue
        own = "own" if seat == 0 else "enemy"
        parts.append(_line(snake, f"body {own}"))
        parts.append(_circle(*snake[0], 15, f"head {own}"))
        parts.append(_letter(*snake[0], str(seat + 1), "seat"))
    if snakes[0]:
        parts.append(_arrow(*snakes[0][0], action))
    lengths = ", ".join(f"{n + 1} has {len(s)} cells" if s else f"{n + 1} is dead" for n, s in enumerate(snakes))
    return _svg(width, height, f"Snake: snake {lengths}", parts)


# ---- Overcooked ------------------------------------------------------------------------------------------------------

_THING = re.compile(r"(\w+)@(bowl|cook\d+|\d+)/(\d+)")
_COOK = re.compile(r"cook(\d+)@(\d+) ")


@lru_cache(maxsize=8)
def _kitchen(layout: str | tuple[str, ...] | None) -> tuple[int, int, frozenset[int], tuple[int, ...], int]:
    """Return width, height, floor, boards and serving counter."""
    from stratagem.games import make

    game: Any = make("overcooked", **({} if layout is None else {"layout": layout}))
    kitchen = game.kitchen
    found = (kitchen.width, kitchen.height, frozenset(kitchen.floor), tuple(kitchen.boards), kitchen.service)
    game.close()
    return found


def _overcooked(state_key: str, action: str | None, trail: Sequence[str], params: Mapping[str, Any]) -> Markup | None:
    things, cooks = _THING.findall(state_key), _COOK.findall(state_key + " ")
    layout = params.get("layout")
    if not things or not cooks:
        return None
    try:
        width, height, floor, boards, service = _kitchen(tuple(layout) if isinstance(layout, list) else layout)
    except Exception:  # a recipe of another version may name a kitchen that is gone
        return None
    cells = [(cell % width, cell // width) for cell in range(width * height)]
    if any(int(cell) >= len(cells) for _, cell in cooks):
        return None
    counters = [at for cell, at in enumerate(cells) if cell not in floor and cell != service and cell not in boards]
    parts = [_cells([cells[cell] for cell in sorted(floor)], "field"), _cells(counters, "counter")]
    parts.append(_cells([cells[board] for board in boards], "cutting"))
    parts += [_letter(*cells[board], "cut", "small") for board in boards]
    parts.append(_cells([cells[service]], "goal"))
    parts.append(_letter(*cells[service], "serve", "small"))
    held: dict[str, list[str]] = {}
    inside = "+".join(name[0].upper() for name, where, _ in things if where == "bowl")
    for name, where, chops in things:
        if where == "bowl":
            continue
        mark = name[0].upper() if int(chops) and name != "bowl" else name[0]
        if where.startswith("cook"):
            held.setdefault(where[4:], []).append(mark)
        elif int(where) < len(cells):
            parts.append(_circle(*cells[int(where)], 14, "bowl" if name == "bowl" else f"food {name}"))
            parts.append(_letter(*cells[int(where)], inside or "b" if name == "bowl" else mark, "seat"))
    for number, cell in cooks:
        x, y = cells[int(cell)]
        parts += [_circle(x, y, 15, "player"), _letter(x, y, number + "".join(held.get(number, [])), "seat")]
    return _svg(width, height, f"Kitchen: {state_key}", parts)


_GAMES: dict[str, Callable[[str, str | None, Sequence[str], Mapping[str, Any]], Markup | None]] = {
    "frozen_lake": _frozen_lake,
    "snake": _snake,
    "overcooked": _overcooked,
}
