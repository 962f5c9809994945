"""Running many training runs, one process for each, so many at once as the machine allows.

A run is a process of its own: what one does to memory or threads is no matter of the others, a run that fails costs
itself only, and each can be resumed by hand with the command that its log begins with.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stratagem.runs.interrupts import StopRequest

__all__ = ["Job", "Slots", "default_slots", "run_jobs"]

_GIB_PER_RUN = 5.0
"""Room for one small run on the CPU; the demo's peak is 3.6."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Job:
    """One run to start or to continue."""

    name: str
    recipe_file: Path
    seed: int
    resume: bool

    def command(self, runs: Path) -> list[str]:
        """Return the words after ``stratagem``."""
        words = ["train", str(self.recipe_file), "--seed", str(self.seed), "--name", self.name, "--runs-dir", str(runs)]
        return [*words, "--resume"] if self.resume else words


@dataclass(frozen=True)
class Slots:
    """How many runs go on at once, and what each may use."""

    count: int
    threads: int
    """Of each run."""
    devices: tuple[str, ...] = ()
    """CUDA devices, one for each slot; empty on the CPU."""

    def environment(self, slot: int) -> dict[str, str]:
        """Return the environment of the run in a slot."""
        found = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        if self.devices:
            found["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        return found


def default_slots(num_runs: int, *, cuda: bool, count: int | None = None) -> Slots:
    """Return how the machine is shared out.

    Args:
        num_runs: to do.
        cuda: the runs need a GPU: as many at once as there are GPUs. On the CPU: as many as there are cores and memory
            for, with the cores shared out among them.
        count: what a user wants instead.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    devices: tuple[str, ...] = ()
    if cuda:
        import torch  # here, so that a dry run does not load it

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        found = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
        devices = tuple(found)
        room = max(1, len(devices))
    else:
        room = min(cores, max(1, int(_memory_gib() // _GIB_PER_RUN)))
    slots = max(1, min(num_runs, room if count is None else count))
    return Slots(slots, max(1, cores // slots), devices)


def _memory_gib() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        return _GIB_PER_RUN


def run_jobs(
    jobs: Sequence[Job],
    slots: Slots,
    *,
    runs: Path,
    logs: Path,
    on_start: Callable[[Job, Path], None],
    on_finish: Callable[[Job, int], None],
    on_interrupt: Callable[[], None],
) -> dict[str, int]:
    """Run everything and return the exit code of each run that was started.

    The first Ctrl-C (or SIGTERM) is passed on: no more runs are started, and those under way finish their iteration and
    save. A second one ends them at once.

    Args:
        jobs: in the order in which they are started.
        slots: how many at once.
        runs: folder of the runs.
        logs: folder of what each one prints; made if missing.
        on_start: told the job and its log.
        on_finish: told the job and its exit code.
        on_interrupt: told once after the first Ctrl-C.
    """
    logs.mkdir(parents=True, exist_ok=True)
    waiting, codes = list(jobs), {}
    active: dict[int, tuple[Job, subprocess.Popen[bytes]]] = {}

    def stop() -> None:
        waiting.clear()
        on_interrupt()
        for _, process in active.values():
            process.terminate()

    with StopRequest(stop):
        try:
            while active or waiting:
                while waiting and len(active) < slots.count:
                    slot = next(slot for slot in range(slots.count) if slot not in active)
                    job = waiting.pop(0)
                    log = logs / f"{job.name}.log"
                    active[slot] = job, _start(job, slots.environment(slot), runs, log)
                    on_start(job, log)
                for slot, (job, process) in list(active.items()):
                    if (code := process.poll()) is not None:
                        del active[slot]
                        codes[job.name] = code
                        on_finish(job, code)
                time.sleep(_POLL_SECONDS)
        finally:
            for _, process in active.values():
                process.terminate()
            for _, process in active.values():
                process.wait()
    return codes


def _start(job: Job, environment: dict[str, str], runs: Path, log: Path) -> subprocess.Popen[bytes]:
    words = job.command(runs)
    with log.open("ab") as file:
        file.write(f"$ stratagem {shlex.join(words)}\n".encode())
        file.flush()
        return subprocess.Popen(
            [sys.executable, "-m", "stratagem.cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # so that a terminal's Ctrl-C comes through us, once
        )
