"""The benchmark of ScienceWorld, on sides that only say how long they took."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stratagem.evaluation.records import load_records

BENCH = Path(__file__).resolve().parents[1] / "bench"
MODULES = ("scienceworld_steps", "keeper", "measure")


class Side:
    """Takes some seconds for everything, and ends with some scores."""

    def __init__(self, seconds: float, score: int = 100) -> None:
        self.seconds, self.scores = seconds, [score]
        self.game = self.env = SimpleNamespace(close=lambda: None)

    def play(self, episodes: Sequence[Any]) -> float:
        return self.seconds


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    module = importlib.import_module("scienceworld_steps")
    monkeypatch.setattr(module, "solutions", lambda game, count: [(0, "boil", 3, ("look around",) * 20)])
    monkeypatch.setattr(module, "Ours", lambda: Side(0.1))
    yield module
    for name in MODULES:
        sys.modules.pop(name, None)


def test_the_ratio_of_both_sides_is_kept(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "Package", lambda: Side(1.2))
    assert bench.main(["--repeats", "2", "--results", str(tmp_path)]) == 0
    assert "not run" not in capsys.readouterr().out
    (record,) = load_records(tmp_path).values()
    # 1.2 s against 0.1 s for 20 steps.
    assert (record.name, record.unit, record.mean) == ("scienceworld.steps_ratio", "times as fast", 12.0)
    assert record.note == (
        "Steps of ScienceWorld against the package's env.step on the same 20 commands: 200 and 17 steps/s; median of 2 "
        "alternating pairs, 12.00 to 12.00"
    )
    assert record.command == f"python bench/scienceworld_steps.py --repeats 2 --results {tmp_path}"


def test_sides_that_do_not_play_the_same_are_not_compared(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "Package", lambda: Side(1.2, score=40))
    assert bench.main(["--results", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text == (
        "ScienceWorld not run: the package's environment ended with scores [40], ours with 100 in all episodes"
    )
    assert not list(tmp_path.iterdir())
