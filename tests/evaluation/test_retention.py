"""General questions before and after training, by lm_eval."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem.cli import main
from stratagem.errors import ConfigError
from stratagem.evaluation import retention
from stratagem.evaluation.retention import DEFAULT_TASKS, RetentionConfig, Scores, changes, measure, retention_table
from stratagem.reproduce.poad_published import RETENTION

needs_lm_eval = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed (pip install -e '.[retention]')"
)


def scores(values: tuple[float, ...], questions: str = "abcd", metric: str = "acc") -> Scores:
    return Scores("quiz", metric, values, tuple(questions))


# ---- comparing -------------------------------------------------------------------------------------------------------


def test_a_difference_is_paired_by_question() -> None:
    before, after = scores((1.0, 0.0, 1.0, 0.0)), scores((1.0, 0.0, 1.0, 1.0))
    (row,) = changes([after], [before])
    assert (row.before, row.after, row.difference, row.num_questions) == (0.5, 0.75, 0.25, 4)
    # std of 1, 0, 1, 0 is sqrt(4 / 4 / 3); of the differences 0, 0, 0, 1 it is sqrt((3 / 16 + 9 / 16) / 3) = 0.5.
    assert row.before_stderr == pytest.approx(math.sqrt(1 / 3) / 2)
    assert row.difference_stderr == pytest.approx(0.25)
    # Unpaired, the error of the difference would be sqrt(1 / 12 + 1 / 16) = 0.38.
    assert row.difference_stderr < math.hypot(row.before_stderr or 0, row.after_stderr or 0)


def test_a_model_alone_has_a_score_only() -> None:
    (row,) = changes([scores((1.0,), "a")])
    assert (row.after, row.after_stderr, row.before, row.difference) == (1.0, None, None, None)
    assert retention_table([row]).headers == ("Task", "Metric", "Questions", "Score")
    assert retention_table([row]).rows == (("quiz", "acc", "1", "1.0000"),)


def test_the_table_shows_both_sides_with_their_errors() -> None:
    table = retention_table(changes([scores((1.0, 0.0, 1.0, 1.0))], [scores((1.0, 0.0, 1.0, 0.0))]))
    assert table.headers == ("Task", "Metric", "Questions", "Before", "After", "Difference")
    assert table.rows == (("quiz", "acc", "4", "0.5000 (0.2887)", "0.7500 (0.2500)", "+0.2500 (0.2500)"),)


def test_other_questions_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"^The questions of task 'quiz' are not the same before and after\.$"):
        changes([scores((1.0, 0.0), "ab")], [scores((1.0, 0.0), "ac")])


def test_the_default_tasks_are_the_paper_s() -> None:
    assert tuple(RETENTION) == DEFAULT_TASKS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ("piqa", "")}, "tasks='piqa,' names no task; write names with commas between them."),
        ({"shots": -1}, "shots=-1 is negative; use 0 for none."),
        ({"limit": 0}, "limit=0 asks nothing; set it to 1 or more."),
        ({"batch_size": 0}, "batch_size=0 asks nothing; set it to 1 or more."),
        ({"include": "nowhere"}, "include='nowhere' is no folder; name one that holds task files (.yaml)."),
    ],
    ids=["tasks", "shots", "limit", "batch_size", "include"],
)
def test_settings_that_ask_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        RetentionConfig(**settings)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRATAGEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], message: str, *words: str) -> None:
    capsys.readouterr()
    assert main(["retention", *words]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_missing_lm_eval_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise retention.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(retention.importlib.metadata, "version", missing)
    message = "Retention needs lm_eval; run `pip install -e '.[retention]'` in a clone of Stratagem."
    refused(capsys, message, "tiny", "--tasks", "piqa")


def test_nobody_of_that_name_is_measured(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = "Unknown run or model 'tinny'. Did you mean 'tiny'? Available: smollm2-135m-instruct, tiny."
    refused(capsys, message, "tinny")


SHORT = ["--set", "warm_start=false", "--set", "algorithm.num_iterations=1", "--set", "agent.max_new_tokens=2"]

QUIZ = """task: quiz
dataset_path: json
dataset_kwargs:
  data_files: {{test: {folder}/quiz.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: "{{{{choices}}}}"
metric_list:
  - metric: acc
  - metric: acc_norm
metadata:
  version: 1
"""


@pytest.fixture
def quiz(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task of ten questions, which needs no hub."""
    monkeypatch.setenv("HF_HOME", str(home / "hub"))
    folder = home / "quiz"
    folder.mkdir()
    rows = [
        {"question": f"{n} and {n} make", "choices": [f"{2 * n}", f"{n}", "a cat"], "answer": 0} for n in range(1, 11)
    ]
    (folder / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "quiz.yaml").write_text(QUIZ.format(folder=folder), encoding="utf-8")
    return folder


@needs_lm_eval
@pytest.mark.slow
def test_a_run_is_compared_with_the_model_that_it_began_with(
    quiz: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "tiny", "--name", "first", *SHORT, "--set", "algorithm.learning_rate=0.05"]) == 0
    capsys.readouterr()
    words = ["retention", "first", "--tasks", "quiz", "--include", str(quiz)]
    assert main(words) == 0, capsys.readouterr()
    printed = capsys.readouterr().out
    assert "before: tiny\n" in printed and "after:  runs/first/model\n" in printed
    assert "saved in evaluations/first-retention-1/retention.json\n" in printed
    saved = json.loads(Path("evaluations/first-retention-1/retention.json").read_text())
    assert (saved["who"], saved["against"], saved["shots"], saved["tasks"]) == ("first", "tiny", 0, ["quiz"])
    assert [row["metric"] for row in saved["scores"]] == ["acc", "acc_norm"]
    row = saved["scores"][0]
    assert row["num_questions"] == 10
    assert row["difference"] == pytest.approx(row["after"] - row["before"])
    # The same model against itself: every question is answered alike.
    assert main(["retention", "tiny", "--against", "tiny", *words[2:], "--limit", "4", "--out", "same.json"]) == 0
    row = json.loads(Path("same.json").read_text())["scores"][0]
    assert (row["num_questions"], row["difference"], row["difference_stderr"]) == (4, 0.0, 0.0)


@needs_lm_eval
@pytest.mark.slow
def test_answers_are_judged_by_their_probability(quiz: Path, home: Path) -> None:
    from stratagem.models.catalog import load_pretrained

    (acc, _) = measure("tiny", RetentionConfig(tasks=("quiz",), include=str(quiz)))
    module, tokenizer = load_pretrained("tiny")
    rows = [json.loads(line) for line in (quiz / "quiz.jsonl").read_text().splitlines()]
    expected = []
    for row in rows:
        sums = []
        for choice in row["choices"]:
            prompt = tokenizer(row["question"], add_special_tokens=False).input_ids
            ids = prompt + tokenizer(" " + choice, add_special_tokens=False).input_ids
            with torch.inference_mode():
                logprobs = module(torch.tensor([ids])).logits[0].log_softmax(-1)
            sums.append(sum(float(logprobs[i - 1, ids[i]]) for i in range(len(prompt), len(ids))))
        expected.append(float(sums.index(max(sums)) == row["answer"]))
    assert acc.values == tuple(expected)


@needs_lm_eval
@pytest.mark.slow
def test_wrong_tasks_are_refused(quiz: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(
        capsys,
        "Unknown task 'quizz' of lm_eval. Did you mean 'quiz'? `lm-eval ls tasks` lists them.",
        *("tiny", "--tasks", "quizz", "--include", str(quiz)),
    )


@needs_lm_eval
@pytest.mark.slow
def test_questions_that_cannot_be_fetched_are_named(
    quiz: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (quiz / "quiz.jsonl").unlink()
    assert main(["retention", "tiny", "--tasks", "quiz", "--include", str(quiz)]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"error: The questions of task .quiz. could not be loaded \(.+\)\. They are fetched from the Hugging Face hub "
        r"once and kept; try again where there is a network, or name tasks of your own with --include\.\n",
        said,
    ), said


@needs_lm_eval
@pytest.mark.slow
def test_a_run_that_is_not_finished_is_refused(quiz: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tiny", "--name", "half", *SHORT]) == 0
    (home / "runs" / "half" / "model").rename(home / "away")
    refused(
        capsys,
        "Run 'half' is not finished, so it holds no model; write that of its newest checkpoint with `stratagem export "
        "half --to DIR --merged` and name DIR, with --against for the model before.",
        *("half", "--tasks", "quiz", "--include", str(quiz)),
    )
