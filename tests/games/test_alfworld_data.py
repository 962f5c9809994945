"""Files: from the official format to the compact one, and what is said about damaged or missing ones."""

import gzip
import json
import re

import pytest

from stratagem.cli import main
from stratagem.errors import ConfigError
from stratagem.games import make
from stratagem.games.alfworld_data import convert, load_games, write_records
from stratagem.games.alfworld_pddl import record_of


def exact(message):
    return f"^{re.escape(message)}$"


TASK = "pick_clean_then_place_in_recep-Mug-None-Shelf-1"
KEY = f"train/{TASK}/trial_1"
GAME = {
    "pddl_domain": "(define (domain alfred))",
    "grammar": '{"task": [{"rhs": "Your task is to: put a clean mug in shelf."}]}',
    "pddl_problem": """(define (problem plan) (:domain alfred)
(:objects agent1 - agent Mug - object Mug_bar_1 - object
  loc_bar_1_bar_0 - location loc_bar_9_bar_0 - location)
(:init
  (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType)
  (receptacleType shelf_bar_2 ShelfType)
  (receptacleType Shelf_bar_1 ShelfType)
  (objectType Mug_bar_2 MugType)
  (objectType Mug_bar_1 MugType)
  (objectType Lamp_bar_1 FloorLampType)
  (canContain ShelfType MugType) (canContain ShelfType MugType)
  (canContain SinkBasinType MugType)
  (pickupable Mug_bar_1) (pickupable Mug_bar_2)
  (cleanable Mug_bar_1) (isCool Mug_bar_1) (toggleable Lamp_bar_1)
  (isReceptacleObject Mug_bar_1) (isReceptacleObject Mug_bar_2)
  (openable Sink_bar_1_bar_SinkBasin)
  (atLocation agent1 loc_bar_9_bar_0)
  (receptacleAtLocation Shelf_bar_1 loc_bar_1_bar_0)
  (receptacleAtLocation shelf_bar_2 loc_bar_1_bar_0)
  (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_2_bar_0)
  (inReceptacle Mug_bar_1 shelf_bar_2) (inReceptacle Mug_bar_1 Shelf_bar_1)
  (inReceptacleObject Mug_bar_1 Mug_bar_2)
)
(:goal (and (exists (?r - receptacle ?o - object)
  (and (objectType ?o MugType) (receptacleType ?r ShelfType) (isClean ?o) (inReceptacle ?o ?r)))))
)""",
    "solvable": True,
    "walkthrough": ["go to shelf 2"],
}


def official(root, split="train", task=TASK, game=GAME):
    folder = root / "json_2.1.1" / split / task / "trial_1"
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(game if isinstance(game, str) else json.dumps(game))
    return root


def test_an_official_game_becomes_a_record():
    # Listings go by the lower-cased identifier: Shelf_bar_1 before shelf_bar_2; the last of a class is number 1.
    assert record_of(KEY, GAME) == {
        "key": KEY,
        "type": "pick_clean_then_place_in_recep",
        "task": "put a clean mug in shelf.",
        "goal": ["Mug", "Shelf"],
        "agent": "bar_9_bar_0",
        "recs": [
            ["shelf 2", "Shelf", False, "bar_1_bar_0"],
            ["shelf 1", "Shelf", False, "bar_1_bar_0"],
            ["sinkbasin 1", "SinkBasin", True, "bar_2_bar_0"],
        ],
        "objs": [
            ["lamp 1", "FloorLamp", [], "t"],
            ["mug 2", "Mug", [1, 0], "pcrK"],
            ["mug 1", "Mug", [], "pr"],
        ],
        "can": {"Shelf": ["Mug"], "SinkBasin": ["Mug"]},
        "walk": ["go to shelf 2"],
        "inobj": [["mug 2", "mug 1"]],
    }


def test_the_goal_of_a_lamp_task_is_object_and_lamp():
    goal = """(:goal (and (exists (?ot - object ?r - receptacle)
      (and (objectType ?ot DeskLampType) (toggleable ?ot) (isToggled ?ot) (inReceptacle ?ot ?r)))
      (exists (?o - object ?a - agent) (and (objectType ?o MugType) (holds ?a ?o)))))"""
    game = GAME | {"pddl_problem": GAME["pddl_problem"].partition("(:goal")[0] + goal}
    record = record_of("train/look_at_obj_in_light-Mug-None-DeskLamp-1/trial_1", game)
    assert record["goal"] == ["Mug", "DeskLamp"]


def test_the_folder_and_the_file_made_of_it_give_the_same_games(tmp_path):
    root = official(tmp_path / "download")
    official(root, "valid_unseen")
    official(root, task="pick_and_place_with_movable_recep-Pen-Bowl-Desk-1")  # not one of the six
    official(root, task="pick_and_place_simple-Pen-None-Desk-1", game=GAME | {"solvable": False})
    target = tmp_path / "new" / "games.jsonl.gz"
    assert convert(root, target) == {"train": 1, "valid_unseen": 1}
    assert load_games(str(root), "train").records == load_games(str(target), "train").records
    assert load_games(str(root / "json_2.1.1"), "train").records == load_games(str(target.parent), "train").records
    game = make("ALFWorld", data=str(target))
    game.reset(seed=0)
    assert game.world.key == KEY


def test_the_same_games_give_the_same_bytes(tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_records(tmp_path / name, [record_of(KEY, GAME)])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_the_order_of_the_games_does_not_depend_on_that_of_the_file(tmp_path):
    records = [record_of(f"train/{TASK}/trial_{number}", GAME) for number in range(6)]
    write_records(tmp_path / "a.jsonl.gz", records)
    write_records(tmp_path / "b.jsonl.gz", records[::-1])
    orders = [
        [r["key"] for r in load_games(str(tmp_path / name), "train").records] for name in ("a.jsonl.gz", "b.jsonl.gz")
    ]
    assert orders[0] == orders[1] != sorted(orders[0])


def test_without_data_it_is_said_what_to_do(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    message = (
        "data=None and the environment variable ALFWORLD_DATA is not set, so there are no ALFWorld games; set one of "
        "them to the official folder or to a games.jsonl.gz, or play ALFWorld-Generated, which needs none."
    )
    with pytest.raises(ConfigError, match=exact(message)):
        make("ALFWorld").reset(seed=0)


def test_data_that_is_not_there_is_refused():
    message = (
        "data='no/such' does not exist; name the official ALFWorld folder or a games.jsonl.gz made by "
        "`stratagem data alfworld`."
    )
    with pytest.raises(ConfigError, match=exact(message)):
        make("ALFWorld", data="no/such").reset(seed=0)


def test_a_split_without_games_is_refused(tmp_path):
    path = str(official(tmp_path / "download"))
    message = (
        f"data={path!r} has no game of split='valid_seen'; name a folder with json_2.1.1/valid_seen/*/*/game.tw-pddl "
        "or a games.jsonl.gz made from one."
    )
    with pytest.raises(ConfigError, match=exact(message)):
        make("ALFWorld", data=path, split="valid_seen").reset(seed=0)


@pytest.mark.parametrize("game", ["{", "{}", "[]", json.dumps(GAME | {"pddl_problem": "(:init)"})])
def test_a_damaged_official_game_is_named(tmp_path, game):
    root = official(tmp_path, game=game)
    file = str(root / "json_2.1.1" / "train" / TASK / "trial_1" / "game.tw-pddl")
    message = f"{file!r} is no game of ALFWorld; get it anew with `alfworld-download`, or delete it."
    with pytest.raises(ConfigError, match=exact(message)):
        make("ALFWorld", data=str(root)).reset(seed=0)


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"not gzip", 0), (gzip.compress(json.dumps(record_of(KEY, GAME)).encode())[:-20], 0), (gzip.compress(b"{"), 1)],
    ids=["text", "cut off", "no json"],
)
def test_a_damaged_compact_file_is_named(tmp_path, content, line):
    path = tmp_path / "games.jsonl.gz"
    path.write_bytes(content)
    message = (
        f"{str(path)!r} is damaged after line {line} or is no compact ALFWorld file; make it anew with "
        "`stratagem data alfworld`."
    )
    with pytest.raises(ConfigError, match=exact(message)):
        load_games(str(path), "train")


@pytest.mark.parametrize(
    ("record", "what"),
    [({"key": "train/a/b"}, "lacks type, task, goal, agent, recs, objs, can"), (None, "has type='chess'")],
    ids=["fields", "type"],
)
def test_a_record_that_lacks_something_is_named(tmp_path, record, what):
    path = tmp_path / "games.jsonl.gz"
    write_records(path, [record or record_of(KEY, GAME) | {"type": "chess"}])
    message = f"line 1 of {str(path)!r} {what}; make the file anew with `stratagem data alfworld`."
    with pytest.raises(ConfigError, match=exact(message)):
        load_games(str(path), "train")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_converts_and_counts(tmp_path, capsys):
    root, target = official(tmp_path / "download"), tmp_path / "games.jsonl.gz"
    assert main(["data", "alfworld", str(root), str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["train", "1", "games"]
    assert lines[1].startswith(f"{target}: 0.0 MiB in ")
    assert lines[2] == f"Play with: ALFWORLD_DATA={target} stratagem play ALFWorld --policy planner"


def test_the_command_refuses_what_it_cannot_convert(tmp_path, capsys):
    root, there, empty = official(tmp_path / "download"), tmp_path / "x.jsonl.gz", tmp_path / "empty"
    there.write_text("")
    empty.mkdir()
    new = str(tmp_path / "new.jsonl.gz")
    for words, message in (
        (
            ["alfword", str(root), new],
            "Unknown data job 'alfword'. Did you mean 'alfworld'? Available: alfworld, annotate, check-annotations.",
        ),
        (["alfworld", str(root), str(there)], f"DST={str(there)!r} exists; name a new file."),
        (
            ["alfworld", str(root), str(tmp_path / "y.json")],
            f"DST={str(tmp_path / 'y.json')!r} is not a .jsonl.gz; name a file such as games.jsonl.gz.",
        ),
        (["alfworld", new, new], f"SRC={new!r} is not a folder; name the official ALFWorld folder."),
        (
            ["alfworld", str(empty), new],
            f"SRC={str(empty)!r} has no json_2.1.1/<split>/<task>/<trial>/game.tw-pddl; name the official folder.",
        ),
    ):
        assert main(["data", *words]) == 2
        assert capsys.readouterr().err == f"error: {message}\n"


def test_the_list_of_games_does_not_need_the_data(monkeypatch, capsys):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert main(["games"]) == 0
    text = capsys.readouterr().out
    assert "needs data" in text
    assert "ALFWorld-Generated-Unseen" in text
