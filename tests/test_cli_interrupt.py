"""Runs that are ended from outside: SIGKILL, Ctrl-C once, Ctrl-C twice.

Each goes on and ends as if nothing had happened.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stratagem.cli import main
from stratagem.runs.metrics import read_metrics

SETTINGS = [
    *("--set", "agent.recovery=random", "--set", "agent.max_new_tokens=6", "--set", "warm_start.num_steps=3"),
    *("--set", "warm_start.batch_size=4", "--set", "evaluation.num_episodes=3"),
    *("--set", "game.params={size=3, max_steps=4, coordinates=false}"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of all runs, with one that nobody interrupted."""
    folder = tmp_path_factory.mktemp("interrupt")
    before = os.environ.get("STRATAGEM_CACHE")
    os.environ["STRATAGEM_CACHE"] = str(folder / "cache")
    # The warnings filter of pytest is not that of a user, and a child has a thread count of its own.
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    assert main(["train", "tiny", "--runs-dir", str(folder / "runs"), "--name", "whole", *SETTINGS]) == 0
    yield folder / "runs"
    os.environ.pop("STRATAGEM_CACHE")
    if before is not None:
        os.environ["STRATAGEM_CACHE"] = before


def start(runs: Path, name: str, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "stratagem.cli", "train", "tiny", "--runs-dir", str(runs), "--name", name]
    return subprocess.Popen(
        [*words, *SETTINGS, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while process.poll() is None and not condition():
        assert time.monotonic() < limit, "the run made no progress"
        time.sleep(0.002)


def num_rows(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if not key.startswith(("seconds_", "peak_"))}
        for row in read_metrics(run / "metrics.jsonl")
    ]


def assert_finishes_as(runs: Path, name: str) -> None:
    """Resume and compare with the run that nobody interrupted."""
    assert main(["train", "--runs-dir", str(runs), "--name", name, "--resume"]) == 0
    assert rows_of(runs / name) == rows_of(runs / "whole")
    a, b = (load_file(runs / run / "model" / "model.safetensors") for run in (name, "whole"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not list((runs / name).rglob(".tmp-*"))


@pytest.mark.parametrize("attempt", range(2))
def test_a_killed_run_goes_on_to_the_same_end(whole: Path, attempt: int) -> None:
    name = f"killed{attempt}"
    process = start(whole, name)
    # From the first line of metrics (before the first checkpoint) to the third iteration.
    wanted = random.randint(1, 3)
    wait_until(process, lambda: num_rows(whole / name) >= wanted)
    time.sleep(random.uniform(0, 0.15))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, f"the run had ended before it was killed (wanted {wanted} lines)"
    assert_finishes_as(whole, name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl_c", "sigterm"])
def test_one_signal_ends_after_the_iteration_with_a_checkpoint(whole: Path, number: signal.Signals) -> None:
    name = f"stopped-{number.name}"
    process = start(whole, name)
    wait_until(process, lambda: num_rows(whole / name) >= 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    saved = rows_of(whole / name)[-1]["iteration"]
    assert err.splitlines()[-1] == (
        f"Saved after iteration {saved}. Continue with: stratagem train --name {name} --resume --runs-dir {whole}"
    )
    assert "Stopping after this iteration, with a checkpoint. Press Ctrl-C again to stop at once.\n" in out
    assert (whole / name / "checkpoints" / f"{saved:06d}").is_dir()
    assert_finishes_as(whole, name)


def test_a_second_signal_ends_at_once(whole: Path) -> None:
    # Iterations of many episodes, so that one is under way when both signals arrive.
    process = start(whole, "twice", "--set", "algorithm.num_groups=64", "--set", "agent.max_new_tokens=40")
    wait_until(process, lambda: num_rows(whole / "twice") >= 1)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == (
        f"Stopped at once. Continue with: stratagem train --name twice --resume --runs-dir {whole}"
    )
    assert "Traceback" not in err
