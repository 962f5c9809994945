"""How busy this machine is, and what to say of it before hours are spent on it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["busy_with", "load_average", "load_warning", "usable_cores"]


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_warning() -> str | None:
    """Return one line to print before a training that would be slowed down, or None."""
    usable, threads = usable_cores(), _asked_threads()
    if threads is not None and threads > usable:
        return (
            f"OMP_NUM_THREADS={threads} is more than the {usable} cores that this process may use, and such threads "
            f"slow each other down; set it to {usable}."
        )
    cores = os.cpu_count() or 1
    load = busy_with(cores - 0.5)
    if load is None:
        return None
    advice = "" if threads == 1 else "; OMP_NUM_THREADS=1 is then often faster"
    return f"This machine is busy with other work (load {load:.1f} on {cores} cores), so the run takes longer{advice}."


def load_average() -> float | None:
    """Return how many threads wanted a core over the last minute; None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows has none, and some containers hide it
        return None


def busy_with(limit: float) -> float | None:
    """Return the load average where it is above ``limit`` and work still goes on, else None."""
    load, running = load_average(), _running()
    # The average outlives the work by a minute or two: what just ended is no reason to warn. A single look finds some
    # threads asleep, so half of them will do.
    if load is None or load <= limit or (running is not None and running < limit / 2):
        return None
    return load


def _running() -> int | None:
    """Return how many threads of others run or wait for a core right now; None where Linux does not say."""
    try:
        return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return None


def _asked_threads() -> int | None:
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdecimal() else None
