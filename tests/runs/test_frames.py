"""A run as pandas tables, and its files in other data tools."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import stratagem
from stratagem.data.trajectories import write_trajectories
from stratagem.errors import ConfigError, RunError
from stratagem.runs.folder import RunFolder
from stratagem.runs.metrics import MetricsLog
from stratagem.types import Finish, Step, StopReason, Trajectory, TrajectoryGroup


def fill(run: RunFolder) -> None:
    """Write two iterations: of one group with two episodes of two steps each."""
    for iteration in (1, 2):
        steps = tuple(
            Step(
                observation="o", action="up", reward=0.5 * number, completion="up", prompt_ids=(1, 2),
                completion_ids=(7,), logprobs=(-0.25,), finish=Finish.STOP, state_key=str(number),
            )
            for number in (1, 2)
        )  # fmt: skip
        episode = Trajectory("lake", 1, 0, 0, steps, True, False, StopReason.TERMINATED, True)
        write_trajectories(run.trajectories, iteration, [TrajectoryGroup((episode, episode))], [[1.0, -1.0]])
        MetricsLog(run.metrics_file).append(iteration, {"return_mean": iteration * 0.5, "loss": float("nan")})


def test_a_run_opens_as_pandas_tables(run_folder: RunFolder) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    fill(run_folder)
    run = stratagem.open_run(run_folder.path)
    assert run.metrics["return_mean"].to_dict() == {1: 0.5, 2: 1.0}
    assert run.metrics["loss"].isna().all()
    table = run.trajectories
    assert len(table) == 8
    returns = table.groupby(["iteration", "group", "episode"])["reward"].sum()
    assert returns.to_dict() == {(1, 0, 0): 1.5, (1, 0, 1): 1.5, (2, 0, 0): 1.5, (2, 0, 1): 1.5}
    assert table["completion_ids"][0].tolist() == [7]
    some = run.read_trajectories([2], ["iteration", "advantage"])
    assert some.to_dict("list") == {"iteration": [2] * 4, "advantage": [1.0, 1.0, -1.0, -1.0]}
    assert run.recipe["name"] == "lake"


def test_a_run_that_has_just_begun_opens(run_folder: RunFolder) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    run = stratagem.open_run(run_folder.path)
    assert len(run.metrics) == 0
    message = "Run 'a_run' holds no trajectories; run.save_trajectories may be off."
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        run.trajectories  # noqa: B018


def test_without_pandas_the_extra_is_named(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    message = "Tables need pandas; run `pip install -e '.[pandas]'` in a clone of Stratagem."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        stratagem.open_run(run_folder.path).metrics  # noqa: B018


def test_trajectories_open_with_datasets(run_folder: RunFolder, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    fill(run_folder)
    files = sorted(str(path) for path in run_folder.trajectories.glob("*.parquet"))
    table = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert (len(table), sum(table["reward"])) == (8, 6.0)
    assert table[0]["completion_ids"] == [7]
