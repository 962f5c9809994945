"""Post-train small language models to make decisions over many steps, and prove whether they improved."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from stratagem.runs.frames import Run

__all__ = ["__version__", "open_run"]

__version__ = "0.1.0"


def open_run(path: Path | str) -> Run:
    """Open a run folder: its metrics and trajectories as pandas tables, see :class:`stratagem.runs.frames.Run`.

    Raises:
        RunError: the folder is missing or holds no run.
    """
    from stratagem.runs import frames  # here, so that importing the package stays cheap

    return frames.open_run(path)
