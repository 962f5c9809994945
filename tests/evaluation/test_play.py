from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from stratagem.agents.base import Policy, make_policy
from stratagem.errors import RunError
from stratagem.evaluation.episode_log import EpisodeLog, read_episodes, write_episodes
from stratagem.evaluation.panels import fixed_panel, panel_optima
from stratagem.evaluation.play import evaluate, seat_opponents
from stratagem.games import make
from stratagem.games.base import Game
from stratagem.types import Finish, Step, StopReason, Trajectory

PANEL = fixed_panel("FrozenLake-Slippery", {"size": 3}, 6)
ADDRESS = (0, "panel", PANEL.name)


class CountingPolicy(Policy):
    """Random, and counts the episodes it began."""

    name = "counting"

    def __init__(self) -> None:
        self.moves = 0

    def act(self, game: Game, player: int, observation: str, rng: np.random.Generator) -> str | None:
        self.moves += 1
        return game.random_action(player, rng)


def test_the_same_address_gives_the_same_episodes() -> None:
    first = evaluate(PANEL, [make_policy("random")], address=ADDRESS)
    assert evaluate(PANEL, [make_policy("random")], address=ADDRESS, max_concurrent=1) == first
    assert evaluate(PANEL, [make_policy("random")], address=(1, "panel", PANEL.name))[1] != first[1]


def test_episodes_follow_the_panel_and_its_chance() -> None:
    result, trajectories = evaluate(PANEL, [make_policy("planner")], address=ADDRESS, optima=panel_optima(PANEL))
    assert tuple(t.seed for t in trajectories) == PANEL.seeds
    assert {t.course for t in trajectories} == {0}
    assert result.panel_hash == PANEL.hash
    assert result.optimum_mean is not None


def test_saved_episodes_are_not_played_again() -> None:
    whole, trajectories = evaluate(PANEL, [make_policy("random")], address=ADDRESS)
    done = {0: trajectories[0], 3: trajectories[3]}
    counting, finished = CountingPolicy(), []
    again, replayed = evaluate(
        PANEL, [counting], address=ADDRESS, done=done, on_finish=lambda place, trajectory: finished.append(place)
    )
    assert again == whole
    assert replayed == trajectories
    assert sorted(finished) == [1, 2, 4, 5]
    assert counting.moves == sum(len(trajectories[place].steps) for place in (1, 2, 4, 5))


def test_a_complete_evaluation_plays_nothing() -> None:
    whole, trajectories = evaluate(PANEL, [make_policy("random")], address=ADDRESS)
    counting = CountingPolicy()
    assert evaluate(PANEL, [counting], address=ADDRESS, done=dict(enumerate(trajectories)))[0] == whole
    assert counting.moves == 0


def test_episodes_of_another_panel_are_refused() -> None:
    _, trajectories = evaluate(PANEL, [make_policy("random")], address=ADDRESS)
    message = (
        f"Saved episode 1 has seed {PANEL.seeds[0]}, which panel 'FrozenLake-Slippery' (hash {PANEL.hash}) does not "
        "play there; evaluate into another folder."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        evaluate(PANEL, [make_policy("random")], address=ADDRESS, done={1: trajectories[0]})


def test_opponents_are_those_of_the_game() -> None:
    assert seat_opponents(make("frozen_lake")) == ()
    assert [policy.name for policy in seat_opponents(make("snake", num_snakes=3))] == ["random", "random"]  # type: ignore[union-attr]


# ---- episodes.jsonl --------------------------------------------------------------------------------------------------

STEP = Step(
    observation="o\n\u2581",
    action=None,
    reward=0.1,
    invalid_penalty=-0.5,
    parse_error="unclosed",
    completion="<action>\ud800",
    prompt_ids=(1, 2),
    completion_ids=(3,),
    logprobs=(-0.1234567890123,),
    finish=Finish.LENGTH,
    state_key="k",
)
EPISODE = Trajectory("g", 7, 0, 0, (STEP,), False, True, StopReason.MAX_STEPS, None, {"eaten": [1, 2]})
FAILED = dataclasses.replace(EPISODE, steps=(), stop_reason=StopReason.GAME_FAILED)
HEADER = {"who": "me", "seed": 0}


def test_what_is_read_back_equals_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "out" / "episodes.jsonl"
    EpisodeLog(path, HEADER).append(2, EPISODE)
    assert read_episodes(path) == (HEADER, {2: EPISODE})
    write_episodes(path, HEADER, [EPISODE, FAILED])
    assert read_episodes(path) == (HEADER, {0: EPISODE, 1: FAILED})


def test_a_torn_line_is_cut_off_and_the_log_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    log = EpisodeLog(path, HEADER)
    log.append(0, EPISODE)
    whole = path.read_bytes()
    log.append(1, EPISODE)
    for size in (len(whole) + 1, path.stat().st_size - 1):
        path.write_bytes((whole + path.read_bytes()[len(whole) :])[:size])
        resumed = EpisodeLog(path, HEADER, resume=True)
        assert resumed.done == {0: EPISODE}
        assert path.read_bytes() == whole
        resumed.append(1, EPISODE)


def test_failed_games_are_played_again(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    EpisodeLog(path, HEADER).append(0, FAILED)
    assert EpisodeLog(path, HEADER, resume=True).done == {}


def test_an_existing_log_is_continued_on_request_only(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    EpisodeLog(path, HEADER)
    message = f"{str(path)!r} exists; continue that evaluation with --resume, or name another folder with --out."
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        EpisodeLog(path, HEADER)


def test_another_evaluation_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    EpisodeLog(path, HEADER)
    message = f"{str(path)!r} holds another evaluation; different: seed (0 -> 1). Name another folder with --out."
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        EpisodeLog(path, HEADER | {"seed": 1}, resume=True)


def test_damage_before_the_end_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    EpisodeLog(path, HEADER).append(0, EPISODE)
    path.write_text(path.read_text() + "{\n" + "{}\n")
    message = (
        f"Line 3 of {str(path)!r} is damaged (Expecting property name enclosed in double quotes: line 1 column 2 "
        "(char 1)); restore the file from a copy or delete that line."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        read_episodes(path)


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no.jsonl"
    message = f"{str(path)!r} cannot be read (No such file or directory); give the file of an evaluation."
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        read_episodes(path)
