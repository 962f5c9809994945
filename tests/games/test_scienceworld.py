"""The game around the engine, on a scripted one: rewards, ends, views, commands, settings. Nothing here needs Java."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stratagem.agents.base import make_policy
from stratagem.agents.roles import parse_low, read_start
from stratagem.errors import ConfigError, GameError, UnknownNameError
from stratagem.evaluation.panels import fixed_panel
from stratagem.games import scienceworld, scienceworld_engine
from stratagem.games.scienceworld import SIMPLIFICATIONS, ScienceWorld
from stratagem.games.scienceworld_commands import Commands
from stratagem.games.scienceworld_engine import UNKNOWN_COMMAND, Engine, Reply, find_java
from stratagem.games.scienceworld_tasks import (
    STEP_LIMITS,
    VARIATIONS,
    package_starts,
)
from stratagem.rollout import Episode, play_episodes

ASKS = "Ambiguous request: Please enter the number for the action you intended (or blank to cancel):\n0:\ta\n1:\tb\n"


def exact(message: str) -> str:
    return f"^{re.escape(message)}$"


class ScriptedEngine:
    """Answers from a table: command -> (text, score, completed); knows nothing else."""

    alive = True
    pid = 1

    def __init__(self, *, heap_mb: int = 400) -> None:
        self.heap_mb = heap_mb
        self.calls: list[tuple[Any, ...]] = []
        self.answers = {
            "look around": Reply("A room.", 0, False),
            "open door": Reply("The door is open.", 20, False),
            "go to kitchen": Reply("You move.", 50, False),
            "focus on cat": Reply("You focus on the cat.", 100, True),
            "focus on rock": Reply("You focus on the rock.", -100, True),
            "use it": Reply(ASKS, 0, False),
            "0": Reply("You use a.", 10, False),
        }

    def load(self, task: str, variation: int, simplification: str, *, gold: bool = False) -> tuple[str, ...]:
        self.calls.append(("load", task, variation, simplification, gold))
        return ("open door", "go to kitchen", "focus on cat") if gold else ()

    def seed(self, seed: int) -> None:
        self.calls.append(("seed", seed))

    def step(self, text: str) -> Reply:
        self.calls.append(("step", text))
        return self.answers.get(text, Reply(UNKNOWN_COMMAND, 0, False))

    def look(self) -> str:
        return "This room is called the hallway."

    def inventory(self) -> str:
        return "In your inventory, you see:\n\tan orange"

    def task(self) -> str:
        return "Your task is to find an animal. First, focus on it."

    def tree(self) -> str:
        return "{}"

    def progress(self) -> str:
        return ""

    def valid(self) -> tuple[str, ...]:
        self.calls.append(("valid",))
        return (" Open door", "look around", "open door", "pour bee into tree")

    def knows(self, text: str) -> bool:
        self.calls.append(("knows", text))
        return text.lower() in self.answers

    def close(self) -> None:
        self.alive = False

    def texts(self, kind: str) -> list[Any]:
        return [call[1] for call in self.calls if call[0] == kind and len(call) > 1]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedEngine]:
    """The engines that games start, in order."""
    made: list[ScriptedEngine] = []

    def start(**settings: Any) -> ScriptedEngine:
        made.append(ScriptedEngine(**settings))
        return made[-1]

    monkeypatch.setattr(scienceworld, "Engine", start)
    return made


def played(game: ScienceWorld, commands: Sequence[str | None]) -> list[Any]:
    game.reset(seed=0)
    return [game.step((command,)) for command in commands]


# ---- rewards and ends ------------------------------------------------------------------------------------------------


def test_a_reward_is_what_a_command_adds_to_the_score(engines: list[ScriptedEngine]) -> None:
    steps = played(ScienceWorld(tasks=["find-animal"]), ("open door", "look around", "go to kitchen", "focus on cat"))
    # Scores 20, 0, 50, 100 of 100: +0.2, -0.2, +0.5, +0.5; in all 1.
    assert [step.rewards[0] for step in steps] == pytest.approx([0.2, -0.2, 0.5, 0.5], rel=1e-12)
    assert [(step.terminated, step.truncated) for step in steps] == [(False, False)] * 3 + [(True, False)]
    assert steps[-1].info == {
        "success": True,
        "score": 100,
        "task": "find-animal",
        "variation": package_variation("find-animal"),
    }
    assert all(step.info == {} for step in steps[:-1])


def package_variation(task: str) -> int:
    return next(variation for name, variation in package_starts("train") if name == task)


def test_a_wrong_answer_ends_the_episode_and_takes_back_what_was_earned(engines: list[ScriptedEngine]) -> None:
    steps = played(ScienceWorld(tasks=["find-animal"]), ("go to kitchen", "focus on rock"))
    # The engine says -100; the score is not below 0: from 50 back to 0.
    assert [step.rewards[0] for step in steps] == [0.5, -0.5]
    assert (steps[-1].terminated, steps[-1].truncated) == (True, False)
    assert (steps[-1].info["success"], steps[-1].info["score"]) == (False, 0)


def test_an_episode_is_truncated_at_the_limit_of_its_task(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld(tasks=["lifespan-longest-lived"])
    assert game.max_steps == STEP_LIMITS["lifespan-longest-lived"] == 10
    last = played(game, ["look around"] * 10)[-1]
    assert (last.terminated, last.truncated, last.info["success"]) == (False, True, False)
    assert game.legal_actions() == () and game.planner_action() is None
    with pytest.raises(GameError, match=exact("scienceworld has ended; call reset(seed=...) to play again.")):
        game.step(("look around",))


def test_max_steps_goes_over_the_limits_of_all_tasks(engines: list[ScriptedEngine]) -> None:
    assert ScienceWorld(tasks=["boil", "find-animal"]).max_steps == 100
    game = ScienceWorld(tasks=["boil", "find-animal"], max_steps=2)
    assert game.max_steps == 2
    assert played(game, ["look around"] * 2)[-1].truncated


# ---- commands --------------------------------------------------------------------------------------------------------


def test_no_action_and_any_other_text_get_the_engines_answer(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld(view="raw")
    (step,) = played(game, (None,))
    assert step.observations == (UNKNOWN_COMMAND,)
    assert engines[0].texts("step") == ["none"]
    assert game.step_text("dance with the door").observations == (UNKNOWN_COMMAND,)
    message = (
        "action='dance' of player 0 is not legal in scienceworld: No known action matches that input. Use one of "
        "legal_actions(), or None for no action."
    )
    with pytest.raises(GameError, match=exact(message)):
        game.step(("dance",))


def test_a_question_is_answered_by_a_number_or_taken_back(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld()
    played(game, ("use it",))
    assert game.legal_actions() == ("0", "1")
    assert game.planner_action() == "0"
    message = (
        "action='look around' of player 0 is not legal in scienceworld, which asks which of several things is meant; "
        "use one of 0, 1, or None to take the command back."
    )
    with pytest.raises(GameError, match=exact(message)):
        game.step(("look around",))
    game.step(("0",))
    assert "look around" in game.legal_actions()


def test_whether_a_command_is_legal_is_asked_without_the_list(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld()
    game.reset(seed=0)
    legal = game.legal_actions()
    assert legal and "Focus on CAT" in legal and "dance" not in legal and 3 not in legal
    assert ("valid",) not in engines[0].calls
    assert legal is game.legal_actions()
    assert parse_low("Open door; True", legal).action == "Open door"
    assert engines[0].calls.count(("valid",)) == 0
    assert (list(legal), len(legal), legal[0], legal[1:]) == (
        ["look around", "open door", "pour bee into tree"],
        3,
        "look around",
        ("open door", "pour bee into tree"),
    )
    plain = ("look around", "open door", "pour bee into tree")
    assert legal == plain and hash(legal) == hash(plain) and repr(legal) == repr(plain)
    assert engines[0].calls.count(("valid",)) == 1
    assert pickle.loads(pickle.dumps(legal)) == plain
    assert type(pickle.loads(pickle.dumps(legal))) is tuple


def test_what_the_engine_lists_is_legal_even_where_its_parser_does_not_know_it(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld(view="raw")
    game.reset(seed=0)
    assert "pour bee into tree" in list(game.legal_actions())
    assert game.step(("pour bee into tree",)).observations == (UNKNOWN_COMMAND,)


def test_legal_actions_of_an_earlier_state_say_so(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld()
    game.reset(seed=0)
    legal = game.legal_actions()
    assert isinstance(legal, Commands)
    game.step(("look around",))
    message = "These are legal actions of an earlier state; call legal_actions() after each step."
    for ask in (lambda: "open door" in legal, lambda: list(legal)):
        with pytest.raises(GameError, match=exact(message)):
            ask()


def test_chance_depends_on_start_course_and_step_only(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld()
    seeds = []
    for course in (0, 0, 1):
        engines.clear()
        game = ScienceWorld()
        game.reset(seed=3, course=course)
        if course == 0 and seeds:
            list(game.legal_actions())  # the engine draws, which must change nothing
        game.step(("look around",))
        game.step(("look around",))
        seeds.append(engines[0].texts("seed")[-2:])
    assert seeds[0] == seeds[1] != seeds[2]
    assert seeds[0][0] != seeds[0][1]


# ---- views -----------------------------------------------------------------------------------------------------------


def test_the_full_view_begins_with_what_never_changes(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld(history=1)
    start = game.reset(seed=0)[0]
    assert start.startswith("Do a task of elementary science with text commands.\n[Commands]\n")
    assert '"teleport to (place)"\n' in start
    end = (
        "[Task]\nYour task is to: find an animal. First, focus on it.\n"
        "{}[Now]\nThis room is called the hallway.\nIn your inventory, you see:\n\tan orange"
    )
    assert start.endswith(end.format(""))
    game.step(("look around",))
    text = game.step(("open door",)).observations[0]
    assert text.endswith(end.format("[Last commands]\n> open door\nThe door is open.\n"))
    assert "teleport" not in ScienceWorld(simplification="openDoors").reset(seed=0)[0]


def test_the_view_of_the_authors_has_reply_surroundings_and_inventory(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld(view="look")
    start = game.reset(seed=0)[0]
    seen = "\nLook: This room is called the hallway.\nInventory: In your inventory, you see:\n\tan orange"
    assert start == (
        f"Your task is to: find an animal. First, focus on it.\nObs: This room is called the hallway.{seen}"
    )
    assert read_start(start, "").task == "find an animal. First, focus on it."
    assert game.step(("open door",)).observations[0] == f"Obs: The door is open.{seen}"


def test_render_shows_the_score(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld()
    played(game, ("open door",))
    assert game.render().startswith("Task: find an animal. First, focus on it.\nScore: 20\nThis room is")


# ---- the planner -----------------------------------------------------------------------------------------------------


def test_the_planner_follows_the_engines_solution_as_far_as_it_was_followed(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld()
    game.reset(seed=0)
    assert [call[-1] for call in engines[0].calls if call[0] == "load"] == [False]
    game.step(("open door",))
    assert game.planner_action() == "go to kitchen"
    # The solution was worked out only now, and what had been done was done again with the same seed.
    assert [call[-1] for call in engines[0].calls if call[0] == "load"] == [False, True]
    assert engines[0].texts("step") == ["open door", "open door"]
    assert len(set(engines[0].texts("seed"))) == 1
    game.step(("look around",))
    assert game.planner_action() == "go to kitchen"
    game.step(("go to kitchen",))
    assert game.planner_action() == "focus on cat"


def test_the_planner_passes_over_what_the_engine_does_not_know_here(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld()
    game.reset(seed=0)
    del engines[0].answers["open door"]
    assert game.planner_action() == "go to kitchen"


def test_after_its_last_command_the_planner_looks_around(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld()
    game.reset(seed=0)
    engines[0].answers["focus on cat"] = Reply("You focus on the cat.", 60, False)
    for _ in range(3):
        action = game.planner_action()
        game.step((action,))
    assert game.planner_action() == "look around"


# ---- starts ----------------------------------------------------------------------------------------------------------


def test_the_first_seeds_play_every_variation_once_and_then_again(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld(tasks=["boil"], split="unseen")
    assert game.num_starts == 9
    starts = []
    for seed in range(18):
        game.reset(seed=seed)
        starts.append(game.start)
    assert sorted(starts[:9]) == [("boil", variation) for variation in range(21, 30)]
    assert starts[9:] == starts[:9]


def test_a_panel_has_different_starts(engines: list[ScriptedEngine]) -> None:
    panel = fixed_panel("ScienceWorld-Unseen", {"tasks": ["find-plant"]}, 3)
    assert (panel.num_starts, panel.seeds) == (3, (0, 1, 2))
    assert [engine.alive for engine in engines] == [False]


def test_no_more_games_than_the_game_allows_are_played_at_once(
    engines: list[ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScienceWorld, "max_concurrent", 2)
    episodes = [Episode(seed) for seed in range(5)]
    played = play_episodes(lambda: ScienceWorld(max_steps=1), [make_policy("planner")], episodes)
    assert [len(t.steps) for t in played] == [1] * 5
    assert 1 <= len(engines) <= 2 and not any(engine.alive for engine in engines)


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"split": "test"}, UnknownNameError, "Unknown split 'test'. Available: seen, train, unseen."),
        ({"view": "text"}, UnknownNameError, "Unknown view 'text'. Available: full, look, raw."),
        (
            {"tasks": ["boiling"]},
            UnknownNameError,
            f"Unknown task 'boiling'. Did you mean 'boil'? Available: {', '.join(sorted(VARIATIONS))}.",
        ),
        ({"tasks": []}, ConfigError, "tasks=[] leaves nothing to play; name one or more, or leave tasks out."),
        (
            {"simplification": "easier"},
            UnknownNameError,
            f"Unknown simplification 'easier'. Did you mean 'easy'? Available: {', '.join(sorted(SIMPLIFICATIONS))}.",
        ),
        (
            {"simplification": "openDoors,noElectricalAction", "tasks": ["boil", "power-component"]},
            ConfigError,
            "simplification='openDoors,noElectricalAction' takes away what task 'power-component' needs; leave "
            "noElectricalAction out, or name other tasks.",
        ),
        ({"max_steps": 0}, ConfigError, "max_steps=0 leaves no step to play; set max_steps to 1 or more."),
        ({"history": -1}, ConfigError, "history=-1 is no number of commands; set history to 0 or more."),
        ({"heap_mb": 8}, ConfigError, "heap_mb=8 is too little for the engine; set heap_mb to 64 or more."),
    ],
)
def test_a_bad_setting_is_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=exact(message)):
        ScienceWorld(**settings)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match=exact("seed=-1 is negative; use 0 or a positive integer.")):
        ScienceWorld().reset(seed=-1)


def test_nothing_is_asked_before_the_start() -> None:
    message = "scienceworld has not been started; call reset(seed=...) first."
    game = ScienceWorld()
    assert game.pid is None
    for call in ("observation", "legal_actions", "state_key", "render", "planner_action"):
        with pytest.raises(GameError, match=exact(message)):
            getattr(game, call)()
    for step in (lambda: game.step(("look around",)), lambda: game.step_text("look around")):
        with pytest.raises(GameError, match=exact(message)):
            step()
    for name in ("start", "task", "reply", "score"):
        with pytest.raises(GameError, match=exact(message)):
            getattr(game, name)
    game.close()


def test_an_engine_that_was_lost_is_replaced_at_the_next_reset(engines: list[ScriptedEngine]) -> None:
    game = ScienceWorld(heap_mb=128)
    game.reset(seed=0)
    engines[0].close()
    game.reset(seed=0)
    assert [engine.heap_mb for engine in engines] == [128, 128]
    game.close()
    game.close()
    assert not engines[1].alive


# ---- what is missing -------------------------------------------------------------------------------------------------


def test_missing_java_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(scienceworld_engine, "_find_jars", lambda: "no.jar")
    message = (
        "ScienceWorld runs on Java, and there is no java on the PATH or in JAVA_HOME; install a Java runtime of "
        "version 11 or newer, such as Debian's default-jre-headless."
    )
    with pytest.raises(ConfigError, match=exact(message)):
        ScienceWorld().reset(seed=0)


def test_java_is_also_found_by_its_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scienceworld_engine.importlib.util, "find_spec", lambda name: None)
    message = (
        "ScienceWorld needs the package scienceworld, which is not installed; run `pip install -e "
        "'.[scienceworld]'` in a clone of Stratagem."
    )
    with pytest.raises(ConfigError, match=exact(message)):
        ScienceWorld().reset(seed=0)


def test_java_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("py4j", reason="py4j, which comes with the package scienceworld, is not installed")
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho noise >&2\necho 'Could not reserve enough space' >&2\nexit 1\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(scienceworld_engine, "_find_jars", lambda: "no.jar")
    message = (
        f"Java did not start ScienceWorld: Could not reserve enough space (command: {java} -Xmx99m -XX:+UseSerialGC "
        f"...). Try `{java} -version`, or lower heap_mb=99."
    )
    with pytest.raises(GameError, match=exact(message)):
        Engine(heap_mb=99)
