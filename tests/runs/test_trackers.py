from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratagem.errors import ConfigError
from stratagem.runs import trackers as module
from stratagem.runs.trackers import Trackers


class Recorder:
    """Stands in for one of accelerate's trackers."""

    def __init__(self, fail: str = "") -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fail = fail

    def _call(self, name: str, value: Any = None) -> None:
        self.calls.append((name, value))
        if name == self.fail:
            raise ConnectionError("no network")

    def start(self) -> None:
        self._call("start")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._call("config", values)

    def log(self, values: dict[str, float], step: int) -> None:
        self._call("log", (step, values))

    def finish(self) -> None:
        self._call("finish")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    tracker = Recorder()
    monkeypatch.setattr(module, "TRACKERS", {"json": lambda *_: tracker})  # a module that is always installed
    return tracker


def test_without_names_nothing_happens(tmp_path: Path) -> None:
    trackers = Trackers((), tmp_path, "run", {})
    trackers.log(1, {"a": 1.0})
    trackers.close()
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    message = "Unknown tracker 'tensorbord'. Did you mean 'tensorboard'? Available: tensorboard, trackio, wandb."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Trackers(["tensorbord"], tmp_path, "run", {})


def test_a_missing_package_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = (
        "Tracker 'wandb' needs the package 'wandb', which is not installed; "
        "run pip install wandb, or leave it out of run.trackers."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Trackers(["wandb"], tmp_path, "run", {})


def test_configuration_and_numbers_are_sent(tmp_path: Path, recorder: Recorder) -> None:
    trackers = Trackers(["json"], tmp_path, "run", {"seed": 1, "game": {"name": "lake", "grid": ["SG"]}})
    trackers.log(1, {"a": 1, "b": 0.5, "text": "no number", "flag": True, "none": None})
    trackers.close()
    trackers.close()
    assert recorder.calls == [
        ("start", None),
        ("config", {"seed": 1, "game.name": "lake", "game.grid": "['SG']"}),
        ("log", (1, {"a": 1.0, "b": 0.5})),
        ("finish", None),
    ]


def test_a_resumed_run_does_not_send_its_configuration_again(tmp_path: Path, recorder: Recorder) -> None:
    Trackers(["json"], tmp_path, "run", {"seed": 1}, iteration=10)
    assert recorder.calls == [("start", None)]


@pytest.mark.parametrize("fail", ["start", "config", "log", "finish"])
def test_a_tracker_that_fails_warns_once_and_is_left_alone(tmp_path: Path, recorder: Recorder, fail: str) -> None:
    recorder.fail = fail
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trackers = Trackers(["json"], tmp_path, "run", {"seed": 1})
        trackers.log(1, {"a": 1.0})
        trackers.log(2, {"a": 1.0})
        trackers.close()
    assert [str(warning.message) for warning in caught] == [
        "Tracker 'json' failed (ConnectionError: no network) and is off for the rest of this run; "
        "metrics.jsonl goes on."
    ]
    assert recorder.calls[-1][0] == fail


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_writes_events_that_hold_the_numbers(tmp_path: Path) -> None:
    trackers = Trackers(["tensorboard"], tmp_path, "run", {"seed": 1})
    trackers.log(1, {"return_mean": 0.25})
    trackers.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("return_mean")] == [(1, 0.25)]
