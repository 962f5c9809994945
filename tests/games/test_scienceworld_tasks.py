"""Which variations of ScienceWorld a split has: the package's, and those of an index."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from stratagem.errors import ConfigError
from stratagem.games import make
from stratagem.games.scienceworld import ScienceWorld
from stratagem.games.scienceworld_tasks import STEP_LIMITS, VARIATIONS, package_starts, read_index, task_name

DATA = Path(os.environ.get("STRATAGEM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
INDEX = DATA / "sciworld_index"


def exact(message: str) -> str:
    return f"^{re.escape(message)}$"


def test_the_splits_of_the_package_have_all_variations_once() -> None:
    splits = {split: package_starts(split) for split in ("train", "seen", "unseen")}
    together = [start for starts in splits.values() for start in starts]
    assert len(together) == len(set(together)) == sum(VARIATIONS.values()) == 7207
    # 30 boil: quarters of 30 // 4 = 7; 14, 7 and the rest, 9.
    assert [sum(task == "boil" for task, _ in starts) for starts in splits.values()] == [14, 7, 9]
    assert len({task for task, _ in splits["seen"][:60]}) > 10


def test_every_name_of_an_index_is_a_task_of_the_package() -> None:
    assert task_name("task-9-mendellian-genetics-(unknown-plant)") == "mendelian-genetics-unknown-plant"
    assert task_name("task-2a-test-conductivity") == "test-conductivity"
    assert task_name("boil") == "boil"
    assert task_name("task-1-fry") is None
    assert set(STEP_LIMITS) < set(VARIATIONS)


def write_index(folder: Path) -> None:
    for name, pairs in (
        ("train", [["task-1-boil", 0], ["task-3-find-animal", 2]]),
        ("dev", [["task-1-boil", 14]]),
        ("test", [["task-1-boil", 21]]),
    ):
        (folder / f"{name}_indices.json").write_text(json.dumps(pairs), encoding="utf-8")


def test_an_index_names_the_variations_of_a_split(tmp_path: Path) -> None:
    write_index(tmp_path)
    assert set(read_index(str(tmp_path), "train")) == {("boil", 0), ("find-animal", 2)}
    assert make("ScienceWorld-Seen", index=str(tmp_path)).starts == (("boil", 14),)  # type: ignore[attr-defined]
    file = tmp_path / "index.json"
    file.write_text('{"train": [["boil", 3]], "unseen": [["melt", 4]]}', encoding="utf-8")
    assert make("ScienceWorld-Unseen", index=str(file)).starts == (("melt", 4),)  # type: ignore[attr-defined]


def test_the_index_of_the_papers_has_as_many_variations_as_they_say() -> None:
    if not INDEX.is_dir():
        pytest.skip("the index is not here: sciworld_index in $STRATAGEM_SHARED_DATA or ../shared/data")
    counts = [len(read_index(str(INDEX), split)) for split in ("train", "seen", "unseen")]
    assert counts == [1483, 194, 211]
    train, seen, unseen = (set(read_index(str(INDEX), split)) for split in ("train", "seen", "unseen"))
    # The lists overlap: 54 of the 194 that are called seen are trained on.
    assert (len(train & seen), len(train & unseen), len(seen & unseen)) == (54, 0, 0)
    assert train < set(package_starts("train")) | set(package_starts("seen"))
    limits = json.loads((INDEX / "max_steps.json").read_text(encoding="utf-8"))
    assert {task_name(name): limit for name, limit in limits.items()} == STEP_LIMITS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[",
            "index='{path}' has no readable '{path}'; name a folder with train_indices.json, dev_indices.json, "
            "test_indices.json, or one JSON file with a list for each of train, seen and unseen.",
        ),
        (
            '[["boil", 3]]',
            "index='{path}' is a list, which does not say of which split; name the folder of train_indices.json, "
            'dev_indices.json, test_indices.json, or write {{"train": [...], "seen": [...], "unseen": [...]}}.',
        ),
        (
            '{"seen": [["boil", 3]]}',
            "index='{path}' has no pairs for split='train'; write a list of [task, variation].",
        ),
        (
            '{"train": [["boil", 30]]}',
            "'{path}' holds ['boil', 30], which is no variation of ScienceWorld; write [task, variation], such as "
            '["boil", 3], with a variation that the task has.',
        ),
        (
            '{"train": [["fry", 3]]}',
            "'{path}' holds ['fry', 3], which is no variation of ScienceWorld; write [task, variation], such as "
            '["boil", 3], with a variation that the task has.',
        ),
        (
            '{"train": [["boil", 3], ["task-1-boil", 3]]}',
            "'{path}' names ['boil', 3] twice; name each variation once.",
        ),
    ],
    ids=["no JSON", "a list", "no such split", "no such variation", "no such task", "twice"],
)
def test_an_index_that_cannot_be_used_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "index.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=exact(message.format(path=path))):
        ScienceWorld(index=str(path))


def test_tasks_that_an_index_has_not_are_refused(tmp_path: Path) -> None:
    write_index(tmp_path)
    message = "tasks=['melt'] has no variation in split='train'; name other tasks."
    with pytest.raises(ConfigError, match=exact(message)):
        ScienceWorld(index=str(tmp_path), tasks=["melt"])
