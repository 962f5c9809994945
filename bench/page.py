"""The page on a long run: how soon it is painted, and how much memory the viewer takes.

    python bench/page.py                     1,000 iterations of 100 episodes; about two minutes; keeps no records
    python bench/page.py --iterations 50     quick

A synthetic run (Frozen Lake by random play, prompts of 250 tokens) is written into a temporary folder. `stratagem view`
serves it from its own process, and headless Chromium opens each view in a fresh tab with an empty cache: the median of
its first contentful paint is shown, beside that of one line of text, which is the browser's own part; with the time
until a view that is read in pieces is complete, and the peak resident memory of the viewer.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from stratagem.data.trajectories import trajectory_file, write_trajectories
from stratagem.evaluation.tables import Table
from stratagem.games import make
from stratagem.runs.folder import RunFolder
from stratagem.types import Finish, Step, StopReason, Trajectory, TrajectoryGroup

__all__ = ["make_run", "measure"]

RECIPE = """name = "long"
seed = 0

[game]
name = "FrozenLake-NotSlippery"

[model]
name = "smollm2-135m-instruct"

[algorithm]
name = "ms_grpo"
num_iterations = {iterations}
"""
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
VIEWS = {
    "one line of text, to compare with": "/stamp",
    "runs compared": "/",
    "one run": "/run/long",
    "episodes, newest iteration": "/run/long/episodes",
    "episodes, all iterations": "/run/long/episodes?from=1&to={iterations}",
    "one group": "/run/long/iteration/{iterations}/group/0",
    "one episode": "/run/long/iteration/{iterations}/group/0/episode/0",
}


def _episode(rng: np.random.Generator, seed: int) -> Trajectory:
    game = make("FrozenLake-NotSlippery")
    observation = game.reset(seed=seed)[0]
    steps = []
    while True:
        action, key = game.random_action(0, rng), game.state_key()
        played = game.step([action])
        steps.append(
            Step(
                observation=observation,
                action=action,
                reward=played.rewards[0],
                executed_action=action,
                completion=f"{action}</action>",
                prompt_ids=tuple(rng.integers(0, 49_000, 250).tolist()),
                completion_ids=tuple(rng.integers(0, 49_000, 4).tolist()),
                logprobs=tuple((-rng.exponential(0.5, 4)).tolist()),
                finish=Finish.STOP,
                state_key=key,
            )
        )
        if played.terminated or played.truncated:
            break
        observation = played.observations[0]
    reason = StopReason.TERMINATED if played.terminated else StopReason.MAX_STEPS
    success = played.info.get("success")
    return Trajectory(
        "frozen_lake", seed, 0, 0, tuple(steps), played.terminated, not played.terminated, reason, success
    )


def make_run(root: Path, *, iterations: int, episodes: int) -> None:
    """Write a run ``long`` into ``root``; its iterations repeat five different ones."""
    with RunFolder.create(root, "long", RECIPE.format(iterations=iterations)) as run:
        rng = np.random.default_rng(0)
        tables = []
        for number in range(5):
            size = max(1, episodes // 10)
            groups = [TrajectoryGroup(tuple(_episode(rng, 10 * number + g) for _ in range(size))) for g in range(10)]
            advantages = [rng.normal(size=size).tolist() for _ in groups]
            tables.append(pq.read_table(write_trajectories(run.trajectories, number + 1, groups, advantages)))
        lines = []
        for iteration in range(1, iterations + 1):
            table = tables[iteration % 5]
            column = pa.array(np.full(len(table), iteration), type=pa.int32())
            table = table.set_column(0, table.schema.field(0), column)
            pq.write_table(table, trajectory_file(run.trajectories, iteration), compression="zstd")
            lines.append(_metrics(rng, iteration, iterations))
        run.metrics_file.write_text("".join(lines), encoding="utf-8")


def _metrics(rng: np.random.Generator, iteration: int, iterations: int) -> str:
    import json

    names = (
        *("return_mean", "composite_return_mean", "success_rate", "invalid_action_rate", "groups_without_signal"),
        *("entropy", "clip_fraction", "approx_kl", "loss", "grad_norm", "learning_rate", "ratio_gap", "step_share"),
        *("episode_length", "tokens_per_step", "peak_memory_gib", "seconds_play", "seconds_update", "seconds_save"),
    )
    row = dict(zip(names, (rng.random(len(names)) * iteration / iterations).tolist(), strict=True))
    return json.dumps({"iteration": iteration, "num_episodes": 100.0, **row}) + "\n"


def measure(
    root: Path, *, iterations: int, repeats: int, chromium: str
) -> tuple[list[tuple[str, float, float]], float]:
    """Open every view; return (view, seconds to first paint, seconds until complete) and the viewer's peak in MiB."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "stratagem.cli", "view", "--page", "--no-browser", "--no-token", "--runs-dir"]
    found = []
    with subprocess.Popen([*command, str(root)], stdout=subprocess.PIPE, text=True) as viewer:
        try:
            assert viewer.stdout is not None
            address = viewer.stdout.readline().strip().rstrip("/")
            with sync_playwright() as driver, tempfile.TemporaryDirectory() as profile:
                context = driver.chromium.launch_persistent_context(
                    profile, executable_path=chromium, args=FLAGS, headless=True
                )
                context.new_page().goto(address)  # the browser's own start is not part of any number
                for name, path in VIEWS.items():
                    times = [_open(context, address + path.format(iterations=iterations)) for _ in range(repeats)]
                    paint = statistics.median(paint for paint, _ in times)
                    found.append((name, paint, times[0][1]))
                context.close()
            status = Path(f"/proc/{viewer.pid}/status").read_text()
            peak = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
        finally:
            viewer.send_signal(2)
            viewer.wait(15)
    return found, peak


def _open(context: Any, address: str) -> tuple[float, float]:
    page = context.new_page()
    start = time.perf_counter()
    page.goto(address)
    script = "() => performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)[0]"
    paint = page.wait_for_function(script).json_value() / 1000
    page.wait_for_function("() => !document.querySelector('[data-pending]')", timeout=120_000)
    complete = time.perf_counter() - start
    page.close()
    return paint, complete


def main(argv: Sequence[str] | None = None) -> int:
    """Make the run, open it, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=100, help="of each iteration")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    arguments = parser.parse_args(argv)
    if arguments.chromium is None:
        print("not run: Chromium is not installed (apt-get install -y chromium), or name it with --chromium")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        make_run(root, iterations=arguments.iterations, episodes=arguments.episodes)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) / 2**20
        views, peak = measure(
            root, iterations=arguments.iterations, repeats=arguments.repeats, chromium=arguments.chromium
        )
    rows = tuple((name, f"{paint:.2f}", f"{complete:.1f}") for name, paint, complete in views)
    Console(highlight=False).print(Table(("View", "First paint, s", "Complete, s"), rows).rich())
    print(f"{arguments.iterations} iterations of {arguments.episodes} episodes, {size:.0f} MiB; viewer {peak:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
