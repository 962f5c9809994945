"""Files of log-probabilities under other weights: what is written comes back, and others are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stratagem.data.token_logprobs import (
    ANSWER,
    LOGPROB_SCHEMA,
    TokenLogprobs,
    list_weights,
    logprobs_file,
    read_token_logprobs,
    write_token_logprobs,
)
from stratagem.data.trajectories import write_trajectories
from stratagem.errors import RunError
from stratagem.types import Step, StopReason, Trajectory, TrajectoryGroup

# float32 holds these numbers exactly.
ANSWERS = {
    (0, 0, 0, ANSWER): TokenLogprobs((5, 6), (-0.5, -1.25)),
    (0, 1, 0, 0): TokenLogprobs((7,), (-2.0,)),
    (0, 1, 0, ANSWER): TokenLogprobs((5,), (0.0,)),
    (3, 0, 2, ANSWER): TokenLogprobs((9,), (-8.0,)),
}


def test_answers_come_back_whole_by_group_and_by_episode(tmp_path: Path) -> None:
    path = logprobs_file(tmp_path, "start", 4)
    write_token_logprobs(path, 4, ANSWERS, temperature=0.75)
    assert path == tmp_path / "logprobs" / "start" / "000004.parquet"
    assert read_token_logprobs(path) == (ANSWERS, 0.75)
    places = list(ANSWERS)
    assert list(read_token_logprobs(path, group=0)[0]) == places[:3]
    assert list(read_token_logprobs(path, group=0, episode=1)[0]) == places[1:3]
    assert read_token_logprobs(path, group=9)[0] == {}
    assert pq.read_schema(path).equals(LOGPROB_SCHEMA)
    assert [entry.name for entry in path.parent.iterdir()] == ["000004.parquet"]


def test_weights_are_listed_in_the_order_of_training(tmp_path: Path) -> None:
    for weights in ("000030", "start", "000002"):
        write_token_logprobs(logprobs_file(tmp_path, weights, 1), 1, ANSWERS, temperature=1.0)
    assert list_weights(tmp_path, 1) == ["start", "000002", "000030"]
    assert list_weights(tmp_path, 2) == []


def test_other_files_are_refused(tmp_path: Path) -> None:
    episode = Trajectory("lake", 1, 0, 0, (Step("o", "up", 0.0),), True, False, StopReason.TERMINATED)
    path = write_trajectories(tmp_path, 1, [TrajectoryGroup((episode,))])
    start = f"{str(path)!r} cannot be read as log-probabilities (its columns are iteration, group, "
    end = "); delete it, and make it again with `stratagem logprobs`."
    with pytest.raises(RunError, match=f"^{re.escape(start)}.*{re.escape(end)}$"):
        read_token_logprobs(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(RunError, match=rf"^{re.escape(repr(str(path)))} cannot be read as log-probabilities \("):
        read_token_logprobs(path)
    with pytest.raises(RunError, match=r"cannot be read as log-probabilities"):
        read_token_logprobs(tmp_path / "none.parquet")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "logprobs").write_text("a file where a folder should be")
    path = logprobs_file(tmp_path, "start", 1)
    message = (
        f"Log-probabilities could not be written to {str(path)!r} (Not a directory); free some space, then give the "
        "same command again."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        write_token_logprobs(path, 1, ANSWERS, temperature=1.0)
