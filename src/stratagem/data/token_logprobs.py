"""Log-probabilities of recorded tokens under saved weights: ``logprobs/WEIGHTS/000012.parquet`` in a run folder.

A trajectory file holds the log-probabilities of the weights that sampled it. These files hold those of other weights
for the same tokens, one file for each iteration of trajectories and one folder for each set of weights, so that any
two can be compared. They are made by :mod:`stratagem.runs.logprobs` and read without a model. A row is one answer, with
its token ids, so that a file says by itself what it is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stratagem.data.trajectories import read_table
from stratagem.errors import RunError
from stratagem.files import atomic_write, error_reason

__all__ = [
    "ANSWER",
    "LOGPROB_SCHEMA",
    "START",
    "Place",
    "TokenLogprobs",
    "list_weights",
    "logprobs_file",
    "read_token_logprobs",
    "write_token_logprobs",
]

START = "start"
"""The folder of the untrained model; the others are called like their checkpoint, ``000010``."""
ANSWER = -1
"""The ``part`` of what became the action; others are places among the step's generations."""

LOGPROB_SCHEMA = pa.schema(
    [
        pa.field("iteration", pa.int32(), nullable=False),
        pa.field("group", pa.int32(), nullable=False),
        pa.field("episode", pa.int32(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("completion_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
    ],
    metadata={"stratagem.schema": "logprobs 1"},
)
"""Columns of a file, in order."""

Place = tuple[int, int, int, int]
"""(group, episode, step, part) of an answer."""


@dataclass(frozen=True)
class TokenLogprobs:
    """What is known of one answer."""

    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """log p of each of them, float32, at the temperature that the file names."""


def logprobs_file(run: Path, weights: str, iteration: int) -> Path:
    """Return the file of an iteration's tokens under some weights.

    >>> logprobs_file(Path("first"), "000030", 12).as_posix()
    'first/logprobs/000030/000012.parquet'
    """
    return run / "logprobs" / weights / f"{iteration:06d}.parquet"


def list_weights(run: Path, iteration: int) -> list[str]:
    """Return the weights under which an iteration's tokens are known, in the order of training."""
    found = [path.parent.name for path in run.glob(f"logprobs/*/{iteration:06d}.parquet")]
    return sorted(found, key=lambda name: (name != START, name))


def write_token_logprobs(
    path: Path, iteration: int, answers: Mapping[Place, TokenLogprobs], *, temperature: float
) -> None:
    """Write a file, replacing the one that is there.

    Args:
        path: see :func:`logprobs_file`; its folder is made if missing.
        iteration: of the trajectories.
        answers: in the order of the file.
        temperature: that the logits were divided by.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    rows = [
        {"iteration": iteration, "group": group, "episode": episode, "step": step, "part": part,
         "completion_ids": answer.completion_ids, "logprobs": answer.logprobs}
        for (group, episode, step, part), answer in answers.items()
    ]  # fmt: skip
    metadata = {**LOGPROB_SCHEMA.metadata, b"stratagem.temperature": repr(temperature).encode()}
    table = pa.Table.from_pylist(rows, schema=LOGPROB_SCHEMA.with_metadata(metadata))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))
    except OSError as error:
        raise RunError(
            f"Log-probabilities could not be written to {str(path)!r} ({error_reason(error)}); free some space, then "
            "give the same command again."
        ) from error


def read_token_logprobs(
    path: Path, *, group: int | None = None, episode: int | None = None
) -> tuple[dict[Place, TokenLogprobs], float]:
    """Return the answers of a file, of one group or of one episode, and the temperature.

    Raises:
        RunError: the file is missing, damaged, or of another kind.
    """
    try:
        table = read_table(path, group=group, episode=episode)
        if not table.schema.equals(LOGPROB_SCHEMA):
            raise ValueError(f"its columns are {', '.join(table.schema.names)}")
        temperature = float((table.schema.metadata or {})[b"stratagem.temperature"])
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        raise RunError(
            f"{str(path)!r} cannot be read as log-probabilities ({error}); delete it, and make it again with "
            "`stratagem logprobs`."
        ) from error
    answers = {
        (row["group"], row["episode"], row["step"], row["part"]): TokenLogprobs(
            tuple(row["completion_ids"]), tuple(row["logprobs"])
        )
        for row in table.to_pylist()
    }
    return answers, temperature
