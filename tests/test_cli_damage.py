"""What the command line says about files that somebody or something damaged."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from stratagem.cli import main
from stratagem.cli_view import print_trajectory
from stratagem.recipe import dump_toml, load_recipe
from stratagem.runs.folder import RunFolder
from stratagem.types import Step, StopReason, Trajectory

TINY = Path(__file__).resolve().parents[1] / "recipes" / "tiny.toml"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run ``first`` that has just begun, in the working folder."""
    monkeypatch.chdir(tmp_path)
    with RunFolder.create("runs", "first", dump_toml(load_recipe(TINY))) as folder:
        return folder


def says(capsys: pytest.CaptureFixture[str], message: str, *words: str) -> None:
    capsys.readouterr()
    assert main(words) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_run_that_has_just_begun_is_shown(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "first"]) == 0
    assert capsys.readouterr().out == (
        "first: tiny on FrozenLake-NotSlippery, 0 of 4 iterations, not finished\nnewest checkpoint: none\n"
    )


def test_a_damaged_run_hides_no_other_in_the_list(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder.create("runs", "second", run.recipe_file.read_text()).close()
    run.recipe_file.write_bytes(b"\xff")
    assert main(["view"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["first", "damaged", "-", "-", "-"] in lines
    assert ["second", "FrozenLake-NotSlippery", "tiny", "0/4", "-"] in lines


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x = [", "Invalid value (at end of document)"),
        (b"seed = 1", "'game'"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
    ids=["toml", "keys", "bytes"],
)
def test_a_damaged_recipe_is_named(
    run: RunFolder, capsys: pytest.CaptureFixture[str], content: bytes, reason: str
) -> None:
    run.recipe_file.write_bytes(content)
    message = f"'runs/first/recipe.toml' is no recipe as a run writes it ({reason}); restore it from a copy."
    says(capsys, message, "view", "first")


@pytest.mark.parametrize("name", ["summary.json", "evaluation/start/lake.json"])
def test_a_damaged_result_is_named(run: RunFolder, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (run.evaluation / "start").mkdir()
    (run.path / name).write_text("[1]")
    reason = "TypeError: list indices must be integers or slices, not str"
    says(capsys, f"'runs/first/{name}' is damaged ({reason}); restore it from a copy, or delete it.", "view", "first")


def test_damaged_episodes_are_named(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run.evaluation / "start"
    folder.mkdir()
    (folder / "lake.jsonl").write_bytes(b"\xff\n")
    message = (
        "'runs/first/evaluation/start/lake.jsonl' cannot be read ('utf-8' codec can't decode byte 0xff in position 0: "
        "invalid start byte); give the file of an evaluation."
    )
    says(capsys, message, "view", "first", "--evaluation", "start")
    (folder / "lake.jsonl").write_text("")
    message = "There is no episode here; another iteration or evaluation may have some."
    says(capsys, message, "view", "first", "--evaluation", "start")


def test_other_files_between_those_of_a_run_disturb_nothing(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (run.trajectories / "copy.parquet").write_bytes(b"")
    (run.evaluation / "note.txt").write_text("")
    message = "Run 'first' holds no trajectories yet; look again later, or at --evaluation start."
    says(capsys, message, "view", "first", "--best")
    message = "Run 'first' holds no trajectories of iteration 7; iterations with some: none."
    says(capsys, message, "view", "first", "--iteration", "7")
    says(capsys, "Unknown evaluation with episodes 'x'. Available: none.", "view", "first", "--evaluation", "x")


def test_a_panel_without_an_evaluation_is_refused(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    message = "--panel has no effect without --evaluation; give both, or leave it out."
    says(capsys, message, "view", "first", "--panel", "lake")


def test_a_path_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    message = "'file/x': Not a directory. Check the path, its permissions and the free space."
    says(capsys, message, "eval", "random", "--game", "frozen_lake", "--out", "file/x")
    says(capsys, message, "train", str(TINY), "--runs-dir", "file/x")


def test_what_cannot_be_trained_is_refused_by_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    message = "agent.temperature=0 always gives the same episode, so nothing is learnt; set it above 0."
    says(capsys, message, "train", str(TINY), "--dry-run", "--set", "agent.temperature=0")


def test_an_evaluation_without_room_for_an_episode_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    message = "--max-concurrent 0 plays nothing; set it to 1 or more."
    says(capsys, message, "eval", "random", "--game", "frozen_lake", "--max-concurrent", "0")


def test_an_evaluation_says_that_prompts_fill_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("long.txt").write_text("--- user\n" + "x" * 5000 + "{observation}")  # tiny reads 4096 tokens, one a letter
    assert main(["eval", "tiny", "--game", "frozen_lake", "--template", "long.txt", "--episodes", "2"]) == 0
    warning = "warning: 2 episodes ended because the prompt filled the model's context window\n"
    assert warning in capsys.readouterr().out


def test_a_template_that_was_changed_is_not_used_for_the_run_that_knew_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "tags: action\nassistant_prefix: <action>\n--- user\n{observation}"
    Path("mine.txt").write_text(text)
    few = ["agent.template=mine.txt", "agent.max_new_tokens=2", "warm_start=false", "algorithm.num_iterations=1"]
    assert main(["train", str(TINY), "--name", "first", *(word for item in few for word in ("--set", item))]) == 0
    assert Path("runs/first/template.txt").read_text() == text
    assert main(["train", "--name", "first", "--resume"]) == 0
    Path("mine.txt").write_text(f"# other\n{text}\nGo.")
    message = (
        "agent.template='mine.txt' was changed since run 'first' was made; put back what 'runs/first/template.txt' "
        "holds, or start a new run."
    )
    says(capsys, message, "train", "--name", "first", "--resume")
    says(capsys, message, "eval", "first")
    Path("mine.txt").unlink()
    message = (
        "Unknown template 'mine.txt'. Available: action, action_brief, action_formal, think_action, think_plan_action, "
        "think_plan_action_brief."
    )
    says(capsys, message, "eval", "first")


def test_control_characters_of_a_game_are_shown_and_not_obeyed() -> None:
    out = io.StringIO()
    step = Step("[bold]x[/] \x1b[2J \udc80 \\", action="go [up]", reward=0.0, executed_action="go [up]")
    trajectory = Trajectory("game", 0, 0, 0, (step,), True, False, StopReason.TERMINATED)
    print_trajectory(Console(file=out, width=80), trajectory)
    assert out.getvalue().splitlines()[:3] == [
        "step 1",
        "  [bold]x[/] \\x1b[2J \\udc80 \\",
        "  action       go [up]",
    ]


def test_a_terminal_without_unicode_gets_question_marks(tmp_path: Path) -> None:
    code = "from stratagem.cli import main; main(['trian']); print('\u2581')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "?\n"


def test_a_training_on_a_busy_machine_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stratagem.cli_work.load_warning", lambda: "This machine is busy.")
    few = ["warm_start=false", "algorithm.num_iterations=1", "agent.max_new_tokens=2"]
    assert main(["train", str(TINY), "--name", "first", *(word for item in few for word in ("--set", item))]) == 0
    assert capsys.readouterr().err.count("warning: This machine is busy.\n") == 1
