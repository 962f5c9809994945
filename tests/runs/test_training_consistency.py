"""Runs with the options against the inconsistency between seeds: what stops goes on to the same end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stratagem.algorithms.ms_grpo_config import MSGRPOConfig
from stratagem.data.trajectories import read_trajectories
from stratagem.errors import ConfigError, RunError
from stratagem.recipe import Recipe, dump_toml, load_recipe
from stratagem.runs.checkpoint import load_latest
from stratagem.runs.display import Display
from stratagem.runs.experiment import check_recipe, hold_template
from stratagem.runs.folder import RunFolder
from stratagem.runs.interrupts import StopRequest
from stratagem.runs.metrics import read_metrics
from stratagem.runs.plan import make_plan
from stratagem.runs.training import Outcome, train_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "algorithms" / "ms_grpo.md"

FAST = (
    *("agent.recovery=random", "agent.max_new_tokens=4", "evaluation.num_episodes=3", "evaluation.every=0"),
    *("warm_start.num_steps=2", "warm_start.num_episodes=3", "warm_start.batch_size=4"),
    "game.params={size=3, max_steps=4, coordinates=false}",
)
ALL = (
    *("algorithm.baseline=leave_one_out", "algorithm.group_size=2", "algorithm.sampled_group_size=2"),
    *("algorithm.dynamic_groups=3", "algorithm.adaptive_temperature={gain=0.5, entropy_share=1.5, highest=2.0}"),
    'agent.template=["action", "action_brief", "action_formal"]',
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATAGEM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class StoppingDisplay(Display):
    """Asks for the end once an iteration is shown."""

    def __init__(self, stop: StopRequest, at: int | None) -> None:
        super().__init__(live=False)
        self.stop, self.at = stop, at

    def update(self, iteration: int, metrics: Mapping[str, float]) -> None:
        super().update(iteration, metrics)
        self.stop.requested |= iteration == self.at


def recipe_with(*overrides: str) -> Recipe:
    return load_recipe("tiny", [*FAST, *overrides])


def run(root: Path, name: str, recipe: Recipe, *, resume: bool = False, at: int | None = None) -> Outcome:
    stop = StopRequest()
    with RunFolder.create(root, name, dump_toml(recipe), resume=resume) as folder, StoppingDisplay(stop, at) as display:
        return train_run(recipe, folder, display, stop=stop)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if not key.startswith(("seconds_", "peak_"))}
        for row in read_metrics(folder / "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: None) -> Path:
    """A run with every option, which nobody interrupted."""
    root = tmp_path_factory.mktemp("whole")
    assert run(root, "whole", recipe_with(*ALL)).completed
    return root / "whole"


def test_every_option_shows_in_what_a_run_leaves_behind(whole: Path) -> None:
    rows = rows_of(whole)[1:]
    assert rows[0]["temperature"] == 1.0 and rows[1]["temperature"] > 1.0
    assert all(row["sampled_entropy"] > 0 and row["ratio_gap"] < 1e-3 for row in rows if row["num_updates"])
    assert any(row["num_updates"] for row in rows)
    groups = read_trajectories(whole / "trajectories")
    assert sum(row["extra_groups"] for row in rows) == len(groups) - 2 * len(rows) > 0
    assert {t.info["template"] for stored in groups for t in stored.group.trajectories} > {"action_brief"}
    saved = load_latest(whole / "checkpoints")
    assert saved is not None
    assert set(saved.tensors) == {"parameters", "heads"}
    assert set(saved.tensors["heads"]) == {"temperature", "first_entropy"}
    assert saved.tensors["heads"]["first_entropy"].tolist() == [rows[0]["sampled_entropy"]]


@pytest.mark.parametrize("at", [0, 2], ids=["after_warm_start", "after_two"])
def test_stopping_and_resuming_changes_nothing(whole: Path, tmp_path: Path, at: int) -> None:
    recipe = recipe_with(*ALL)
    first = run(tmp_path, "parts", recipe, at=at)
    assert (first.completed, first.iteration) == (False, at)
    assert run(tmp_path, "parts", recipe, resume=True).completed
    parts = tmp_path / "parts"
    assert rows_of(whole) == rows_of(parts)
    a, b = load_file(whole / "model" / "model.safetensors"), load_file(parts / "model" / "model.safetensors")
    assert all(torch.equal(a[name], b[name]) for name in a)
    for path in sorted(whole.glob("trajectories/*.parquet")):
        assert path.read_bytes() == (parts / path.relative_to(whole)).read_bytes()


def test_the_plan_holds_the_groups_that_may_be_drawn() -> None:
    plain, dynamic = make_plan(recipe_with()), make_plan(recipe_with("algorithm.dynamic_groups=3"))
    # 4 iterations of 2 groups of 4 episodes, and up to 3 groups more.
    assert (plain.training_episodes, dynamic.training_episodes) == (32, 80)


def test_template_files_of_an_ensemble_are_held_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "tags: action\nassistant_prefix: <action>\n--- user\n{observation}\n"
    Path("mine.txt").write_text(text)
    recipe = recipe_with('agent.template=["action", "mine.txt"]')
    hold_template(recipe, tmp_path, keep=True)
    assert (tmp_path / "template-2.txt").read_text() == text
    Path("mine.txt").write_text(text + "\n")
    message = (
        f"agent.template='mine.txt' was changed since run {tmp_path.name!r} was made; put back what "
        f"{str(tmp_path / 'template-2.txt')!r} holds, or start a new run."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        hold_template(recipe, tmp_path, keep=False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.adaptive_temperature={}", "agent.temperature=0.7"],
            "agent.temperature=0.7 is not in algorithm.adaptive_temperature's lowest=1.0..highest=1.3, between which "
            "it moves; change one of them.",
        ),
        (
            ['agent.template=["action", "action_brief", "action_formal"]', "warm_start.num_episodes=2"],
            "warm_start.num_episodes=2 cannot show the 3 templates of agent.template, one in an episode; set it to as "
            "many or more.",
        ),
        (
            ['agent.template=["action", "think_plan_action"]'],
            "template=['action', 'think_plan_action'] asks for different answers: 'action' has the tags action, "
            "'think_plan_action' has think, plan, action; choose templates with the same tags.",
        ),
    ],
    ids=["temperature", "warm_start", "tags"],
)
def test_combinations_that_cannot_work_are_refused_without_a_model(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_recipe(recipe_with(*overrides))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "algorithm.baseline=mean",
            "algorithm.baseline='mean' is not one of 'group', 'leave_one_out'.",
        ),
        ("algorithm.dynamic_groups=-1", "In [algorithm]: dynamic_groups=-1 must be 0 or more."),
        (
            "algorithm.adaptive_temperature={lowest=2.0}",
            "In [algorithm.adaptive_temperature]: lowest=2.0 and highest=1.3 leave no room; set 0 < lowest < highest.",
        ),
        ("agent.template=3", "agent.template=3 is an integer; write a string or a list of strings."),
    ],
)
def test_wrong_values_are_refused_with_their_place(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        recipe_with(override)


def test_every_line_of_the_page_s_section_changes_the_recipe() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Consistency\n")[2].partition("\n## ")[0]
    lines = re.findall(r"`--set '?([^'`]+)'?`", section)
    assert len(lines) >= 9
    # The recipe has some of them by now.
    without = ["step_coef=2", "step_target=value", "step_credit=normalised", "minibatch_prompts=false"]
    without = [f"algorithm.{setting}" for setting in without]
    plain = load_recipe("frozen_lake", without)
    for line in lines:
        recipe = load_recipe("frozen_lake", [*without, line])
        check_recipe(recipe)
        assert recipe != plain, line


def test_the_options_are_off_by_default() -> None:
    settings = MSGRPOConfig()
    assert (settings.baseline, settings.dynamic_groups, settings.adaptive_temperature) == ("group", 0, None)
