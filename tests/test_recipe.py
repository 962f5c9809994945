from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stratagem.agents.prompts import TEMPLATES
from stratagem.errors import ConfigError
from stratagem.recipe import (
    ALGORITHMS,
    EvaluationConfig,
    GameConfig,
    Recipe,
    RunConfig,
    dump_toml,
    find_recipe,
    load_recipe,
)

ROOT = Path(__file__).resolve().parents[1]


def refuse(message: str, path: Path | str, *overrides: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        load_recipe(path, overrides)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    path = tmp_path / "recipes" / "lake.toml"
    path.write_text('seed = 3\n[algorithm]\nname = "ms_grpo"\ngroup_size = 8\nsampled_group_size = 4\n')
    return path


def test_a_recipe_is_found_by_path_and_by_name(lake: Path) -> None:
    assert load_recipe(lake) == load_recipe("lake") == load_recipe("recipes/lake.toml")


def test_precedence_is_defaults_then_file_then_overrides(lake: Path) -> None:
    recipe = load_recipe("lake", ["algorithm.group_size=16", "run.trackers=['wandb']"])
    assert recipe.name == "lake"
    assert recipe.seed == 3
    assert recipe.algorithm.num_groups == 1
    assert recipe.algorithm.group_size == 16
    assert recipe.algorithm.sampled_group_size == 4
    assert recipe.run.trackers == ("wandb",)


def test_the_resolved_recipe_is_a_recipe(lake: Path, tmp_path: Path) -> None:
    settings = ["algorithm.sampled_group_size=false", "algorithm.episode_temperature=false"]
    recipe = load_recipe("lake", [*settings, "warm_start.num_steps=1", "evaluation.temperature=0"])
    assert recipe.algorithm.sampled_group_size is None
    (tmp_path / "recipe.toml").write_text(dump_toml(recipe))
    assert load_recipe(tmp_path / "recipe.toml") == recipe


def test_a_run_is_read_though_its_recipe_set_what_has_no_effect(lake: Path) -> None:
    lake.write_text(lake.read_text() + 'step_coef = 0.0\nstep_target = "best"\nstep_credit = "matching"\n')
    with pytest.raises(ConfigError, match=r"^In \[algorithm\]: step_target='best' has no effect with step_coef=0,"):
        load_recipe(lake)
    algorithm = load_recipe(lake, of_run=True).algorithm
    assert (algorithm.step_target, algorithm.step_credit) == ("return", "normalised")
    used = load_recipe(lake, ["algorithm.step_coef=1.0", "algorithm.step_target=best"], of_run=True).algorithm
    assert used.step_target == "best"


def test_optional_parts_are_off_until_a_table_names_them(lake: Path) -> None:
    assert load_recipe("lake").warm_start is None
    warm_start = load_recipe("lake", ["warm_start.num_steps=7"]).warm_start
    assert warm_start is not None
    assert warm_start.num_steps == 7


def test_an_unknown_key_is_refused_with_the_nearest_one(lake: Path) -> None:
    message = "Unknown recipe key 'run.checkpoint_evry'. Did you mean 'run.checkpoint_every'? Keys of [run]: "
    message += "checkpoint_every, keep_checkpoints, save_trajectories, trackers."
    refuse(message, "lake", "run.checkpoint_evry=1")


def test_an_unknown_algorithm_is_refused(lake: Path) -> None:
    message = f"Unknown algorithm 'msgrpo'. Did you mean 'ms_grpo'? Available: {', '.join(sorted(ALGORITHMS))}."
    refuse(message, "lake", "algorithm.name=msgrpo")


def test_a_missing_file_is_refused(lake: Path) -> None:
    message = "Recipe file 'no/lake.toml' does not exist; give a path to a .toml file or a recipe's name."
    refuse(message, "no/lake.toml")


def test_an_unknown_name_is_refused_with_the_nearest_one(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratagem.recipe.recipe_folders", lambda: [Path("recipes")])
    refuse("Unknown recipe 'lkae'. Did you mean 'lake'? Available: lake.", "lkae")


def test_broken_toml_is_refused_with_its_line(lake: Path) -> None:
    lake.write_text("seed = 3\ngame = [\n")
    message = r"^Recipe 'recipes/lake\.toml' is not valid TOML: .*\. Correct that place in the file\.$"
    with pytest.raises(ConfigError, match=message):
        load_recipe("lake")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("game.step_timeout_s=0", "In [game]: step_timeout_s=0.0 ends every step; set it above 0."),
        ("evaluation.num_episodes=0", "In [evaluation]: num_episodes=0 evaluates nothing; set it to 1 or more."),
        (
            "evaluation.every=-1",
            "In [evaluation]: every=-1 is negative; use 0 for start and end only, or 1 or more.",
        ),
        (
            "evaluation.temperature=-1",
            "In [evaluation]: temperature=-1.0 is negative; use 0 for greedy or a positive number.",
        ),
        (
            "evaluation.temperature=inf",
            "In [evaluation]: temperature=inf draws every token alike; use a finite number.",
        ),
        ("run.checkpoint_every=0", "In [run]: checkpoint_every=0 never saves; set it to 1 or more."),
        ("run.keep_checkpoints=0", "In [run]: keep_checkpoints=0 keeps nothing; set it to 1 or more."),
        (
            "run.trackers=['tensorbord']",
            "run.trackers[0]='tensorbord' is not one of 'tensorboard', 'wandb', 'trackio'. Did you mean 'tensorboard'?",
        ),
    ],
)
def test_a_value_that_means_nothing_is_refused(lake: Path, override: str, message: str) -> None:
    refuse(message, "lake", override)


def test_defaults_are_those_of_the_documentation() -> None:
    assert Recipe(name="x").game == GameConfig("frozen_lake", {}, isolate=False, step_timeout_s=60.0)
    assert EvaluationConfig() == EvaluationConfig((), 50, 0, None, gamma=1.0, untrained=True)
    assert RunConfig() == RunConfig(10, 2, (), True)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_of_the_project_loads(path: Path) -> None:
    assert load_recipe(path).name == path.stem


def test_the_recipes_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (ROOT / "recipes").glob("*.toml"):
        assert find_recipe(path.stem).samefile(path)


def test_the_wheel_holds_recipes_templates_and_the_type_marker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"stratagem/_recipes/{path.name}" for path in (ROOT / "recipes").glob("*.toml")}
    assert {name for name in names if "_recipes" in name} == expected
    assert {"stratagem/py.typed", "stratagem/recipe.py"} <= names
    assert {f"stratagem/agents/templates/{name}.txt" for name in TEMPLATES} <= names
    assert not any(name.startswith(("tests", "docs")) for name in names)


def test_the_example_in_the_documentation_loads(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    (tmp_path / "example.toml").write_text(text.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    recipe = load_recipe(tmp_path / "example.toml")
    assert recipe.warm_start is not None
    assert recipe.algorithm.num_iterations == 30
