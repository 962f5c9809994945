"""The verb that prepares data sets: data."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from stratagem.errors import UnknownNameError
from stratagem.games.alfworld_data import DATA_VARIABLE, convert

__all__ = ["DATASETS", "data"]

DATASETS = ("alfworld",)


def data(arguments: argparse.Namespace) -> int:
    """Convert a data set to the form that a game reads fast."""
    if arguments.dataset not in DATASETS:
        raise UnknownNameError("data set", arguments.dataset, DATASETS)
    started = time.perf_counter()
    counts = convert(arguments.source, arguments.target)
    size = Path(arguments.target).stat().st_size / 2**20
    for split, count in sorted(counts.items()):
        print(f"  {split:<14}{count:>6} games")
    print(f"{arguments.target}: {size:.1f} MiB in {time.perf_counter() - started:.1f} s")
    print(f"Play with: {DATA_VARIABLE}={Path(arguments.target).absolute()} stratagem play ALFWorld --policy planner")
    return 0
