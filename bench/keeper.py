"""Keeps what was measured as records, with what is needed to measure it again."""

from __future__ import annotations

import argparse
import shlex
from datetime import date
from pathlib import Path

from stratagem.evaluation.records import Record
from stratagem.files import atomic_write_text
from stratagem.runs.provenance import collect_provenance

__all__ = ["Keeper"]


class Keeper:
    """Writes records; holds what they have in common."""

    def __init__(self, options: argparse.Namespace, script: str) -> None:
        """Read commit and machine once.

        Args:
            options: ``results`` (a folder, or None to keep nothing), ``threads``, and ``given``, the words of the
                command.
            script: the command's file.
        """
        self.folder: str | None = options.results
        found = collect_provenance(0)
        git, hardware = found["git"], found["hardware"]
        self.commit = "0000000" if git is None else git["commit"] + ("-dirty" if git["dirty"] else "")
        self.machine = f"{hardware['cpu']}, {options.threads} core{'s' * (options.threads > 1)}"
        self.command = shlex.join(["python", script, *options.given])

    def keep(self, name: str, value: float, unit: str, note: str) -> None:
        """Write one record, unless none are kept."""
        if self.folder is None:
            return
        record = Record(
            name=name,
            command=self.command,
            commit=self.commit,
            machine=self.machine,
            date=date.today().isoformat(),
            unit=unit,
            value=value,
            note=note,
        )
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(folder / f"{name}.json", record.to_json())
