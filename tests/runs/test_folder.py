from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from stratagem.errors import RunError
from stratagem.games.frozen_lake import FrozenLake
from stratagem.runs.folder import RunFolder, list_runs
from stratagem.runs.metrics import MetricsLog, read_metrics
from stratagem.runs.provenance import own_games

RECIPE = 'name = "lake"\nseed = 3\n\n[algorithm]\ngroup_size = 8\n'


def refuse(message: str, root: Path, name: str | None, recipe: str = RECIPE, *, resume: bool = False) -> None:
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        RunFolder.create(root, name, recipe, resume=resume)


def test_a_new_run_holds_recipe_provenance_and_folders(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "first", RECIPE) as run:
        assert run.path == tmp_path / "first"
        assert run.recipe_file.read_text() == RECIPE
        provenance = json.loads(run.provenance_file.read_text())
        assert provenance["seed"] == 3
        assert provenance["versions"]["python"] == ".".join(str(part) for part in sys.version_info[:3])
        assert provenance["versions"]["torch"] is not None
        assert provenance["hardware"]["cores"] >= 1
        assert provenance["command"] == sys.argv
        for folder in (run.trajectories, run.checkpoints, run.evaluation, run.figures):
            assert folder.is_dir()
        assert read_metrics(run.metrics_file) == []
    assert list_runs(tmp_path) == ["first"]
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_an_existing_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "first", RECIPE).close()
    message = f"Run 'first' exists in {str(tmp_path)!r}; choose another name with --name, or continue it with --resume."
    refuse(message, tmp_path, "first", "seed = 9\n")
    assert (tmp_path / "first" / "recipe.toml").read_text() == RECIPE


def test_automatic_names_count_up_past_the_highest(tmp_path: Path) -> None:
    (tmp_path / "lake-3-7").mkdir()
    with RunFolder.create(tmp_path, None, RECIPE) as eighth, RunFolder.create(tmp_path, None, RECIPE) as ninth:
        assert (eighth.name, ninth.name) == ("lake-3-8", "lake-3-9")


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden", "two words"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    refuse(f"Run name {name!r} is no file name; use letters, digits, '.', '_' and '-'.", tmp_path, name)


def test_resume_continues_the_run_and_notes_when(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "first", RECIPE).close()
    with RunFolder.create(tmp_path, "first", RECIPE, resume=True) as run:
        assert len(json.loads(run.provenance_file.read_text())["resumes"]) == 1


OWN_GAME = """
from stratagem.games.frozen_lake import FrozenLake

class Pond(FrozenLake):
    name = "pond"
"""


def test_changed_code_of_a_game_of_ones_own_is_told_at_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "pond_of_mine.py"
    code.write_text(OWN_GAME)
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = 'name = "pond"\n[game]\nname = "pond_of_mine:Pond"\n[evaluation]\npanels = ["FrozenLake-Slippery"]\n'
    with RunFolder.create(tmp_path, "first", recipe) as run:
        found = json.loads(run.provenance_file.read_text())["own_games"]
    digest = hashlib.sha256(OWN_GAME.encode()).hexdigest()
    assert found == {"pond_of_mine:Pond": {"file": str(code), "sha256": digest}}
    RunFolder.create(tmp_path, "first", recipe, resume=True).close()  # unchanged: no warning, which would be an error
    code.write_text(OWN_GAME + "    max_steps = 7\n")
    message = (
        f"The code of game 'pond_of_mine:Pond' ({code}) was changed since run 'first' began; what is trained and "
        "evaluated from here on may be another game."
    )
    with pytest.warns(RuntimeWarning, match=f"^{re.escape(message)}$"):
        RunFolder.create(tmp_path, "first", recipe, resume=True).close()
    resumes = json.loads((tmp_path / "first" / "provenance.json").read_text())["resumes"]
    assert [entry["own_games"]["pond_of_mine:Pond"]["sha256"] == digest for entry in resumes] == [True, False]


def test_a_game_of_the_package_has_its_commit_and_no_hash() -> None:
    assert own_games({"game": {"name": "stratagem.games.snake:Snake", "mix": ["nowhere_at_all:Game", "snake"]}}) == {}


def test_a_game_whose_code_is_in_no_file_has_no_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "puddle_of_mine.py"
    code.write_text(OWN_GAME.replace("Pond", "Puddle"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(own_games({"game": {"name": "puddle_of_mine:Puddle"}})) == ["puddle_of_mine:Puddle"]
    code.unlink()
    assert own_games({"game": {"name": "puddle_of_mine:Puddle"}}) == {}

    class Typed(FrozenLake):
        name = "typed"

    Typed.__module__ = "__main__"  # as in a notebook, whose module has no file
    notebook = types.ModuleType("__main__")
    notebook.Typed = Typed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    assert own_games({"game": {"name": "__main__:Typed"}}) == {}


def test_a_run_that_is_older_than_a_refusal_of_its_idle_settings_is_resumed(tmp_path: Path) -> None:
    recipe = 'name = "lake"\n\n[algorithm]\nname = "ms_grpo"\nstep_coef = 0.0\nstep_target = "{}"\n'
    RunFolder.create(tmp_path, "first", recipe.format("best")).close()
    RunFolder.create(tmp_path, "first", recipe.format("return"), resume=True).close()
    used = recipe.replace("0.0", "1.0")  # with an effect they are two recipes
    RunFolder.create(tmp_path, "second", used.format("best")).close()
    with pytest.raises(RunError, match=r"different: algorithm\.step_target \('best' -> 'return'\)"):
        RunFolder.create(tmp_path, "second", used.format("return"), resume=True)


def test_resume_with_another_recipe_names_the_keys_that_differ(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "first", RECIPE).close()
    other = 'name = "lake"\n\n[algorithm]\ngroup_size = 4\nkl_coef = 0.1\n'
    message = (
        "Run 'first' was made with another recipe; different: algorithm.group_size (8 -> 4), "
        "algorithm.kl_coef (not set -> 0.1), seed (3 -> not set). "
        "Resume with the run's own recipe.toml, or choose another name with --name."
    )
    refuse(message, tmp_path, "first", other, resume=True)
    # The refusal released the lock.
    RunFolder.create(tmp_path, "first", RECIPE, resume=True).close()


def test_resume_of_a_missing_run_lists_those_that_exist(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "first", RECIPE).close()
    refuse(f"No run 'second' in {str(tmp_path)!r}; runs there: first.", tmp_path, "second", resume=True)


def test_resume_makes_folders_that_were_lost(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "first", RECIPE) as run:
        run.trajectories.rmdir()
        run.evaluation.rmdir()
    with RunFolder.create(tmp_path, "first", RECIPE, resume=True) as run:
        run.rewind(0)
        assert run.evaluation.is_dir()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "TypeError: list indices must be integers or slices, not str"),
    ],
)
def test_resume_names_damaged_provenance(tmp_path: Path, content: str, reason: str) -> None:
    with RunFolder.create(tmp_path, "first", RECIPE) as run:
        run.provenance_file.write_text(content)
    message = (
        f"{str(run.provenance_file)!r} is damaged ({reason}); restore it from a copy, or write "
        '{"resumes": []} into it to go on without what it said.'
    )
    refuse(message, tmp_path, "first", resume=True)


def test_resume_needs_a_name(tmp_path: Path) -> None:
    refuse("--resume needs the run's name; give it with --name.", tmp_path, None, resume=True)


def test_two_processes_never_write_one_run(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "first", RECIPE).close()
    code = (
        "import sys; from stratagem.runs.folder import RunFolder\n"
        f"run = RunFolder.create({str(tmp_path)!r}, 'first', {RECIPE!r}, resume=True)\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        message = (
            f"Run 'first' is being written by process {other.pid}; "
            "wait until it ends, or choose another name with --name."
        )
        refuse(message, tmp_path, "first", resume=True)
        other.kill()
        other.wait()
    # The system released the lock of the killed process.
    RunFolder.create(tmp_path, "first", RECIPE, resume=True).close()


def test_rewinding_drops_what_will_be_made_again(run_folder: RunFolder) -> None:
    log = MetricsLog(run_folder.metrics_file)
    for iteration in (1, 2, 3):
        log.append(iteration, {"x": iteration})
        (run_folder.trajectories / f"{iteration:06d}.parquet").write_bytes(b"")
    run_folder.rewind(2)
    assert [row["iteration"] for row in read_metrics(run_folder.metrics_file)] == [1, 2]
    assert sorted(path.name for path in run_folder.trajectories.iterdir()) == ["000001.parquet", "000002.parquet"]
