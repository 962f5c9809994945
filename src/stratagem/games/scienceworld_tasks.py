"""Which tasks ScienceWorld has, which of their variations each split plays, and how many steps each task may take.

Nothing here needs the engine. The numbers of variations are those of the package scienceworld 1.2.3, and so is the rule
of its splits: half of the variations of each task for training, a quarter to develop on, the rest to test on. Papers
play part of them, named by an index (:func:`read_index`); ``docs/games/scienceworld.md`` describes its format.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from stratagem.errors import ConfigError

__all__ = ["DEFAULT_LIMIT", "SPLITS", "STEP_LIMITS", "VARIATIONS", "package_starts", "read_index", "task_name"]

SPLITS = ("train", "seen", "unseen")
"""Training; the package's and the index's dev, which papers call seen; their test, which papers call unseen."""

VARIATIONS = {
    "boil": 30,
    "change-the-state-of-matter-of": 30,
    "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36,
    "chemistry-mix-paint-tertiary-color": 36,
    "find-animal": 300,
    "find-living-thing": 300,
    "find-non-living-thing": 300,
    "find-plant": 300,
    "freeze": 30,
    "grow-fruit": 126,
    "grow-plant": 126,
    "identify-life-stages-1": 14,
    "identify-life-stages-2": 10,
    "inclined-plane-determine-angle": 168,
    "inclined-plane-friction-named-surfaces": 1386,
    "inclined-plane-friction-unnamed-surfaces": 162,
    "lifespan-longest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "lifespan-shortest-lived": 125,
    "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    "melt": 30,
    "mendelian-genetics-known-plant": 120,
    "mendelian-genetics-unknown-plant": 480,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600,
    "use-thermometer": 540,
}
"""Task -> how many variations of it there are."""

STEP_LIMITS = {
    "boil": 100,
    "change-the-state-of-matter-of": 80,
    "chemistry-mix": 60,
    "chemistry-mix-paint-secondary-color": 15,
    "chemistry-mix-paint-tertiary-color": 30,
    "find-animal": 15,
    "find-living-thing": 15,
    "find-non-living-thing": 15,
    "find-plant": 15,
    "freeze": 80,
    "grow-fruit": 60,
    "grow-plant": 30,
    "identify-life-stages-1": 30,
    "identify-life-stages-2": 30,
    "lifespan-longest-lived": 10,
    "lifespan-longest-lived-then-shortest-lived": 12,
    "lifespan-shortest-lived": 10,
    "measure-melting-point-known-substance": 120,
    "melt": 80,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 30,
    "test-conductivity": 30,
    "test-conductivity-of-unknown-substances": 30,
    "use-thermometer": 30,
}
"""Task -> after how many commands an episode is cut off, as ETO (Song et al. 2024, arXiv:2403.02502) and those after it
have it; they do not play the six tasks that are not here."""

DEFAULT_LIMIT = 100
"""For the tasks without a limit of their own; the package's default."""

_FILES = {"train": "train_indices.json", "seen": "dev_indices.json", "unseen": "test_indices.json"}

Start = tuple[str, int]


def task_name(written: str) -> str | None:
    """Return the package's name of a task, or None if it is no task.

    Indices write names as ScienceWorld 1.0 had them.

    >>> task_name("task-10-measure-melting-point-(known-substance)")
    'measure-melting-point-known-substance'
    """
    name = re.sub(r"^task-\d+[a-z]?-|[()]", "", written).replace("mendellian", "mendelian")
    return name if name in VARIATIONS else None


@lru_cache
def package_starts(split: str) -> tuple[Start, ...]:
    """Return the (task, variation) pairs of one of the package's splits.

    >>> sorted(variation for task, variation in package_starts("seen") if task == "boil")
    [14, 15, 16, 17, 18, 19, 20]
    """
    starts = []
    for task, count in VARIATIONS.items():
        quarter = count // 4
        first, last = {"train": (0, 2 * quarter), "seen": (2 * quarter, 3 * quarter), "unseen": (3 * quarter, count)}[
            split
        ]
        starts += [(task, variation) for variation in range(first, last)]
    return _mixed(starts)


def _mixed(starts: Sequence[Start]) -> tuple[Start, ...]:
    """Return the pairs in an order that has nothing to do with tasks, so that a part of a split has all of them."""
    return tuple(sorted(starts, key=lambda start: hashlib.sha256(f"{start[0]} {start[1]}".encode()).digest()))


def read_index(path: str, split: str) -> tuple[Start, ...]:
    """Return the (task, variation) pairs that an index has for a split.

    Args:
        path: a folder with ``train_indices.json``, ``dev_indices.json`` and ``test_indices.json``, each a list of
            pairs; or a file with ``{"train": [...], "seen": [...], "unseen": [...]}``.
        split: one of :data:`SPLITS`.

    Raises:
        ConfigError: it is not there, is no index, or names what ScienceWorld does not have.
    """
    place = Path(path).expanduser()
    file = place / _FILES[split] if place.is_dir() else place
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"index={path!r} has no readable {str(file)!r}; name a folder with {', '.join(_FILES.values())}, or one "
            "JSON file with a list for each of train, seen and unseen."
        ) from error
    if not place.is_dir():
        if isinstance(found, list):
            raise ConfigError(
                f"index={path!r} is a list, which does not say of which split; name the folder of "
                f'{", ".join(_FILES.values())}, or write {{"train": [...], "seen": [...], "unseen": [...]}}.'
            )
        found = found.get(split) if isinstance(found, dict) else None
    if not isinstance(found, list) or not found:
        raise ConfigError(f"index={path!r} has no pairs for split={split!r}; write a list of [task, variation].")
    starts = [_read_pair(pair, str(file)) for pair in found]
    if len(set(starts)) != len(starts):
        twice = next(start for start in starts if starts.count(start) > 1)
        raise ConfigError(f"{str(file)!r} names {list(twice)!r} twice; name each variation once.")
    return _mixed(starts)


def _read_pair(pair: Any, file: str) -> Start:
    if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is int:
        task = task_name(pair[0])
        if task is not None and 0 <= pair[1] < VARIATIONS[task]:
            return task, pair[1]
    raise ConfigError(
        f"{file!r} holds {pair!r}, which is no variation of ScienceWorld; write [task, variation], such as "
        '["boil", 3], with a variation that the task has.'
    )
