"""The benchmarks run end to end on the tiny model; the numbers mean nothing here."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from stratagem.evaluation.records import load_records
from stratagem.models.catalog import ModelConfig
from stratagem.models.local import LocalModel
from stratagem.models.tree import build_tree

BENCH = Path(__file__).resolve().parents[1] / "bench"
MODULES = ("workloads", "measure", "keeper", "training", "sampling", "precision", "iteration", "run")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(BENCH))
    threads = torch.get_num_threads()
    yield {name: importlib.import_module(name) for name in MODULES}
    torch.set_num_threads(threads)
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture
def model() -> LocalModel:
    return LocalModel.load(ModelConfig(name="tiny"))


def test_products_in_bfloat16_are_measured_and_kept(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    arguments = ["--quick", "--model", "tiny", "--threads", "1", "--results", str(tmp_path)]
    assert bench["run"].main(["precision", "--only", "a", *arguments]) == 0
    records = load_records(tmp_path)
    assert set(records) == {"mixed.train.speedup.a", "mixed.sample.speedup.a"}
    assert all(record.mean > 0 for record in records.values())
    assert "log-probabilities off by 0." in str(records["mixed.train.speedup.a"].note)


def test_training_and_memory_are_measured_and_kept(
    bench: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--model", "tiny", "--threads", "1", "--results", str(tmp_path)]
    assert bench["run"].main(["train", "--only", "a", "d", *arguments]) == 0
    assert bench["run"].main(["memory", *arguments]) == 0
    records = load_records(tmp_path)
    assert set(records) == {
        "tree.train.speedup.a",
        "tree.train.speedup.a_full",
        "tree.train.speedup.d",
        "tree.train.matmul_share.a",
        "tree.train.matmul_share.d",
        "tree.peak_gib.g256",
    }
    assert all(record.mean > 0 for record in records.values())
    # all that was given, so that the number can be measured again
    expected = f"python bench/run.py train --only a d --quick --model tiny --threads 1 --results {tmp_path}"
    assert records["tree.train.speedup.d"].command == expected
    assert "not run" not in capsys.readouterr().out


@pytest.mark.parametrize("side", ["tree", "rows"])
def test_the_peak_memory_of_each_side_is_measured(
    bench: dict[str, ModuleType], capsys: pytest.CaptureFixture[str], side: str
) -> None:
    arguments = ["child-peak", "--side", side, "--only", "d", "--quick", "--model", "tiny", "--threads", "1"]
    assert bench["run"].main(arguments) == 0
    assert 0.01 < json.loads(capsys.readouterr().out)["gib"] < 100


def test_sampling_is_measured_without_the_peers(
    bench: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--model", "tiny", "--threads", "1", "--results", str(tmp_path), "--only", "d"]
    assert bench["run"].main(["sample", *arguments, "--without", "vllm"]) == 0
    assert set(load_records(tmp_path)) == {"tree.sample.speedup.d"}
    assert "vLLM not run: left out with --without." in capsys.readouterr().out


def test_a_peer_that_is_not_installed_is_named(bench: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench["measure"], "BENCH", Path("nowhere"))
    with pytest.raises(bench["measure"].NotRun, match=r"^bench/venvs/vllm is missing; run bench/setup_peers\.sh vllm$"):
        bench["measure"].Peer("vllm", "vllm_worker.py", 1)


def test_both_sides_of_the_training_benchmark_compute_the_same(bench: dict[str, ModuleType], model: LocalModel) -> None:
    rows = bench["workloads"].build("b", model, 259, quick=True).rows
    peer = bench["training"].RowByRow("tiny")
    peer.budget = 3000  # several rows in a micro-batch, so that there is padding
    assert len(peer.micro_batches(rows)) < len(rows)
    ours, computed = bench["training"].tree_pass(model, rows)
    theirs, padded = peer.run(rows)
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    assert bench["training"]._gradient_gap(model.module, peer.module) < 1e-4
    assert computed < padded
    # The check can fail: one more weight in the loss of one side is found.
    bench["training"].tree_pass(model, rows[:1])
    assert bench["training"]._gradient_gap(model.module, peer.module) > 1e-3


@pytest.mark.parametrize("letter", ["a", "b", "c", "d", "e", "f"])
def test_workloads_are_the_same_every_time(bench: dict[str, ModuleType], model: LocalModel, letter: str) -> None:
    build = bench["workloads"].build
    workload = build(letter, model, 259, quick=True)
    assert workload == build(letter, model, 259, quick=True)
    shared = workload.num_row_tokens / build_tree(workload.rows).num_nodes
    assert shared == 1 if letter == "f" else shared > 1.2


def test_the_floor_counts_the_products_that_cannot_be_avoided(bench: dict[str, ModuleType]) -> None:
    shapes = bench["measure"].Shapes(layers=2, hidden=8, inner=12, heads=2, key_heads=1, width=4, vocabulary=10)
    # Weights of a layer: 8*8 query, 8*4 key, 8*4 value, 8*8 output, 2 * 8*12 gate and up, 12*8 down = 480; 2 layers.
    assert shapes.layer_weights == 960
    tree = build_tree([((1, 2), (3, 4)), ((1, 2), (5,))])  # nodes 1, 2, 3; labels at 2 (twice) and 3
    floor = bench["measure"].training_floor([tree], shapes, min_seconds=0.0)
    # 6 * 960 * 3 weights + 6 * 8 * 10 * 2 logits + 12 * 2 heads * 4 wide * 2 layers * (1 + 2 + 3) pairs.
    assert floor.flops == 17_280 + 960 + 1_152
    assert np.isfinite(floor.seconds) and floor.seconds > 0


def test_alternation_gives_the_median_ratio_of_pairs(bench: dict[str, ModuleType]) -> None:
    ours, theirs = iter([1.0, 2.0, 4.0]), iter([3.0, 2.0, 8.0])
    timing = bench["measure"].alternate(lambda: next(ours), lambda: next(theirs), 3)
    assert timing.ratios == [3.0, 1.0, 2.0]
    assert timing.speedup == 2.0
    assert timing.describe() == "median of 3 alternating pairs, 1.00 to 3.00"
