"""ScienceWorld with its real engine; skipped where Java or the package is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from stratagem.agents.base import Policy
from stratagem.errors import GameError
from stratagem.games import make, scienceworld
from stratagem.games.base import Game
from stratagem.games.checks import check_game
from stratagem.games.scienceworld import ScienceWorld
from stratagem.games.scienceworld_engine import UNKNOWN_COMMAND, Engine
from stratagem.games.scienceworld_tasks import VARIATIONS, package_starts
from stratagem.rollout import Episode, play_episodes
from stratagem.types import StopReason

MISSING = [
    name
    for name, found in (
        ("java", shutil.which("java")),
        ("the package scienceworld", importlib.util.find_spec("scienceworld")),
    )
    if found is None
]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"there is no {' and no '.join(MISSING)} here")

SOLUTIONS = """
import hashlib
from stratagem.games import make
game = make("ScienceWorld", tasks=["identify-life-stages-2"], view="look")  # of plants that grow meanwhile
digest = hashlib.sha256(game.reset(seed=0, course=3)[0].encode())
while True:
    step = game.step((game.planner_action(),))
    digest.update(repr((step, game.score, game.state_key())).encode())
    if step.terminated or step.truncated:
        break
print(step.info["score"], digest.hexdigest())
game.close()
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One process for all tests that do no harm to it."""
    made = Engine()
    yield made
    made.close()


@pytest.fixture
def game(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> ScienceWorld:
    """A game on that process, as all games of a test are; none of them ends it."""
    monkeypatch.setattr(scienceworld, "Engine", lambda **settings: engine)
    monkeypatch.setattr(engine, "close", lambda: None)
    return ScienceWorld(tasks=["find-living-thing"], view="look")


def exact(message: str) -> str:
    return f"^{re.escape(message)}$"


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


# ---- playing ---------------------------------------------------------------------------------------------------------


def test_the_engines_solution_wins(game: ScienceWorld) -> None:
    (start,) = game.reset(seed=0)
    assert start.startswith("Your task is to: find a(n) living thing. First, focus on the thing.")
    assert "\nLook: This room is called the " in start and "\nInventory: In your inventory, you see:" in start
    rewards = []
    while True:
        action = game.planner_action()
        assert action in game.legal_actions()
        step = game.step((action,))
        rewards.append(step.rewards[0])
        if step.terminated or step.truncated:
            break
    assert (step.terminated, step.info["success"], step.info["score"]) == (True, True, 100)
    assert sum(rewards) == pytest.approx(1.0, rel=1e-12)


def test_the_wrong_focus_ends_the_episode(game: ScienceWorld) -> None:
    game.reset(seed=0)
    step = game.step(("focus on air",))
    assert (step.terminated, step.rewards, step.info["success"], step.info["score"]) == (True, (0.0,), False, 0)


def test_the_engine_answers_what_it_does_not_know_in_its_own_words(game: ScienceWorld) -> None:
    game.reset(seed=0)
    key = game.state_key()
    assert game.step((None,)).observations[0].startswith(f"Obs: {UNKNOWN_COMMAND}\nLook: ")
    assert game.step_text("dance with the door").observations[0].startswith(f"Obs: {UNKNOWN_COMMAND}\nLook: ")
    assert game.state_key() == key
    with pytest.raises(GameError, match=r"^action='dance' of player 0 is not legal in scienceworld: "):
        game.step(("dance",))


def test_the_parser_knows_what_the_engine_then_carries_out(game: ScienceWorld) -> None:
    game.reset(seed=0)
    listed = game.legal_actions()
    assert len(listed) > 100
    for word in (
        *list(listed)[:: len(listed) // 9],
        "Look Around",
        "look at the agent",
        "dance",
        "open",
        "focus on moon",
    ):
        game.reset(seed=0)
        known = game.knows(word)
        assert known is (game.step_text(word).observations[0].split("\n")[0] != f"Obs: {UNKNOWN_COMMAND}"), word


def test_equal_states_have_equal_keys_and_others_have_not(game: ScienceWorld) -> None:
    keys = []
    # Looking takes no time. The first command counts what is already reached, so it is not compared with the start.
    for commands in (
        ["look around"],
        ["look around"] * 3,
        ["teleport to kitchen"],
        ["teleport to kitchen", "open fridge"],
    ):
        game.reset(seed=0)
        for command in commands:
            game.step((command,))
        keys.append(game.state_key())
    game.reset(seed=1)
    keys.append(game.state_key())
    assert keys[0] == keys[1] and len(set(keys)) == 4, keys


def test_the_same_seed_gives_the_same_episode_in_another_process_and_in_an_engine_that_was_used(
    game: ScienceWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    other = subprocess.run([sys.executable, "-c", SOLUTIONS], capture_output=True, text=True, check=True, timeout=500)
    exec(SOLUTIONS, {})
    here = capsys.readouterr().out
    assert here == other.stdout
    assert here.startswith("100 ")


def test_the_game_keeps_the_contract(game: ScienceWorld) -> None:
    check_game(lambda: make("ScienceWorld-Seen", tasks=["find-plant"], max_steps=3), num_seeds=1)


def test_tasks_and_splits_are_those_of_the_package(engine: Engine) -> None:
    server = engine._server
    assert {name: server.getTaskMaxVariations(name) for name in server.getTaskNames()} == VARIATIONS
    for task in ("boil", "identify-life-stages-2", "test-conductivity"):
        engine.load(task, 0, "")
        for split, theirs in (
            ("train", server.getVariationsTrain()),
            ("seen", server.getVariationsDev()),
            ("unseen", server.getVariationsTest()),
        ):
            assert sorted(variation for name, variation in package_starts(split) if name == task) == list(theirs)


# ---- the process -----------------------------------------------------------------------------------------------------


class Looks(Policy):
    """Looks around, and at one moment ends the game's process."""

    name = "looks"

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0
        self.ended: list[int] = []

    def act(self, game: Game, player: int, observation: str, rng: np.random.Generator) -> str | None:
        """Return a command."""
        assert isinstance(game, ScienceWorld)
        self.count += 1
        if self.count == self.at:
            assert game.pid is not None
            self.ended.append(game.pid)
            os.kill(game.pid, signal.SIGKILL)
        return "look around"


def test_an_engine_that_is_killed_costs_its_episode_and_is_replaced() -> None:
    made: list[ScienceWorld] = []

    def make_game() -> ScienceWorld:
        made.append(ScienceWorld(tasks=["find-plant"], max_steps=3, view="raw"))
        return made[-1]

    policy = Looks(at=5)  # the second command of the second episode
    played = play_episodes(make_game, [policy], [Episode(seed) for seed in range(3)], max_concurrent=1)
    assert [t.stop_reason for t in played] == [StopReason.MAX_STEPS, StopReason.GAME_FAILED, StopReason.MAX_STEPS]
    assert played[1].info["error"] == (
        "GameError: The Java process of ScienceWorld ended with code -9 during seed; this episode is lost, and the "
        "next reset starts a new process."
    )
    assert len(made) == 2 and all(game.pid is None for game in made)
    assert not is_running(policy.ended[0])


def test_an_engine_that_does_not_answer_in_time_is_ended() -> None:
    message = (
        "The Java process of ScienceWorld did not answer in time during the start; this episode is lost, and the next "
        "reset starts a new process."
    )
    with pytest.raises(GameError, match=exact(message)):
        Engine(timeout_s=0.001)


def test_what_java_raises_is_said_and_ends_the_engine() -> None:
    engine = Engine()
    pid = engine.pid
    message = (
        "The Java process of ScienceWorld raised java.util.NoSuchElementException: None.get during progress; this "
        "episode is lost, and the next reset starts a new process."
    )
    with pytest.raises(GameError, match=exact(message)):
        engine.progress()  # of an episode that was never loaded
    again = "The Java process of ScienceWorld was ended; call reset(seed=...) to start a new one."
    with pytest.raises(GameError, match=exact(again)):
        engine.look()
    assert not engine.alive and not is_running(pid)


ENDINGS = {
    "raises": "raise RuntimeError",
    "is interrupted": "time.sleep(60)",
    "is killed": "time.sleep(60)",
}


def test_no_java_process_outlives_its_parent(tmp_path: Path) -> None:
    parents, engines = {}, {}
    for name, ending in ENDINGS.items():
        code = (
            "import time\nfrom stratagem.games import make\n"
            "game = make('ScienceWorld', tasks=['find-plant'], view='raw')\n"
            f"game.reset(seed=0)\nprint(game.pid, flush=True)\n{ending}\n"
        )
        parents[name] = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    for name, parent in parents.items():
        assert parent.stdout is not None
        engines[name] = int(parent.stdout.readline())
        parent.stdout.close()
    assert is_running(engines["is killed"])
    parents["is interrupted"].send_signal(signal.SIGINT)
    parents["is killed"].kill()
    for parent in parents.values():
        parent.wait(90)  # several engines end at once, on a machine that may be busy
    for name, pid in engines.items():
        assert wait_until(lambda pid=pid: not is_running(pid)), name  # type: ignore[misc]
