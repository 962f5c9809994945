"""``metrics.jsonl``: one JSON object per iteration, appended and flushed to the disk.

NaN and infinity are written as ``null``, so that every JSON reader takes the file. A last line torn by ``kill -9`` is
left out with a warning; damage elsewhere is an error.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratagem.errors import RunError
from stratagem.files import atomic_write_bytes, error_reason

__all__ = ["MetricsLog", "read_metrics", "truncate_metrics"]


class MetricsLog:
    """Appends lines to a metrics file; the run's lock makes it the only writer."""

    def __init__(self, path: Path) -> None:
        """Open a log.

        Args:
            path: ``metrics.jsonl``; made if missing. A torn last line is cut off.
        """
        self.path = path
        rows, torn = _parse(path)
        if torn or (rows and not path.read_bytes().endswith(b"\n")):
            _rewrite(path, rows)
        self._last: int | None = rows[-1]["iteration"] if rows else None

    def append(self, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Add one line ``{"iteration": iteration, **metrics}`` and flush it.

        Args:
            iteration: larger than that of the line before.
            metrics: numbers, texts, booleans, None, and lists or tables of them.

        Raises:
            RunError: the iteration is there already, or the disk is full.
        """
        if self._last is not None and iteration <= self._last:
            raise RunError(
                f"{self.path.name} already holds iteration {self._last}, so iteration {iteration} cannot follow; "
                "cut it back with truncate_metrics before resuming."
            )
        line = json.dumps({"iteration": iteration, **{key: _plain(value) for key, value in metrics.items()}})
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, size)
            raise RunError(
                f"Metrics of iteration {iteration} could not be written to {str(self.path)!r} ({error_reason(error)}); "
                "free some space, then continue with --resume."
            ) from error
        self._last = iteration


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics file, oldest first; an empty list for a missing file.

    Warns:
        RuntimeWarning: the last line is torn; it is left out.

    Raises:
        RunError: a line before the last is damaged.
    """
    rows, torn = _parse(path)
    if torn:
        warnings.warn(f"The last line of {str(path)!r} is incomplete and is left out.", RuntimeWarning, stacklevel=2)
    return rows


def truncate_metrics(path: Path, iteration: int) -> None:
    """Keep the lines up to and including ``iteration``; the file is replaced in one step."""
    rows, _ = _parse(path)
    _rewrite(path, [row for row in rows if row["iteration"] <= iteration])


def _rewrite(path: Path, rows: list[dict[str, Any]]) -> None:
    atomic_write_bytes(path, b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def _parse(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Return the rows and whether the end of the file needs repair."""
    content = path.read_bytes() if path.exists() else b""
    rows: list[dict[str, Any]] = []
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
            # Only what follows the last line break can be torn: a line and its break are flushed together.
            if number == len(lines):
                return rows, True
            raise RunError(
                f"Line {number} of {str(path)!r} is damaged: expected a JSON object with an iteration; "
                "restore the file from a copy or delete that line."
            )
        rows.append(row)
    return rows, False


def _plain(value: Any) -> Any:
    """Return JSON values; numpy and torch scalars become numbers, numbers that JSON lacks become None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
