"""The experiments of MS-GRPO as one command: what is run, what it costs, what the page says of what there is."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stratagem.agents.language import AgentConfig
from stratagem.algorithms.ms_grpo_config import MSGRPOConfig
from stratagem.cli import main
from stratagem.config import dump_toml
from stratagem.errors import ConfigError, RunError
from stratagem.evaluation.panels import EvaluationResult
from stratagem.files import atomic_write_text
from stratagem.recipe import load_recipe
from stratagem.reproduce.arm import Arm
from stratagem.reproduce.arms import PARTS, SCALES, make_arms
from stratagem.reproduce.collect import FINISHED, MISSING, OTHER, STOPPED, collect_baselines, collect_run, measured_rate
from stratagem.reproduce.cost import cost_table, plan_costs
from stratagem.reproduce.launch import Job, Slots, default_slots
from stratagem.reproduce.pages import Findings
from stratagem.reproduce.published import ABLATION, PANELS, TABLE_1
from stratagem.reproduce.report import write_report

FAST = [
    *("--scale", "tiny", "--seeds", "1"),
    *("--set", "warm_start=false", "--set", "agent.recovery=random", "--set", "agent.max_new_tokens=4"),
    *("--set", "algorithm.num_iterations=2", "--set", "evaluation.num_episodes=2", "--set", "evaluation.every=1"),
]


SIZES = (
    *("algorithm.group_size=32", "algorithm.sampled_group_size=16", "algorithm.episode_temperature=1.0"),
    *("algorithm.kl_coef=0.0", "format_penalty=false"),
)
"""So that the tests do not move with the recipes."""


def arms_of(scale: str = "tiny", parts: tuple[str, ...] = PARTS, overrides: tuple[str, ...] = ()) -> dict[str, Arm]:
    return {arm.name: arm for arm in make_arms(scale, parts, overrides)}


# ---- what the paper says ---------------------------------------------------------------------------------------------


def test_the_differences_of_table_1_are_those_of_its_means() -> None:
    for row in TABLE_1.values():
        # Means of differences are differences of means; the paper rounds to three digits.
        assert row.change.mean == pytest.approx(row.final.mean - row.initial.mean, rel=0, abs=0.0015)


def test_table_1_has_every_panel_for_both_trainings() -> None:
    assert set(TABLE_1) == {(training, panel) for training in ("snake", "frozen_lake") for panel in PANELS}


# ---- arms ------------------------------------------------------------------------------------------------------------


def test_the_paper_scale_is_the_paper_s_setting() -> None:
    arms = arms_of("paper")
    for name in ("snake", "frozen_lake"):
        recipe, algorithm = arms[name].recipe, arms[name].algorithm
        assert recipe.model.name == "Qwen/Qwen2.5-3B-Instruct"
        assert (algorithm.num_iterations, algorithm.num_groups, *arms[name].sizes) == (700, 1, 100, 25)
        assert recipe.evaluation.panels == PANELS and recipe.evaluation.num_episodes == 50
    assert SCALES["paper"].num_seeds == 8
    sizes = {arm.sizes for arm in arms.values() if "figure 3" in arm.parts}
    assert sizes == {(100, 25), (100, 50), (100, 100), (50, 25), (25, 25)}
    assert set(ABLATION) <= sizes
    # (100, 25) is the main Snake run: it is not run twice.
    assert "figure 3" in arms["snake"].parts and "snake_g100_s25" not in arms


def test_arms_with_equal_settings_are_one_and_names_are_unique() -> None:
    for scale in SCALES:
        recipes = [dataclasses.replace(arm.recipe, name="") for arm in make_arms(scale)]
        assert all(recipes.count(recipe) == 1 for recipe in recipes)
        names = [arm.name for arm in make_arms(scale)]
        assert len(set(names)) == len(names)


def test_each_ablation_changes_one_thing() -> None:
    arms = {name: arm.recipe for name, arm in arms_of("laptop", overrides=SIZES).items()}
    base = arms["snake_g32_s8"]

    def changed(name: str) -> list[str]:
        first, second = dump_toml(base).splitlines(), dump_toml(arms[name]).splitlines()
        return sorted({line.partition(" =")[0] for line in set(first) ^ set(second)} - {"name", "", "[format_penalty]"})

    assert changed("snake_uniform") == changed("snake_sharp") == ["episode_temperature"]
    assert changed("snake_kl_on") == ["kl_coef"]
    assert changed("snake_g32_s32") == ["episode_temperature", "sampled_group_size"]
    assert base.format_penalty is None and arms["snake_format_on"].format_penalty is not None
    paper = arms_of("paper")
    assert paper["snake"].recipe.format_penalty is not None
    assert paper["snake_format_off"].recipe.format_penalty is None


def test_a_context_is_compared_with_the_same_recipe_without_one() -> None:
    paper = {name: arm.recipe for name, arm in arms_of("paper").items()}
    for game in ("snake", "frozen_lake"):
        for steps in (3, "all"):
            arm = paper[f"{game}_context_{steps}"]
            assert isinstance(arm.agent, AgentConfig) and arm.agent.context_steps == steps
            assert dataclasses.replace(arm, name=game, agent=paper[game].agent) == paper[game]
    assert "snake_context_0" not in paper


def test_a_recipe_of_one_step_episodes_gets_longer_ones_to_have_a_past() -> None:
    # 48 groups of 1 step are 6 groups of 8 steps; a step of ascent takes all 6 instead of 12.
    settings = ("algorithm.max_steps=1", "algorithm.num_groups=48", "algorithm.minibatch_groups=12")
    mixed = "algorithm.minibatch_prompts=false"  # of the recipe of Frozen Lake, to which the settings go too
    arms = arms_of("laptop", ("ablations",), (*SIZES, mixed, *settings))
    none = arms["snake_context_0"].recipe
    algorithm = arms["snake_context_0"].algorithm
    assert isinstance(algorithm, MSGRPOConfig)
    assert (algorithm.max_steps, algorithm.num_groups, algorithm.minibatch_groups) == (8, 6, 6)
    assert (arms["snake_g32_s8"].algorithm.max_steps, arms["snake_g32_s8"].algorithm.num_groups) == (1, 48)
    for steps in (3, "all"):
        arm = arms[f"snake_context_{steps}"].recipe
        assert dataclasses.replace(arm, name=none.name, agent=none.agent) == none


def test_parts_choose_arms() -> None:
    assert list(arms_of(parts=("table 1",))) == ["snake", "frozen_lake"]
    assert list(arms_of("laptop", ("figure 3",), SIZES)) == [
        "snake", "snake_g32_s8", "snake_g32_s32", "snake_g16_s8", "snake_g8_s8",
    ]  # fmt: skip


def test_overrides_reach_every_arm_and_are_the_base_of_the_ablations() -> None:
    arms = arms_of("laptop", overrides=(*SIZES, "algorithm.group_size=16", "algorithm.num_iterations=3"))
    assert all(arm.algorithm.num_iterations == 3 for arm in arms.values())
    assert {arm.sizes for arm in arms.values() if "figure 3" in arm.parts} == {
        (16, 4), (16, 8), (16, 16), (8, 4), (4, 4),
    }  # fmt: skip


def test_another_algorithm_is_refused() -> None:
    message = "algorithm.name of a reproduction of MS-GRPO must be 'ms_grpo'; leave it out."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        make_arms("paper", overrides=('algorithm={name="poad"}', "format_penalty=false"))


# ---- cost and machine ------------------------------------------------------------------------------------------------


def test_costs_are_those_of_the_runs_that_are_left() -> None:
    arm = arms_of(overrides=("warm_start=false",))["frozen_lake"]
    (cost,) = plan_costs([arm], [2], 3, rate=10.0)
    # 4 iterations x 2 groups x 4 episodes = 32, and 3 evaluations (start, 2, final) x 4 panels x 6 episodes = 72.
    assert cost.episodes == 2 * (32 + 72)
    # Training 32 x 4 steps; evaluation 3 x 6 x (2 lakes x 4 steps + 2 snakes x 100 steps); 16 tokens each.
    assert cost.amount == 2 * 16 * (32 * 4 + 18 * (2 * 4 + 2 * 100))
    assert cost.hours == pytest.approx(cost.amount / 10 / 3600)
    assert cost_table([cost]).rows[-1][2] == "2 of 3"


def test_the_machine_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("stratagem.reproduce.launch._memory_gib", lambda: 16.0)
    # 16 GiB have room for three runs of 5 GiB.
    assert default_slots(10, cuda=False) == Slots(3, 2)
    assert default_slots(1, cuda=False) == Slots(1, 8)
    assert default_slots(10, cuda=False, count=8) == Slots(8, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    slots = default_slots(10, cuda=True)
    assert slots == Slots(2, 4, ("2", "5"))
    environment = slots.environment(1)
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["OMP_NUM_THREADS"]) == ("5", "4")


def test_a_job_is_a_train_command(tmp_path: Path) -> None:
    words = Job("snake-1", Path("r.toml"), 1, resume=True).command(Path("runs"))
    assert " ".join(words) == "train r.toml --seed 1 --name snake-1 --runs-dir runs --resume"


# ---- collecting ------------------------------------------------------------------------------------------------------


def result(panel: str, mean: float, params: dict[str, object] | None = None) -> EvaluationResult:
    return EvaluationResult(
        panel=panel, panel_hash="0" * 12, game=panel, params=dict(params or {}), num_episodes=2,
        returns=(mean - 1, mean + 1), seeds=(0, 1), mean=mean, std=2**0.5, interval=(mean - 1, mean + 1),
        success_rate=None, success_interval=None, invalid_action_rate=0.0, mean_episode_length=1.0, tokens_per_step=1.0,
    )  # fmt: skip


def fake_run(arm: Arm, seed: int, runs: Path, values: dict[str, list[float]], *, finished: bool = True) -> None:
    """Write a run whose evaluations at 0, 2 and the end found ``values``, a minute of training apart."""
    folder = runs / arm.run_name(seed)
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(dump_toml(arm.with_seed(seed)))
    rows = [{"iteration": i, "seconds_play": 20.0 * (i > 0), "seconds_update": 10.0 * (i > 0)} for i in range(5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[: 5 if finished else 3]))
    tags = ["start", "000002", "final"][: 3 if finished else 2]
    for panel, numbers in values.items():
        for tag, number in zip(tags, numbers, strict=False):
            (folder / "evaluation" / tag).mkdir(parents=True, exist_ok=True)
            (folder / "evaluation" / tag / f"{panel}.json").write_text(result(panel, number).to_json())
    if finished:
        (folder / "summary.json").write_text("{}")


@pytest.fixture
def arms() -> dict[str, Arm]:
    return arms_of(overrides=("warm_start=false",))


def test_a_run_is_read_in_whatever_state_it_is(arms: dict[str, Arm], tmp_path: Path) -> None:
    arm = arms["snake"]
    assert collect_run(arm, 0, tmp_path).state == MISSING
    fake_run(arm, 0, tmp_path, {"Snake-Standard": [-3.0, -2.0, -1.0]})
    run = collect_run(arm, 0, tmp_path)
    assert (run.state, run.iteration, run.seconds) == (FINISHED, 4, 120.0)
    assert [(p.iteration, p.minutes, p.result.mean) for p in run.points["Snake-Standard"]] == [
        (0, 0.0, -3.0), (2, 1.0, -2.0), (4, 2.0, -1.0),
    ]  # fmt: skip
    fake_run(arm, 1, tmp_path, {"Snake-Standard": [-3.0, -2.0]}, finished=False)
    assert (collect_run(arm, 1, tmp_path).state, collect_run(arm, 1, tmp_path).iteration) == (STOPPED, 2)
    other = dataclasses.replace(arm, recipe=dataclasses.replace(arm.recipe, seed=0, warm_start=None, name="snake"))
    changed = dataclasses.replace(
        other, recipe=dataclasses.replace(other.recipe, algorithm=dataclasses.replace(arm.algorithm, kl_coef=0.5))
    )
    found = collect_run(changed, 0, tmp_path)
    assert (found.state, found.detail) == (OTHER, "algorithm.kl_coef (0.0 -> 0.5)")


def test_a_damaged_run_is_named(arms: dict[str, Arm], tmp_path: Path) -> None:
    fake_run(arms["snake"], 0, tmp_path, {"Snake-Standard": [-3.0, -2.0, -1.0]})
    path = tmp_path / "snake-0" / "evaluation" / "final" / "Snake-Standard.json"
    path.write_text("{")
    with pytest.raises(RunError, match=r"^'.*Snake-Standard.json' is no result of an evaluation \(JSONDecodeError: "):
        collect_run(arms["snake"], 0, tmp_path)
    (tmp_path / "snake-0" / "recipe.toml").write_text("=")
    with pytest.raises(RunError, match=r"^'.*recipe.toml' cannot be read \(.*\); restore it from a copy, or delete"):
        collect_run(arms["snake"], 0, tmp_path)


def test_the_rate_is_that_of_finished_runs(arms: dict[str, Arm], tmp_path: Path) -> None:
    assert measured_rate([collect_run(arms["snake"], 0, tmp_path)], {"snake": 600}) is None
    fake_run(arms["snake"], 0, tmp_path, {"Snake-Standard": [-3.0, -2.0, -1.0]})
    fake_run(arms["snake"], 1, tmp_path, {"Snake-Standard": [-3.0, -2.0]}, finished=False)
    runs = [collect_run(arms["snake"], seed, tmp_path) for seed in range(2)]
    # 600 planned tokens in 4 x 30 seconds.
    assert measured_rate(runs, {"snake": 600}) == 5.0
    # Evaluations count here, though not in the time of a curve: planned tokens hold theirs too.
    metrics = tmp_path / "snake-0" / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"iteration": 5, "seconds_evaluate": 30.0, "seconds_save": null}\n')
    run = collect_run(arms["snake"], 0, tmp_path)
    assert (measured_rate([run], {"snake": 600}), run.seconds) == (4.0, 120.0)


def test_baselines_are_read_as_both_commands_write_them(tmp_path: Path) -> None:
    (tmp_path / "big" / "Snake-Poison").mkdir(parents=True)
    (tmp_path / "big" / "Snake-Poison" / "result.json").write_text(result("Snake-Poison", 1.0).to_json())
    (tmp_path / "big" / "Snake-Standard.json").write_text(result("Snake-Standard", 2.0).to_json())
    found = collect_baselines(tmp_path, PANELS)
    assert {panel: one.mean for panel, one in found["big"].items()} == {"Snake-Poison": 1.0, "Snake-Standard": 2.0}


# ---- the page --------------------------------------------------------------------------------------------------------


def findings(arms: dict[str, Arm], runs: Path, baselines: dict[str, dict[str, EvaluationResult]]) -> Findings:
    listed = list(arms.values())
    collected = [collect_run(arm, seed, runs) for arm in listed for seed in range(2)]
    return Findings("tiny", listed, collected, baselines, "stratagem reproduce ms-grpo", PARTS)


def table_rows(page: str, begin: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith(f"| {begin}")
    ]


def test_a_page_without_runs_has_the_paper_s_numbers_and_says_what_is_missing(
    arms: dict[str, Arm], tmp_path: Path
) -> None:
    page = write_report(findings(arms, tmp_path / "runs", {}), tmp_path / "out").read_text()
    assert "**0 of 26 runs are finished.**" in page
    assert table_rows(page, "snake ")[1][:4] == ["snake", "Snake-Standard", "-2.607 (0.162)", "-"]
    assert "* `snake`, seeds 0, 1: not started" in page and "* `snake_kl_on`, seeds 0, 1: not started" in page
    assert page.count("No run has been evaluated yet.") == 2 and "Nobody has been evaluated yet." in page
    ablated = page.partition("## Further ablations")[2].partition("| Frozen Lake, one change at a time")
    for part, sampled in ((ablated[0], 2), (ablated[2], 3)):  # Snake: a quarter of G = 4, but 2 at least; Frozen Lake
        assert [row[0] for row in table_rows(part, "context: ")] == [
            f"context: {what} (G = 4, G' = {sampled})" for what in ("the last 3 steps", "the whole episode")
        ]
    assert not list((tmp_path / "out").glob("*.png"))


def test_a_page_of_some_runs_counts_finished_ones_only(arms: dict[str, Arm], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    fake_run(arms["snake"], 0, runs, {panel: [-3.0, -2.0, -1.0] for panel in PANELS})
    fake_run(arms["snake"], 1, runs, {panel: [-3.5, -2.0, -0.5] for panel in PANELS})
    fake_run(arms["frozen_lake"], 0, runs, {panel: [0.0, 0.25] for panel in PANELS}, finished=False)
    fake_run(arms["snake_g4_s4"], 0, runs, {panel: [-3.0, -2.0, -2.0] for panel in PANELS})
    dqn = {"Snake-Standard": result("Snake-Standard", 5.0, {"max_steps": 7})}
    out = tmp_path / "out"
    page = write_report(findings(arms, runs, {"dqn": dqn}), out).read_text()
    # Initial: mean 3.25, std of two = 0.5 / sqrt 2 = 0.354. Final: 0.75. Differences 2 and 3: 2.5 (0.707).
    snake = next(row for row in table_rows(page, "snake ") if row[1] == "Snake-Standard")
    assert snake == [
        "snake", "Snake-Standard", "-2.607 (0.162)", "-3.250 (0.354)", "-1.487 (1.093)", "-0.750 (0.354)",
        "+1.120 (1.001)", "+2.500 (0.707)", "2",
    ]  # fmt: skip
    lake = next(row for row in table_rows(page, "frozen_lake ") if row[1] == "Snake-Standard")
    assert lake[3] == lake[5] == "-" and lake[8] == "0"
    assert "* `frozen_lake-0`: not finished (iteration 2 of 4)" in page
    assert "* `frozen_lake`, seed 1: not started" in page
    assert "* trained on Snake, Snake-Standard: -0.500 (0.45)" in page
    player = next(row for row in table_rows(page, "Snake-Standard ") if row[1].startswith("dqn"))
    assert player[1] == "dqn, game with max_steps=7"
    assert player[2:4] == ["5.000 (1.414) [4.000, 6.000]", "4.580 (2.47)"]
    # All four of four: 100 of 100 in the paper.
    assert ["G = 4, G' = 4", "-2.000", "-0.86", "2.0", "1.00x", "1"] in table_rows(page, "G = 4")
    for figure in (1, 2, 3):
        for suffix in ("png", "svg", "csv"):
            assert (out / f"ms-grpo-figure{figure}.{suffix}").stat().st_size > 0
    with (out / "ms-grpo-figure1.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["evaluation"] == "Snake-Poison"]
    assert [" ".join(row[key] for key in ("training", "seed", "iteration", "minutes", "mean")) for row in rows] == [
        "snake 0 0 0.000 -3.0",
        "snake 0 2 1.000 -2.0",
        "snake 0 4 2.000 -1.0",
        "snake 1 0 0.000 -3.5",
        "snake 1 2 1.000 -2.0",
        "snake 1 4 2.000 -0.5",
        "frozen_lake 0 0 0.000 0.0",
        "frozen_lake 0 2 1.000 0.25",
    ]
    with (out / "ms-grpo-table1.csv").open() as file:
        first = next(csv.DictReader(file))
    assert (first["runs"], first["final_mean"], first["paper_final_mean"]) == ("2", "-0.75", "-1.487")


def test_figures_of_an_older_page_do_not_stay(arms: dict[str, Arm], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "ms-grpo-figure1.png").write_bytes(b"old")
    (out / "notes.md").write_text("mine")
    write_report(findings(arms, tmp_path / "runs", {}), out)
    assert not (out / "ms-grpo-figure1.png").exists() and (out / "notes.md").exists()


# ---- the command -----------------------------------------------------------------------------------------------------


def command_refused(capsys: pytest.CaptureFixture[str], message: str, *words: str) -> None:
    assert main(["reproduce", *words]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_commands_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    paper = "ms-grpo"
    command_refused(
        capsys, "Unknown paper 'msgrpo'. Did you mean 'ms-grpo'? Available: ms-grpo, poad, step-hrl.", "msgrpo"
    )
    command_refused(
        capsys, "--table 2 is not in the paper; its only results table is --table 1.", paper, "--table", "2"
    )
    command_refused(capsys, "--figure 4 is not in the paper; use --figure 1, 2 or 3.", paper, "--figure", "4")
    command_refused(capsys, "--seeds 0 runs nothing; set it to 1 or more.", paper, "--seeds", "0")
    command_refused(capsys, "--jobs 0 runs nothing; set it to 1 or more.", paper, "--jobs", "0")
    command_refused(
        capsys,
        "--tokens-per-second 0.0 never ends; give a measured rate above 0.",
        *(paper, "--tokens-per-second", "0"),
    )
    command_refused(
        capsys,
        "--dqn 'nowhere' holds no evaluation; name a folder that `stratagem baseline dqn --out` has written.",
        *(paper, "--dqn", "nowhere", "--scale", "tiny", "--table", "1", "--seeds", "1"),
    )
    assert not list(tmp_path.glob("**/runs"))


def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "ms-grpo", "--scale", "paper", "--table", "1", "--dry-run"]
    assert main([*words, "--tokens-per-second", "1000"]) == 0
    printed = capsys.readouterr().out
    assert "Would run 16 of 16 runs into reproduce/ms-grpo-paper:" in printed
    # Snake: 8 seeds x (700 x 100 + 15 x 4 x 50) episodes; 15 evaluations are the start, 13 between and the end.
    (row,) = (line for line in printed.splitlines() if line.startswith("| snake "))
    assert [cell.strip() for cell in row.strip("|").split("|")][2:4] == ["8 of 8", "584,000"]
    # 8 x (70,000 x 100 + 750 x (2 x 100 + 2 x 20)) steps x 200 tokens at 1,000 a second.
    assert "11,488,000,000" in row and "3,191.11" in row
    assert "1,000 planned tokens a second (--tokens-per-second)" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_experiments_run_end_to_end_and_a_second_time_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATAGEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SCALES, "tiny", dataclasses.replace(SCALES["tiny"], baseline_episodes=2))
    words = ["reproduce", "ms-grpo", *FAST, "--out", "all", "--figure", "2"]
    assert main(words) == 0, capfd.readouterr()
    printed = capfd.readouterr().out
    assert "2 of 2 runs are finished. The page: all/ms-grpo.md" in printed
    page = Path("all/ms-grpo.md").read_text()
    assert "**2 of 2 runs are finished.**" in page and page.endswith("## What is missing\n\nNo run.\n")
    assert {row[1] for row in table_rows(page, "Snake-Standard ")} >= {"trained on Snake", "random", "planner"}
    # The model is kept, the checkpoints of a finished run are not.
    assert Path("all/runs/snake-0/model").is_dir() and not Path("all/runs/snake-0/checkpoints").exists()
    log = Path("all/logs/snake-0.log")
    assert log.read_text().startswith("$ stratagem train all/recipes/snake.toml --seed 0 --name snake-0")
    before = log.stat().st_mtime_ns
    assert main(words) == 0
    assert log.stat().st_mtime_ns == before
    # Another setting is another recipe: the run is left alone, and the page says so.
    assert main([*words, "--set", "algorithm.kl_coef=0.5", "--collect"]) == 0
    assert "* `snake-0`: of another recipe (algorithm.kl_coef (0.0 -> 0.5))" in Path("all/ms-grpo.md").read_text()


@pytest.mark.slow
def test_a_reproduction_that_is_stopped_saves_and_says_how_far_it_is(tmp_path: Path) -> None:
    environment = {**os.environ, "STRATAGEM_CACHE": str(tmp_path / "cache")}
    words = [
        *(sys.executable, "-m", "stratagem.cli", "reproduce", "ms-grpo", *FAST, "--table", "1", "--jobs", "1"),
        *("--set", "algorithm.num_iterations=400", "--set", "evaluation.every=0", "--set", "run.checkpoint_every=1"),
    ]
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    metrics = tmp_path / "reproduce" / "ms-grpo-tiny" / "runs" / "snake-0" / "metrics.jsonl"
    end = time.monotonic() + 300
    while time.monotonic() < end and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, (out, err)
    assert b"snake-0: stopped (0 of 2 finished)" in out and b"frozen_lake-0: starts" not in out
    assert b"Stopping after this iteration of each run" in err
    arm = make_arms(
        "tiny",
        ("table 1",),
        [*FAST[5::2], "algorithm.num_iterations=400", "evaluation.every=0", "run.checkpoint_every=1"],
    )[0]
    run = collect_run(arm, 0, metrics.parents[1])
    assert run.state == STOPPED and 2 <= run.iteration < 400
    page = (tmp_path / "reproduce" / "ms-grpo-tiny" / "ms-grpo.md").read_text()
    assert f"* `snake-0`: not finished (iteration {run.iteration} of 400)" in page


@pytest.mark.slow
def test_a_run_that_fails_costs_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRATAGEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    # A run folder that cannot be continued: its newest state is damaged.
    recipe = arms_of(parts=("table 1",), overrides=tuple(FAST[5::2]))["snake"]
    run = tmp_path / "reproduce" / "ms-grpo-tiny" / "runs" / "snake-0"
    run.mkdir(parents=True)
    atomic_write_text(run / "recipe.toml", dump_toml(recipe.with_seed(0)))
    assert main(["reproduce", "ms-grpo", *FAST, "--table", "1"]) == 1
    captured = capfd.readouterr()
    assert "snake-0: continues" in captured.out and "frozen_lake-0: starts" in captured.out
    assert "snake-0: failed with code 2 (0 of 2 finished)" in captured.out
    assert "1 of 2 runs are finished." in captured.out
    assert "snake-0: error: " in captured.err and "provenance.json" in captured.err


def test_the_recipes_of_every_scale_are_there() -> None:
    for scale in SCALES.values():
        for name in scale.recipes:
            assert load_recipe(name).name == name
