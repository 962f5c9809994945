"""Writing files so that a reader sees the old content or the new one, never a half, even after ``kill -9``.

Content goes to a temporary file in the same folder, is flushed to the disk, and is renamed over the target; the folder
is flushed too, because a rename is a change of the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = [
    "atomic_write",
    "atomic_write_bytes",
    "atomic_write_json",
    "atomic_write_text",
    "error_reason",
    "fsync_folder",
    "fsync_path",
    "publish_folder",
]


def fsync_path(path: Path) -> None:
    """Flush one file to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk; a no-op where folders cannot be opened (Windows)."""
    if os.name == "posix":
        fsync_path(path)


def atomic_write(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary path, then put it in place of ``path``.

    Args:
        path: the file that appears or is replaced.
        write: writes the content to the path it is given.
    """
    temporary = path.parent / f".tmp-{path.name}-{secrets.token_hex(4)}"
    try:
        write(temporary)
        fsync_path(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_folder(path.parent)


def atomic_write_bytes(path: Path, content: bytes) -> None:
    """Write bytes; see :func:`atomic_write`."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    atomic_write(path, write)


def atomic_write_text(path: Path, content: str) -> None:
    """Write UTF-8 text; see :func:`atomic_write`."""
    atomic_write_bytes(path, content.encode("utf-8"))


def atomic_write_json(path: Path, content: Any) -> None:
    """Write JSON that any reader takes: NaN and infinity are refused with ``ValueError``."""
    atomic_write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def publish_folder(temporary: Path, final: Path) -> None:
    """Rename a filled folder to its final name, flushing its files first.

    Raises:
        FileExistsError: ``final`` is there already.
    """
    for parent, _, names in os.walk(temporary):
        for name in names:
            fsync_path(Path(parent) / name)
        fsync_folder(Path(parent))
    # On POSIX a rename would replace an empty folder silently.
    if final.exists():
        raise FileExistsError(str(final))
    try:
        os.rename(temporary, final)
    except OSError as error:
        if final.exists():
            raise FileExistsError(str(final)) from error
        raise
    fsync_folder(final.parent)


def error_reason(error: OSError) -> str:
    """Return the system's words for a failed operation, without the path that some libraries put around them."""
    return os.strerror(error.errno) if error.errno is not None else str(error)
