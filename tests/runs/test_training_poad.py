"""Runs of POAD and its baselines with the tiny model: what stops goes on to the same end, heads included."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stratagem.agents.language import LanguageAgent
from stratagem.agents.scoring import ScoringAgent, ScoringConfig
from stratagem.algorithms.poad_config import POADConfig
from stratagem.cli import main
from stratagem.errors import ConfigError
from stratagem.recipe import Recipe, dump_toml, load_recipe
from stratagem.runs.checkpoint import list_checkpoints, load_checkpoint
from stratagem.runs.experiment import build_agent, build_experiment, check_recipe
from stratagem.runs.metrics import read_metrics
from stratagem.runs.plan import make_plan

RECIPE = """
seed = 0

[game]
name = "Overcooked-TomatoSalad"
params = { max_steps = 12 }

[model]
name = "tiny"

[agent]
name = "scoring"
normalisation = "tokens"

[algorithm]
name = "poad"
num_iterations = 4
num_groups = 3
learning_rate = 1e-3
critic_learning_rate = 1e-2
num_epochs = 2
num_minibatches = 2
macro_discount = true
target_kl = false

[algorithm.critic]
layers = [16]

[evaluation]
num_episodes = 2
gamma = 0.95

[run]
checkpoint_every = 1
"""
LAKE = (
    'game.name="FrozenLake-NotSlippery"',
    "game.params={size=3, max_steps=4, coordinates=false}",
    'agent={name="language", max_new_tokens=4, recovery="random"}',
)
RUNS = {
    "poad_scoring": (),
    "ntpo_on_the_lake": (*LAKE, "algorithm.credit=ntpo", "algorithm.gamma_w=0.9"),
    "twosome_with_lora": (
        "algorithm.credit=twosome",
        "model.lora.rank=2",
        "algorithm.critic.trunk=base",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATAGEM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
        yield


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "kitchen.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def recipe_with(recipe_file: Path, *overrides: str) -> Recipe:
    return load_recipe(recipe_file, overrides)


def words(recipe_file: Path, runs: Path, name: str, overrides: tuple[str, ...]) -> list[str]:
    settings = [word for item in overrides for word in ("--set", item)]
    return ["train", str(recipe_file), "--runs-dir", str(runs), "--name", name, *settings]


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if not key.startswith(("seconds_", "peak_"))}
        for row in read_metrics(run / "metrics.jsonl")
    ]


def assert_equal_runs(first: Path, second: Path) -> None:
    assert repr(rows_of(first)) == repr(rows_of(second))  # as text, since nan is not itself
    pairs = [
        [load_checkpoint(list_checkpoints(run / "checkpoints")[-1]).tensors for run in (first, second)],
        [{"model": load_file(next((run / "model").glob("*.safetensors")))} for run in (first, second)],
    ]
    for a, b in pairs:
        assert a.keys() == b.keys()
        for group in a:
            assert a[group].keys() == b[group].keys()
            assert all(torch.equal(a[group][name], b[group][name]) for name in a[group])


@pytest.mark.parametrize("kind", RUNS)
def test_a_killed_run_goes_on_to_the_same_end(recipe_file: Path, tmp_path: Path, kind: str) -> None:
    overrides = RUNS[kind]
    assert main(words(recipe_file, tmp_path, "whole", overrides)) == 0
    rows = rows_of(tmp_path / "whole")
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["num_updates"] == 4.0 and row["ratio_gap"] < 1e-3 for row in rows[1:])
    heads = load_file(tmp_path / "whole" / "checkpoints" / "000004" / "heads.safetensors")
    assert list(heads) == ["value.0.weight", "value.2.weight"]
    assert float(heads["value.2.weight"].abs().sum()) > 0
    process = subprocess.Popen(
        [sys.executable, "-m", "stratagem.cli", *words(recipe_file, tmp_path, "parts", overrides)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    limit = time.monotonic() + 120
    while process.poll() is None and not (tmp_path / "parts" / "checkpoints" / "000002").exists():
        assert time.monotonic() < limit, "the run made no progress"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "the run had ended before it was killed"
    assert main(["train", "--runs-dir", str(tmp_path), "--name", "parts", "--resume"]) == 0
    assert_equal_runs(tmp_path / "whole", tmp_path / "parts")


def test_a_run_is_evaluated_by_its_name_as_it_was_trained(recipe_file: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(words(recipe_file, tmp_path, "first", ("algorithm.num_iterations=1",))) == 0
    command = ["eval", "first", "--runs-dir", str(tmp_path), "--episodes", "2", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    settings = (tmp_path / "out" / "settings.json").read_text(encoding="utf-8")
    assert '"who.normalisation": "tokens"' in settings
    capsys.readouterr()
    assert main([*command[:-2], "--max-new-tokens", "5"]) == 2
    message = "--max-new-tokens has no effect on run 'first', which scores actions instead of writing; leave it out."
    assert message in capsys.readouterr().err


def test_recipes_choose_the_algorithm_and_the_agent(recipe_file: Path, tmp_path: Path) -> None:
    recipe = recipe_with(recipe_file)
    assert isinstance(recipe.algorithm, POADConfig)
    assert recipe.agent == ScoringConfig(normalisation="tokens")
    assert isinstance(build_agent(None, recipe), ScoringAgent)  # type: ignore[arg-type]
    assert isinstance(build_agent(None, recipe_with(recipe_file, *LAKE)), LanguageAgent)  # type: ignore[arg-type]
    (tmp_path / "again.toml").write_text(dump_toml(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "again.toml") == recipe
    plan = make_plan(recipe)
    assert (plan.training_episodes, plan.generated_tokens) == (12, 0)
    assert plan.work == (plan.decisions, "decisions")
    assert f"at most {plan.decisions:,} decisions" in "\n".join(plan.lines())


def test_a_game_with_one_start_is_trained_from_it(recipe_file: Path) -> None:
    assert build_experiment(recipe_with(recipe_file)).excluded_starts == frozenset()
    lake = build_experiment(recipe_with(recipe_file, *LAKE))
    assert len(lake.excluded_starts) == 2
    assert [panel.gamma for panel in lake.panels] == [0.95]


@pytest.mark.parametrize("part", ["warm_start", "format_penalty"])
def test_what_teaches_a_format_is_refused_for_an_agent_that_writes_none(recipe_file: Path, part: str) -> None:
    key = {"warm_start": "warm_start.num_steps=1", "format_penalty": "format_penalty={}"}[part]
    message = (
        f"[{part}] is about the format of an answer, and agent.name='scoring' writes none; leave [{part}] out, or set "
        "agent.name = 'language'."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_recipe(recipe_with(recipe_file, key))


def test_a_discount_of_nothing_is_refused(recipe_file: Path) -> None:
    message = "In [evaluation]: gamma=0.0 is not in (0, 1]; use 1 for no discount."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        recipe_with(recipe_file, "evaluation.gamma=0")
