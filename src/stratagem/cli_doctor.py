"""The verb doctor: is this machine fit, and what to do if not."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stratagem import __version__
from stratagem.runs.load import busy_with, load_average, usable_cores

if TYPE_CHECKING:
    import torch

__all__ = ["Check", "doctor", "run_checks"]

_PACKAGES = ("torch", "transformers", "peft", "accelerate", "numpy", "scipy", "pyarrow", "safetensors", "httpx")
_EXTRAS = {
    "tensorboard": "trackers",
    "trackio": "trackers",
    "wandb": "trackers",
    "lm_eval": "retention",
    "mkdocs": "docs",
    "pytest": "dev",
}
_MATMUL_SECONDS = 2.0


@dataclass(frozen=True)
class Check:
    """One finding."""

    name: str
    found: str
    advice: str | None = None
    """What to do; None where all is well."""
    broken: bool = False
    """Nothing works like this; an advice that is not broken is a hint."""


def doctor(arguments: argparse.Namespace) -> int:
    """Print every check; return 1 if something is broken."""
    checks = run_checks(arguments.runs_dir)
    for check in checks:
        mark = "ok  " if check.advice is None else "FAIL" if check.broken else "hint"
        print(f"{mark}  {check.name:<12} {check.found}")
        if check.advice is not None:
            print(f"      {'':<12} {check.advice}")
    broken = [check.name for check in checks if check.broken]
    print(f"\nbroken: {', '.join(broken)}" if broken else "\nThis machine is fit. Try: stratagem train tiny")
    return 1 if broken else 0


def run_checks(runs_dir: str) -> list[Check]:
    """Return all findings; takes about five seconds."""
    checks = [Check("stratagem", __version__), _python()]
    packages = [_package(name) for name in _PACKAGES]
    checks += packages
    if not packages[0].broken:
        checks += [_threads(), _gpu(), _speed()]
    checks += [_memory(), _writable("runs", Path(runs_dir)), _cache(), _extras(), _terminal()]
    return checks


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < (3, 11):  # noqa: UP036 - a wheel can be forced onto an older Python
        return Check("python", found, "Python 3.11 or newer is needed; make a new environment with one.", broken=True)
    return Check("python", found)


def _package(name: str) -> Check:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a broken binary raises anything
        return Check(
            name, f"{type(error).__name__}: {error}", f"Install it again: pip install --force-reinstall {name}", True
        )
    return Check(name, str(getattr(module, "__version__", "found")))


def _threads() -> Check:
    import torch

    usable = usable_cores()
    used = torch.get_num_threads()
    advice = None
    if used > usable:
        advice = f"More threads than cores slow each other down; set OMP_NUM_THREADS={usable}."
    return Check("threads", f"torch uses {used}, this process may use {usable} of {os.cpu_count()} cores", advice)


def _gpu() -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check("gpu", "none; small models train on the CPU")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Check("gpu", ", ".join(names))


def _speed() -> Check:
    """Multiply matrices for two seconds."""
    import torch

    cores = os.cpu_count() or 1
    load, busy = load_average(), busy_with(cores / 2)  # before the threads below count
    rate, low = _matmul_rate(torch.float32), _matmul_rate(torch.bfloat16)
    advice = []
    if busy is not None:
        advice.append("The machine is busy with other work, so it is faster than that; ask again when it is idle.")
    elif rate < 10:
        advice.append("That is slow: torch is built without this processor's instructions, or cores are shared.")
    if low > 2 * rate:
        advice.append("Training and sampling are faster with --set model.matmul_dtype=bfloat16.")
    found = f"{rate:.0f} GFLOP/s in float32, {low:.0f} in bfloat16"
    if load is not None:
        found += f", at a load of {load:.1f} on {cores} cores"
    return Check("speed", found, " ".join(advice) or None)


def _matmul_rate(dtype: torch.dtype) -> float:
    """Return GFLOP/s of square products."""
    import torch

    size = 768
    a, b = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    torch.mm(a, b)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < _MATMUL_SECONDS / 2:
        torch.mm(a, b)
        count += 1
    return count * 2 * size**3 / (time.perf_counter() - start) / 1e9


def _available_gib() -> float | None:
    """Return what Linux could give to a new program, caches included; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) / 2**20 if found else None


def _memory() -> Check:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES") / 2**30
        free = _available_gib() or page * os.sysconf("SC_AVPHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        return Check("memory", "unknown")
    advice = None
    if total < 4:
        advice = "The demo needs about 4 GiB; lower algorithm.max_tokens_per_pass and model.cache_tokens, or use tiny."
    return Check("memory", f"{total:.1f} GiB, {free:.1f} GiB available", advice)


def _writable(name: str, folder: Path) -> Check:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return Check(
            name, str(folder), f"{existing} cannot be written to; choose another with --runs-dir.", broken=True
        )
    free = shutil.disk_usage(existing).free / 2**30
    advice = None
    if free < 8:
        advice = "A run of the demo takes 1 GiB, and 3 GiB where all weights of its model train."
    return Check(name, f"{folder}, {free:.1f} GiB free", advice)


def _cache() -> Check:
    from stratagem.models.catalog import cache_folder

    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return Check("cache", str(folder), f"{existing} cannot be written to; set STRATAGEM_CACHE.", broken=True)
    kept = sorted(path.name for path in (folder / "models").glob("[!.]*")) if folder.is_dir() else []
    return Check("cache", f"{folder} ({', '.join(kept) or 'no models yet'})")


def _extras() -> Check:
    there = [name for name in _EXTRAS if importlib.util.find_spec(name) is not None]
    missing = [f"{name} (extra {extra})" for name, extra in _EXTRAS.items() if name not in there]
    return Check("extras", f"{', '.join(there) or 'none'}; not installed: {', '.join(missing) or 'none'}")


def _terminal() -> Check:
    encoding = (getattr(sys.stdout, "encoding", None) or "unknown").lower()
    advice = None
    if "utf" not in encoding:
        advice = "Curves are drawn with block characters; set PYTHONIOENCODING=utf-8."
    return Check("terminal", encoding, advice)
