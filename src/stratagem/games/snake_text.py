"""Snake in words, as seen from the head of a snake: what is beside it, and how far apples and enemies are.

Nothing has to be worked out from coordinates, which a small model has to learn first. Bodies are seen where they are
beside the head only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["RELATIVE_RULES", "relative_lines"]

RELATIVE_RULES = "Beside is one space away. Distances are counted from your head; the nearest stands first."


def relative_lines(
    snake: Sequence[int],
    enemies: Sequence[Sequence[int]],
    apples: Sequence[int],
    targets: Mapping[str, int],
    width: int,
) -> list[str]:
    """Return the lines of one player.

    Args:
        snake: its cells from head to tail; empty when it is dead.
        enemies: those of the others.
        apples: cells.
        targets: action -> cell that it leads to, below 0 off the board.
        width: of the board; cell = x + width * y.
    """
    if not snake:
        return ["You are dead."]
    head = snake[0]
    beside = [f"{word} {_what(target, snake, enemies, apples)}" for word, target in targets.items()]
    lines = [f"Beside your head: {', '.join(beside)}", f"Apples: {_distances(head, apples, width)}"]
    heads = [enemy[0] for enemy in enemies if enemy]
    if enemies:
        lines.append(f"Enemy heads: {_distances(head, heads, width)}")
    return lines


def _what(cell: int, snake: Sequence[int], enemies: Sequence[Sequence[int]], apples: Sequence[int]) -> str:
    if cell < 0:
        return "wall"
    if cell in snake:
        return "body"
    if any(cell in enemy for enemy in enemies):
        return "snake"
    return "apple" if cell in apples else "free"


def _distances(head: int, cells: Sequence[int], width: int) -> str:
    """Return how to get to each cell, the nearest first.

    >>> _distances(11, [11 + 2 - 10, 12], 10)
    '1 right; 2 right and 1 down'
    """
    steps = [(cell % width - head % width, cell // width - head // width) for cell in cells]
    steps.sort(key=lambda step: (abs(step[0]) + abs(step[1]), step))
    return "; ".join(_step(*step) for step in steps) or "none"


def _step(dx: int, dy: int) -> str:
    parts = [(abs(dx), "right" if dx > 0 else "left"), (abs(dy), "up" if dy > 0 else "down")]
    return " and ".join(f"{count} {word}" for count, word in parts if count)
