"""The arms that ask what makes MS-GRPO more consistent, and their table."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from stratagem.algorithms.ms_grpo_config import MSGRPOConfig
from stratagem.cli import main
from stratagem.config import dump_toml
from stratagem.errors import ConfigError
from stratagem.evaluation.panels import EvaluationResult
from stratagem.reproduce.arm import Arm
from stratagem.reproduce.arms import PARTS, SCALES, make_arms
from stratagem.reproduce.collect import collect_run
from stratagem.reproduce.consistency import CONSISTENCY
from stratagem.reproduce.published import PANELS
from stratagem.reproduce.report import Findings, write_report
from stratagem.runs.experiment import check_recipe

NAMES = [
    "frozen_lake", "frozen_lake_step_off", "frozen_lake_target_return", "frozen_lake_target_value",
    "frozen_lake_normalised", "frozen_lake_leave_one_out", "frozen_lake_dynamic", "frozen_lake_whole_groups",
    "frozen_lake_clip_higher", "frozen_lake_kl", "frozen_lake_max_kl_off", "frozen_lake_average",
    "frozen_lake_entropy", "frozen_lake_epochs", "frozen_lake_templates", "frozen_lake_temperature",
]  # fmt: skip


def arms_of(scale: str = "laptop", *overrides: str) -> dict[str, Arm]:
    return {arm.name: arm for arm in make_arms(scale, (CONSISTENCY,), overrides)}


def test_each_arm_changes_one_thing_of_the_recipe_of_frozen_lake() -> None:
    arms = arms_of()
    assert list(arms) == NAMES
    base = dump_toml(arms["frozen_lake"].recipe).splitlines()

    def changed(name: str) -> list[str]:
        lines = set(base) ^ set(dump_toml(arms[name].recipe).splitlines())
        return sorted({line.partition(" =")[0] for line in lines if line} - {"name"})

    assert {name: changed(name) for name in NAMES[1:-2]} == {
        "frozen_lake_step_off": ["step_coef", "step_credit", "step_target"],
        "frozen_lake_target_return": ["step_target"],
        "frozen_lake_target_value": ["step_target"],
        "frozen_lake_normalised": ["step_credit"],
        "frozen_lake_leave_one_out": ["baseline"],
        "frozen_lake_dynamic": ["dynamic_groups"],
        "frozen_lake_whole_groups": ["minibatch_groups", "minibatch_prompts"],
        "frozen_lake_clip_higher": ["clip_high"],
        "frozen_lake_kl": ["kl_coef"],
        "frozen_lake_max_kl_off": ["max_kl"],
        "frozen_lake_average": ["average_decay"],
        "frozen_lake_entropy": ["ent_coef"],
        "frozen_lake_epochs": ["num_epochs"],
    }
    settings = {name: arm.recipe.algorithm for name, arm in arms.items()}
    assert all(isinstance(algorithm, MSGRPOConfig) for algorithm in settings.values())
    assert (settings["frozen_lake_clip_higher"].clip_high, settings["frozen_lake_average"].average_decay) == (0.28, 0.8)
    assert (settings["frozen_lake_entropy"].ent_coef, settings["frozen_lake_epochs"].num_epochs) == (0.2, 2)
    adaptive = settings["frozen_lake_temperature"].adaptive_temperature
    assert (adaptive.lowest, adaptive.highest) == (1.0, 1.3)
    assert arms["frozen_lake_templates"].recipe.agent.template == ("action", "action_formal", "action_brief")


@pytest.mark.parametrize("scale", list(SCALES))
def test_the_arms_of_every_scale_pass_their_checks(scale: str) -> None:
    arms = arms_of(scale)
    assert len({arm.name for arm in arms.values()}) == len(arms) >= 9
    for arm in arms.values():
        check_recipe(arm.recipe)


def test_what_the_recipe_does_already_is_the_reference_and_its_absence_the_change() -> None:
    changes = ["num_epochs=2", "kl_coef=0.05", "dynamic_groups=3", "minibatch_prompts=false", "step_coef=0.0"]
    changes += ["max_kl=false", "step_target=return", "step_credit=normalised"]
    arms = arms_of("laptop", *(f"algorithm.{change}" for change in changes), "agent.temperature=0.8")
    left_out = ("epochs", "step_off", "target_value", "matching", "dynamic", "kl")
    assert not {f"frozen_lake_{name}" for name in left_out} & set(arms)
    assert arms["frozen_lake_max_kl"].recipe.algorithm.max_kl == 0.1
    assert arms["frozen_lake_kl_off"].recipe.algorithm.kl_coef == 0
    assert arms["frozen_lake_fixed"].recipe.algorithm.dynamic_groups == 0
    assert arms["frozen_lake_mixed"].recipe.algorithm.minibatch_prompts == 14
    assert arms["frozen_lake_step_on"].recipe.algorithm.step_coef == 1.0
    check_recipe(arms["frozen_lake_temperature"].recipe)  # the bounds move with the temperature of the recipe


def test_they_are_run_only_when_asked_for() -> None:
    assert CONSISTENCY not in PARTS
    assert not {arm.name for arm in make_arms("laptop")} & set(NAMES[1:])
    assert set(NAMES) <= {arm.name for arm in make_arms("laptop", (*PARTS, CONSISTENCY))}


def test_an_agent_without_tokens_is_refused() -> None:
    message = "agent.name of the consistency arms must be 'language', whose tokens MS-GRPO trains; leave it out."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        arms_of("laptop", 'agent={name="scoring"}', "format_penalty=false", "warm_start=false")


# ---- the page --------------------------------------------------------------------------------------------------------


def result(panel: str, mean: float) -> EvaluationResult:
    return EvaluationResult(
        panel=panel, panel_hash="0" * 12, game=panel, params={}, num_episodes=2, returns=(mean - 1, mean + 1),
        seeds=(0, 1), mean=mean, std=2**0.5, interval=(mean - 1, mean + 1), success_rate=None, success_interval=None,
        invalid_action_rate=0.0, mean_episode_length=1.0, tokens_per_step=1.0,
    )  # fmt: skip


def finished_run(arm: Arm, seed: int, runs: Path, final: float) -> None:
    """Write a run that ended with one value on Frozen Lake and with 0 elsewhere."""
    folder = runs / arm.run_name(seed)
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(dump_toml(arm.with_seed(seed)))
    (folder / "metrics.jsonl").write_text(json.dumps({"iteration": 0}) + "\n")
    for tag in ("warm_start", "final"):
        (folder / "evaluation" / tag).mkdir(parents=True)
        for panel in PANELS:
            value = final if tag == "final" and panel == "FrozenLake-NotSlippery" else 0.0
            (folder / "evaluation" / tag / f"{panel}.json").write_text(result(panel, value).to_json())
    (folder / "summary.json").write_text("{}")


def test_the_table_names_the_worst_seed_and_the_panel_of_training_first(tmp_path: Path) -> None:
    arms = list(arms_of("tiny").values())
    runs = tmp_path / "runs"
    for seed, value in enumerate((0.5, 0.25, 0.75)):
        finished_run(arms[0], seed, runs, value)
    finished_run(arms[-1], 1, runs, 0.5)
    collected = [collect_run(arm, seed, runs) for arm in arms for seed in range(3)]
    findings = Findings("tiny", arms, collected, {}, "stratagem reproduce ms-grpo --consistency", (CONSISTENCY,))
    page = write_report(findings, tmp_path / "out").read_text()
    assert "## Consistency" in page and "## Table 1" not in page
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    rows = [row for row in rows if row[0] in PANELS]
    assert len(rows) == len(arms) * len(PANELS) and {row[0] for row in rows[: len(arms)]} == {"FrozenLake-NotSlippery"}
    # Mean 0.5, std sqrt((0 + 1/16 + 1/16) / 2) = 0.25.
    assert rows[0] == ["FrozenLake-NotSlippery", "reference", "0.500 (0.250)", "0.250 (seed 1)", "0.750 (seed 2)", "3"]
    assert rows[1][2:] == ["-", "-", "-", "0"]
    assert rows[len(arms) - 1][1:] == ["adaptive temperature", "0.500", "0.500 (seed 1)", "0.500 (seed 1)", "1"]
    with (tmp_path / "out" / "ms-grpo-consistency.csv").open() as file:
        first = next(csv.DictReader(file))
    assert (first["arm"], first["worst"], first["worst_seed"], first["runs"]) == ("frozen_lake", "0.25", "1", "3")


def test_the_command_runs_these_arms_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "ms-grpo", "--consistency", "--dry-run", "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    assert "Would run 32 of 32 runs into reproduce/ms-grpo-laptop:" in printed
    assert all(f"| {name} " in printed for name in NAMES) and "| snake " not in printed
    assert main(["reproduce", "ms-grpo", "--consistency", "--collect", "--seeds", "1", "--scale", "tiny"]) == 0
    page = Path("reproduce/ms-grpo-tiny/ms-grpo.md").read_text()
    assert "stratagem reproduce ms-grpo --seeds 1 --consistency --scale tiny" in page
    assert main(["reproduce", "poad", "--consistency"]) == 2
    assert capsys.readouterr().err == "error: --consistency means nothing to paper 'poad'; leave it out.\n"
