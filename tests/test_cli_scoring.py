"""Evaluating agents that choose among actions from the command line, and discounted returns."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratagem.cli import main

FAST = [
    *("--set", 'model={name="tiny"}', "--set", "game.params={max_steps=6}", "--set", "evaluation.num_episodes=6"),
    *("--set", "algorithm.num_iterations=1", "--set", "algorithm.num_groups=2", "--set", "algorithm.critic.layers=[8]"),
    *("--set", "evaluation.panels=['VirtualHome-FoodPreparation']"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with the finished runs ``scores`` and ``greedy``, which is evaluated at temperature 0."""
    folder = tmp_path_factory.mktemp("scoring")
    before, here = os.environ.get("STRATAGEM_CACHE"), Path.cwd()
    os.environ["STRATAGEM_CACHE"] = str(folder / "cache")
    os.chdir(folder)
    try:
        assert main(["train", "poad_food_preparation", "--name", "scores", *FAST]) == 0
        greedy = ("--set", "evaluation.temperature=0")
        assert main(["train", "poad_food_preparation", "--name", "greedy", *FAST, *greedy]) == 0
        yield folder
    finally:
        os.chdir(here)
        os.environ.pop("STRATAGEM_CACHE")
        if before is not None:
            os.environ["STRATAGEM_CACHE"] = before


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 0, capsys.readouterr()
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], message: str, *words: str) -> None:
    capsys.readouterr()
    assert main(["eval", *words]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def result(folder: str, name: str = "result.json") -> dict[str, object]:
    found: dict[str, object] = json.loads((Path(folder) / name).read_text())
    return found


@pytest.mark.parametrize("run", ["scores", "greedy"])
def test_a_run_is_evaluated_as_it_evaluated_itself(home: Path, capsys: pytest.CaptureFixture[str], run: str) -> None:
    said(capsys, "eval", run, "--episodes", "6", "--out", f"ev_{run}")
    final = Path(f"runs/{run}/evaluation/final/VirtualHome-FoodPreparation.json").read_text()
    # The same panel, way of choosing, temperature, discount and draws.
    assert result(f"ev_{run}") == json.loads(final)
    settings = json.loads(Path(f"ev_{run}/settings.json").read_text())
    assert (settings["who.choice"], settings["who.temperature"]) == ("token", 4.0 if run == "scores" else 0.0)


def test_discounted_and_plain_returns_stand_beside_each_other(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("eval", "planner", "--game", "VirtualHome-FoodPreparation", "--episodes", "2", "--out", "ev_planner")
    printed = said(capsys, *words, "--gamma", "0.5")
    # Six steps to the one reward: 0.5^5 = 0.03125.
    assert result("ev_planner")["mean"] == 0.03125 and result("ev_planner")["gamma"] == 0.5
    assert result("ev_planner", "result_undiscounted.json")["mean"] == 1.0
    assert re.search(r"planner, discounted by 0\.5 .*0\.031 ", printed)
    assert re.search(r"undiscounted .*1\.000 ", printed)
    # Another discount of the same episodes: nothing is played again.
    assert "2 done" in said(capsys, *words, "--resume", "--gamma", "0.9")
    assert result("ev_planner")["mean"] == pytest.approx(0.9**5)
    assert "discounted" not in said(capsys, *words, "--resume")
    assert not Path("ev_planner/result_undiscounted.json").exists()


def test_a_model_without_a_run_chooses_among_actions(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--game", "VirtualHome-FoodPreparation", "--episodes", "2", "--param", "max_steps=4")
    said(capsys, "eval", "tiny", "--agent", "scoring", *words, "--temperature", "0.5", "--out", "ev_tiny")
    settings = json.loads(Path("ev_tiny/settings.json").read_text())
    assert [settings[f"who.{key}"] for key in ("normalisation", "temperature", "template")] == ["words", 0.5, None]
    assert result("ev_tiny")["invalid_action_rate"] == 0.0
    changed = ("--agent-set", "choice=action", "--agent-set", "normalisation=none")
    said(capsys, "eval", "scores", *changed, *words, "--out", "ev_none")
    settings = json.loads(Path("ev_none/settings.json").read_text())
    assert (settings["who.normalisation"], "who.choice" in settings) == ("none", False)


def test_a_gamma_that_is_no_discount_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = "gamma=0.0 is not a discount; set gamma above 0 and at most 1."
    refused(capsys, message, "random", "--game", "VirtualHome-FoodPreparation", "--gamma", "0")
