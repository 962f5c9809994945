"""The verbs view and report, and when the page opens rather than the terminal's view."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stratagem import cli_page
from stratagem.cli import build_parser, main

NewRun = Callable[..., Path]


class Terminal:
    """Standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("words", "terminal", "page"),
    [
        ("view", True, True),
        ("view", False, False),
        ("view first second", True, True),
        ("view first --text", True, False),
        ("view first --iteration 0", True, False),
        ("view first --best", True, False),
        ("view --page", False, True),
        ("view --port 0", False, True),
    ],
)
def test_the_page_opens_on_a_terminal_or_when_asked(
    monkeypatch: pytest.MonkeyPatch, words: str, terminal: bool, page: bool
) -> None:
    arguments = build_parser().parse_args(words.split())
    if terminal:
        monkeypatch.setattr(cli_page.sys, "stdout", Terminal())
    assert cli_page.wants_page(arguments) is page
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("view first --page --best", "--page opens the page and --best prints; give one of them."),
        ("view first --no-token --text", "--no-token opens the page and --text prints; give one of them."),
        ("view a b --text", "2 runs cannot be printed at once; name one, or open the page with --page."),
        (
            "view --page --no-token --host 0.0.0.0",
            "--no-token with --host 0.0.0.0 would show the runs to everybody who reaches this machine; leave one "
            "of them out.",
        ),
        ("view none --page", "Unknown run 'none'. Available: first, second."),
        ("report none", "Unknown run 'none'. Available: first, second."),
        ("report runs", "'runs' is a folder of runs; name one of first, second."),
    ],
)
def test_what_does_not_go_together_is_refused(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str,
    message: str,
) -> None:  # fmt: skip
    new_run("first", iterations=0)
    new_run("second", iterations=0)
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("stratagem.page.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["view", "--page", "--runs-dir", str(tmp_path)]) == 2
    message = (
        "The page needs the package 'uvicorn'; run `pip install -e '.[page]'` in a clone of Stratagem, or print with "
        "--text."
    )
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_report_is_written_into_the_run(
    new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new_run("first", iterations=1)
    monkeypatch.chdir(tmp_path)
    assert main(["report", "first"]) == 0
    written = [str(Path("runs/first") / name) for name in ("report.html", "report.md")]
    assert capsys.readouterr().out.split() == written
    assert all(Path(path).is_file() for path in written)
