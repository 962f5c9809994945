"""Where a run came from: code, versions, machine, command and time."""

from __future__ import annotations

import datetime
import hashlib
import inspect
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from stratagem.errors import ConfigError
from stratagem.games import game_class

__all__ = ["collect_provenance", "own_games"]

_PACKAGES = ("stratagem", "torch", "transformers", "peft", "accelerate", "numpy", "gymnasium", "pyarrow", "safetensors")


def collect_provenance(seed: int) -> dict[str, Any]:
    """Return what is needed to repeat a run, as JSON values.

    Args:
        seed: the run's seed.
    """
    return {
        "seed": seed,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "git": _git(Path(__file__).resolve().parents[1]),
        "hardware": {
            "system": platform.platform(),
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gib": _memory_gib(),
            "gpus": _gpus(),
        },
    }


def own_games(recipe: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return file and SHA-256 of the code of each game of a recipe that is no part of this package.

    Only the file that holds the class is looked at, not what it imports.

    Args:
        recipe: as a table; a game of another package is ``package.module:Class``.
    """
    game, evaluation = recipe.get("game", {}), recipe.get("evaluation", {})
    names = [game.get("name", ""), *game.get("mix", ()), *evaluation.get("panels", ())]
    found = {}
    for name in dict.fromkeys(names):
        if ":" not in name or name.startswith("stratagem."):
            continue
        try:
            path = inspect.getsourcefile(game_class(name))
            code = None if path is None else Path(path).read_bytes()
        except (ConfigError, TypeError, OSError):  # refused elsewhere; a class of a notebook, or its file is gone
            continue
        if path is not None and code is not None:
            found[name] = {"file": str(Path(path).absolute()), "sha256": hashlib.sha256(code).hexdigest()}
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """Return commit and dirty flag of the checkout that holds ``folder``; None outside of one.

    Files that git does not track (a recipe, a run) leave it clean, as ``git describe --dirty`` has it.
    """

    def run(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        # An installed copy may lie inside somebody else's repository, which does not track it.
        run("ls-files", "--error-unmatch", "__init__.py")
        return {"commit": run("rev-parse", "HEAD"), "dirty": bool(run("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _gpus() -> list[str]:
    import torch  # here, so that reading a run folder does not load torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
