"""What STEP-HRL is compared with, from the command line on the tiny model: ablations, the flat agent, ETO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stratagem.cli import main
from stratagem.data.alfworld_annotations import expert_episodes
from stratagem.data.annotations import write_annotations
from stratagem.data.trajectories import read_trajectories
from stratagem.games import make
from stratagem.recipe import load_recipe
from stratagem.runs.display import Display
from stratagem.runs.folder import RunFolder
from stratagem.runs.interrupts import StopRequest
from stratagem.runs.training import train_run

GAME = """
seed = 0
[game]
name = "ALFWorld-Generated"
params = { view = "raw", max_steps = 5, task_types = ["pick_and_place_simple"] }
[model]
name = "tiny"
[evaluation]
num_episodes = 1
[run]
checkpoint_every = 1
"""
ROLES = """
[agent]
name = "hierarchical"
high = { max_new_tokens = 4 }
low = { max_new_tokens = 4 }
progress = { max_new_tokens = 4 }
"""
REACT = """
[agent]
name = "react"
max_new_tokens = 4
max_invalid = 2
"""
STEP_HRL = """
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
"""
ETO = """
[algorithm]
name = "eto"
num_iterations = 5
bc_iterations = 1
round_iterations = 2
steps_per_iteration = 1
batch_episodes = 1
batch_pairs = 2
num_expert_episodes = 3
bc_decay = "constant"
"""


class StoppingDisplay(Display):
    """Asks for the end once an iteration is shown."""

    def __init__(self, stop: StopRequest, at: int) -> None:
        super().__init__(live=False)
        self.stop, self.at = stop, at

    def update(self, iteration: int, metrics: Mapping[str, float]) -> None:
        super().update(iteration, metrics)
        self.stop.requested |= iteration == self.at


def rows_of(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    drop = ("seconds_", "peak_")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(drop)} for line in lines]


@pytest.fixture
def home(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRATAGEM_CACHE", str(tmp_path_factory.getbasetemp() / "cache_baselines"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(home: Path, recipe: str, *overrides: str) -> Path:
    (home / "one.toml").write_text(recipe, encoding="utf-8")
    words = [word for item in overrides for word in ("--set", item)]
    assert main(["train", "one.toml", "--name", "whole", *words]) == 0
    return home / "runs" / "whole"


@pytest.mark.parametrize(
    ("overrides", "roles"),
    [
        (["agent.use_progress=false"], {"high", "low"}),
        (["agent.use_subtasks=false"], {"low", "progress"}),
        (["agent.use_subtasks=false", "agent.use_progress=false"], {"low"}),
        (["agent.use_history=true", "agent.use_progress=false"], {"high", "low"}),
        (["algorithm.bc_iterations=3"], {"high", "low", "progress"}),
    ],
    ids=["without local progress", "without hierarchy", "without both", "histories", "without RL"],
)
def test_an_ablation_is_a_setting(home: Path, overrides: list[str], roles: set[str]) -> None:
    run = train(home, GAME + ROLES + STEP_HRL, *overrides)
    rows = rows_of(run)[1:]
    learnt = {key.rpartition("_")[2] for row in rows for key in row if key.startswith(("bc_loss_", "nll_"))}
    assert learnt == roles
    played = [name for row in rows for name in row if name == "q_loss"]
    assert len(played) == (0 if "algorithm.bc_iterations=3" in overrides else 2)
    if played:
        groups = read_trajectories(run / "trajectories")
        said = {
            part.role for stored in groups for t in stored.group.trajectories for s in t.steps for part in s.generations
        }
        assert said <= roles - {"low"}


def test_the_flat_agent_is_cloned_from_the_same_episodes_and_can_go_on_with_offline_rl(home: Path) -> None:
    run = train(home, GAME + REACT + STEP_HRL)
    rows = rows_of(run)[1:]
    assert "bc_loss_low" in rows[0] and "bc_loss_high" not in rows[0]
    assert all("q_loss_low" in row for row in rows[1:])
    steps = [
        s for stored in read_trajectories(run / "trajectories") for t in stored.group.trajectories for s in t.steps
    ]
    assert steps and all(step.generations == () for step in steps)


@pytest.mark.parametrize("at", [1, 2, 3], ids=["before the first round", "within it", "after it"])
def test_a_run_of_eto_that_was_stopped_and_continued_is_the_run_that_was_not(home: Path, at: int) -> None:
    whole = train(home, GAME + REACT + ETO)
    rows = rows_of(whole)
    assert [("bc_loss" in row, "dpo_loss" in row, "num_pairs" in row) for row in rows[1:]] == [
        (True, False, False),
        (False, True, True),  # plays
        (False, True, False),
        (False, True, True),  # plays again
        (False, True, False),
    ]
    # A random model wins nothing: each start is a pair, and the first step begins at the reference.
    assert rows[2]["num_pairs"] == 3.0
    assert rows[2]["dpo_loss"] == pytest.approx(0.693147, rel=1e-3)
    stop = StopRequest()
    recipe = load_recipe("one.toml")
    text = (whole / "recipe.toml").read_text(encoding="utf-8")
    with RunFolder.create(home / "runs", "stopped", text) as folder, StoppingDisplay(stop, at) as display:
        assert not train_run(recipe, folder, display, stop=stop).completed
    assert main(["train", "--name", "stopped", "--resume"]) == 0
    run = home / "runs" / "stopped"
    assert rows_of(run) == rows
    first, second = (load_file(path / "model" / "model.safetensors") for path in (run, whole))
    assert all(torch.equal(first[key], second[key]) for key in second)


def test_nothing_to_compare_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Expert episodes that never win are as good as the random model's.
    (episode,) = expert_episodes(
        lambda: make("ALFWorld-Generated", view="raw", task_types=["pick_and_place_simple"]), 1, seed=0
    )
    steps = tuple(replace(step, reward=0.0) for step in episode.steps[:2])
    write_annotations(home / "lost.jsonl", [replace(episode, success=False, steps=steps)])
    (home / "one.toml").write_text(GAME + REACT + ETO, encoding="utf-8")
    capsys.readouterr()
    assert main(["train", "one.toml", "--set", "algorithm.annotations='lost.jsonl'"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: All 1 episodes of round 1 went as well as the expert's, so there is nothing to compare; raise "
        "explore_temperature or num_expert_episodes, or clone less."
    )
