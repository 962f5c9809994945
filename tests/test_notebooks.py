"""The notebooks run from the first cell to the last, and what they show was made by them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
NEEDS = {"load_trajectories.ipynb": "datasets", "look_at_a_run.ipynb": "pandas"}


def texts(notebook: Any) -> list[str]:
    """Return what the cells show, as text."""
    found = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            content = output.get("text") or output.get("data", {}).get("text/plain", "")
            markdown = output.get("data", {}).get("text/markdown", "")
            found.append("".join(content) + "".join(markdown))
    return found


def test_there_are_three_at_most() -> None:
    assert [path.name for path in NOTEBOOKS] == [
        "compare_two_agents.ipynb", "load_trajectories.ipynb", "look_at_a_run.ipynb"
    ]  # fmt: skip


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_what_is_kept_is_small_and_of_no_machine(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    shown = texts(notebook)
    assert shown, "run it, so that it can be read without running it"
    assert path.stat().st_size < 30_000
    assert not re.findall(r"(?<![\w.])/(?:home|root|tmp|work|usr|Users|opt|var)\b", path.read_text(encoding="utf-8"))
    assert not [output for cell in notebook["cells"] for output in cell.get("outputs", []) if "name" in output
                and output["name"] == "stderr"]  # fmt: skip


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install nbclient ipykernel")
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name], reason=f"{NEEDS[path.name]} is not installed")
    for name in ("STRATAGEM_CACHE", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])))
    notebook = nbformat.read(path, as_version=4)
    kept = texts(notebook)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    made = texts(notebook)
    assert len(made) == len(kept)
    if path.name == "compare_two_agents.ipynb":  # no model and no clock in it: the same numbers everywhere
        assert made == kept
