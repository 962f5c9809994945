"""Published numbers: each is a JSON file under ``results/``, and documents quote the files.

A document marks where numbers stand::

    <!-- records: frozen_lake_demo snake_demo -->
    (a table that is written by this module)
    <!-- /records -->

``<!-- records in short: ... -->`` writes a narrow table instead: title, value and spread, and a link to the file, which
has the rest.

``python -m stratagem.evaluation.records --check docs README.md`` names every table that is not what the files say and
exits with 1; ``--write`` rewrites them. Marks inside fenced code are left alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from stratagem.errors import ConfigError, StratagemError, UnknownNameError
from stratagem.evaluation.statistics import Interval
from stratagem.evaluation.tables import Table

__all__ = ["Record", "load_records", "main", "records_table", "render_records"]

_START = re.compile(r"^<!-- records( in short)?:((?: [\w.-]+)+) -->$")
_END = "<!-- /records -->"
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


@dataclass(frozen=True)
class Record:
    """One measured number and everything needed to measure it again."""

    name: str
    """The file's name without ``.json``."""
    command: str
    """What was run."""
    commit: str
    """Commit of the code, 7 to 40 hex digits; ``-dirty`` may follow."""
    machine: str
    """Processor or accelerator, in words."""
    date: str
    """YYYY-MM-DD."""
    unit: str
    """What the number counts: "return per episode", "seconds"."""
    value: float | None = None
    """The number; None where ``values`` holds one for each seed."""
    values: tuple[float, ...] | None = None
    """One for each seed; the table shows their mean."""
    interval: Interval | None = None
    """95% interval."""
    recipe: str | None = None
    """Name of the recipe."""
    seeds: tuple[int, ...] = ()
    note: str = ""
    """What the number is, in words; shown instead of the name."""
    title: str = ""
    """The same in a few words, for a narrow table."""

    def __post_init__(self) -> None:
        """Refuse a record that could not be checked or repeated."""

        def check(good: bool, what: str, expected: str) -> None:
            if not good:
                raise ConfigError(f"{what} in record {self.name!r} is not usable; {expected}.")

        for key in ("name", "command", "machine", "unit"):
            value = getattr(self, key)
            check(isinstance(value, str) and bool(value.strip()), f"{key}={value!r}", "write a text that is not empty")
        check(
            re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", str(self.commit)) is not None,
            f"commit={self.commit!r}",
            "write 7 to 40 hex digits",
        )
        check(_is_date(str(self.date)), f"date={self.date!r}", "write a day as YYYY-MM-DD")
        check(
            (self.value is None) != (self.values is None),
            f"value={self.value!r} with values={self.values!r}",
            "give exactly one of them",
        )
        numbers = [self.value] if self.values is None else list(self.values)
        check(
            bool(numbers) and all(isinstance(n, int | float) and math.isfinite(n) for n in numbers),
            f"{'value' if self.values is None else 'values'}={numbers!r}",
            "write finite numbers",
        )
        if self.values is not None:
            check(
                len(self.seeds) == len(self.values),
                f"seeds={list(self.seeds)!r} with {len(self.values)} values",
                "give one seed for each value",
            )
        if self.interval is not None:
            check(
                len(self.interval) == 2 and self.interval[0] <= self.interval[1],
                f"interval={list(self.interval)!r}",
                "write [low, high]",
            )

    @property
    def mean(self) -> float:
        """The number that a table shows."""
        if self.values is not None:
            return sum(self.values) / len(self.values)
        assert self.value is not None
        return self.value

    @classmethod
    def from_json(cls, text: str, *, name: str) -> Record:
        """Read a record.

        Args:
            text: of the file.
            name: of the file, without ``.json``.

        Raises:
            ConfigError: it is not JSON, has unknown or missing keys, bad values, or another name.
        """
        try:
            data: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"record {name!r} is not JSON ({error}); write one object.") from None
        if not isinstance(data, dict):
            raise ConfigError(f"record {name!r} holds a {type(data).__name__}; write one object.")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for key in data:
            if key not in fields:
                raise UnknownNameError(f"key of record {name!r}", key, fields)
        missing = [k for k, f in fields.items() if f.default is dataclasses.MISSING and k not in data]
        if missing:
            raise ConfigError(f"record {name!r} lacks {', '.join(missing)}; add what is needed to measure it again.")
        for key in ("values", "interval", "seeds"):
            if data.get(key) is not None:
                data[key] = tuple(data[key])
        record = cls(**data)
        if record.name != name:
            raise ConfigError(f"name={record.name!r} stands in the file {name}.json; give both the same name.")
        return record

    def to_json(self) -> str:
        """Return the record as the text of its file, without what was left out."""
        data = {key: value for key, value in dataclasses.asdict(self).items() if value not in (None, (), "")}
        return json.dumps(data, indent=2) + "\n"


def load_records(folder: str | Path) -> dict[str, Record]:
    """Read every ``*.json`` of a folder, by name.

    Raises:
        ConfigError: the folder is missing or a record is bad.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"results={str(folder)!r} is not a folder; name the one that holds the records.")
    paths = sorted(folder.glob("*.json"))
    return {path.stem: Record.from_json(path.read_text(encoding="utf-8"), name=path.stem) for path in paths}


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def records_table(records: Sequence[Record], *, folder: str | None = None) -> Table:
    """Return the table of some records; columns that none of them fills are left out.

    Args:
        records: in order.
        folder: where their files lie, for a narrow table with links to them; None writes everything out.
    """
    value = [f"{_number(record.mean)} {record.unit}" for record in records]
    interval = ["" if r.interval is None else f"[{_number(r.interval[0])}, {_number(r.interval[1])}]" for r in records]
    per_seed = ["" if r.values is None else ", ".join(map(_number, r.values)) for r in records]
    if folder is not None:
        return _filled(
            {
                "Result": [record.title or record.note or record.name for record in records],
                "Value": value,
                "95% interval": interval,
                "Per seed": per_seed,
                "Details": [f"[{record.name}]({folder}/{record.name}.json)" for record in records],
            }
        )
    columns: dict[str, list[str]] = {
        "Result": [record.note or record.name for record in records],
        "Value": value,
        "95% interval": interval,
        "Seeds": [", ".join(map(str, record.seeds)) for record in records],
        "Per seed": per_seed,
        "Recipe": [record.recipe or "" for record in records],
        "Command": [f"`{record.command}`" for record in records],
        "Machine": [record.machine for record in records],
        "Commit": [re.sub(r"^(\w{9})\w+", r"\1", record.commit) for record in records],
        "Date": [record.date for record in records],
    }
    return _filled(columns)


def _filled(columns: Mapping[str, Sequence[str]]) -> Table:
    filled = {header: cells for header, cells in columns.items() if any(cells)}
    return Table(tuple(filled), tuple(zip(*filled.values(), strict=True)))


def render_records(text: str, records: Mapping[str, Record], *, folder: str = "results") -> str:
    """Return a Markdown text with the table of each block rewritten.

    Args:
        text: of a document.
        records: by name.
        folder: of their files, as the document links to it.

    Raises:
        UnknownNameError: a block names a record that does not exist.
        ConfigError: a block is not closed.
    """
    written: list[str] = []
    fence: str | None = None
    inside: int | None = None
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        stripped = line.strip()
        if inside is not None:
            if stripped == _END:
                inside = None
                written.append(line)
            elif _START.match(stripped):
                break  # the block before was not closed
            continue
        written.append(line)
        mark = _FENCE.match(line)
        if mark and fence is None:
            fence = mark[1]
        elif fence is not None:
            if mark and mark[1].startswith(fence) and stripped == mark[1]:
                fence = None
        elif start := _START.match(stripped):
            inside = number
            names = start[2].split()
            for name in names:
                if name not in records:
                    raise UnknownNameError("record", name, records)
            table = records_table([records[name] for name in names], folder=folder if start[1] else None)
            written += ["\n", table.markdown(), "\n"]
    if inside is not None:
        raise ConfigError(f"The block of records at line {inside} is not closed; add a line {_END!r} after it.")
    return "".join(written)


def _documents(paths: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise ConfigError(f"{str(path)!r} does not exist; name Markdown files or folders that hold some.")
        found += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    return found


def _first_difference(old: str, new: str) -> int:
    pairs = itertools.zip_longest(old.splitlines(), new.splitlines())
    return next((number for number, (a, b) in enumerate(pairs, start=1) if a != b), 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Check or rewrite the tables of documents; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m stratagem.evaluation.records", description=main.__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="name tables that differ from the records and exit with 1")
    mode.add_argument("--write", action="store_true", help="rewrite the tables")
    parser.add_argument("--results", default="results", metavar="FOLDER", help="folder of the records (results)")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="Markdown files, or folders that hold some")
    arguments = parser.parse_args(argv)
    try:
        records = load_records(arguments.results)
        documents = _documents(arguments.paths)
    except StratagemError as error:
        print(error, file=sys.stderr)
        return 1
    status = 0
    for document in documents:
        text = document.read_text(encoding="utf-8")
        try:
            folder = Path(os.path.relpath(arguments.results, document.parent)).as_posix()
            rendered = render_records(text, records, folder=folder)
        except StratagemError as error:
            print(f"{document}: {error}", file=sys.stderr)
            status = 1
            continue
        if rendered == text:
            continue
        if arguments.write:
            document.write_text(rendered, encoding="utf-8")
            print(f"{document}: rewritten")
        else:
            line = _first_difference(text, rendered)
            hint = "run python -m stratagem.evaluation.records --write"
            print(f"{document}:{line}: differs from the records; {hint}.", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
