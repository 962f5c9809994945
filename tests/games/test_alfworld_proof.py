"""The rules against recordings of the original engine.

The recordings are not part of the repository. They are looked for in the folder that the environment variable
STRATAGEM_SHARED_DATA names, else in shared/data beside the repository; without them these tests are skipped. A fixed
tenth is played; STRATAGEM_FULL_PROOF=1 plays everything.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stratagem.games.alfworld_expert import ALL_SEEN, expert_command
from stratagem.games.alfworld_pddl import record_of
from stratagem.games.alfworld_rules import (
    NOTHING_HAPPENS,
    World,
    admissible_commands,
    advance,
    build_world,
    first_reply,
    is_won,
)

DATA = Path(os.environ.get("STRATAGEM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
FULL = os.environ.get("STRATAGEM_FULL_PROOF") == "1"
EVERY = 1 if FULL else 10


def lines(name: str) -> Iterator[str]:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"the recordings are not here: {name} in $STRATAGEM_SHARED_DATA or ../shared/data")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from file


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Key of each game -> its record as text; parsed only where it is played."""
    return {re.search(r'"key": ?"([^"]+)"', line)[1]: line for line in lines("alfworld_compact/games.jsonl.gz")}  # type: ignore[index]


def world_of(texts: dict[str, str], key: str) -> World:
    return build_world(json.loads(texts[key]))


def replay(world: World, pairs: list[tuple[str, str]]) -> tuple[int, bool]:
    """Play recorded commands, compare every reply, and return how many did nothing and whether the goal was reached."""
    state, nothing = world.start, 0
    for number, (command, reply) in enumerate(pairs):
        outcome = advance(world, state, command)
        found = NOTHING_HAPPENS if outcome is None else outcome.reply
        assert found == reply, (world.key, number, command)
        assert (outcome is None) is (command not in admissible_commands(world, state)), (world.key, number, command)
        if outcome is None:
            nothing += 1
        else:
            state = outcome.state
    return nothing, is_won(world, state)


def test_every_game_is_won_by_its_recorded_walkthrough_and_not_before_its_end(texts: dict[str, str]) -> None:
    keys = sorted(texts)[::EVERY]
    for key in keys:
        world = world_of(texts, key)
        state = world.start
        for command in world.walkthrough:
            assert not is_won(world, state), key
            outcome = advance(world, state, command, "move")
            assert outcome is not None, (key, command)
            state = outcome.state
        assert is_won(world, state), key
    assert len(keys) == (4027 if FULL else 403)


def test_every_reply_of_the_recorded_expert_episodes_is_reproduced(texts: dict[str, str]) -> None:
    episodes = steps = without_game = 0
    for line in list(lines("alfworld_expert/train_expert.jsonl.gz"))[::EVERY]:
        episode = json.loads(line)
        if episode["key"] not in texts:
            without_game += 1
            continue
        world = world_of(texts, episode["key"])
        # A game has several sentences for its task; the recording drew another one.
        assert episode["obs"][0].rpartition("\n\n")[0] == first_reply(world).rpartition("\n\n")[0]
        nothing, won = replay(world, list(zip(episode["act"], episode["obs"][1:], strict=True)))
        assert (nothing, won) == (0, True), episode["key"]
        episodes, steps = episodes + 1, steps + len(episode["act"])
    if FULL:
        assert (episodes, steps, without_game) == (1771, 30439, 1)
    assert episodes > 100


def test_every_reply_to_a_weak_model_is_reproduced(texts: dict[str, str]) -> None:
    keys = {key.partition("/")[2]: key for key in texts}
    episodes = steps = nothing = 0
    for line in list(lines("alfworld_llm_traj/knowagent_llama2_13b.jsonl.gz"))[::EVERY]:
        episode = json.loads(line)
        text = episode["traj"].split("\n")
        pairs = [
            (command[2:], reply)
            for command, reply in pairwise(text)
            if command.startswith("> ")
            and not re.match(r"> (Think|ActionPath)\b", command)
            and reply
            and not reply.startswith(">")
        ]
        idle, won = replay(world_of(texts, keys[episode["name"]]), pairs)
        assert won is bool(episode["result"]), episode["name"]
        episodes, steps, nothing = episodes + 1, steps + len(pairs), nothing + idle
    if FULL:
        assert (episodes, steps, nothing) == (490, 8501, 2657)
    assert episodes >= 49 and nothing > 100


def test_the_official_files_become_the_compact_records(texts: dict[str, str]) -> None:
    files = sorted((DATA / "alfworld_raw").glob("*.gz"))
    if not files:
        pytest.skip("the recordings are not here: alfworld_raw in $STRATAGEM_SHARED_DATA or ../shared/data")
    for file in files:
        key = "/".join(file.name.split("__")[:3])
        game: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
        assert record_of(key, game) == json.loads(texts[key]), key
    assert len(files) == 12


@pytest.mark.parametrize(
    ("split", "count", "longest", "mean"),
    [("valid_unseen", 134, 20, 7.78), ("valid_seen", 140, 15, 6.91), ("train", 3553 if FULL else 356, 48, 7.8)],
)
def test_the_expert_wins_every_game_within_50_commands(
    texts: dict[str, str], split: str, count: int, longest: int, mean: float
) -> None:
    keys = sorted(key for key in texts if key.startswith(f"{split}/"))[:: EVERY if split == "train" else 1]
    lengths = {0: [], ALL_SEEN: []}  # type: dict[int, list[int]]
    for key in keys:
        world = world_of(texts, key)
        for start, found in lengths.items():
            state, seen, number = world.start, start, 0
            while not is_won(world, state):
                command = expert_command(world, state, seen)
                outcome = None if command is None else advance(world, state, command)
                assert outcome is not None and number < 50, (key, command)
                state, seen = outcome.state, seen | (1 << outcome.shown if outcome.shown >= 0 else 0)
                number += 1
            found.append(number)
    assert len(keys) == count
    assert max(lengths[0]) <= longest and sum(lengths[0]) / count == pytest.approx(
        mean, abs=0.3 if split == "train" else 0.01
    )
    assert max(lengths[ALL_SEEN]) <= 11  # knowing where everything is
