"""Steps of each game per second, one process, no model.

    python bench/games.py                    a few seconds for each game; keeps no records
    python bench/games.py --only snake Overcooked-TomatoSalad

A random policy plays whole episodes: reset, random action, step, text observation. Games that need data which is not
here are named with their reason.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from measure import NotRun
from rich.console import Console

from stratagem.errors import StratagemError
from stratagem.evaluation.tables import Table
from stratagem.games import GAMES, VARIANTS, make
from stratagem.games.base import Game
from stratagem.seeding import generator

__all__ = ["GameRate", "measure_game"]


@dataclass(frozen=True)
class GameRate:
    """How fast one game was played."""

    rates: tuple[float, ...]
    """Steps per second of each repetition."""
    mean_length: float
    """Steps of an episode."""

    @property
    def rate(self) -> float:
        """Steps per second, at the median."""
        return statistics.median(self.rates)


def measure_game(name: str, *, seconds: float, repeats: int) -> GameRate:
    """Play random episodes for some time.

    Args:
        name: of a game or variant.
        seconds: of each repetition.
        repeats: repetitions; one episode before them is not counted.

    Raises:
        NotRun: the game cannot be made or played here.
    """
    try:
        game = make(name)
        _episode(game, 0)
        rates, steps, episodes = [], 0, 0
        for repeat in range(repeats):
            played, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds or not played:
                played += _episode(game, 1 + repeat * 100_000 + episodes)
                episodes += 1
            rates.append(played / (time.perf_counter() - start))
            steps += played
        game.close()
    except StratagemError as error:
        raise NotRun(str(error)) from error
    return GameRate(tuple(rates), steps / episodes)


def _episode(game: Game, seed: int) -> int:
    rng = generator("bench", "games", game.name, seed)
    game.reset(seed=seed)
    steps = 0
    while True:
        actions = [
            game.random_action(player, rng) if game.legal_actions(player) else None
            for player in range(game.num_players)
        ]
        result = game.step(actions)
        steps += 1
        if result.terminated or result.truncated:
            return steps


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    names = [*(name for name in GAMES), *VARIANTS]
    parser = argparse.ArgumentParser(description="Steps of each game per second.")
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), choices=names, help="games or variants")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each repetition")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of each game")
    parser.add_argument("--quick", action="store_true", help="one short repetition")
    options = parser.parse_args(argv)
    console = Console(width=120)
    cells = []
    for name in options.only:
        try:
            found = measure_game(
                name,
                seconds=0.01 if options.quick else options.seconds,
                repeats=1 if options.quick else options.repeats,
            )
        except NotRun as reason:
            console.print(f"{name} not run: {reason}")
            continue
        spread = f"[{min(found.rates):,.0f}, {max(found.rates):,.0f}]"
        cells.append((name, f"{found.rate:,.0f}", spread, f"{found.mean_length:.1f}"))
    headers = ("game", "steps/s", "spread", "steps of an episode")
    console.print(Table(headers, tuple(cells)).rich("Game steps per second, random policy"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
