"""The report: one file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stratagem.errors import RunError
from stratagem.page.data import RunData
from stratagem.page.document import chosen_episodes, write_document

NewRun = Callable[..., Path]


def test_a_report_holds_curves_panels_episodes_recipe_and_versions(new_run: NewRun, tmp_path: Path) -> None:
    run = RunData(new_run("first"), "first")
    page_path, text_path = write_document(run, tmp_path / "out")
    page, text = page_path.read_text(encoding="utf-8"), text_path.read_text(encoding="utf-8")
    assert (page_path.name, text_path.name) == ("report.html", "report.md")
    # Four episodes of the final panel, three of them won.
    for name, ending in (("Best", "success"), ("Median", "success"), ("Worst", "no success")):
        assert re.search(rf"<h3>{name}: return [+]\d\.00, terminated, {ending}</h3>", page)
    assert 'aria-label="Success, last: training episodes 37.5%"' in page
    assert page.count('class="board"') == 6 + 6 + 2  # one for each step
    assert "algorithm.learning_rate" in page and "0.0001" in page
    assert re.search(r"<td>torch</td><td>\d", page)
    assert re.search(r"^\| start +\| +0\.250 \[", text, flags=re.MULTILINE)
    assert re.search(r"^\| Success, training episodes +\| +`[^`]+` \| +12\.5% \| +37\.5% \|$", text, flags=re.MULTILINE)
    assert "### Worst: return +0.00, terminated" in text
    assert re.search(r"^\| algorithm\.learning\\_rate +\| +0\.0001 \|$", text, flags=re.MULTILINE)


def test_a_report_names_no_other_file_or_server(new_run: NewRun, tmp_path: Path, markup: str) -> None:
    run = new_run("first", finished=False, said=markup)
    (run / "recipe.toml").write_text((run / "recipe.toml").read_text().replace('"tiny"', f"'{markup}'"))
    for path in (run / "evaluation").glob("*/*"):
        path.unlink()
    page = write_document(RunData(run, "first"), tmp_path)[0].read_text(encoding="utf-8")
    assert not re.findall(r"<(?:img|script|link|iframe|object)\b", page)
    assert not re.findall(r"(?:src|href|url)\s*[=(]", re.sub(r"&[#\w]+;", "", page).replace("src=x", ""))
    assert "&lt;script&gt;" in page


def test_a_run_that_has_just_begun_has_a_report(new_run: NewRun, tmp_path: Path) -> None:
    run = RunData(new_run("first", iterations=0), "first")
    assert chosen_episodes(run) == ("", [])
    page, text = write_document(run, tmp_path)
    assert "iteration 0 of 1" in page.read_text(encoding="utf-8")
    assert text.read_text(encoding="utf-8").startswith("# first\n\ntiny on FrozenLake-NotSlippery, ms\\_grpo, seed 0;")


def test_without_an_evaluation_the_newest_iteration_is_shown(new_run: NewRun) -> None:
    run = new_run("first", finished=False)
    (run / "evaluation" / "start" / "FrozenLake-NotSlippery.jsonl").unlink()
    where, episodes = chosen_episodes(RunData(run, "first"))
    assert where == "training, iteration 3"
    # Returns of the six: 1, four times 0, -0.5.
    assert [(name, item.trajectory.composite_return) for name, item in episodes] == [
        ("Best", 1.0), ("Median", 0.0), ("Worst", -0.5)
    ]  # fmt: skip


def test_a_folder_that_cannot_be_written_is_named(new_run: NewRun, tmp_path: Path) -> None:
    run = RunData(new_run("first", iterations=0), "first")
    (tmp_path / "file").write_text("")
    message = (
        f"The report could not be written to {str(tmp_path / 'file')!r} (File exists); free some space, or name "
        "another folder with --to."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        write_document(run, tmp_path / "file")
