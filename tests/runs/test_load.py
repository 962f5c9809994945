from __future__ import annotations

import os

import pytest

from stratagem.runs import load

BUSY = "This machine is busy with other work (load 1.8 on 2 cores), so the run takes longer"


def on(
    patch: pytest.MonkeyPatch, *, average: float = 0.0, running: int | None = 0, threads: str | None = None
) -> str | None:
    """Return the warning on a machine with two cores."""
    patch.setattr(os, "cpu_count", lambda: 2)
    patch.setattr(load, "usable_cores", lambda: 2)
    patch.setattr(os, "getloadavg", lambda: (average, 9.0, 9.0), raising=False)
    patch.setattr(load, "_running", lambda: running)
    patch.delenv("OMP_NUM_THREADS", raising=False)
    if threads is not None:
        patch.setenv("OMP_NUM_THREADS", threads)
    return load.load_warning()


@pytest.mark.parametrize(
    ("average", "running", "threads", "expected"),
    [
        (0.1, 0, None, None),
        (1.5, 2, None, None),  # one busy core and a half is the limit itself
        (1.8, 2, None, f"{BUSY}; OMP_NUM_THREADS=1 is then often faster."),
        (1.8, 1, None, f"{BUSY}; OMP_NUM_THREADS=1 is then often faster."),
        (1.8, None, None, f"{BUSY}; OMP_NUM_THREADS=1 is then often faster."),
        (1.8, 2, "1", f"{BUSY}."),
        (1.8, 0, None, None),
        (0.1, 0, "2", None),
        (0.1, 0, "many", None),
        (
            *(0.1, 0, "8"),
            "OMP_NUM_THREADS=8 is more than the 2 cores that this process may use, and such threads slow each other "
            "down; set it to 2.",
        ),
    ],
    ids=["idle", "limit", "busy", "some_asleep", "not_linux", "one_thread", "just_ended", "fits", "text", "too_many"],
)
def test_a_busy_machine_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, average: float, running: int | None, threads: str | None, expected: str | None
) -> None:
    assert on(monkeypatch, average=average, running=running, threads=threads) == expected


def test_a_system_without_a_load_raises_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_running", lambda: 9)
    monkeypatch.delattr(os, "getloadavg", raising=False)
    assert load.load_average() is None
    assert load.busy_with(0.5) is None


def test_this_machine_can_be_asked() -> None:
    running = load._running()
    assert running is None or running >= 0
    assert load.usable_cores() >= 1
