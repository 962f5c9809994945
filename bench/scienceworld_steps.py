"""Steps per second of ScienceWorld, beside the package's own environment.

    python bench/scienceworld_steps.py             about two minutes on a core that does nothing else; needs Java
    python bench/scienceworld_steps.py --quick     seconds; shows that everything runs, keeps nothing

Both sides carry out the same commands, the engine's solutions of some variations, each in its own Java process with the
same limit of its heap; starts are left out. The package's ``env.step`` also lists every valid command, which it cannot
be told to leave out. Ours shows the same: reply, what is seen around, what is carried.

The median over alternating pairs is kept as the record ``scienceworld.steps_ratio``.

This file is not called scienceworld.py, since it would stand in for the package of that name.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from keeper import Keeper
from measure import NotRun, Timing, alternate
from rich.console import Console

from stratagem.errors import StratagemError
from stratagem.evaluation.tables import Table
from stratagem.games import make
from stratagem.games.scienceworld import ScienceWorld

__all__ = ["Ours", "Package", "compare", "solutions"]

TASKS = ("boil", "find-animal", "test-conductivity", "use-thermometer")
HEAP_MB = 400

Solution = tuple[int, str, int, tuple[str, ...]]
"""Seed of our game, task, variation, commands."""


def solutions(game: ScienceWorld, count: int) -> list[Solution]:
    """Return solutions of the first variations that our game plays to a score of 100."""
    found: list[Solution] = []
    for seed in range(len(game.starts)):
        game.reset(seed=seed)
        commands: list[str] = []
        while True:
            commands.append(game.planner_action() or "")
            step = game.step((commands[-1],))
            if step.terminated or step.truncated:
                break
        if step.info["success"]:
            found.append((seed, *game.start, tuple(commands)))
        if len(found) == count:
            return found
    raise NotRun(f"only {len(found)} of {count} solutions reach a score of 100")


class Ours:
    """The game of this package."""

    def __init__(self) -> None:
        """Start its engine."""
        self.game = make("ScienceWorld", tasks=list(TASKS), view="look", max_steps=200, heap_mb=HEAP_MB)
        assert isinstance(self.game, ScienceWorld)

    def play(self, episodes: Sequence[Solution]) -> float:
        """Return the seconds of all steps."""
        seconds = 0.0
        for seed, _, _, commands in episodes:
            self.game.reset(seed=seed)
            start = time.perf_counter()
            for command in commands:
                self.game.step((command,))
            seconds += time.perf_counter() - start
        return seconds


class Package:
    """``scienceworld.ScienceWorldEnv``."""

    def __init__(self) -> None:
        """Start its engine."""
        # The package has no setting for the heap; without a limit it grows to a quarter of the memory.
        os.environ["JAVA_TOOL_OPTIONS"] = f"-Xmx{HEAP_MB}m -XX:+UseSerialGC"
        from scienceworld import ScienceWorldEnv

        self.env: Any = ScienceWorldEnv("", envStepLimit=1000)
        self.scores: list[int] = []

    def play(self, episodes: Sequence[Solution]) -> float:
        """Return the seconds of all steps."""
        seconds = 0.0
        self.scores = []
        for _, task, variation, commands in episodes:
            self.env.load(task, variation, "easy")
            self.env.reset()
            start = time.perf_counter()
            for command in commands:
                *_, info = self.env.step(command)
            seconds += time.perf_counter() - start
            self.scores.append(info["score"])
        return seconds


def compare(ours: Ours, package: Package, episodes: Sequence[Solution], repeats: int) -> Timing:
    """Time both sides on the same commands, in turns.

    Raises:
        NotRun: the package's environment did something else with them.
    """
    ours.play(episodes[:1])  # Java translates what is run often
    package.play(episodes[:1])
    timing = alternate(lambda: ours.play(episodes), lambda: package.play(episodes), repeats)
    if set(package.scores) != {100}:
        raise NotRun(f"the package's environment ended with scores {package.scores}, ours with 100 in all episodes")
    return timing


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description="Steps per second of ScienceWorld, against the package's env.step.")
    parser.add_argument("--threads", type=int, default=1, help="cores, for the record; nothing here uses more than one")
    parser.add_argument("--repeats", type=int, default=5, help="alternating pairs")
    parser.add_argument("--episodes", type=int, default=8, help="episodes of each measurement")
    parser.add_argument("--quick", action="store_true", help="one episode, one pair; no record by itself")
    parser.add_argument("--results", metavar="FOLDER", help="where the record goes (results)")
    options = parser.parse_args(argv)
    options.given = sys.argv[1:] if argv is None else list(argv)
    if options.results is None and not options.quick:
        options.results = "results"
    console = Console(width=120)
    ours: Ours | None = None
    package: Package | None = None
    try:
        ours = Ours()
        episodes = solutions(ours.game, 1 if options.quick else options.episodes)
        package = Package()
        timing = compare(ours, package, episodes, 1 if options.quick else options.repeats)
    except (NotRun, StratagemError) as reason:
        console.print(f"ScienceWorld not run: {reason}")
        return 0
    finally:
        if ours is not None:
            ours.game.close()
        if package is not None:
            package.env.close()
    steps = sum(len(commands) for *_, commands in episodes)
    rates = [steps / statistics.median(side) for side in (timing.theirs, timing.ours)]
    row = (
        f"{len(episodes)} episodes, {steps} steps",
        *(f"{rate:,.1f}" for rate in rates),
        f"{timing.speedup:.2f}x [{min(timing.ratios):.2f}, {max(timing.ratios):.2f}]",
    )
    console.print(
        Table(("solutions", "env.step /s", "ours /s", "speed-up"), (row,)).rich("ScienceWorld, starts left out")
    )
    Keeper(options, "bench/scienceworld_steps.py").keep(
        "scienceworld.steps_ratio",
        round(timing.speedup, 2),
        "times as fast",
        f"Steps of ScienceWorld against the package's env.step on the same {steps} commands: {rates[1]:.0f} and "
        f"{rates[0]:.0f} steps/s; {timing.describe()}",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
