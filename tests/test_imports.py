"""The layers of docs/architecture.md, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import stratagem

PACKAGE = Path(stratagem.__file__).parent

# A module imports only from rows above its own, or from its own folder. ``models/base.py`` is the Protocol that the
# rows below see a model through.
ROWS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("types", "seeding", "files", "config", "coroutines"),
    ("games",),
    ("models",),
    ("agents",),
    ("baselines",),
    ("rollout",),
    ("rewards",),
    ("data",),
    ("algorithms",),
    ("recipe",),
    ("evaluation",),
    ("runs",),
    ("cluster", "page", "reproduce"),
    ("cli_parser", "cli_players", "cli_papers", "cli_doctor", "cli_page"),
    ("cli_view",),
    ("cli_data", "cli_trials"),
    ("cli_work", "cli_play", "cli_baselines", "cli_reproduce", "cli_retention", "cli_logprobs"),
    ("cli", "__main__"),
    ("cli_reference",),
)
ROW = {name: number for number, names in enumerate(ROWS) for name in names}

EXCEPTIONS = {
    # The adapters seat opponents from agents/base.py, which knows games only; imported when an environment is made.
    ("games/adapters.py", "agents"),
}


def modules() -> list[Path]:
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "_recipes")


def top(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Return every dotted name that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; write the whole name"
            found.add(str(node.module))
            if node.module == "stratagem":
                found.update(f"stratagem.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("path", modules(), ids=str)
def test_a_module_imports_from_rows_above_its_own(path: Path) -> None:
    if path == Path("__init__.py"):
        # open_run imports when it is called; the test below says what importing the package itself loads.
        assert {name for name in imported(path) if name.startswith("stratagem")} <= {
            "stratagem.runs", "stratagem.runs.frames"
        }  # fmt: skip
        return
    mine = top(path)
    assert mine in ROW, f"{mine} has no place in the layers; give it one in ROWS and in docs/architecture.md"
    for name in imported(path):
        parts = name.split(".")
        if parts[0] != "stratagem" or parts[1:] in ([], ["__version__"]) or (path.as_posix(), parts[1]) in EXCEPTIONS:
            continue
        assert parts[1] == mine or ROW[parts[1]] < ROW[mine], f"{path} imports {name}, which is not above it"


def test_importing_the_package_loads_no_other_module_of_it() -> None:
    script = "import sys, stratagem; print(sorted(name for name in sys.modules if name.startswith('stratagem')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['stratagem']"


def test_the_page_needs_no_torch() -> None:
    script = (
        "import sys, stratagem.cli_page, stratagem.page.server, stratagem.page.document\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_exceptions_are_still_needed() -> None:
    for path, target in EXCEPTIONS:
        assert any(name.startswith(f"stratagem.{target}") for name in imported(Path(path)))


@pytest.mark.parametrize("path", [path for path in modules() if top(path) != "models"], ids=str)
def test_only_models_import_transformers_and_peft(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported(path)} & {"transformers", "peft"}


def test_algorithms_never_load_transformers_nor_touch_a_global_generator() -> None:
    names = [
        f"stratagem.algorithms.{path.stem}" for path in (PACKAGE / "algorithms").glob("*.py") if path.stem != "__init__"
    ]
    assert "stratagem.algorithms.ms_grpo" in names
    script = (
        "import random, sys, numpy, torch\n"
        "state = lambda: (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())\n"
        "before = state()\n"
        f"import {', '.join(names)}\n"
        "print(before == state(), *sorted({'transformers', 'peft'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
