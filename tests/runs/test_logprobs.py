"""What saved weights think of recorded tokens, on runs of the tiny model."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stratagem.cli import main
from stratagem.cli_logprobs import parse_iterations
from stratagem.data.token_logprobs import ANSWER, START, logprobs_file, read_token_logprobs
from stratagem.data.trajectories import read_trajectories, trajectory_file
from stratagem.errors import ConfigError, RunError, UnknownNameError
from stratagem.models.catalog import ModelConfig
from stratagem.models.local import LocalModel
from stratagem.recipe import Recipe, load_recipe
from stratagem.runs import logprobs
from stratagem.runs.checkpoint import load_checkpoint
from stratagem.runs.folder import RunFolder
from stratagem.runs.logprobs import change_of, compute_logprobs, find_weights, list_weights_of_run, token_logprobs
from stratagem.runs.weights import load_parameters

SETTINGS = (
    *("agent.recovery=random", "agent.max_new_tokens=5", "agent.temperature=0.5", "warm_start=false"),
    *("algorithm.num_iterations=3", "algorithm.learning_rate=3e-3", "algorithm.episode_temperature=false"),
    *("algorithm.sampled_group_size=false", "evaluation.num_episodes=2", "evaluation.every=0"),
    *("run.keep_checkpoints=2", "game.params={size=3, max_steps=4, coordinates=false}"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run of three iterations that keeps the checkpoints of the last two."""
    root = tmp_path_factory.mktemp("made")
    before = os.environ.get("STRATAGEM_CACHE")
    os.environ["STRATAGEM_CACHE"] = str(root / "cache")
    words = [word for item in SETTINGS for word in ("--set", item)]
    assert main(["train", "tiny", "--name", "first", "--runs-dir", str(root), *words]) == 0
    yield root / "first"
    os.environ.pop("STRATAGEM_CACHE")
    if before is not None:
        os.environ["STRATAGEM_CACHE"] = before


@pytest.fixture
def run(made: Path, tmp_path: Path) -> RunFolder:
    """A copy of it, to write into."""
    shutil.copytree(made, tmp_path / "runs" / "first")
    return RunFolder.open(tmp_path / "runs" / "first")


@pytest.fixture
def recipe(run: RunFolder) -> Recipe:
    return load_recipe(run.recipe_file)


def test_the_weights_that_sampled_find_what_the_sampler_recorded(run: RunFolder, recipe: Recipe) -> None:
    # Iteration 1 was sampled by the untrained model, iteration 3 by the weights after iteration 2; temperature 0.5.
    done = list(compute_logprobs(run, recipe, [START, "000002"], [1, 3]))
    assert [(item.weights, item.iteration, item.was_there) for item in done] == [
        (START, 1, False), (START, 3, False), ("000002", 1, False), ("000002", 3, False)
    ]  # fmt: skip
    for weights, iteration in ((START, 1), ("000002", 3)):
        answers, temperature = read_token_logprobs(logprobs_file(run.path, weights, iteration))
        assert temperature == 0.5
        recorded = {
            (group.index, place, number, ANSWER): step
            for group in read_trajectories(trajectory_file(run.trajectories, iteration))
            for place, episode in enumerate(group.group.trajectories)
            for number, step in enumerate(episode.steps)
        }
        assert answers.keys() == recorded.keys()
        for place, step in recorded.items():
            assert answers[place].completion_ids == step.completion_ids
            assert answers[place].logprobs == pytest.approx(step.logprobs, rel=1e-4, abs=1e-4)
    # The negative control: other weights think otherwise.
    other, _ = read_token_logprobs(logprobs_file(run.path, START, 3))
    gaps = [abs(sum(other[place].logprobs) - sum(step.logprobs)) for place, step in recorded.items()]
    assert max(gaps) > 0.01


def test_the_tree_gives_what_one_row_at_a_time_gives(run: RunFolder) -> None:
    model = LocalModel.load(ModelConfig(name="tiny"))
    rows = [((1, 5, 9), (7, 2)), ((1, 5, 9), (7, 3, 2)), ((1, 5, 9), (7, 2)), ((4,), (6,))]
    found = token_logprobs(model, rows, temperature=2.0, max_tokens=4)
    assert found[0] == found[2]
    for row, numbers in zip(rows, found, strict=True):
        with torch.no_grad():
            expected = model.logprobs_by_row([row], temperature=2.0).logprobs.tolist()
        assert numbers == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert token_logprobs(model, [], temperature=1.0, max_tokens=4) == []


def test_a_change_is_the_mean_over_tokens_and_by_the_sign_of_the_advantage(run: RunFolder, recipe: Recipe) -> None:
    list(compute_logprobs(run, recipe, [START, "000003"], [3]))
    change = change_of(run, 3, START, "000003")
    assert change is not None
    first, second = (read_token_logprobs(logprobs_file(run.path, w, 3))[0] for w in (START, "000003"))
    gained: dict[int, list[float]] = {1: [], 0: [], -1: []}
    (*groups,) = read_trajectories(trajectory_file(run.trajectories, 3))
    for place in first:
        advantage = groups[place[0]].advantages[place[1]] or 0.0
        sign = (advantage > 0) - (advantage < 0)
        gained[sign] += [b - a for a, b in zip(first[place].logprobs, second[place].logprobs, strict=True)]
    flat = [number for numbers in gained.values() for number in numbers]
    assert change.num_tokens == len(flat)
    assert change.after - change.before == pytest.approx(sum(flat) / len(flat), rel=1e-6, abs=1e-9)
    assert change.better == (pytest.approx(sum(gained[1]) / len(gained[1])) if gained[1] else None)
    assert change.worse == (pytest.approx(sum(gained[-1]) / len(gained[-1])) if gained[-1] else None)


def test_what_is_there_is_not_computed_again_unless_more_is_asked(
    run: RunFolder, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flags(limit: int | None = None) -> list[bool]:
        return [item.was_there for item in compute_logprobs(run, recipe, [START, "000003"], [2], limit=limit)]

    assert flags(limit=3) == [False, False]
    answers, _ = read_token_logprobs(logprobs_file(run.path, START, 2))
    assert {place[:2] for place in answers} == {(0, 0), (0, 1), (0, 2)}
    assert flags() == [False, False]
    assert flags(limit=3) == [True, True]
    # A damaged file, and one about other tokens, are made again.
    logprobs_file(run.path, START, 2).write_bytes(b"PAR1")
    shutil.copy(logprobs_file(run.path, "000003", 2), run.path / "kept.parquet")
    list(compute_logprobs(run, recipe, ["000003"], [1]))
    shutil.copy(logprobs_file(run.path, "000003", 1), logprobs_file(run.path, "000003", 2))
    assert flags() == [False, False]
    assert read_token_logprobs(logprobs_file(run.path, "000003", 2)) == read_token_logprobs(run.path / "kept.parquet")
    monkeypatch.setattr(logprobs, "_load", None)  # nothing is loaded where nothing is to be computed
    assert flags() == [True, True]


def test_without_its_checkpoint_the_model_of_a_finished_run_is_asked(run: RunFolder, recipe: Recipe) -> None:
    list(compute_logprobs(run, recipe, ["000003"], [3]))
    by_checkpoint, _ = read_token_logprobs(logprobs_file(run.path, "000003", 3))
    shutil.rmtree(run.checkpoints)
    shutil.rmtree(run.path / "logprobs")
    assert list_weights_of_run(run, recipe) == {START: None, "000003": run.path / "model"}
    list(compute_logprobs(run, recipe, [START, "000003"], [3]))
    by_model, _ = read_token_logprobs(logprobs_file(run.path, "000003", 3))
    for place, answer in by_checkpoint.items():
        assert by_model[place].logprobs == pytest.approx(answer.logprobs, rel=1e-5, abs=1e-6)


def test_a_checkpoint_is_loaded_over_the_untrained_model(run: RunFolder, recipe: Recipe) -> None:
    expected = LocalModel.load(recipe.model)
    load_parameters(
        expected, load_checkpoint(run.checkpoints / "000003").tensors["parameters"], run.checkpoints / "000003"
    )
    _, loaded = logprobs._load(recipe, run.checkpoints / "000003", LocalModel.load(recipe.model))
    for name, parameter in loaded.named_parameters().items():
        assert torch.equal(parameter, expected.named_parameters()[name])


def test_weights_are_named_by_words_and_iterations(run: RunFolder, recipe: Recipe) -> None:
    words = ("start", "0", "2", "3", "newest", "final")
    assert [find_weights(run, recipe, word) for word in words] == [
        START, START, "000002", "000003", "000003", "000003"
    ]  # fmt: skip
    warm = load_recipe("tiny", ["algorithm.num_iterations=3"])  # with a warm start, iteration 0 is what it left
    message = (
        "Run 'first' has no weights of iteration 0; iterations with weights: 2, 3. Older checkpoints are deleted; "
        "run.keep_checkpoints says how many stay."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        find_weights(run, warm, "0")
    message = "Unknown weights 'fina'. Did you mean 'final'? Available: 2, 3, final, newest, start."
    with pytest.raises(UnknownNameError, match=f"^{re.escape(message)}$"):
        find_weights(run, recipe, "fina")
    longer = replace(recipe, algorithm=replace(recipe.algorithm, num_iterations=9))
    shutil.rmtree(run.path / "model")
    message = "Run 'first' has no final weights, those of iteration 9; iterations with weights: 2, 3."
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        find_weights(run, longer, "final")
    shutil.rmtree(run.checkpoints)
    message = "Run 'first' has no checkpoint yet; look again after its first one."
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        find_weights(run, recipe, "newest")


def test_iterations_are_numbers_and_ranges(run: RunFolder) -> None:
    assert [parse_iterations(text, run) for text in (None, "all", "2", "1,3", "2-9,1")] == [
        [3], [1, 2, 3], [2], [1, 3], [1, 2, 3]
    ]  # fmt: skip
    message = "--iterations '1;2' is no list of iterations; write numbers and ranges, as 1,5,10-20, or all."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        parse_iterations("1;2", run)
    message = "Run 'first' holds no trajectories of iteration 7-8; iterations with some: 1 to 3."
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        parse_iterations("1,7-8", run)
    shutil.rmtree(run.trajectories)
    message = "Run 'first' holds no trajectories; run.save_trajectories may be off."
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        parse_iterations(None, run)


def test_a_run_that_is_set_back_forgets_what_will_be_made_again(run: RunFolder, recipe: Recipe) -> None:
    list(compute_logprobs(run, recipe, [START, "000002", "000003"], [1, 2, 3], limit=1))
    run.rewind(2)
    kept = sorted(path.relative_to(run.path / "logprobs").as_posix() for path in run.path.glob("logprobs/*/*.parquet"))
    assert kept == [
        "000002/000001.parquet", "000002/000002.parquet", "start/000001.parquet", "start/000002.parquet"
    ]  # fmt: skip


def test_the_command_prints_which_way_training_moved_tokens(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    words = ["logprobs", str(run.path), "--iterations", "2-3", "--limit", "8"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "first: the untrained model and iteration 3: 4 files"
    assert lines[1].startswith("iteration 2 under the untrained model: ") and lines[1].endswith(" tokens")
    table = lines.index("Mean log p of a recorded token, temperature 0.5")
    assert lines[table + 1].split() == ["Iteration", "Tokens", "From", "To", "Change", "Better", "Worse"]
    assert [line.split()[0] for line in lines[table + 2 : table + 4]] == ["2", "3"]
    assert lines[-1].startswith(f"saved in {run.path / 'logprobs'}; ")
    assert main(words) == 0
    assert capsys.readouterr().out.count(": was there\n") == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "3"], "--from 3 and --to newest are the same weights; name two different ones."),
        (["--limit", "0"], "--limit 0 leaves no episode; set it to 1 or more."),
        (["--device", "cuda:9"], "model.device='cuda:9' but torch sees no CUDA device; set it to 'cpu'."),
        (["--device", "gpu"], "device='gpu' is not known; use 'cpu', 'cuda' or 'cuda:N'."),
    ],
    ids=["same", "limit", "cuda", "device"],
)
def test_what_cannot_be_asked_is_refused(
    run: RunFolder, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    if "cuda:9" in words and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    capsys.readouterr()
    assert main(["logprobs", str(run.path), *words]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
