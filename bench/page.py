"""The page on a long run: how soon it is painted, how much memory the viewer takes, and whether training notices it.

    python bench/page.py                     1,000 iterations of 100 episodes, then training; about ten minutes
    python bench/page.py --quick             a minute; shows that everything runs, keeps no records

A synthetic run (Frozen Lake by random play, prompts of 250 tokens) is written into a temporary folder. `stratagem view`
serves it from its own process, and headless Chromium opens each view in a fresh tab with an empty cache: the median of
its first contentful paint is shown, beside that of one line of text, which is the browser's own part; with the time
until a view that is read in pieces is complete, and the peak resident memory of the viewer.

Then a short training runs with and without the page open on it, in alternation and from the same seed, so that both
sides compute the same: the median ratio of their seconds (playing and updating, without the first iteration) is what an
open page costs, viewer and browser together. Records: ``page.first_paint_s`` (the slowest view), ``page.peak_mib`` and
``page.training_slowdown``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from stratagem.data.trajectories import trajectory_file, write_trajectories
from stratagem.evaluation.records import Record
from stratagem.evaluation.tables import Table
from stratagem.files import atomic_write_text
from stratagem.games import make
from stratagem.runs.folder import RunFolder
from stratagem.runs.metrics import read_metrics
from stratagem.runs.provenance import collect_provenance
from stratagem.types import Finish, Step, StopReason, Trajectory, TrajectoryGroup

__all__ = ["make_run", "measure", "slowdown"]

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
SHORT = (
    *("warm_start.num_steps=4", "evaluation.untrained=false", "evaluation.every=0", "evaluation.num_episodes=2"),
    *("algorithm.num_iterations=6", "algorithm.group_size=64"),
)
"""Of the demo: iterations of several seconds, so that the page asks for news a few times in each."""
TINY = ("warm_start=false", "agent.recovery=random", "algorithm.num_iterations=3", "evaluation.num_episodes=2")
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
    found = []
    with _viewer(root) as (address, process), _browser(chromium) as context:
        context.new_page().goto(address)  # the browser's own start is not part of any number
        for name, path in VIEWS.items():
            times = [_open(context, address + path.format(iterations=iterations)) for _ in range(repeats)]
            paint = statistics.median(paint for paint, _ in times)
            found.append((name, paint, times[0][1]))
        status = Path(f"/proc/{process}/status").read_text()
        peak = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return found, peak


@contextmanager
def _viewer(root: Path) -> Iterator[tuple[str, int]]:
    """Serve the runs of a folder; yield the address and the process's id."""
    command = [sys.executable, "-m", "stratagem.cli", "view", "--page", "--no-browser", "--no-token", "--runs-dir"]
    with subprocess.Popen([*command, str(root)], stdout=subprocess.PIPE, text=True) as viewer:
        try:
            assert viewer.stdout is not None
            yield viewer.stdout.readline().strip().rstrip("/"), viewer.pid
        finally:
            viewer.send_signal(2)
            viewer.wait(15)


@contextmanager
def _browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver, tempfile.TemporaryDirectory() as profile:
        context = driver.chromium.launch_persistent_context(
            profile, executable_path=chromium, args=FLAGS, headless=True
        )
        yield context
        context.close()


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


def slowdown(root: Path, *, recipe: str, settings: Sequence[str], repeats: int, chromium: str) -> list[float]:
    """Train with and without an open page; return the ratio of the seconds of each pair."""
    ratios = []
    for number in range(repeats):
        alone, watched = f"alone{number}", f"watched{number}"
        for name in (alone, watched) if number % 2 == 0 else (watched, alone):
            if name == alone:
                _train(root, name, recipe, settings).wait()
                continue
            with _viewer(root) as (address, _), _browser(chromium) as context:
                training = _train(root, name, recipe, settings)
                while not (root / name).exists() and training.poll() is None:
                    time.sleep(0.1)
                context.new_page().goto(f"{address}/run/{name}")
                training.wait()
        ratios.append(_seconds(root / watched) / _seconds(root / alone))
    return ratios


def _train(root: Path, name: str, recipe: str, settings: Sequence[str]) -> subprocess.Popen[bytes]:
    changes = [word for item in settings for word in ("--set", item)]
    command = [sys.executable, "-m", "stratagem.cli", "train", recipe, "--name", name, "--runs-dir", str(root)]
    return subprocess.Popen([*command, *changes], stdout=subprocess.DEVNULL)


def _seconds(run: Path) -> float:
    """Return the seconds of playing and updating, without the first iteration, which warms up."""
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["iteration"] > 1]
    if not rows:
        raise SystemExit(f"training of {run.name} left no iterations to measure")
    return float(sum(row["seconds_play"] + row["seconds_update"] for row in rows))


def _keep(folder: Path, given: Sequence[str], name: str, value: float, unit: str, note: str) -> None:
    """Write one record."""
    found = collect_provenance(0)
    git, hardware = found["git"], found["hardware"]
    cores = len(os.sched_getaffinity(0))
    record = Record(
        name=name,
        command=shlex.join(["python", "bench/page.py", *given]),
        commit="0000000" if git is None else git["commit"] + ("-dirty" if git["dirty"] else ""),
        machine=f"{hardware['cpu']}, {cores} core{'s' * (cores > 1)}",
        date=date.today().isoformat(),
        unit=unit,
        value=round(value, 3),
        note=note,
    )
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write_text(folder / f"{name}.json", record.to_json())


def main(argv: Sequence[str] | None = None) -> int:
    """Make the run, open it, train beside it, print tables, keep records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=100, help="of each iteration")
    parser.add_argument("--repeats", type=int, default=3)
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--without-training", action="store_true", help="leave the training out")
    parts.add_argument("--without-views", action="store_true", help="leave the long run out")
    parser.add_argument("--quick", action="store_true", help="small sizes and a random model; keeps no records")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the records")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = parser.parse_args(given)
    if arguments.chromium is None:
        print("not run: Chromium is not installed (apt-get install -y chromium), or name it with --chromium")
        return 1
    if arguments.quick:
        arguments.iterations, arguments.episodes, arguments.repeats = 20, 20, 1
    size = (arguments.iterations, arguments.episodes)
    keeps = size == (1000, 100) and not arguments.quick  # another size is another number
    if not arguments.without_views:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "runs"
            make_run(root, iterations=arguments.iterations, episodes=arguments.episodes)
            mib = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) / 2**20
            views, peak = measure(
                root, iterations=arguments.iterations, repeats=arguments.repeats, chromium=arguments.chromium
            )
        rows = tuple((name, f"{paint:.2f}", f"{complete:.1f}") for name, paint, complete in views)
        Console(highlight=False).print(Table(("View", "First paint, s", "Complete, s"), rows).rich())
        print(f"{size[0]} iterations of {size[1]} episodes, {mib:.0f} MiB; viewer {peak:.0f} MiB")
        if keeps:
            slowest, paint, _ = max(views[1:], key=lambda view: view[1])
            what = "The page on 1,000 iterations and 100,000 episodes"
            note = f"{what}: first paint of its slowest view ({slowest}), median of {arguments.repeats}"
            _keep(arguments.results, given, "page.first_paint_s", paint, "seconds", note)
            _keep(arguments.results, given, "page.peak_mib", peak, "MiB", f"{what}: peak memory of the viewer")
    if not arguments.without_training:
        with tempfile.TemporaryDirectory() as folder:
            recipe, settings = ("tiny", TINY) if arguments.quick else ("frozen_lake_demo", SHORT)
            ratios = slowdown(
                Path(folder), recipe=recipe, settings=settings, repeats=arguments.repeats, chromium=arguments.chromium
            )
        shown = f"median of {len(ratios)} alternating pairs, {min(ratios):.3f} to {max(ratios):.3f}"
        print(f"Training with the page open takes {statistics.median(ratios):.3f} times as long ({shown})")
        if keeps:
            note = f"Training with the page open on it against without: {shown}"
            _keep(arguments.results, given, "page.training_slowdown", statistics.median(ratios), "times as long", note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
