"""The benchmarks of games and of scoring run end to end; the numbers mean nothing here."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from stratagem.agents.scoring import ScoringAgent
from stratagem.evaluation.records import load_records
from stratagem.models.catalog import ModelConfig
from stratagem.models.local import LocalModel

BENCH = Path(__file__).resolve().parents[1] / "bench"
MODULES = ("workloads", "measure", "keeper", "games", "scoring")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(BENCH))
    threads = torch.get_num_threads()
    yield {name: importlib.import_module(name) for name in MODULES}
    torch.set_num_threads(threads)
    for name in MODULES:
        del sys.modules[name]


def test_scoring_is_measured_on_both_sides_and_kept(
    bench: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--quick", "--model", "tiny", "--threads", "1"]
    assert bench["scoring"].main([*words, "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Overcooked-TomatoSalad" in printed
    assert "not run" not in printed
    (record,) = load_records(tmp_path).values()
    assert (record.name, record.unit) == ("scoring.speedup", "times as fast")
    assert record.mean > 0
    assert record.command == f"python bench/scoring.py {shlex.join(words)} --results {tmp_path}"
    assert record.note.startswith("Every admissible action of 3 episodes that wait together, tiny in float32, ")
    assert "median of 1 alternating pairs: Overcooked-TomatoSalad " in record.note


def test_a_quick_look_keeps_no_record(
    bench: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bench["scoring"].main(["--quick", "--model", "tiny", "--threads", "1"]) == 0
    assert not list(tmp_path.iterdir())


def test_both_sides_of_the_scoring_benchmark_compute_the_same(bench: dict[str, ModuleType]) -> None:
    agent = ScoringAgent(LocalModel.load(ModelConfig(name="tiny")))
    peer = bench["scoring"].PaddedRows("tiny")
    peer.batch = 3  # rows of unequal length together, so that there is padding
    (rows,) = bench["scoring"].decisions("VirtualHome-Entertainment", agent, 1)
    ours = [float(part.sum()) for part in agent.score_rows(rows)]
    assert peer.score(rows) == pytest.approx(ours, rel=1e-5)
    # The check can fail: another prompt gives other numbers.
    assert peer.score([(prompt[:-1], ids) for prompt, ids in rows]) != pytest.approx(ours, rel=1e-5)


def test_games_are_measured(bench: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench["games"].main(["--quick", "--only", "VirtualHome-Entertainment", "frozen_lake"]) == 0
    printed = capsys.readouterr().out
    assert "VirtualHome-Entertainment" in printed
    assert "not run" not in printed


def test_a_game_that_cannot_be_made_is_not_run(bench: dict[str, ModuleType]) -> None:
    with pytest.raises(bench["measure"].NotRun, match=r"^Unknown game 'chess'"):
        bench["games"].measure_game("chess", seconds=0.01, repeats=1)
