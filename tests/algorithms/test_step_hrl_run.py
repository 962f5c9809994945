"""STEP-HRL from the command line on the tiny model, stopped and continued."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stratagem.cli import main
from stratagem.data.trajectories import read_trajectories
from stratagem.errors import ConfigError
from stratagem.recipe import load_recipe
from stratagem.runs.display import Display
from stratagem.runs.experiment import check_recipe
from stratagem.runs.folder import RunFolder
from stratagem.runs.interrupts import StopRequest
from stratagem.runs.training import train_run

RECIPE = """
seed = 0
[game]
name = "ALFWorld-Generated"
params = { view = "raw", max_steps = 9, task_types = ["pick_and_place_simple"] }
[model]
name = "tiny"
[agent]
name = "hierarchical"
high = { max_new_tokens = 4 }
low = { max_new_tokens = 4 }
progress = { max_new_tokens = 4 }
max_invalid = 2
[algorithm]
name = "step_hrl"
num_iterations = 3
bc_iterations = 1
steps_per_iteration = 1
batch_episodes = 1
num_expert_episodes = 2
collected_ratio = 1.0
critic_warmup = 0
critic = { layers = [8] }
[evaluation]
num_episodes = 1
[run]
checkpoint_every = 1
"""


class StoppingDisplay(Display):
    """Asks for the end once an iteration is shown."""

    def __init__(self, stop: StopRequest, at: int) -> None:
        super().__init__(live=False)
        self.stop, self.at = stop, at

    def update(self, iteration: int, metrics: Mapping[str, float]) -> None:
        super().update(iteration, metrics)
        self.stop.requested |= iteration == self.at


def rows_of(run: Path) -> list[dict[str, object]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    drop = ("seconds_", "peak_")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(drop)} for line in lines]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a whole run."""
    folder = tmp_path_factory.mktemp("step_hrl")
    (folder / "roles.toml").write_text(RECIPE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATAGEM_CACHE", str(folder / "cache"))
        words = ["train", str(folder / "roles.toml"), "--name", "whole", "--runs-dir", str(folder / "runs")]
        assert main(words) == 0
    return folder


@pytest.mark.parametrize("at", [1, 2], ids=["before the policies play", "after it"])
def test_a_run_that_was_stopped_and_continued_is_the_run_that_was_not(
    home: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_CACHE", str(home / "cache"))
    recipe = load_recipe(home / "roles.toml")
    name = f"stopped_{at}"
    stop = StopRequest()
    whole = home / "runs" / "whole"
    text = (whole / "recipe.toml").read_text(encoding="utf-8")
    with RunFolder.create(home / "runs", name, text) as folder, StoppingDisplay(stop, at) as display:
        assert not train_run(recipe, folder, display, stop=stop).completed
    assert main(["train", "--name", name, "--resume", "--runs-dir", str(home / "runs")]) == 0
    run = home / "runs" / name
    assert rows_of(run) == rows_of(whole)
    first, second = (load_file(path / "model" / "model.safetensors") for path in (run, whole))
    assert all(torch.equal(first[key], second[key]) for key in second)
    names = [path.name for path in sorted((whole / "trajectories").iterdir())]
    assert names == ["000002.parquet"]
    for name in names:
        assert (run / "trajectories" / name).read_bytes() == (whole / "trajectories" / name).read_bytes()


def test_what_every_role_said_is_kept(home: Path) -> None:
    groups = read_trajectories(home / "runs" / "whole" / "trajectories")
    steps = [step for stored in groups for t in stored.group.trajectories for step in t.steps]
    assert {part.role for step in steps for part in step.generations} == {"high", "progress"}
    assert all(len(part.completion_ids) <= 4 for step in steps for part in step.generations)


def test_the_agent_of_a_run_can_be_evaluated_and_seen(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_CACHE", str(home / "cache"))
    runs = str(home / "runs")
    words = ["eval", "whole", "--runs-dir", runs, "--episodes", "1", "--out", str(home / "evaluation")]
    assert main(words) == 0
    assert "ALFWorld-Generated" in capsys.readouterr().out
    assert main(["view", str(home / "runs" / "whole")]) == 0


def test_settings_of_one_answer_do_not_go_with_three_roles(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "whole", "--runs-dir", str(home / "runs"), "--temperature", "1"]
    assert main(words) != 0
    assert "--temperature does not say for which role of run 'whole'; leave it out." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["evaluation.temperature=0.5"],
            "evaluation.temperature=0.5 does not say for which role; leave it out, and set agent.high.temperature, "
            "agent.low.temperature and agent.progress.temperature, by which a hierarchical agent is evaluated.",
        ),
        (
            ["warm_start.num_steps=1"],
            "[warm_start] is for an agent with one answer, and agent.name='hierarchical' has three roles; leave "
            "[warm_start] out. algorithm.bc_iterations clones the expert.",
        ),
    ],
    ids=["temperature", "warm start"],
)
def test_settings_that_do_not_go_with_roles_are_refused(home: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_recipe(load_recipe(home / "roles.toml", overrides))


def test_another_algorithm_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_text('[model]\nname = "tiny"\n[agent]\nname = "hierarchical"\n', encoding="utf-8")
    message = "agent.name='hierarchical' is trained by algorithm.name='step_hrl' only; set it, or choose another agent."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_recipe(load_recipe(path))
