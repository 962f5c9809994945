"""Evaluation in trials, for an agent that learns from its failures: part of the verb eval."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratagem.agents.reflexion import ReflexionAgent
from stratagem.cli_players import Contestant
from stratagem.cli_view import make_console
from stratagem.evaluation.episode_log import EpisodeLog, write_episodes
from stratagem.evaluation.panels import Panel, panel_optima
from stratagem.evaluation.trials import Trial, describe_reflections, evaluate_trials, last_attempts, trials_table
from stratagem.files import atomic_write_json, atomic_write_text
from stratagem.rollout import Player
from stratagem.runs.display import Display
from stratagem.types import Trajectory

__all__ = ["evaluate_in_trials", "print_invalid"]

_INTERRUPTED = 130


def evaluate_in_trials(
    contestant: Contestant,
    panel: Panel,
    opponents: Sequence[Player],
    header: Mapping[str, Any],
    out: Path,
    arguments: argparse.Namespace,
) -> int:
    """Play a panel in trials, save every episode as it ends, and print what each trial reached.

    Args:
        contestant: who plays, with a number of trials.
        panel: what is played.
        opponents: who plays seats 1, 2, ...
        header: what is evaluated, as JSON values.
        out: folder of the results: ``trial_1.jsonl``, ... with the episodes of each, ``episodes.jsonl`` with the last
            attempt at each, ``trials.json``, ``result.json`` and ``settings.json``.
        arguments: of the verb.
    """
    assert contestant.num_trials is not None
    logs = {
        number: EpisodeLog(out / f"trial_{number}.jsonl", {**header, "trial": number}, resume=arguments.resume)
        for number in range(1, contestant.num_trials + 1)
    }
    started = time.perf_counter()
    console = make_console()
    count = sum(len(log.done) for log in logs.values())
    with Display(console) as display:
        total = len(panel.seeds) * contestant.num_trials
        display.start(total, f"{contestant.label} on {panel.name}", completed=count, unit="episodes")
        loaded = contestant.load()

        def make_agent() -> ReflexionAgent:
            # Weights are loaded once; a server is asked through a new client.
            player = contestant.load() if arguments.base_url is not None else loaded
            assert isinstance(player, ReflexionAgent)
            return player

        def on_finish(trial: int, place: int, trajectory: Trajectory) -> None:
            nonlocal count
            logs[trial].append(place, trajectory)
            count += 1
            display.advance(count)

        try:
            trials = evaluate_trials(
                panel,
                make_agent,
                opponents,
                address=(header["seed"], "panel", panel.name),
                num_trials=contestant.num_trials,
                optima=panel_optima(panel),
                max_concurrent=arguments.max_concurrent,
                on_finish=on_finish,
                done={number: log.done for number, log in logs.items()},
            )
        except KeyboardInterrupt:
            display.close()
            print(
                f"\nStopped with {count} episodes saved. Continue with the same command and --out {out} --resume",
                file=sys.stderr,
            )
            return _INTERRUPTED
    _write(trials, header, out, time.perf_counter() - started)
    console.print(trials_table(trials).rich(f"{contestant.label} on {panel.name}"))
    _print_counts(trials)
    print(f"saved in {out}")
    return 0


def _write(trials: Sequence[Trial], header: Mapping[str, Any], out: Path, seconds: float) -> None:
    rows = [
        {
            "trial": trial.number,
            "played": len(trial.played),
            "solved": sum(bool(t.success) for t in trial.played.values()),
            "success_rate": trial.result.success_rate,
            "mean": trial.result.mean,
            "invalid_action_rate": trial.result.invalid_action_rate,
            "tokens": sum(t.num_tokens for t in trial.played.values()),
            **describe_reflections(trial),
        }
        for trial in trials
    ]
    write_episodes(out / "episodes.jsonl", header, last_attempts(trials))
    atomic_write_json(out / "trials.json", rows)
    atomic_write_text(out / "result.json", trials[-1].result.to_json())
    atomic_write_json(out / "settings.json", {**header, "seconds": seconds})


def _print_counts(trials: Sequence[Trial]) -> None:
    reflections: dict[str, float] = {}
    for trial in trials:
        for name, number in describe_reflections(trial).items():
            reflections[name] = reflections.get(name, 0.0) + number
    bad = {name.removeprefix("reflections_"): n for name, n in reflections.items() if name != "reflections"}
    reasons = f" ({', '.join(f'{number:.0f} {name}' for name, number in bad.items())})" if bad else ""
    print(f"reflections: {reflections['reflections']:.0f}{reasons}")
    print_invalid([trajectory for trial in trials for trajectory in trial.played.values()])


def print_invalid(trajectories: Sequence[Trajectory]) -> None:
    """Print why answers held no action, each reason with its number; nothing where all did."""
    reasons = Counter(step.parse_error for t in trajectories for step in t.steps if step.parse_error is not None)
    if reasons:
        print(
            f"no action in {reasons.total()} answers: {', '.join(f'{n} {name}' for name, n in reasons.most_common())}"
        )
