"""The benchmark of ScienceWorld runs end to end; the number means nothing here."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from stratagem.evaluation.records import load_records

BENCH = Path(__file__).resolve().parents[1] / "bench"
MISSING = shutil.which("java") is None or importlib.util.find_spec("scienceworld") is None


@pytest.mark.skipif(MISSING, reason="there is no java or no package scienceworld here")
def test_steps_are_measured_on_both_sides_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "")  # the benchmark sets it
    modules = set(sys.modules)
    try:
        bench = importlib.import_module("scienceworld_steps")
        assert bench.main(["--quick", "--results", str(tmp_path)]) == 0
    finally:
        for name in ("scienceworld_steps", "keeper", "measure"):
            if name not in modules:
                sys.modules.pop(name, None)
    assert "not run" not in capsys.readouterr().out
    (record,) = load_records(tmp_path).values()
    assert (record.name, record.unit) == ("scienceworld.steps_ratio", "times as fast")
    assert record.mean > 0
    assert record.command == f"python bench/scienceworld_steps.py --quick --results {tmp_path}"
