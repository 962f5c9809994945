"""``episodes.jsonl``: episodes of a panel as they end, so that an interrupted evaluation goes on where it was.

The first line says what is evaluated; each further line is one episode with its place in the panel. A line torn by
``kill -9`` is cut off.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratagem.errors import RunError
from stratagem.files import atomic_write_text, error_reason
from stratagem.types import Finish, Step, StopReason, Trajectory, generation_from_json

__all__ = ["EpisodeLog", "read_episodes", "write_episodes"]


class EpisodeLog:
    """Appends episodes to a file, each flushed to the disk."""

    def __init__(self, path: Path, header: Mapping[str, Any], *, resume: bool = False) -> None:
        """Open a log.

        Args:
            path: its folder is made if missing.
            header: JSON values that say what is evaluated; a resumed log must hold the same.
            resume: go on with the file if it is there.

        Raises:
            RunError: the file is there and ``resume`` is off, or it is of another evaluation.
        """
        self.path = path
        self.done: dict[int, Trajectory] = {}
        """Episodes by place; those whose game failed are left out and played again."""
        header = json.loads(json.dumps(dict(header)))
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            atomic_write_text(path, json.dumps(header) + "\n")
            return
        if not resume:
            raise RunError(
                f"{str(path)!r} exists; continue that evaluation with --resume, or name another folder with --out."
            )
        stored, self.done = read_episodes(path)
        different = sorted(key for key in stored.keys() | header.keys() if stored.get(key) != header.get(key))
        if different:
            changes = ", ".join(f"{key} ({stored.get(key)!r} -> {header.get(key)!r})" for key in different)
            raise RunError(
                f"{str(path)!r} holds another evaluation; different: {changes}. Name another folder with --out."
            )
        self.done = {k: t for k, t in self.done.items() if t.stop_reason is not StopReason.GAME_FAILED}
        write_episodes(path, header, self.done)  # without a torn end

    def append(self, place: int, trajectory: Trajectory) -> None:
        """Add one episode.

        Raises:
            RunError: the disk is full.
        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(place, trajectory))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"Episode {place} could not be written to {str(self.path)!r} ({error_reason(error)}); free some space, "
                "then continue with --resume."
            ) from error


def write_episodes(
    path: Path, header: Mapping[str, Any], episodes: Mapping[int, Trajectory] | Sequence[Trajectory]
) -> None:
    """Write a whole log in one step, replacing the file if it is there."""
    items = sorted(episodes.items()) if isinstance(episodes, Mapping) else enumerate(episodes)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(dict(header)) + "\n", *(_line(place, trajectory) for place, trajectory in items)]
    atomic_write_text(path, "".join(lines))


def read_episodes(path: Path) -> tuple[dict[str, Any], dict[int, Trajectory]]:
    """Return the header and the episodes by their place.

    Raises:
        RunError: the file is missing, or a line before the last is damaged.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error_reason(error) if isinstance(error, OSError) else str(error)
        raise RunError(f"{str(path)!r} cannot be read ({reason}); give the file of an evaluation.") from error
    header: dict[str, Any] = {}
    episodes: dict[int, Trajectory] = {}
    for number, line in enumerate(lines):
        if number == len(lines) - 1:
            break  # empty, or torn: a line and its break are flushed together
        try:
            data = json.loads(line)
            if number == 0:
                header = dict(data)
            else:
                episodes[int(data["place"])] = _trajectory(data["trajectory"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"Line {number + 1} of {str(path)!r} is damaged ({error}); restore the file from a copy or delete that "
                "line."
            ) from error
    return header, episodes


def _line(place: int, trajectory: Trajectory) -> str:
    # A game may put anything into info; what JSON lacks becomes text.
    return json.dumps({"place": place, "trajectory": dataclasses.asdict(trajectory)}, default=str) + "\n"


def _trajectory(data: dict[str, Any]) -> Trajectory:
    steps = []
    for step in data["steps"]:
        for key in ("prompt_ids", "completion_ids", "logprobs"):
            step[key] = tuple(step[key])
        step["candidates"] = tuple(map(tuple, step.get("candidates", ())))
        step["candidate_logprobs"] = tuple(step.get("candidate_logprobs", ()))
        step["finish"] = None if step["finish"] is None else Finish(step["finish"])
        step["generations"] = tuple(generation_from_json(part) for part in step.get("generations", ()))
        steps.append(Step(**step))
    return Trajectory(**{**data, "steps": tuple(steps), "stop_reason": StopReason(data["stop_reason"])})
