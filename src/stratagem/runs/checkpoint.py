"""Checkpoints that are complete or absent, whatever happens while they are written.

A checkpoint is filled in ``checkpoints/.tmp-...``, flushed, and renamed to ``checkpoints/000010/``; older ones are
deleted only afterwards. Tensors are safetensors files, the rest is JSON; ``manifest.json`` holds a SHA-256 of each
file, which is checked on loading. There is no pickle, so a checkpoint from a stranger runs no code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stratagem.errors import RunError
from stratagem.files import error_reason, fsync_folder, publish_folder
from stratagem.runs.state import flatten_state, unflatten_state

__all__ = ["Checkpoint", "list_checkpoints", "load_checkpoint", "load_latest", "save_checkpoint"]

_NAME = re.compile(r"(\d{6,})(?:\.(\d+))?")
_FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """What was saved."""

    iteration: int
    """Iterations completed when it was saved."""
    tensors: dict[str, dict[str, Tensor]]
    """Tensors by file name and tensor name, on the CPU."""
    state: dict[str, Any]
    """Everything else."""
    path: Path

    @property
    def played(self) -> dict[str, Tensor]:
        """The weights that play panels and are saved: their average where there is one, else those that train."""
        return self.tensors.get("average", self.tensors["parameters"])


def save_checkpoint(
    folder: Path,
    iteration: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
) -> Path:
    """Write one checkpoint and drop the oldest ones.

    Args:
        folder: the run's ``checkpoints`` folder.
        iteration: iterations completed.
        tensors: ``{"adapter": {name: tensor}, ...}``; each entry becomes one safetensors file.
        state: whatever :func:`stratagem.runs.state.flatten_state` takes: counters, optimizer and generator states.
        keep: how many checkpoints stay.

    Returns:
        The checkpoint's folder, usually ``folder/000010``.

    Raises:
        RunError: it could not be written; the earlier checkpoints are as they were.
    """
    assert "state" not in tensors, "'state' is the file of the tensors inside the state"
    _sweep(folder)
    temporary = folder / f".tmp-{iteration:06d}-{secrets.token_hex(4)}"
    try:
        temporary.mkdir()
        state_tensors, state_json = flatten_state(dict(state))
        for name, group in {**tensors, "state": state_tensors}.items():
            save_file(_savable(group), temporary / f"{name}.safetensors")
        (temporary / "state.json").write_text(json.dumps(state_json, allow_nan=False), encoding="utf-8")
        files = {path.name: _digest(path) for path in sorted(temporary.iterdir())}
        manifest = {"format": _FORMAT, "iteration": iteration, "complete": True, "files": files}
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        path = _publish(temporary, folder, iteration)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        previous = list_checkpoints(folder)
        kept = f"checkpoint {previous[-1].name} is untouched" if previous else "there is no earlier checkpoint"
        raise RunError(
            f"The checkpoint of iteration {iteration} could not be written to {str(folder)!r} ({_reason(error)}); "
            f"{kept}. Free some space, then continue with --resume."
        ) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _prune(folder, path, keep)
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders, oldest first, without looking inside."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_order)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint, checking every hash.

    Raises:
        RunError: a file is missing or changed.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != _FORMAT or manifest["complete"] is not True:
            raise RunError(f"Checkpoint {str(path)!r} has format {manifest['format']!r}; expected {_FORMAT}.")
        if not {"state.json", "state.safetensors"} <= manifest["files"].keys():
            raise RunError(f"Checkpoint {str(path)!r} is damaged: its manifest does not list the state.")
        tensors = {}
        for name, digest in manifest["files"].items():
            if _digest(path / name) != digest:
                raise RunError(f"Checkpoint {str(path)!r} is damaged: {name} does not match its SHA-256.")
            if name.endswith(".safetensors"):
                tensors[name.removesuffix(".safetensors")] = load_file(path / name)
        encoded = json.loads((path / "state.json").read_text(encoding="utf-8"))
        state = unflatten_state(tensors.pop("state"), encoded)
        return Checkpoint(iteration=int(manifest["iteration"]), tensors=tensors, state=state, path=path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise RunError(f"Checkpoint {str(path)!r} is damaged: {error}.") from error


def load_latest(folder: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None where there is none at all.

    Warns:
        RuntimeWarning: a newer checkpoint is damaged and was passed over.

    Raises:
        RunError: there are checkpoints, and all are damaged.
    """
    reasons = []
    for path in reversed(list_checkpoints(folder)):
        try:
            checkpoint = load_checkpoint(path)
        except RunError as error:
            reasons.append(str(error))
            continue
        for reason in reasons:
            warnings.warn(f"{reason} Continuing from {path.name} instead.", RuntimeWarning, stacklevel=2)
        return checkpoint
    if reasons:
        raise RunError(f"No checkpoint in {str(folder)!r} is intact; start a new run under another name. {reasons[0]}")
    return None


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _publish(temporary: Path, folder: Path, iteration: int) -> Path:
    """Rename to ``000010``, or ``000010.1`` where that exists: nothing is deleted before the new one is safe."""
    generation = 0
    while True:
        path = folder / (f"{iteration:06d}.{generation}" if generation else f"{iteration:06d}")
        try:
            publish_folder(temporary, path)
        except FileExistsError:
            generation += 1
        else:
            return path


def _prune(folder: Path, newest: Path, keep: int) -> None:
    """Delete all but ``keep`` checkpoints and any older generation of the newest one."""
    others = [path for path in list_checkpoints(folder) if path != newest]
    same = [path for path in others if _order(path)[0] == _order(newest)[0]]
    older = [path for path in others if path not in same]
    for path in [*same, *older[: max(0, len(older) - (keep - 1))]]:
        # Renamed first: a half-deleted folder must not look like a checkpoint.
        doomed = folder / f".old-{path.name}-{secrets.token_hex(4)}"
        try:
            os.rename(path, doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            warnings.warn(f"Old checkpoint {path.name} could not be deleted: {error}.", RuntimeWarning, stacklevel=3)
    fsync_folder(folder)


def _sweep(folder: Path) -> None:
    """Delete what an interrupted save or deletion left; the run's lock makes this process the only writer."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name.startswith((".tmp-", ".old-")):
            shutil.rmtree(path, ignore_errors=True)


def _savable(group: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors that share no memory, as safetensors asks."""
    seen: set[int] = set()
    result = {}
    for name, tensor in group.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        result[name] = tensor
    return result


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: OSError | SafetensorError) -> str:
    if isinstance(error, OSError):
        return error_reason(error)
    # safetensors writes through Rust and puts the system's number into its text.
    match = re.search(r"os error (\d+)", str(error))
    return os.strerror(int(match[1])) if match else str(error)
