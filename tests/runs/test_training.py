"""Training runs with the tiny model, in this process; tests/test_cli_interrupt.py kills them from outside."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stratagem.errors import ConfigError, RunError
from stratagem.evaluation.episode_log import read_episodes
from stratagem.evaluation.panels import EvaluationResult
from stratagem.models.catalog import ModelConfig, build_tiny
from stratagem.models.local import LocalModel
from stratagem.recipe import ALGORITHMS as RECIPE_ALGORITHMS
from stratagem.recipe import GameConfig, Recipe, dump_toml, load_recipe
from stratagem.runs import checkpoint, training
from stratagem.runs.advice import no_gain_advice, no_signal_advice
from stratagem.runs.checkpoint import list_checkpoints, load_latest
from stratagem.runs.display import Display
from stratagem.runs.experiment import build_experiment, check_recipe, panel_params
from stratagem.runs.folder import RunFolder
from stratagem.runs.interrupts import StopRequest
from stratagem.runs.metrics import read_metrics
from stratagem.runs.plan import layer_parameters, make_plan, parameter_count
from stratagem.runs.training import Outcome, train_run
from stratagem.runs.weights import load_parameters

FAST = (
    # Random moves after invalid answers make episodes differ in length, and with them in penalties: a signal at once.
    "agent.recovery=random",
    "agent.max_new_tokens=4",
    "warm_start.num_steps=2",
    "warm_start.num_episodes=2",
    "warm_start.batch_size=4",
    "evaluation.num_episodes=3",
    "game.params={size=3, max_steps=4, coordinates=false}",
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("STRATAGEM_CACHE")
    os.environ["STRATAGEM_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("STRATAGEM_CACHE")
    if before is not None:
        os.environ["STRATAGEM_CACHE"] = before


class StoppingDisplay(Display):
    """Asks for the end once an iteration is shown, or a line begins with a text."""

    def __init__(self, stop: StopRequest, at: int | None = None, note: str | None = None) -> None:
        super().__init__(live=False)
        self.stop, self.at, self.text = stop, at, note

    def update(self, iteration: int, metrics: Mapping[str, float]) -> None:
        super().update(iteration, metrics)
        self.stop.requested |= iteration == self.at

    def note(self, text: str) -> None:
        super().note(text)
        self.stop.requested |= self.text is not None and text.startswith(self.text)


def recipe_with(*overrides: str) -> Recipe:
    return load_recipe("tiny", [*FAST, *overrides])


def run(
    root: Path, name: str, recipe: Recipe, *, resume: bool = False, at: int | None = None, note: str | None = None
) -> Outcome:
    stop = StopRequest()
    with (
        RunFolder.create(root, name, dump_toml(recipe), resume=resume) as folder,
        StoppingDisplay(stop, at, note) as display,
    ):
        return train_run(recipe, folder, display, stop=stop)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics without what depends on the machine's speed and memory."""
    return [
        {key: value for key, value in row.items() if not key.startswith(("seconds_", "peak_"))}
        for row in read_metrics(folder / "metrics.jsonl")
    ]


def assert_equal_runs(first: Path, second: Path) -> None:
    assert rows_of(first) == rows_of(second)
    a, b = load_file(first / "model" / "model.safetensors"), load_file(second / "model" / "model.safetensors")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    for path in sorted(first.glob("evaluation/*/*.json*")):
        assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()
    assert sorted(p.name for p in first.glob("evaluation/*")) == sorted(p.name for p in second.glob("evaluation/*"))
    for path in sorted(first.glob("trajectories/*.parquet")):
        assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: None) -> Path:
    """A run of four iterations that nobody interrupted."""
    root = tmp_path_factory.mktemp("whole")
    outcome = run(root, "whole", recipe_with())
    assert outcome.completed
    return root / "whole"


def test_a_run_leaves_everything_behind(whole: Path) -> None:
    names = {str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()}
    panel = "FrozenLake-NotSlippery"
    assert {
        "recipe.toml",
        "provenance.json",
        "metrics.jsonl",
        "warm_start.jsonl",
        "summary.json",
        "figures/learning_curve.png",
        "model/model.safetensors",
        "model/tokenizer.json",
        "model/chat_template.jinja",
        "checkpoints/000004/manifest.json",
        "trajectories/000001.parquet",
        "trajectories/000004.parquet",
        f"evaluation/start/{panel}.json",
        f"evaluation/warm_start/{panel}.jsonl",
        f"evaluation/000002/{panel}.json",
        f"evaluation/final/{panel}.jsonl",
    } <= names
    assert not any(".tmp-" in name for name in names)


def test_the_model_changed_and_loads_by_its_folder(whole: Path) -> None:
    trained = LocalModel.load(ModelConfig(name=str(whole / "model"))).named_parameters()
    fresh = LocalModel.load(ModelConfig(name="tiny")).named_parameters()
    assert trained.keys() == fresh.keys()
    assert any(not torch.equal(trained[name], fresh[name]) for name in fresh)


def test_metrics_hold_one_line_for_each_iteration_with_timings(whole: Path) -> None:
    rows = read_metrics(whole / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["seconds_play"] > 0 and row["peak_memory_gib"] > 0 for row in rows[1:])
    assert rows[0]["warm_start_loss"] > 0
    assert [("panel_mean" in row) for row in rows] == [True, False, True, False, True]
    assert any(row["num_updates"] > 0 for row in rows[1:])
    assert len(read_metrics(whole / "warm_start.jsonl")) == 2


def test_the_summary_compares_before_and_after(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    assert list(summary["evaluations"]) == ["start", "warm_start", "final"]
    means = {tag: e["panels"][0]["mean"] for tag, e in summary["evaluations"].items()}
    assert [(change["from"], change["mean"]) for change in summary["improvement"]] == [
        (tag, pytest.approx(means["final"] - means[tag], abs=1e-12)) for tag in ("warm_start", "start")
    ]
    assert summary["warnings"] == []  # it did not help, and nobody expects a random model to learn
    assert summary["minutes"] > 0


def test_evaluations_use_the_same_episodes_and_draws(whole: Path) -> None:
    results = [
        EvaluationResult.from_json(path.read_text()) for path in whole.glob("evaluation/*/FrozenLake-NotSlippery.json")
    ]
    assert len(results) == 4
    assert len({(result.panel_hash, result.seeds) for result in results}) == 1


def test_training_never_starts_where_a_panel_does(whole: Path) -> None:
    from stratagem.data.trajectories import read_trajectories

    experiment = build_experiment(recipe_with())
    starts = {
        trajectory.steps[0].state_key
        for stored in read_trajectories(whole / "trajectories")
        for trajectory in stored.group.trajectories
    }
    assert starts
    assert not starts & experiment.excluded_starts


@pytest.mark.parametrize("at", [0, 2, 3], ids=["after_warm_start", "after_two", "between_evaluations"])
def test_stopping_and_resuming_changes_nothing(whole: Path, tmp_path: Path, at: int) -> None:
    recipe = recipe_with()
    first = run(tmp_path, "parts", recipe, at=at)
    assert (first.completed, first.saved, first.iteration) == (False, True, at)
    assert not (tmp_path / "parts" / "model").exists()
    warm_start = (tmp_path / "parts" / "warm_start.jsonl").stat().st_mtime_ns
    assert run(tmp_path, "parts", recipe, resume=True).completed
    assert (tmp_path / "parts" / "warm_start.jsonl").stat().st_mtime_ns == warm_start  # it was not made again
    assert_equal_runs(whole, tmp_path / "parts")


@pytest.mark.parametrize("note", ["start:", "warm start 1/"])
def test_stopping_before_the_first_checkpoint_begins_again(whole: Path, tmp_path: Path, note: str) -> None:
    recipe = recipe_with()
    first = run(tmp_path, "parts", recipe, note=note)
    assert (first.completed, first.saved) == (False, False)
    assert run(tmp_path, "parts", recipe, resume=True).completed
    assert_equal_runs(whole, tmp_path / "parts")


def test_the_untrained_model_can_be_left_out(tmp_path: Path) -> None:
    recipe = recipe_with("evaluation.untrained=false", "evaluation.every=0", "algorithm.num_iterations=1")
    outcome = run(tmp_path, "short", recipe)
    assert outcome.completed
    assert list(outcome.evaluations) == ["warm_start", "final"]
    assert [change["from"] for change in outcome.summary["improvement"]] == ["warm_start"]
    assert (tmp_path / "short" / "figures" / "learning_curve.png").is_file()
    bare = recipe_with("evaluation.untrained=false", "warm_start=false", "algorithm.num_iterations=1")
    assert "start" in run(tmp_path, "bare", bare).evaluations  # there is nothing else to compare with


def test_a_crash_after_a_checkpoint_repeats_the_iterations_after_it(whole: Path, tmp_path: Path) -> None:
    # Checkpoints at 0, 2 and 4; the crash comes after iteration 3 was logged and played.
    recipe = recipe_with("run.checkpoint_every=2")

    class Crash(Display):
        def update(self, iteration: int, metrics: Mapping[str, float]) -> None:
            if iteration == 3:
                raise MemoryError

    with (
        RunFolder.create(tmp_path, "parts", dump_toml(recipe)) as folder,
        Crash(live=False) as display,
        pytest.raises(MemoryError),
    ):
        train_run(recipe, folder, display)
    assert [row["iteration"] for row in read_metrics(tmp_path / "parts" / "metrics.jsonl")] == [0, 1, 2, 3]
    assert run(tmp_path, "parts", recipe, resume=True).completed
    assert_equal_runs(whole, tmp_path / "parts")


@pytest.mark.parametrize("adapter", [False, True], ids=["all_weights", "adapter"])
def test_the_reference_after_warm_start_survives_a_resume(tmp_path: Path, adapter: bool) -> None:
    # A checkpoint for each iteration and one kept: that of iteration 0 is gone when the run is resumed.
    settings = ["algorithm.kl_coef=0.5", "run.keep_checkpoints=1", "warm_start.num_steps=4", "evaluation.every=0"]
    if adapter:
        settings += ["model.lora.rank=4", "warm_start.learning_rate=0.1"]
    recipe = recipe_with(*settings)
    assert run(tmp_path, "whole", recipe).completed
    run(tmp_path, "parts", recipe, at=2)
    assert [path.name for path in list_checkpoints(tmp_path / "parts" / "checkpoints")] == ["000002"]
    assert run(tmp_path, "parts", recipe, resume=True).completed
    assert rows_of(tmp_path / "whole") == rows_of(tmp_path / "parts")
    rows = rows_of(tmp_path / "whole")[1:]
    # The reference is the model as it begins: the KL is 0 before the first step and grows.
    assert rows[0]["kl_to_reference"] == pytest.approx(0.0, abs=1e-6)
    assert rows[-1]["kl_to_reference"] > 1e-6


def test_a_full_disk_ends_the_run_and_the_resumed_run_is_the_same(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, real, calls = recipe_with(), checkpoint.save_file, []

    def full(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 4:  # parameters and state of iterations 0 and 1 fit
            raise OSError(28, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(checkpoint, "save_file", full)
    message = (
        f"The checkpoint of iteration 2 could not be written to {str(tmp_path / 'parts' / 'checkpoints')!r} (No space "
        "left on device); checkpoint 000001 is untouched. Free some space, then continue with --resume."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        run(tmp_path, "parts", recipe)
    monkeypatch.undo()
    assert run(tmp_path, "parts", recipe, resume=True).completed
    assert_equal_runs(whole, tmp_path / "parts")


def test_a_finished_run_that_is_resumed_stays_as_it_is(whole: Path) -> None:
    before = rows_of(whole)
    outcome = run(whole.parent, "whole", recipe_with(), resume=True)
    assert outcome.completed
    assert outcome.iteration == 4
    assert rows_of(whole) == before


@pytest.mark.parametrize(("total", "patience"), [(4, 3), (50, 10)])
def test_iterations_without_a_signal_are_explained(
    tmp_path: Path, total: int, patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "TINY", "another name")  # of this model no gain is expected
    recipe = recipe_with("warm_start=false", "agent.recovery=no_action", f"algorithm.num_iterations={total}")
    recipe = dataclasses.replace(recipe, game=replace(recipe.game, params=recipe.game.params | {"max_steps": 1}))
    outcome = run(tmp_path, "silent", recipe)
    assert outcome.summary["warnings"] == [
        f"No group carried a signal for {patience} iterations up to {patience}: 100% of the answers hold no valid "
        "action. Add a [warm_start], or choose another agent.template or more agent.max_new_tokens.",
        "Training did not help: the panel's mean changed by +0.000. 100% of the answers hold no valid "
        "action; lower algorithm.learning_rate, or give the form of an answer more weight (a [warm_start], a "
        "[format_penalty]).",
    ]
    assert list(outcome.summary["evaluations"]) == ["start", "final"]


def test_the_average_of_the_weights_is_evaluated_saved_and_resumed(tmp_path: Path) -> None:
    recipe = recipe_with("algorithm.average_decay=0.5", "algorithm.learning_rate=0.01")
    run(tmp_path, "whole", recipe)
    run(tmp_path, "parts", recipe, at=2)
    assert run(tmp_path, "parts", recipe, resume=True).completed
    assert_equal_runs(tmp_path / "whole", tmp_path / "parts")
    last = load_latest(tmp_path / "whole" / "checkpoints")
    assert last is not None
    model = LocalModel.load(ModelConfig(name=str(tmp_path / "whole" / "model")))
    saved = {name: parameter.detach() for name, parameter in model.named_parameters().items()}
    assert all(torch.equal(saved[name], value) for name, value in last.played.items())
    assert last.played is last.tensors["average"]
    assert any(not torch.equal(saved[name], value) for name, value in last.tensors["parameters"].items())


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (
            {"entropy": 0.4},
            {"entropy": 0.02, "invalid_action_rate": 0.0},
            "Training did not help: the panel's mean changed by -0.100. Entropy fell from 0.400 to 0.020 nats a token, "
            "so the policy froze on few answers; try another seed, a lower algorithm.learning_rate, or what keeps "
            "entropy up (ent_coef, kl_coef, max_kl).",
        ),
        (
            {},
            {"invalid_action_rate": 0.0},
            "Training did not help: the panel's mean changed by -0.100. Try more iterations, more groups or another "
            "seed, and look at the curves with `stratagem view`.",
        ),
    ],
)
def test_a_run_that_did_not_help_says_what_to_look_at(
    first: dict[str, float], last: dict[str, float], expected: str
) -> None:
    assert no_gain_advice(first, last, -0.1) == expected


def test_one_game_under_two_names_keeps_its_panel_apart() -> None:
    name = "stratagem.games.frozen_lake:FrozenLake"
    recipe = recipe_with(f"game.name={name}", 'evaluation.panels=["FrozenLake-NotSlippery"]')
    assert panel_params(recipe, "FrozenLake-NotSlippery") == panel_params(recipe, name)
    assert len(build_experiment(recipe).excluded_starts) == 3


def test_panels_that_hold_every_start_are_refused_before_a_model_loads() -> None:
    with pytest.raises(ConfigError, match="The panels hold all 3 starts of game 'frozen_lake' that 1,000 seeds reach"):
        build_experiment(recipe_with("game.params.size=2", "evaluation.num_episodes=50"))


@pytest.mark.parametrize(
    ("metrics", "has_warm_start", "expected"),
    [
        (
            {},
            False,
            "no episode was left to learn from, since the games failed. Run check_game on the game.",
        ),
        (
            {"num_episodes": 8, "invalid_action_rate": 0.95, "return_mean": -2.0},
            True,
            "95% of the answers hold no valid action. Add a longer one (warm_start.num_steps), or choose another "
            "agent.template or more agent.max_new_tokens.",
        ),
        (
            {"num_episodes": 8, "invalid_action_rate": 0.0, "success_rate": 1.0, "return_mean": 1.0},
            True,
            "all episodes of a group succeed alike. The game is solved; stop here or choose a harder one.",
        ),
        (
            {"num_episodes": 8, "invalid_action_rate": 0.0, "success_rate": 0.0, "return_mean": 0.0},
            True,
            "all episodes of a group end with the same return (mean 0.000), so none is better than another. Raise "
            'agent.temperature or algorithm.group_size, add a [warm_start] with demonstrator = "planner", or choose an '
            "easier game.",
        ),
    ],
    ids=["all_failed", "invalid", "solved", "equal"],
)
def test_the_advice_fits_the_reason(metrics: dict[str, float], has_warm_start: bool, expected: str) -> None:
    assert no_signal_advice(metrics, has_warm_start=has_warm_start) == expected


def test_greedy_evaluation_and_several_panels(tmp_path: Path) -> None:
    recipe = recipe_with(
        "warm_start=false",
        "agent.recovery=no_action",
        "algorithm.num_iterations=1",
        "evaluation.temperature=0",
        "evaluation.panels=['FrozenLake-Slippery', 'FrozenLake-NotSlippery']",
    )
    outcome = run(tmp_path, "greedy", recipe)
    assert [result.panel for result in outcome.evaluations["final"].results] == [
        "FrozenLake-Slippery",
        "FrozenLake-NotSlippery",
    ]
    # A greedy answer depends on the state alone, which no invalid answer changes.
    _, slippery = read_episodes(tmp_path / "greedy" / "evaluation" / "start" / "FrozenLake-Slippery.jsonl")
    assert all(len({step.completion_ids for step in t.steps}) == 1 for t in slippery.values())


def test_two_players_and_an_isolated_game(tmp_path: Path) -> None:
    recipe = load_recipe(
        "tiny",
        [
            *FAST[:2],
            "warm_start=false",
            "game.name=snake",
            "game.params={width=4, height=4, num_apples=1, max_steps=2}",
            "game.isolate=true",
            "algorithm.num_iterations=1",
            "algorithm.num_groups=1",
            "algorithm.group_size=2",
            "algorithm.sampled_group_size=2",
            "evaluation.num_episodes=2",
        ],
    )
    outcome = run(tmp_path, "snake", recipe)
    assert outcome.completed
    assert outcome.evaluations["final"].results[0].panel == "snake"


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    model = LocalModel.load(ModelConfig(name="tiny"))
    count = len(model.named_parameters())
    first = sorted(model.named_parameters())[0]
    message = (
        f"{str(tmp_path)!r} is not of model 'tiny': {count} parameters are missing or have another shape, the first is "
        f"{first!r}. Use the model that the run's recipe.toml names."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        load_parameters(model, {}, tmp_path)


def test_every_algorithm_of_a_recipe_has_a_driver() -> None:
    assert set(RECIPE_ALGORITHMS.values()) == set(training.ALGORITHMS)


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    run(tmp_path, "a", recipe_with("algorithm.num_iterations=1"))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_checkpoint_holds_no_more_than_it_needs(whole: Path) -> None:
    saved = load_latest(whole / "checkpoints")
    assert saved is not None
    assert saved.iteration == 4
    assert set(saved.tensors) == {"parameters"}
    assert set(saved.state) == {"optimizer", "no_signal", "warnings", "elapsed", "evaluations"}


# ---- what is checked before a model is loaded ------------------------------------------------------------------------


def test_a_panel_of_the_training_game_takes_over_its_settings() -> None:
    recipe = replace(recipe_with(), game=GameConfig("FrozenLake-NotSlippery", {"size": 8, "slippery": True}))
    assert panel_params(recipe, "FrozenLake-NotSlippery") == {"size": 8, "slippery": True}
    assert panel_params(recipe, "FrozenLake-Slippery") == {"size": 8}  # its variant fixes slippery
    assert panel_params(recipe, "Snake-Standard") == {}


def test_a_panel_of_the_training_game_is_played_with_the_settings_of_the_evaluation() -> None:
    recipe = recipe_with("evaluation.params={size=5}", "game.params.max_steps=3")
    recipe = replace(recipe, game=replace(recipe.game, name="FrozenLake-NotSlippery"))
    params = panel_params(recipe, "FrozenLake-NotSlippery")
    assert (params["size"], params["max_steps"]) == (5, 3)
    assert panel_params(recipe, "Snake-Standard") == {}  # not the game that is trained on


def test_starts_of_all_panels_of_the_game_are_excluded() -> None:
    both = recipe_with("evaluation.panels=['FrozenLake-Slippery', 'Snake-Standard']")
    experiment = build_experiment(both)
    assert len(experiment.excluded_starts) == 3  # boards of Frozen Lake only
    assert [panel.game for panel in experiment.panels] == ["FrozenLake-Slippery", "Snake-Standard"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["evaluation.panels=['snake', 'snake']"],
            "evaluation.panels names 'snake' twice; name each panel once.",
        ),
        (
            ["model.name=tini"],
            "Unknown model 'tini'. Did you mean 'tiny'? Available: smollm2-135m-instruct, tiny.",
        ),
        (
            ["agent.template=acton"],
            "Unknown template 'acton'. Did you mean 'action'? Available: action, action_brief, action_formal, "
            "think_action, think_plan_action, think_plan_action_brief.",
        ),
        (
            ["agent.tag=plan"],
            "tag='plan' is not asked for by template 'action', whose tags are action; set tag to one of them or choose "
            "another template.",
        ),
    ],
    ids=["panel_twice", "model", "template", "tag"],
)
def test_wrong_names_are_refused_without_a_model(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_recipe(recipe_with(*overrides))


def test_a_planner_warm_start_needs_a_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    from stratagem.games.frozen_lake import FrozenLake

    monkeypatch.setattr(FrozenLake, "planner_action", lambda self, player=0: None)
    message = "warm_start.demonstrator='planner' but game 'frozen_lake' has no planner; use 'random'."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_recipe(recipe_with("warm_start.demonstrator=planner"))


# ---- the plan --------------------------------------------------------------------------------------------------------


def test_the_plan_counts_by_hand() -> None:
    plan = make_plan(recipe_with())
    # 4 iterations of 2 groups of 4 episodes; evaluations: start, warm start, iteration 2, final, of 3 episodes each.
    assert plan.training_episodes == 32
    assert (plan.evaluations, plan.evaluation_episodes) == (4, 12)
    # At most 4 steps of 4 tokens in each of the 32 + 12 episodes.
    assert plan.generated_tokens == 44 * 16
    # Three checkpoints of weights and two moments, one of which is being written: 3 * 3 * 30,000 * 4 bytes.
    assert plan.disk_gib == pytest.approx(9 * 30_000 * 4 / 2**30)
    assert make_plan(recipe_with("algorithm.average_decay=0.9")).disk_gib == pytest.approx(12 * 30_000 * 4 / 2**30)
    # One of two layers trains, 9,280 weights: the model, written at the end, is more than a third checkpoint.
    layer = recipe_with("model.trainable_layers=1")
    assert make_plan(layer).disk_gib == pytest.approx((2 * 3 * 9_280 + 30_000) * 4 / 2**30)
    one = recipe_with("model.trainable_layers=1", "run.keep_checkpoints=1")
    assert make_plan(one).disk_gib == pytest.approx((3 * 9_280 + 30_000) * 4 / 2**30)


def test_the_demo_takes_a_gibibyte() -> None:
    # A run of the same settings has 487 MiB of checkpoint and 517 MiB of model.
    disk = make_plan(load_recipe("frozen_lake_demo")).disk_gib
    assert disk is not None
    assert disk * 1024 == pytest.approx(487 + 517, rel=0.01)


def test_the_size_of_a_layer_is_that_of_the_weights(whole: Path) -> None:
    model, _ = build_tiny()
    weights = sum(p.numel() for name, p in model.named_parameters() if ".layers.0." in name)
    assert layer_parameters("tiny") == layer_parameters(str(whole / "model")) == weights
    assert layer_parameters("owner/model") is None


def test_a_file_that_holds_no_weights_says_nothing_of_a_layer(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert layer_parameters(str(tmp_path)) is None
    (tmp_path / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"{{{{")
    assert layer_parameters(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("tiny", 30_000.0),
        ("smollm2-135m-instruct", 135e6),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.5e9),
        ("owner/model", None),
    ],
)
def test_the_size_of_a_model_is_read_from_its_name(name: str, count: float | None) -> None:
    assert parameter_count(name) == count


@pytest.mark.parametrize(
    "name",
    ["frozen_lake", "frozen_lake_demo", "frozen_lake_planner", "paper_frozen_lake", "paper_snake", "snake", "tiny"],
)
def test_every_recipe_of_the_project_passes_its_checks(name: str) -> None:
    recipe = load_recipe(name)
    check_recipe(recipe)
    assert make_plan(recipe).training_episodes > 0


def test_the_paper_recipes_hold_the_papers_numbers() -> None:
    for name in ("paper_frozen_lake", "paper_snake"):
        recipe = load_recipe(name)
        algorithm = recipe.algorithm
        assert (algorithm.num_iterations, algorithm.group_size, algorithm.sampled_group_size) == (700, 100, 25)
        assert (recipe.agent.template, recipe.agent.max_new_tokens) == ("think_plan_action", 200)
        assert recipe.format_penalty is not None
        assert dataclasses.asdict(recipe.format_penalty)["length_start"] == 180
        assert recipe.model.name == "Qwen/Qwen2.5-3B-Instruct"
