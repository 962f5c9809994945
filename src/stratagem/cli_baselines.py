"""The verb for players that are no language models: baseline."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from stratagem.baselines.dqn import DQNConfig, DQNPolicy, Progress, load_policy, save_policy, train_dqn
from stratagem.cli_players import parse_params
from stratagem.cli_view import make_console, show_results
from stratagem.config import apply_overrides, load_dataclass
from stratagem.errors import ConfigError, UnknownNameError
from stratagem.evaluation.panels import EvaluationResult, fixed_panel, panel_optima
from stratagem.evaluation.play import evaluate, seat_opponents
from stratagem.files import atomic_write_json, atomic_write_text
from stratagem.games import VARIANTS, make
from stratagem.runs.provenance import collect_provenance

__all__ = ["BASELINES", "TRANSFER", "baseline"]

BASELINES = ("dqn",)

TRANSFER = ("Snake-Poison", "FrozenLake-NotSlippery", "FrozenLake-Slippery")
"""What a baseline is also played on: with its own game the four variants of the paper."""


def baseline(arguments: argparse.Namespace) -> int:
    """Train a baseline, or load one, and evaluate it."""
    if arguments.kind not in BASELINES:
        raise UnknownNameError("baseline", arguments.kind, BASELINES)
    if arguments.episodes < 1:
        raise ConfigError(f"--episodes {arguments.episodes} plays nothing; set it to 1 or more.")
    panels = arguments.panels or [arguments.game, *(name for name in TRANSFER if name != arguments.game)]
    for name in panels:
        game = make(name, **_params(name, arguments.game, arguments.params))
        if VARIANTS.get(name, (name, {}))[0] not in ("snake", "frozen_lake"):
            raise ConfigError(
                f"--panel {name!r} has no grid that the DQN can read; use variants of Snake and Frozen Lake."
            )
        game.close()
    out = Path(arguments.out)
    if arguments.load:
        policy = load_policy(out)
    else:
        if (out / "dqn.json").exists():
            raise ConfigError(
                f"--out {str(out)!r} holds a trained network; name another folder, or evaluate that one with --load."
            )
        policy = _train(arguments, out)
    _evaluate(policy, panels, arguments, out)
    return 0


def _params(name: str, trained_on: str, items: list[str]) -> dict[str, Any]:
    return parse_params(items) if name == trained_on else {}


def _train(arguments: argparse.Namespace, out: Path) -> DQNPolicy:
    table = apply_overrides({}, arguments.overrides)
    table |= {"game": arguments.game, "seed": arguments.seed, "params": parse_params(arguments.params)}
    config = load_dataclass(DQNConfig, table)
    print(f"dqn on {config.game}: {config.num_steps:,} rounds on {config.num_boards} boards", flush=True)

    def tell(progress: Progress) -> None:
        left = progress.seconds / progress.steps * (config.num_steps - progress.steps)
        print(
            f"  {progress.steps:>10,} rounds  {progress.episodes:>8,} episodes  recent return "
            f"{progress.recent_return:+.2f}  {progress.seconds / 60:.1f} min, about {left / 60:.1f} left",
            flush=True,
        )

    started = time.perf_counter()
    policy = train_dqn(config, tell, every_seconds=arguments.every_seconds)
    save_policy(policy, out)
    minutes = (time.perf_counter() - started) / 60
    settings = {**dataclasses.asdict(config), "minutes": minutes, "provenance": collect_provenance(config.seed)}
    atomic_write_json(out / "training.json", settings)
    print(f"trained in {minutes:.1f} minutes")
    return policy


def _evaluate(policy: DQNPolicy, panels: list[str], arguments: argparse.Namespace, out: Path) -> None:
    target = out / "evaluation"
    target.mkdir(exist_ok=True)
    results: list[EvaluationResult] = []
    for name in panels:
        panel = fixed_panel(name, _params(name, policy.config.game, arguments.params), arguments.episodes)
        game = panel.make_game()
        opponents = seat_opponents(game)
        game.close()
        result, _ = evaluate(
            panel, [policy, *opponents], address=(arguments.seed, "panel", panel.name), optima=panel_optima(panel)
        )
        atomic_write_text(target / f"{panel.name}.json", result.to_json())
        results.append(result)
        print(f"  {name}: mean {result.mean:.3f}, std {result.std or 0.0:.3f}", file=sys.stdout, flush=True)
    show_results(make_console(), {"dqn": results})
    print(f"saved in {out}")
