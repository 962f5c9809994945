import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stratagem.errors import ConfigError, UnknownNameError
from stratagem.evaluation.records import Record, load_records, main, records_table, render_records

DEMO: dict[str, Any] = {
    "name": "demo",
    "command": "stratagem train demo",
    "commit": "0123456789abcdef",
    "machine": "2 CPU cores",
    "date": "2025-11-30",
    "unit": "return",
    "values": [0.5, 0.7],
    "interval": [0.4, 0.8],
    "seeds": [0, 1],
    "recipe": "demo",
}
TIME = {k: DEMO[k] for k in ("command", "commit", "machine", "date")} | {
    "name": "time",
    "unit": "seconds",
    "value": 12345.6,
    "note": "wall clock",
}


def record(**changes: Any) -> Record:
    data = {key: value for key, value in (DEMO | changes).items() if value is not ...}
    return Record.from_json(json.dumps(data), name="demo")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "demo.json").write_text(json.dumps(DEMO))
    (folder / "time.json").write_text(json.dumps(TIME))
    return folder


def test_a_record_survives_json() -> None:
    assert Record.from_json(record().to_json(), name="demo") == record()
    assert "note" not in json.loads(record().to_json())


def test_a_zero_is_not_left_out() -> None:
    zero = record(values=..., seeds=..., value=0.0)
    assert Record.from_json(zero.to_json(), name="demo").mean == 0.0


def test_the_table_shows_mean_interval_and_seeds() -> None:
    table = records_table([record()])
    assert dict(zip(table.headers, table.rows[0], strict=True)) == {
        "Result": "demo",
        "Value": "0.6 return",
        "95% interval": "[0.4, 0.8]",
        "Seeds": "0, 1",
        "Per seed": "0.5, 0.7",
        "Recipe": "demo",
        "Command": "`stratagem train demo`",
        "Machine": "2 CPU cores",
        "Commit": "012345678",
        "Date": "2025-11-30",
    }


def test_columns_that_no_record_fills_are_left_out(results: Path) -> None:
    table = records_table([load_records(results)["time"]])
    assert table.headers == ("Result", "Value", "Command", "Machine", "Commit", "Date")
    assert table.rows[0][:2] == ("wall clock", "12,346 seconds")


def test_a_narrow_table_holds_the_title_and_a_link_to_the_rest() -> None:
    timed = Record.from_json(json.dumps(TIME | {"title": "Time"}), name="time")
    assert records_table([record(), timed], folder="../results").rows == (
        ("demo", "0.6 return", "[0.4, 0.8]", "0.5, 0.7", "[demo](../results/demo.json)"),
        ("Time", "12,346 seconds", "", "", "[time](../results/time.json)"),
    )


def test_links_lead_from_the_document_to_the_files(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "deep" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("<!-- records in short: demo -->\n<!-- /records -->\n")
    assert main(["--write", "--results", str(results), str(page)]) == 0
    assert "| [demo](../../results/demo.json) |" in page.read_text()
    assert main(["--check", "--results", str(results), str(page)]) == 0


def test_a_commit_with_local_changes_says_so() -> None:
    assert records_table([record(commit="0123456789abcdef-dirty")]).rows[0][-2] == "012345678-dirty"


def test_blocks_are_rewritten_and_all_else_is_kept(results: Path) -> None:
    records = load_records(results)
    table = records_table([records["demo"], records["time"]]).markdown()
    text = "# A\n\n<!-- records: demo time -->\nold | numbers\n<!-- /records -->\ntail without a newline"
    expected = f"# A\n\n<!-- records: demo time -->\n\n{table}\n<!-- /records -->\ntail without a newline"
    assert render_records(text, records) == expected
    assert render_records(expected, records) == expected


def test_blocks_in_fenced_code_are_left_alone() -> None:
    text = "```text\n<!-- records: nothing -->\n<!-- /records -->\n```\n~~~~\n```\n<!-- records: x -->\n~~~~\n"
    assert render_records(text, {}) == text


def test_a_block_after_fenced_code_is_rewritten() -> None:
    text = "```\ncode\n```\n<!-- records: demo -->\n<!-- /records -->\n"
    assert "0.6 return" in render_records(text, {"demo": record()})


def test_an_unknown_record_suggests_the_nearest() -> None:
    message = "Unknown record 'dema'. Did you mean 'demo'? Available: demo."
    with pytest.raises(UnknownNameError, match=f"^{re.escape(message)}$"):
        render_records("<!-- records: dema -->\n<!-- /records -->\n", {"demo": record()})


@pytest.mark.parametrize("rest", ["", "text\n", "<!-- records: demo -->\n<!-- /records -->\n"])
def test_a_block_that_is_not_closed_is_refused(rest: str) -> None:
    message = "The block of records at line 2 is not closed; add a line '<!-- /records -->' after it."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        render_records("\n<!-- records: demo -->\n" + rest, {"demo": record()})


def test_write_makes_check_pass(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "docs" / "deep" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("intro\n<!-- records: demo -->\nold\n<!-- /records -->\n")
    arguments = ["--results", str(results), str(tmp_path / "docs")]
    assert main(["--check", *arguments]) == 1
    message = f"{page}:3: differs from the records; run python -m stratagem.evaluation.records --write.\n"
    assert capsys.readouterr().err == message
    assert main(["--write", *arguments]) == 0
    assert capsys.readouterr().out == f"{page}: rewritten\n"
    assert main(["--check", *arguments]) == 0
    assert capsys.readouterr().err == ""
    # The negative control: another number in the record is noticed.
    (results / "demo.json").write_text(json.dumps(DEMO | {"values": [0.5, 0.8]}))
    assert main(["--check", *arguments]) == 1


def test_check_names_every_bad_document(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("<!-- records: nope -->\n<!-- /records -->\n")
    assert main(["--check", "--results", str(results), str(tmp_path / "a.md"), str(tmp_path / "b.md")]) == 1
    error = capsys.readouterr().err
    assert [line.split(": ")[0] for line in error.splitlines()] == [str(tmp_path / "a.md"), str(tmp_path / "b.md")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--results", "nowhere", "."], "results='nowhere' is not a folder; name the one that holds the records.\n"),
        (["nowhere.md"], "'nowhere.md' does not exist; name Markdown files or folders that hold some.\n"),
    ],
)
def test_missing_paths_are_named(
    arguments: list[str],
    message: str,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(results.parent)
    assert main(["--check", *arguments]) == 1
    assert capsys.readouterr().err == message


def test_the_module_runs_as_a_program(results: Path, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("no block\n")
    command = [sys.executable, "-m", "stratagem.evaluation.records", "--check", "--results", str(results)]
    assert subprocess.run([*command, str(tmp_path / "page.md")], check=False).returncode == 0
    assert subprocess.run([*command, str(tmp_path / "gone.md")], check=False, capture_output=True).returncode == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": 1.0}, "value=1.0 with values=(0.5, 0.7) in record 'demo' is not usable; give exactly one of them."),
        ({"values": ...}, "value=None with values=None in record 'demo' is not usable; give exactly one of them."),
        ({"values": [0.5, "x"]}, "values=[0.5, 'x'] in record 'demo' is not usable; write finite numbers."),
        ({"values": [], "seeds": []}, "values=[] in record 'demo' is not usable; write finite numbers."),
        (
            {"seeds": [0]},
            "seeds=[0] with 2 values in record 'demo' is not usable; give one seed for each value.",
        ),
        ({"interval": [0.8, 0.4]}, "interval=[0.8, 0.4] in record 'demo' is not usable; write [low, high]."),
        ({"commit": "main"}, "commit='main' in record 'demo' is not usable; write 7 to 40 hex digits."),
        ({"commit": 7}, "commit=7 in record 'demo' is not usable; write 7 to 40 hex digits."),
        ({"date": "30.11.2025"}, "date='30.11.2025' in record 'demo' is not usable; write a day as YYYY-MM-DD."),
        ({"date": "2025-02-30"}, "date='2025-02-30' in record 'demo' is not usable; write a day as YYYY-MM-DD."),
        ({"machine": " "}, "machine=' ' in record 'demo' is not usable; write a text that is not empty."),
        ({"machine": ..., "date": ...}, "record 'demo' lacks machine, date; add what is needed to measure it again."),
        ({"name": "other"}, "name='other' stands in the file demo.json; give both the same name."),
        (
            {"seed": 1},
            "Unknown key of record 'demo' 'seed'. Did you mean 'seeds'? Available: command, commit, date, interval, "
            "machine, name, note, recipe, seeds, title, unit, value, values.",
        ),
    ],
)
def test_a_record_that_could_not_be_repeated_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        record(**changes)


def test_a_file_that_is_not_an_object_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^record 'demo' holds a list; write one object\.$"):
        Record.from_json("[]", name="demo")
    with pytest.raises(ConfigError, match=r"^record 'demo' is not JSON \(Expecting value: .*\); write one object\.$"):
        Record.from_json("", name="demo")
