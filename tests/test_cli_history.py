"""Training with a past in the prompt, from the command line, with the tiny model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stratagem.cli import main
from stratagem.data.trajectories import read_trajectories
from stratagem.recipe import dump_toml, load_recipe
from stratagem.runs.display import Display
from stratagem.runs.folder import RunFolder
from stratagem.runs.interrupts import StopRequest
from stratagem.runs.metrics import read_metrics
from stratagem.runs.plan import make_plan
from stratagem.runs.training import train_run

FAST = (
    "agent.recovery=random",
    "agent.max_new_tokens=4",
    "warm_start.num_steps=2",
    "warm_start.num_episodes=2",
    "warm_start.batch_size=4",
    "evaluation.num_episodes=2",
    "evaluation.every=0",
    "algorithm.num_groups=1",
    "game.params={size=3, max_steps=4, coordinates=false}",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder."""
    monkeypatch.setenv("STRATAGEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words_of(*settings: str) -> list[str]:
    return [word for setting in (*FAST, *settings) for word in ("--set", setting)]


@pytest.mark.parametrize("context", ["2", "all"])
def test_a_run_with_a_past_trains_resumes_and_is_evaluated(home: Path, context: str) -> None:
    settings = (f"agent.context_steps={context}",)
    assert main(["train", "tiny", "--name", "whole", *words_of(*settings)]) == 0
    recipe = load_recipe("tiny", [*FAST, *settings])
    stop = StopRequest()

    class Stopping(Display):
        def update(self, iteration: int, metrics: Mapping[str, float]) -> None:
            stop.requested |= iteration == 2

    with RunFolder.create("runs", "parts", dump_toml(recipe)) as folder, Stopping(live=False) as display:
        assert not train_run(recipe, folder, display, stop=stop).completed
    assert main(["train", "--name", "parts", "--resume"]) == 0

    def rows(name: str) -> list[dict[str, object]]:
        return [
            {key: value for key, value in row.items() if not key.startswith(("seconds_", "peak_"))}
            for row in read_metrics(home / "runs" / name / "metrics.jsonl")
        ]

    assert [row["iteration"] for row in rows("whole")] == [0, 1, 2, 3, 4]
    assert rows("parts") == rows("whole")
    first, second = (load_file(f"runs/{name}/model/model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(first[name], second[name]) for name in first)

    grown = False
    for stored in read_trajectories(home / "runs" / "whole" / "trajectories"):
        for trajectory in stored.group.trajectories:
            for before, after in zip(trajectory.steps, trajectory.steps[1:], strict=False):
                begin = before.prompt_ids + before.completion_ids
                if context == "all" or after is trajectory.steps[1]:
                    assert after.prompt_ids[: len(begin)] == begin
                    grown = True
    assert grown

    assert main(["eval", "whole", "--episodes", "2", "--out", "results"]) == 0
    evaluated = json.loads(Path("results/settings.json").read_text())
    assert evaluated["who.context_steps"] == (2 if context == "2" else "all")
    final = Path("runs/whole/evaluation/final/FrozenLake-NotSlippery.json").read_text()
    assert json.loads(Path("results/result.json").read_text()) == json.loads(final)


def test_a_run_without_a_past_says_nothing_of_it(home: Path) -> None:
    settings = ("warm_start=false", "algorithm.num_iterations=1")
    assert main(["train", "tiny", "--name", "plain", *words_of(*settings)]) == 0
    assert main(["eval", "plain", "--episodes", "2", "--out", "results"]) == 0
    assert "who.context_steps" not in json.loads(Path("results/settings.json").read_text())


def test_a_wrong_context_is_refused_before_anything_loads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tiny", "--set", "agent.context_steps=-1"]) == 2
    assert capsys.readouterr().err == (
        "error: In [agent]: context_steps=-1 is no number of past steps; use 0 for the present observation alone, 1 or "
        "more, or 'all'.\n"
    )
    assert main(["train", "tiny", "--set", "agent.context_steps=al"]) == 2
    assert capsys.readouterr().err == "error: agent.context_steps='al' is a string; write an integer or one of 'all'.\n"


def test_the_plan_counts_the_longest_prompt() -> None:
    # Tokens of the tiny model are characters. Each past step adds an observation and at most 4 tokens; 4 steps have 3.
    plans = {
        context: make_plan(load_recipe("tiny", [*FAST, f"agent.context_steps={context}"])).prompt_tokens
        for context in ("0", "1", "2", "3", "9", "all")
    }
    step = plans["1"] - plans["0"]
    assert step > 4
    assert [plans[context] - plans["0"] for context in ("2", "3", "9", "all")] == [2 * step, *[3 * step] * 3]
