"""Steps per second of ALFWorld, beside the original engine.

    python bench/alfworld.py                                        generated households
    python bench/alfworld.py --data DIR                             and the original games
    python bench/alfworld.py --data DIR --peer VENV/bin/python      and the original engine on the same games

DIR is the official folder or a compact file; the original engine needs the folder. It is installed without its vision
parts by `pip install --no-deps alfworld==0.4.2 textworld==1.7.0 jericho==3.3.1 fast-downward-textworld==20.6.4` and
`pip install numpy tqdm networkx more_itertools tatsu==5.8.3 hashids mementos termcolor prompt_toolkit pyyaml`.

Episodes are random play, drawn before the clock runs. The number is the median of five rounds, in seconds of one core.
With --peer, how many times as fast we are on the original games, admissible commands on both sides, is kept as the
record ``alfworld.steps_ratio``; the two are measured in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keeper import Keeper

from stratagem.games import make
from stratagem.games.base import Game
from stratagem.seeding import generator

Episode = tuple[int, list[str]]


def scripts(game: Game, count: int) -> list[Episode]:
    """Return random episodes as (seed, commands)."""
    found = []
    for seed in range(count):
        game.reset(seed=seed)
        rng = generator(seed, "bench")
        commands: list[str] = []
        ended = False
        while not ended:
            commands.append(game.random_action(0, rng))
            step = game.step((commands[-1],))
            ended = step.terminated or step.truncated
        found.append((seed, commands))
    return found


def rate(game: Game, episodes: Sequence[Episode], *, admissible: bool) -> float:
    """Return steps per second over the episodes, their starts included."""
    started = time.process_time()
    for seed, commands in episodes:
        game.reset(seed=seed)
        for command in commands:
            if admissible:
                game.legal_actions()
            game.step((command,))
    return sum(len(commands) for _, commands in episodes) / (time.process_time() - started)


def measure(name: str, params: dict[str, Any], *, count: int, rounds: int) -> dict[str, float]:
    """Return the median steps per second of a variant, with and without admissible commands."""
    game = make(name, **params)
    episodes = scripts(game, count)
    rates: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(rounds):
        rates["without"].append(rate(game, episodes, admissible=False))
        rates["with"].append(rate(game, episodes, admissible=True))
    return {key: statistics.median(values) for key, values in rates.items()}


def peer_rate(python: str, data: str, *, games: int, steps: int) -> float:
    """Return the steps per second of the original engine, which always works out its admissible commands."""
    root = Path(data) / "json_2.1.1" if (Path(data) / "json_2.1.1").is_dir() else Path(data)
    files = [str(path) for path in sorted(root.glob("*/*/*/game.tw-pddl"))[:games]]
    worker = Path(__file__).with_name("alfworld_worker.py")
    done = subprocess.run(  # -P: this file must not stand in for the package of its name
        [python, "-P", str(worker), str(steps), *files], capture_output=True, text=True, check=True, timeout=600
    )
    return float(json.loads(done.stdout.splitlines()[-1])["steps_per_second"])


def _compare(options: argparse.Namespace) -> None:
    """Play the original games on both engines in turns, print and keep the ratio."""
    games, steps, repeats = (2, 20, 1) if options.quick else (6, 50, 3)
    game = make("ALFWorld", data=options.data, view="raw")
    episodes = scripts(game, games)
    pairs = [
        (peer_rate(options.peer, options.data, games=games, steps=steps), rate(game, episodes, admissible=True))
        for _ in range(repeats)
    ]
    theirs, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = sorted(mine / other for other, mine in pairs)
    print(f"{'alfworld package (resets left out)':<34}{'-':>10}{theirs:>14,.1f}")
    print(f"{'the same games here':<34}{'-':>10}{ours:>14,.1f}")
    Keeper(options, "bench/alfworld.py").keep(
        "alfworld.steps_ratio",
        round(statistics.median(ratios), 1),
        "times as fast",
        f"Steps of random play on {games} original ALFWorld games with admissible commands, resets left out, seconds "
        f"of one core: {ours:,.0f} steps/s, the alfworld package (0.4.2 as shipped) {theirs:,.1f}; median of {repeats} "
        f"alternating pairs, {ratios[0]:.0f} to {ratios[-1]:.0f}",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Steps per second of ALFWorld.")
    parser.add_argument("--data", help="official folder or compact file")
    parser.add_argument("--peer", help="a Python with the alfworld package")
    parser.add_argument("--quick", action="store_true", help="shows that it runs; no record by itself")
    parser.add_argument("--threads", type=int, default=1, help="cores, for the record; nothing here uses more than one")
    parser.add_argument("--results", metavar="FOLDER", help="where the record goes (results)")
    options = parser.parse_args(argv)
    options.given = sys.argv[1:] if argv is None else list(argv)
    if options.results is None and not options.quick:
        options.results = "results"
    count, rounds = (5, 1) if options.quick else (100, 5)
    variants: list[tuple[str, dict[str, Any]]] = [("ALFWorld-Generated", {})]
    if options.data is not None:
        variants.append(("ALFWorld", {"data": options.data}))
    print(f"{'steps per second':<34}{'alone':>10}{'+ admissible':>14}")
    for name, params in variants:
        for view in ("full", "raw"):
            found = measure(name, {**params, "view": view}, count=count, rounds=rounds)
            print(f"{name + ', view=' + view:<34}{found['without']:>10,.0f}{found['with']:>14,.0f}")
    if options.peer is not None:
        if options.data is None or Path(options.data).is_file():
            print("alfworld package: not run: it needs --data with the official folder")
        else:
            _compare(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
