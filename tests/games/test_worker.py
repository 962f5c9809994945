import importlib
import os
import re
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from stratagem.errors import ConfigError, GameError
from stratagem.games import make
from stratagem.games.checks import check_game
from stratagem.games.worker import GameWorker


def exact(message: str) -> str:
    return f"^{re.escape(message)}$"


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def bad_games(monkeypatch):
    # The game's process finds the module because spawn hands sys.path on.
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("bad_games")


def test_a_worker_plays_the_same_episode_as_the_game_here():
    with closing(GameWorker(("snake", {"width": 6}))) as worker:
        here = make("snake", width=6)
        assert (worker.name, worker.num_players, worker.max_steps) == ("snake", 2, 100)
        assert worker.reset(seed=1, course=2) == here.reset(seed=1, course=2)
        rng, rng_here = np.random.default_rng(0), np.random.default_rng(0)
        while True:
            actions = [worker.random_action(player, rng) for player in range(2)]
            assert actions == [here.random_action(player, rng_here) for player in range(2)]
            step = worker.step(actions)
            assert step == here.step(actions)
            assert worker.state_key() == here.state_key() and worker.render() == here.render()
            assert worker.legal_actions(1) == here.legal_actions(1)
            assert worker.planner_action(0) == here.planner_action(0)
            assert worker.observation(1) == here.observation(1)
            if step.terminated or step.truncated:
                break
        assert worker.default_opponent(1) == "random"


def test_a_worker_keeps_the_contract(monkeypatch):
    with closing(GameWorker(("frozen_lake", {"slippery": True}))) as worker, monkeypatch.context() as patch:
        # The check makes and closes several games; here they are one process, which is not to be closed by it.
        patch.setattr(worker, "close", lambda: None)
        check_game(lambda: worker, num_seeds=1)


def test_the_optimal_return_comes_through():
    here = make("frozen_lake", slippery=True)
    here.reset(seed=0)
    with closing(GameWorker(("frozen_lake", {"slippery": True}))) as worker:
        worker.reset(seed=0)
        assert worker.optimal_return(gamma=0.9) == here.optimal_return(gamma=0.9)


def test_an_error_in_the_game_becomes_a_game_error_and_reset_starts_again(bad_games):
    with closing(GameWorker(bad_games.Raises)) as worker:
        worker.reset(seed=0)
        pid = worker.pid
        message = "frozen_lake raised ValueError: a bug during step; the error is in the game itself."
        with pytest.raises(GameError) as caught:
            worker.step(("up",))
        assert str(caught.value) == message
        assert "bad_games.py" in caught.value.__notes__[0]
        assert not is_running(pid)
        message = "frozen_lake has no process after a failure; call reset(seed=...) to start a new one."
        with pytest.raises(GameError, match=exact(message)):
            worker.step(("up",))
        assert worker.reset(seed=0) == make("frozen_lake").reset(seed=0)
        assert worker.pid != pid


def test_a_game_that_exits_becomes_a_game_error(bad_games):
    with closing(GameWorker(bad_games.Exits)) as worker:
        worker.reset(seed=0)
        message = (
            "frozen_lake exited with code 3 during step; a game must neither exit nor crash: see its output above."
        )
        with pytest.raises(GameError, match=exact(message)):
            worker.step(("up",))
        assert worker.reset(seed=1)


def test_a_game_that_hangs_is_killed(bad_games):
    with closing(GameWorker(bad_games.Sleeps, timeout_s=0.5)) as worker:
        worker.reset(seed=0)
        pid = worker.pid
        message = (
            "frozen_lake did not answer step within 0.5 s and was killed; raise timeout_s if the game is merely slow."
        )
        start = time.monotonic()
        with pytest.raises(GameError, match=exact(message)):
            worker.step(("up",))
        assert time.monotonic() - start < 10
        assert not is_running(pid)


def test_a_killed_process_is_noticed(bad_games):
    with closing(GameWorker(("frozen_lake", {}))) as worker:
        worker.reset(seed=0)
        os.kill(worker.pid, 9)
        message = (
            "frozen_lake exited with code -9 during step; a game must neither exit nor crash: see its output above."
        )
        with pytest.raises(GameError, match=exact(message)):
            worker.step(("up",))


def test_a_refusal_of_the_game_passes_through_and_the_episode_goes_on():
    with closing(GameWorker(("frozen_lake", {}))) as worker:
        with pytest.raises(GameError, match=exact("frozen_lake has not been started; call reset(seed=...) first.")):
            worker.step(("up",))
        with pytest.raises(ConfigError, match=exact("seed=-1 is negative; use 0 or a positive integer.")):
            worker.reset(seed=-1)
        worker.reset(seed=0)
        pid = worker.pid
        with pytest.raises(GameError, match=r"^action='fly' of player 0 is not legal in frozen_lake; "):
            worker.step(("fly",))
        assert worker.step(("up",)).rewards == (0.0,)
        assert worker.pid == pid


def test_a_bad_parameter_is_refused_as_here():
    with pytest.raises(ConfigError, match=exact("max_steps=0 leaves no step to play; set max_steps to 1 or more.")):
        GameWorker(("frozen_lake", {"max_steps": 0}))


def test_a_game_that_cannot_start_becomes_a_game_error(bad_games):
    message = "fails_to_start raised RuntimeError: no such file during the start; the error is in the game itself."
    with pytest.raises(GameError) as caught:
        GameWorker(bad_games.fails_to_start)
    assert str(caught.value) == message
    message = (
        "exits_at_start exited with code 4 during the start; a game must neither exit nor crash: see its output above."
    )
    with pytest.raises(GameError, match=exact(message)):
        GameWorker(bad_games.exits_at_start)


def test_close_leaves_no_process_and_may_be_called_again(bad_games):
    for make_game in (("snake", {}), bad_games.SleepsOnClose):
        worker = GameWorker(make_game, timeout_s=0.5)
        pid = worker.pid
        assert is_running(pid)
        worker.close()
        worker.close()
        assert not is_running(pid) and worker.pid is None
    with pytest.raises(GameError, match=exact("frozen_lake was closed; make a new GameWorker.")):
        worker.reset(seed=0)


def test_a_game_that_cannot_be_sent_is_refused():
    make_game = lambda: make("snake")  # noqa: E731
    message = (
        f"make_game={make_game!r} cannot be sent to another process; "
        "use a function defined at the top of a module or a pair (name, params)."
    )
    with pytest.raises(ConfigError, match=exact(message)):
        GameWorker(make_game)


def test_a_limit_of_no_time_is_refused():
    message = "timeout_s=0 leaves no time to answer; set it to a positive number of seconds."
    with pytest.raises(ConfigError, match=exact(message)):
        GameWorker(("snake", {}), timeout_s=0)
