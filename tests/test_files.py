from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratagem.files import atomic_write, atomic_write_bytes, atomic_write_json, atomic_write_text, publish_folder


def test_content_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    atomic_write_text(path, "old\u00e9")
    atomic_write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_content_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    atomic_write_text(path, "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match=r"^disk full$"):
        atomic_write(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_refuses_what_other_readers_refuse(tmp_path: Path) -> None:
    atomic_write_json(tmp_path / "a.json", {"a": [1]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic_write_json(tmp_path / "b.json", {"a": float("nan")})
    assert not (tmp_path / "b.json").exists()


def test_publishing_never_replaces_a_folder_even_an_empty_one(tmp_path: Path) -> None:
    for name in ("temporary", "final"):
        (tmp_path / name).mkdir()
    (tmp_path / "temporary" / "file").write_text("x")
    with pytest.raises(FileExistsError):
        publish_folder(tmp_path / "temporary", tmp_path / "final")
    publish_folder(tmp_path / "temporary", tmp_path / "other")
    assert (tmp_path / "other" / "file").read_text() == "x"
