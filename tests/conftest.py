"""Shared by all tests: no network, few threads, a run folder to write to."""

from __future__ import annotations

import os

# Before anything imports torch or huggingface_hub, which read these once. Tests are small; many threads slow them down.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratagem.runs.folder import RunFolder

RECIPE_TEXT = 'name = "lake"\nseed = 3\n\n[game]\nname = "frozen_lake"\n'


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints must not depend on what else this machine does."""
    monkeypatch.setattr("stratagem.cli_work.load_warning", lambda: None)


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[RunFolder]:
    """A fresh, locked run."""
    with RunFolder.create(tmp_path / "runs", "a_run", RECIPE_TEXT) as run:
        yield run
