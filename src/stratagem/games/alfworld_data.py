"""ALFWorld's games on disk: the official folder, the compact file, and the way from one to the other.

The official download is ``json_2.1.1/<split>/<task>/<trial>/game.tw-pddl``, 4,027 files with games. The compact file is
one JSON object a line, gzipped: the same games in 1 MB, read in a second. ``docs/games/alfworld.md`` describes its
fields. ``stratagem data alfworld SRC DST`` converts.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from stratagem.errors import ConfigError
from stratagem.files import atomic_write_bytes
from stratagem.games.alfworld_pddl import record_of
from stratagem.games.alfworld_rules import TASK_TYPES, World, build_world

__all__ = ["DATA_VARIABLE", "SPLITS", "GameSet", "convert", "load_games", "write_records"]

DATA_VARIABLE = "ALFWORLD_DATA"

SPLITS = ("train", "valid_seen", "valid_unseen")
"""Training rooms; the same rooms with other tasks; rooms that training never saw."""

_GAME_FILE = "game.tw-pddl"
_COMPACT_NAME = "games.jsonl.gz"
_FIELDS = ("key", "type", "task", "goal", "agent", "recs", "objs", "can")


class GameSet:
    """The games of a split, each household built when it is first asked for."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Keep the records in an order that has nothing to do with names or task types."""
        self.records = tuple(sorted(records, key=lambda record: hashlib.sha256(record["key"].encode()).digest()))
        self.world: Callable[[int], World] = lru_cache(maxsize=512)(self._build)
        """Index of a record -> its household; a group of episodes asks for the same one again and again."""

    def _build(self, index: int) -> World:
        return build_world(self.records[index])


def load_games(data: str | None, split: str) -> GameSet:
    """Return the games of a split.

    Args:
        data: the official folder (with or without ``json_2.1.1``), a compact file, or a folder with
            ``games.jsonl.gz``; None for what the environment variable ``ALFWORLD_DATA`` says.
        split: one of :data:`SPLITS`.

    Raises:
        ConfigError: there is no such data, it is damaged, or it has no games of the split.
    """
    named = data or os.environ.get(DATA_VARIABLE)
    if not named:
        raise ConfigError(
            f"data=None and the environment variable {DATA_VARIABLE} is not set, so there are no ALFWorld games; set "
            "one of them to the official folder or to a games.jsonl.gz, or play ALFWorld-Generated, which needs none."
        )
    path = Path(named).expanduser()
    if not path.exists():
        raise ConfigError(
            f"data={named!r} does not exist; name the official ALFWorld folder or a games.jsonl.gz made by "
            "`stratagem data alfworld`."
        )
    games = _load(str(path.resolve()), split)
    if not games.records:
        raise ConfigError(
            f"data={named!r} has no game of split={split!r}; name a folder with json_2.1.1/{split}/*/*/{_GAME_FILE} or "
            "a games.jsonl.gz made from one."
        )
    return games


@lru_cache(maxsize=8)
def _load(path: str, split: str) -> GameSet:
    return GameSet(tuple(_read(Path(path), split)))


def _read(path: Path, split: str | None) -> Iterator[dict[str, Any]]:
    """Yield the games of a split, or of all."""
    if path.is_dir() and (path / _COMPACT_NAME).is_file():
        path = path / _COMPACT_NAME
    found = _read_folder(path, split) if path.is_dir() else _read_compact(path)
    for record in found:
        if split is None or record["key"].split("/")[0] == split:
            yield record


def _read_compact(path: Path) -> Iterator[dict[str, Any]]:
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                record = json.loads(line)
                missing = [field for field in _FIELDS if field not in record]
                if missing or record["type"] not in TASK_TYPES:
                    what = f"lacks {', '.join(missing)}" if missing else f"has type={record['type']!r}"
                    raise ConfigError(
                        f"line {number} of {str(path)!r} {what}; make the file anew with `stratagem data alfworld`."
                    )
                yield record
    except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{str(path)!r} is damaged after line {number} or is no compact ALFWorld file; make it anew with "
            "`stratagem data alfworld`."
        ) from error


def _read_folder(path: Path, split: str | None) -> Iterator[dict[str, Any]]:
    root = path / "json_2.1.1" if (path / "json_2.1.1").is_dir() else path
    pattern = f"{'*' if split is None else split}/*/*/{_GAME_FILE}"
    for file in sorted(root.glob(pattern)):
        key = file.parent.relative_to(root).as_posix()
        if key.split("/")[1].split("-")[0] not in TASK_TYPES:
            continue  # tasks with sliced objects or movable receptacles are not among the six of ALFWorld
        try:
            game = json.loads(file.read_text(encoding="utf-8"))
            if game["solvable"]:
                yield record_of(key, game)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(
                f"{str(file)!r} is no game of ALFWorld; get it anew with `alfworld-download`, or delete it."
            ) from error


def write_records(path: str | Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write a compact file; the same records give the same bytes."""
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    atomic_write_bytes(Path(path), gzip.compress(text.encode(), mtime=0))


def convert(source: str | Path, target: str | Path) -> dict[str, int]:
    """Write the games of an official folder as a compact file and return how many each split has.

    Raises:
        ConfigError: the folder has no games, a game is damaged, or the target cannot be written there.
    """
    source, target = Path(source), Path(target)
    if target.exists():
        raise ConfigError(f"DST={str(target)!r} exists; name a new file.")
    if not target.name.endswith(".jsonl.gz"):
        raise ConfigError(f"DST={str(target)!r} is not a .jsonl.gz; name a file such as games.jsonl.gz.")
    if not source.is_dir():
        raise ConfigError(f"SRC={str(source)!r} is not a folder; name the official ALFWorld folder.")
    records = list(_read_folder(source, None))
    if not records:
        raise ConfigError(
            f"SRC={str(source)!r} has no json_2.1.1/<split>/<task>/<trial>/{_GAME_FILE}; name the official folder."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    write_records(target, records)
    return dict(Counter(record["key"].split("/")[0] for record in records))
