"""The experiments of STEP-HRL as one command: what is run, and what the page says of what there is."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratagem.cli import main
from stratagem.config import dump_toml
from stratagem.errors import ConfigError
from stratagem.evaluation.panels import EvaluationResult
from stratagem.reproduce import step_hrl_arms
from stratagem.reproduce.arm import Arm
from stratagem.reproduce.collect import collect_run
from stratagem.reproduce.pages import Findings
from stratagem.reproduce.step_hrl_arms import PARTS, SCALES, make_arms
from stratagem.reproduce.step_hrl_report import write_report
from stratagem.runs.experiment import check_recipe

PANEL = "ALFWorld-Generated-Unseen"


def arms_of(scale: str = "tiny", **chosen: Any) -> dict[str, Arm]:
    return {arm.name: arm for arm in make_arms(scale, **chosen)}


def test_the_agent_its_ablations_and_the_agents_beside_it() -> None:
    arms = arms_of("laptop")
    assert {name: arm.parts for name, arm in arms.items()} == {
        "alfworld_step_hrl": ("main", "ablations", "others"),
        "alfworld_cloning": ("main",),
        "alfworld_no_subtasks": ("ablations",),
        "alfworld_no_progress": ("ablations",),
        "glider_alfworld": ("others",),
        "flat_alfworld": ("others",),
        "eto_alfworld": ("others",),
        "scienceworld_step_hrl": ("main", "ablations", "others"),
        "scienceworld_cloning": ("main",),
        "scienceworld_no_subtasks": ("ablations",),
        "scienceworld_no_progress": ("ablations",),
    }
    base = arms["alfworld_step_hrl"].recipe
    agents = [arms[f"alfworld_no_{what}"].recipe.agent for what in ("subtasks", "progress")]
    assert agents == [replace(base.agent, use_subtasks=False), replace(base.agent, use_progress=False)]
    assert base.agent.use_subtasks and base.agent.use_progress
    glider = arms["glider_alfworld"].recipe
    assert glider.agent == replace(base.agent, use_progress=False, use_history=True)
    assert replace(glider, agent=base.agent, name=base.name) == base


def test_all_agents_of_a_task_make_as_many_steps_on_as_many_episodes() -> None:
    arms = arms_of("laptop", tasks=["alfworld"]).values()
    settings = ("num_iterations", "steps_per_iteration", "batch_episodes", "num_expert_episodes")
    assert len({tuple(getattr(arm.algorithm, name) for name in settings) for arm in arms}) == 1
    cloned = {arm.name: arm.algorithm.bc_iterations for arm in arms}
    assert cloned == {
        "alfworld_step_hrl": 42, "alfworld_cloning": 52, "alfworld_no_subtasks": 42, "alfworld_no_progress": 42,
        "glider_alfworld": 42, "flat_alfworld": 52, "eto_alfworld": 42,
    }  # fmt: skip


@pytest.mark.parametrize("scale", list(SCALES))
def test_every_arm_of_a_scale_passes_its_checks(scale: str) -> None:
    for arm in make_arms(scale, tasks=["alfworld"]):
        check_recipe(arm.recipe)


def test_parts_and_overrides_choose_arms() -> None:
    assert list(arms_of(parts=("ablations",), tasks=["alfworld"])) == [
        "alfworld_step_hrl", "alfworld_no_subtasks", "alfworld_no_progress",
    ]  # fmt: skip
    assert all(a.algorithm.batch_episodes == 7 for a in arms_of(overrides=["algorithm.batch_episodes=7"]).values())
    message = (
        "algorithm.name of a reproduction of STEP-HRL must be 'step_hrl' and agent.name 'hierarchical'; leave them out."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        make_arms("laptop", overrides=['agent={name="react"}'])


def result(value: float) -> EvaluationResult:
    return EvaluationResult(
        panel=PANEL, panel_hash="0" * 12, game=PANEL, params={}, num_episodes=2, returns=(0.0, 0.0), seeds=(0, 1),
        mean=0.0, std=0.0, interval=(0.0, 0.0), success_rate=value, success_interval=(0.0, 1.0),
        invalid_action_rate=0.0, mean_episode_length=6.0, tokens_per_step=4.0, optimum_mean=None,
        share_of_optimum=None, gamma=1.0,
    )  # fmt: skip


def fake_run(arm: Arm, seed: int, runs: Path, values: dict[str, float]) -> None:
    """Write a finished run of 10 iterations, evaluated under some tags."""
    folder = runs / arm.run_name(seed)
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(dump_toml(arm.with_seed(seed)))
    rows = [{"iteration": i, "seconds_play": 0.0, "seconds_update": 6.0 * (i > 0)} for i in range(11)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for tag, value in values.items():
        (folder / "evaluation" / tag).mkdir(parents=True)
        (folder / "evaluation" / tag / f"{PANEL}.json").write_text(result(value).to_json())
    (folder / "summary.json").write_text("{}")


def test_the_page_shows_what_reinforcement_learning_adds_to_cloning(tmp_path: Path) -> None:
    arms = arms_of(tasks=["alfworld"])
    fake_run(arms["alfworld_step_hrl"], 0, tmp_path, {"start": 0.0, "000005": 0.4, "final": 0.6})
    fake_run(arms["alfworld_step_hrl"], 1, tmp_path, {"start": 0.0, "000005": 0.6, "final": 0.8})
    fake_run(arms["alfworld_cloning"], 0, tmp_path, {"start": 0.0, "000005": 0.4, "final": 0.5})
    listed = list(arms.values())
    collected = [collect_run(arm, seed, tmp_path) for arm in listed for seed in range(2)]
    findings = Findings("tiny", listed, collected, {}, "stratagem reproduce step-hrl", PARTS)
    page = write_report(findings, tmp_path / "out").read_text()
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ALF")]
    unseen = {row[1]: row[2:] for row in rows if row[0] == PANEL}
    # Of 0.4 and 0.6 the mean is 0.5 and the deviation 0.2 / sqrt 2 = 0.141; ten iterations of 6 seconds are a minute.
    assert unseen["STEP-HRL"] == ["0.500 (0.141)", "0.700 (0.141)", "1.0", "2"]
    # Cloning alone ends at its last iteration, so it has nothing to show in between.
    assert unseen["cloning alone"] == ["0.500", "0.500", "1.0", "1"]
    assert unseen["without subtasks"] == ["-", "-", "-", "0"]
    assert "The paper's, with Llama-3.2-1B: 0.8986 on seen and 0.8960 on unseen tasks." in page
    assert "* `alfworld_cloning`, seed 1: not started" in page
    assert (tmp_path / "out" / "step-hrl-alfworld.png").stat().st_size > 0
    with (tmp_path / "out" / "step-hrl-tasks.csv").open() as file:
        (row,) = (r for r in csv.DictReader(file) if (r["arm"], r["panel"]) == ("alfworld_step_hrl", PANEL))
    assert (row["runs"], float(row["cloned_mean"]), float(row["final_mean"])) == ("2", 0.5, pytest.approx(0.7))


def test_commands_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for message, words in (
        ("--scale paper is not there for step-hrl; use --scale laptop or tiny.", ["--scale", "paper"]),
        ("Unknown task 'alfword'. Did you mean 'alfworld'? Available: alfworld, scienceworld.", ["--tasks", "alfword"]),
        ("--dqn means nothing to paper 'step-hrl'; leave it out.", ["--dqn", "x"]),
    ):
        assert main(["reproduce", "step-hrl", *words]) == 2
        assert capsys.readouterr().err == f"error: {message}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_agent_is_trained_and_its_page_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATAGEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    every = step_hrl_arms._task_arms
    monkeypatch.setattr(step_hrl_arms, "_task_arms", lambda name, items: every(name, items)[:1])
    short = ["--set", 'game.params={view="raw", max_steps=4}', "--set", 'evaluation.panels=["ALFWorld-Generated"]']
    words = ["reproduce", "step-hrl", "--scale", "tiny", "--tasks", "alfworld", "--seeds", "1", "--out", "all"]
    assert main([*words, *short]) == 0, capfd.readouterr()
    assert "1 of 1 runs are finished. The page: all/step-hrl.md" in capfd.readouterr().out
    assert Path("all/step-hrl.md").read_text().endswith("## What is missing\n\nNo run.\n")
