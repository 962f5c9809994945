from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from stratagem.errors import RunError
from stratagem.runs.metrics import MetricsLog, read_metrics, truncate_metrics


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).append(1, {"a": 0.1, "b": np.float32(0.5), "c": torch.tensor(2), "d": {"e": [True, None]}})
    MetricsLog(path).append(2, {"a": 1})
    assert read_metrics(path) == [
        {"iteration": 1, "a": 0.1, "b": 0.5, "c": 2, "d": {"e": [True, None]}},
        {"iteration": 2, "a": 1},
    ]


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).append(1, {"a": float("nan"), "b": float("inf"), "c": np.float32("-inf")})
    assert path.read_text() == '{"iteration": 1, "a": null, "b": null, "c": null}\n'


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("length", range(1, 17))
def test_a_line_torn_anywhere_is_left_out_with_a_warning(tmp_path: Path, length: int) -> None:
    path = tmp_path / "metrics.jsonl"
    line = '{"iteration": 2, "a": 5}'
    path.write_text('{"iteration": 1}\n' + line[:length])
    message = f"The last line of {str(path)!r} is incomplete and is left out."
    with pytest.warns(RuntimeWarning, match=f"^{re.escape(message)}$"):
        assert read_metrics(path) == [{"iteration": 1}]
    # The next writer repairs the file.
    MetricsLog(path).append(2, {"a": 6})
    assert read_metrics(path) == [{"iteration": 1}, {"iteration": 2, "a": 6}]


def test_a_line_that_lost_only_its_line_break_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}')
    assert read_metrics(path) == [{"iteration": 1}]
    MetricsLog(path).append(2, {})
    assert read_metrics(path) == [{"iteration": 1}, {"iteration": 2}]


def test_damage_before_the_last_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\nxx\n{"iteration": 3}\n')
    message = (
        f"Line 2 of {str(path)!r} is damaged: expected a JSON object with an iteration; "
        "restore the file from a copy or delete that line."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        read_metrics(path)


def test_truncating_keeps_the_iteration_itself(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for iteration in (1, 2, 3):
        log.append(iteration, {})
    truncate_metrics(path, 2)
    assert [json.loads(line)["iteration"] for line in path.read_text().splitlines()] == [1, 2]


def test_an_iteration_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).append(2, {})
    message = (
        "metrics.jsonl already holds iteration 2, so iteration 2 cannot follow; "
        "cut it back with truncate_metrics before resuming."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        MetricsLog(path).append(2, {})


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.append(1, {})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        message = (
            f"Metrics of iteration 2 could not be written to {str(path)!r} (No space left on device); "
            "free some space, then continue with --resume."
        )
        with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
            log.append(2, {})
    assert path.read_text() == '{"iteration": 1}\n'
    log.append(2, {})
    assert len(read_metrics(path)) == 2
