"""Reading run folders: by need, while they are written, and damaged."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stratagem.errors import RunError, UnknownNameError
from stratagem.page.advice import warnings_of
from stratagem.page.curves import GROUPS, compared_series, run_series, same_settings, value
from stratagem.page.data import Library, MetricsReader, RunData, share_of_optimum
from stratagem.page.store import Store
from stratagem.runs.metrics import MetricsLog, truncate_metrics

NewRun = Callable[..., Path]


def test_only_what_was_added_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.append(1, {"loss": 1.0})
    reader = MetricsReader(path)
    assert [row["iteration"] for row in reader.rows()] == [1]
    log.append(2, {"loss": 2.0})
    added = reader._offset
    assert [row["iteration"] for row in reader.rows()] == [1, 2]
    assert (added, reader._offset) == (path.stat().st_size // 2, path.stat().st_size)


def test_a_line_that_is_being_written_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{"iteration": 2, "lo')
    reader = MetricsReader(path)
    assert [row["iteration"] for row in reader.rows()] == [1]
    assert reader.damaged == 0
    with path.open("a") as file:
        file.write('ss": 3.0}\n')
    assert [row["iteration"] for row in reader.rows()] == [1, 2]


def test_a_run_that_was_set_back_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for iteration in range(1, 6):
        log.append(iteration, {"loss": 1.0})
    reader = MetricsReader(path)
    assert len(reader.rows()) == 5
    truncate_metrics(path, 2)
    again = MetricsLog(path)
    for iteration in range(3, 9):  # longer than before: only the new file tells
        again.append(iteration, {"loss": 2.0})
    assert [row["loss"] for row in reader.rows()] == [1.0, 1.0, *[2.0] * 6]


def test_damaged_lines_are_left_out_and_told(new_run: NewRun) -> None:
    run = new_run()
    with (run / "metrics.jsonl").open("a") as file:
        file.write("\x00\x00\n[1]\n")
    data = RunData(run, "first")
    assert len(data.metrics.rows()) == 3
    assert data.problems == ["metrics.jsonl holds 2 lines that are no rows; they are left out."]


def test_damaged_files_hide_no_others(new_run: NewRun) -> None:
    run = new_run()
    (run / "recipe.toml").write_bytes(b"\xff")
    (run / "summary.json").write_text("[1]")
    (run / "evaluation" / "start" / "FrozenLake-NotSlippery.json").write_text("{")
    (run / "trajectories" / "000002.parquet").write_bytes(b"PAR1 no")
    data = RunData(run, "first")
    assert (data.recipe, data.summary, list(data.evaluations())) == ({}, {}, ["final"])
    assert [len(data.store.index(iteration)) for iteration in (1, 2, 3)] == [6, 0, 6]
    assert [problem.partition(" cannot")[0] for problem in data.problems] == [
        "recipe.toml", "summary.json", "evaluation/start/FrozenLake-NotSlippery.json", "trajectories/000002.parquet"
    ]  # fmt: skip


def test_the_index_holds_what_was_played(new_run: NewRun) -> None:
    rows = Store(new_run() / "trajectories", Path("none")).index(2)
    # Group 0: a fall (two steps, return 0), a win (six steps, 1), three steps with one invalid answer (-0.5).
    shown = [(r.group, r.episode, r.num_steps, r.num_valid, r.composite_return, r.success, r.advantage) for r in rows]
    assert shown[:3] == [(0, 0, 2, 2, 0.0, False, -0.5), (0, 1, 6, 6, 1.0, True, 1.5), (0, 2, 3, 2, -0.5, None, -1.0)]
    assert [row.stop_reason for row in rows[:3]] == ["terminated", "terminated", "max_steps"]
    assert [row.advantage for row in rows[3:]] == [0.0, 0.0, 0.0]


def test_an_episode_is_read_from_several_row_groups(new_run: NewRun) -> None:
    run = new_run(iterations=1)
    path = run / "trajectories" / "000001.parquet"
    whole = Store(run / "trajectories", run / "evaluation").group(1, 0)
    pq.write_table(pq.read_table(path), path, row_group_size=4)  # group 0 has eleven steps: three of these
    again = Store(run / "trajectories", run / "evaluation")
    assert again.group(1, 0) == whole
    assert again.episode(1, 0, 1).trajectory.environment_return == 1.0
    with pytest.raises(RunError, match=r"^There is no group 0 with an episode 9 in iteration 1\.$"):
        again.episode(1, 0, 9)
    with pytest.raises(RunError, match=r"^There is no group 7 in iteration 4\.$"):
        again.group(4, 7)


def test_reading_episodes_loads_neither_pandas_nor_torch(new_run: NewRun) -> None:
    run = new_run(iterations=1, said="LOST")
    script = (
        "import sys\nfrom pathlib import Path\nfrom stratagem.page.data import RunData\n"
        f"run = RunData(Path({str(run)!r}), 'first')\n"
        "print(len(run.store.search([1], text='lost').rows), len(run.store.group(1, 0)))\n"
        "print(sorted({'pandas', 'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1 3", "[]"]


def test_text_is_found_in_any_case_and_a_search_goes_on_where_it_stopped(new_run: NewRun) -> None:
    run = new_run(iterations=4, said="LOST my way")
    store = Store(run / "trajectories", run / "evaluation")
    found = store.search([1, 2, 3, 4], text="lost", seconds=-1.0)
    assert (found.read, found.total) == (1, 4)
    while found.read < found.total:
        before = found.read
        found = store.search([1, 2, 3, 4], text="lost", seconds=-1.0)
        assert found.read == before + 1
    assert [(row.iteration, row.episode) for row in found.rows] == [(4, 2), (3, 2), (2, 2), (1, 2)]
    assert store.search([1, 2, 3, 4], text="nowhere").rows == []


def test_runs_are_found_by_name_by_folder_and_in_folders(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_run("first", iterations=0)
    new_run("second", iterations=0)
    monkeypatch.chdir(tmp_path)
    assert set(Library.find([], "runs").runs()) == {"first", "second"}
    assert set(Library.find(["first"], "runs").runs()) == {"first"}
    assert set(Library.find(["runs/second", "runs"], "elsewhere").runs()) == {"first", "second"}
    message = "Unknown run 'secnd'. Did you mean 'second'? Available: first, second."
    with pytest.raises(UnknownNameError, match=f"^{re.escape(message)}$"):
        Library.find(["secnd"], "runs")


def test_runs_of_one_name_are_kept_apart(new_run: NewRun, tmp_path: Path) -> None:
    for root in ("a", "b"):
        shutil.copytree(new_run(f"same{root}", iterations=0), tmp_path / root / "same")
    runs = Library([tmp_path / "a", tmp_path / "b"]).runs()
    assert set(runs) == {"same", "same~2"}
    assert {run.path.parent.name for run in runs.values()} == {"a", "b"}


def test_the_state_of_a_run_is_known_from_its_files(new_run: NewRun) -> None:
    assert RunData(new_run("done"), "done").state == "finished"
    run = new_run("other", finished=False)
    data = RunData(run, "other")
    assert data.state == "stopped"
    (run / ".lock").write_text(f"{os.getpid()}\n")
    assert data.state == "training"
    (run / ".lock").write_text("999999999\n")
    assert data.state == "stopped"


def test_derived_metrics_follow_their_formulas() -> None:
    row = {"invalid_action_rate": 0.2, "tokens_computed": 250, "tokens_seen": 1000, "seconds_a": 1, "seconds_b": 2.5}
    assert value(row, "valid_rate") == 0.8
    assert value(row, "tokens_saved") == 0.75  # 1 - 250 / 1000
    assert value(row, "seconds") == 3.5
    assert value({"loss": None}, "loss") is None


def test_seeds_make_a_mean_with_a_band_over_shared_iterations(new_run: NewRun) -> None:
    runs = [RunData(new_run(f"s{seed}", seed=seed, iterations=2 + seed, finished=False), f"s{seed}") for seed in (0, 1)]
    other = RunData(new_run("faster", rate=1e-3, iterations=2, finished=False), "faster")
    # num_iterations differs between the runs above as well, so the recipes are made equal but for the seed.
    text = (runs[0].path / "recipe.toml").read_text().replace("seed = 0", "seed = 1")
    (runs[1].path / "recipe.toml").write_text(text)
    groups = same_settings([*runs, other])
    assert [[run.key for run in group] for group in groups] == [["s0", "s1"], ["faster"]]
    MetricsLog(runs[0].path / "metrics.jsonl").append(9, {"return_mean": 5.0})
    truncate_metrics(runs[1].path / "metrics.jsonl", 1)
    MetricsLog(runs[1].path / "metrics.jsonl").append(2, {"return_mean": 0.4})
    series = compared_series(groups, "return_mean", 1)
    # Iteration 1: 0.1 and 0.1; iteration 2: 0.2 and 0.4, mean 0.3, sample deviation 0.2 / sqrt(2) = 0.141421.
    assert series[0].label == "s0 and 1 other seed"
    assert list(series[0].x) == [1, 2]
    assert list(series[0].y) == pytest.approx([0.1, 0.3])
    assert list(series[0].low) == pytest.approx([0.1, 0.3 - 0.141421], abs=1e-6)
    assert series[1].low == ()


def test_curves_are_smoothed_and_keep_what_they_were(new_run: NewRun) -> None:
    rows = RunData(new_run(), "first").metrics.rows()
    (series,) = run_series(rows, GROUPS[0][1][0], 2)
    assert list(series.y) == pytest.approx([0.1, 0.15, 0.25])  # means of 0.1; 0.1, 0.2; 0.2, 0.3
    assert list(series.raw) == pytest.approx([0.1, 0.2, 0.3])


def test_what_is_wrong_with_a_run_is_said_with_a_remedy(new_run: NewRun) -> None:
    assert warnings_of(RunData(new_run("fine"), "fine")) == []
    run = new_run(
        "bad", groups_without_signal=0.9, invalid_action_rate=0.95, clip_fraction=0.5, entropy=0.001, ratio_gap=0.5,
        grad_norm=float("nan"), step_share=0.01, episodes_failed=2,
    )  # fmt: skip
    found = {finding.what: finding.remedy for finding in warnings_of(RunData(run, "bad"))}
    assert list(found) == [
        "90% of groups carry no signal (last 3 iterations).",
        "95% of the steps hold no valid action (last 3 iterations).",
        "6 episodes ended because the game failed (last 3 iterations).",
        "grad_norm is no number in the last iteration.",
        "Sampler and learner disagree: the ratio before the update is off by 0.500.",
        "The entropy is 0.001 nats: the policy hardly tries anything new.",
        "The clip cuts the gradient of 50% of the tokens.",
        "max_kl leaves 1% of each step.",
    ]
    assert found["90% of groups carry no signal (last 3 iterations)."] == (
        "Often 95% of the answers hold no valid action. Add a [warm_start], or choose another agent.template or more "
        "agent.max_new_tokens."
    )


def test_the_run_of_the_benchmark_is_one(tmp_path: Path) -> None:
    bench = runpy.run_path(str(Path(__file__).resolve().parents[2] / "bench" / "page.py"))
    bench["make_run"](tmp_path, iterations=3, episodes=20)
    data = RunData(tmp_path / "long", "long")
    assert (data.iteration, data.total_iterations, data.problems) == (3, 3, [])
    assert [(row.iteration, len(data.store.index(row.iteration))) for row in data.store.index(3)[:1]] == [(3, 20)]


def test_a_negative_share_of_an_older_run_is_not_shown() -> None:
    assert share_of_optimum({"share_of_optimum": -10.0}) is None
    assert share_of_optimum({"share_of_optimum": 0.0}) == 0.0
    assert share_of_optimum({}) is None
