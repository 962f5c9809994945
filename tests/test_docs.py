"""The documents cannot rot: their code runs, their commands work, their links lead somewhere.

A Python block with ``<!-- not run: reason -->`` on the line above is left out, and the blocks left out are counted.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import shlex
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stratagem import cli_play
from stratagem.cli import VERBS, build_parser, main
from stratagem.recipe import find_recipe

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))))
LINKED = (*DOCUMENTS, "CHANGELOG.md", "CONTRIBUTING.md", "LOG.md", "bench/README.md")
EXAMPLES = tuple(path.name for path in sorted((ROOT / "examples").glob("*.py")))

NOT_RUN = {"docs/served_models.md": ["needs a server"]}
"""Python blocks that are left out, with their reasons."""

THE_RUN = "stratagem train tiny --name first"
"""The quickstart's run, which later commands and blocks of other pages look at."""
TOO_LONG = ("stratagem train frozen_lake_demo",)
"""Commands that are not run here: `make demo`."""
SLOW = ("docs/games/snake.md",)
"""Pages whose blocks play thousands of episodes."""


@dataclass(frozen=True)
class Block:
    """Fenced code of a document."""

    line: int
    """Of its first line, from 1."""
    language: str
    code: str
    not_run: str | None
    """The reason, where the line above the fence gives one."""


def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a Markdown text."""
    found: list[Block] = []
    lines = text.splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        above = re.fullmatch(r"<!-- not run: (.+) -->", lines[start - 1].strip()) if start else None
        code = "\n".join(lines[start + 1 : number]) + "\n"
        found.append(Block(start + 2, lines[start][3:].strip(), code, above[1] if above else None))
        start = None
    assert start is None, f"the fence at line {start} is not closed"
    return found


def prose(text: str) -> str:
    """Return a Markdown text without its fenced blocks and comments."""
    return re.sub(r"<!--.*?-->", "", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), flags=re.S)


def commands(document: str) -> list[str]:
    """Return the commands of Stratagem in the shell blocks of a document, without comments."""
    lines = [
        line.strip()
        for block in blocks(read(document))
        if block.language in ("", "bash", "sh", "text")
        for line in block.code.splitlines()
    ]
    return [shlex.join(shlex.split(line, comments=True)) for line in lines if line.split(" ")[:1] == ["stratagem"]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with the quickstart's run in it."""
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATAGEM_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        assert THE_RUN in commands("docs/quickstart.md")
        assert main(shlex.split(THE_RUN)[1:]) == 0
        yield folder


# ---- code ------------------------------------------------------------------------------------------------------------


def test_blocks_are_read_with_their_line_language_and_reason() -> None:
    text = "a\n<!-- not run: no server -->\n```python\nx\n```\n```\ny\nz\n```\n"
    assert blocks(text) == [Block(4, "python", "x\n", "no server"), Block(7, "", "y\nz\n", None)]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(document, id=document, marks=[pytest.mark.slow] if document in SLOW else [])
        for document in DOCUMENTS
        if any(block.language == "python" for block in blocks(read(document)))
    ],
)
def test_the_python_blocks_of_a_document_run_in_order(
    document: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home / "runs" / "first", tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    skipped = []
    for block in blocks(read(document)):
        if block.language != "python":
            continue
        if block.not_run is not None:
            skipped.append(block.not_run)
            continue
        # Shifted, so that a traceback names the line of the document.
        exec(compile("\n" * (block.line - 1) + block.code, str(ROOT / document), "exec"), namespace)
    assert skipped == NOT_RUN.get(document, [])


def test_the_pages_with_blocks_that_are_not_run_still_exist() -> None:
    assert set(NOT_RUN) <= set(DOCUMENTS)


# ---- commands --------------------------------------------------------------------------------------------------------


def smaller(words: list[str]) -> list[str]:
    """Return a command that does the same with less: the shapes are tested elsewhere, here it is the words."""
    if words[0] == "eval":
        return [*words, "--episodes", "5"]
    if words[0] == "train" and not {"--resume", "--dry-run", "--print-config"} & set(words):
        return [*words, "--set", "algorithm.num_iterations=1", "--set", "warm_start=false"]
    return words


@pytest.mark.parametrize("document", ["docs/quickstart.md", "README.md"])
def test_the_commands_of_a_document_work_in_order(document: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_play.time, "sleep", lambda seconds: None)
    for command in commands(document):
        if command in (THE_RUN, *TOO_LONG):
            continue
        words = shlex.split(command)[1:]
        target = words[words.index(">") + 1] if ">" in words else None
        words = words[: words.index(">")] if target else words
        monkeypatch.setattr("sys.stdin", io.StringIO("1\nq\n"))  # whoever plays by hand makes a move and quits
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(smaller(words)) == 0, command
        assert printed.getvalue().strip(), command
        if target:
            Path(target).write_text(printed.getvalue(), encoding="utf-8")


@pytest.mark.parametrize("document", [document for document in LINKED if commands(document)])
def test_every_command_of_a_document_is_one(document: str) -> None:
    for command in commands(document):
        words = shlex.split(command)[1:]
        if not words or words[0] not in VERBS:
            assert words[:1] == ["VERB"], command
            continue
        arguments = build_parser().parse_args(words[: words.index(">")] if ">" in words else words)
        recipe = getattr(arguments, "recipe", None)
        if recipe is not None and not recipe.endswith(".toml"):
            find_recipe(recipe)


@pytest.mark.parametrize("document", LINKED)
def test_every_make_target_of_a_document_is_in_the_makefile(document: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), flags=re.M))
    named = set(re.findall(r"^make ([a-z]+)", "\n".join(b.code for b in blocks(read(document))), flags=re.M))
    named |= set(re.findall(r"`make ([a-z]+)", prose(read(document))))
    assert named <= targets


# ---- links and names -------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", LINKED)
def test_every_link_and_picture_of_a_document_is_there(document: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(read(document))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("document", LINKED)
def test_every_file_of_the_project_that_a_document_names_is_there(document: str) -> None:
    pattern = r"`((?:bench|docs|examples|recipes|src|stratagem|tests)/[\w./*]+\.(?:md|py|sh|toml|txt))`"
    for name in re.findall(pattern, prose(read(document))):
        assert list(ROOT.glob(name)) or list((ROOT / "src").glob(name)), name


def test_every_page_has_a_place_in_the_navigation() -> None:
    named = re.findall(r": ([\w/-]+\.md)$", read("mkdocs.yml"), flags=re.M)
    assert sorted(f"docs/{name}" for name in named) == sorted(set(DOCUMENTS) - {"README.md"})


def test_the_front_page_lists_every_page_in_the_order_of_the_navigation() -> None:
    named = re.findall(r": ([\w/-]+\.md)$", read("mkdocs.yml"), flags=re.M)
    assert re.findall(r"\]\(([\w/-]+\.md)\)", read("docs/index.md")) == [name for name in named if name != "index.md"]


def test_every_module_has_a_place_in_the_architecture() -> None:
    text = read("docs/architecture.md")
    package = ROOT / "src" / "stratagem"
    modules = [path.relative_to(package) for path in package.rglob("*.py") if path.name != "__init__.py"]
    missing = [path.as_posix() for path in modules if path.parts[0] != "games" and path.name not in text]
    assert missing == []


# ---- examples --------------------------------------------------------------------------------------------------------


def example(name: str, *words: str) -> str:
    """Run an example as a program and return what it printed."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr("sys.argv", [name, *words])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    return printed.getvalue()


def test_every_example_has_a_test() -> None:
    assert EXAMPLES == ("evaluate_a_server.py", "own_game.py", "train_in_ten_lines.py")


def test_training_in_ten_lines(home: Path) -> None:
    lines = example("train_in_ten_lines.py").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["iteration 1", "iteration 2", "iteration 3"]


def test_a_game_of_ones_own(home: Path) -> None:
    lines = example("own_game.py").splitlines()
    wins = {line.split()[0]: int(line.split()[2].rstrip("%")) for line in lines[:2]}
    # The planner loses only from piles that are a multiple of four, where the house can still go wrong.
    assert wins["planner"] > 90 > 40 > wins["random"]
    assert [line.partition(":")[0] for line in lines[2:]] == ["iteration 1", "iteration 2"]


class Answering(BaseHTTPRequestHandler):
    """A chat server whose model always goes right."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "<think>East.</think><action>right</action>"}
        usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def test_evaluating_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            text = example("evaluate_a_server.py", f"http://127.0.0.1:{server.server_port}/v1", "my-model", "3")
        finally:
            server.shutdown()
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    assert rows[2:] == [f"FrozenLake-NotSlippery ({who})" for who in ("my-model", "random")]
    assert "requests=" in text
