"""The game around the rules: views, ends, settings, the expert and panels."""

import re

import pytest

from stratagem.errors import ConfigError, GameError, UnknownNameError
from stratagem.evaluation.panels import check_panel, fixed_panel
from stratagem.games import make
from stratagem.games.alfworld import ALFWorld
from stratagem.games.alfworld_data import write_records
from stratagem.games.alfworld_expert import expert_command
from stratagem.games.alfworld_rules import TASK_TYPES, advance, build_world
from stratagem.games.checks import check_game
from stratagem.seeding import generator


def exact(message):
    return f"^{re.escape(message)}$"


def record(number=0, split="train", task_type="pick_and_place_simple"):
    return {
        "key": f"{split}/{task_type}-Pen-None-Desk-301/trial_{number}",
        "type": task_type,
        "task": "put a pen in desk.",
        "goal": ["Pen", "Desk"],
        "agent": "start",
        "recs": [["desk 1", "Desk", False, "a"], ["drawer 1", "Drawer", True, "b"]],
        "objs": [["pen 1", "Pen", [1], "p"]],
        "can": {"Desk": ["Pen"], "Drawer": ["Pen"]},
    }


@pytest.fixture
def games_file(tmp_path):
    path = tmp_path / "games.jsonl.gz"
    write_records(path, [record(number) for number in range(5)] + [record(9, "valid_unseen")])
    return str(path)


PLAN = ("go to drawer 1", "open drawer 1", "take pen 1 from drawer 1", "go to desk 1", "put pen 1 in/on desk 1")


def play(game, commands):
    return [game.step((command,)) for command in commands]


def test_a_won_episode_ends_with_reward_one(games_file):
    game = make("ALFWorld", data=games_file, view="raw")
    assert game.reset(seed=0)[0].endswith("Your task is to: put a pen in desk.")
    steps = play(game, PLAN)
    assert [step.observations[0] for step in steps] == [
        "The drawer 1 is closed.",
        "You open the drawer 1. The drawer 1 is open. In it, you see a pen 1.",
        "You pick up the pen 1 from the drawer 1.",
        "On the desk 1, you see nothing.",
        "You put the pen 1 in/on the desk 1.",
    ]
    assert [step.rewards for step in steps] == [(0.0,)] * 4 + [(1.0,)]
    assert [(step.terminated, step.truncated) for step in steps] == [(False, False)] * 4 + [(True, False)]
    assert steps[-1].info == {
        "success": True, "task_type": "pick_and_place_simple", "game": game.world.key,
    }  # fmt: skip
    assert game.legal_actions() == () and game.planner_action() is None


def test_an_episode_is_truncated_at_the_limit_and_a_win_at_the_limit_is_a_win(games_file):
    game = make("ALFWorld", data=games_file, max_steps=5)
    game.reset(seed=0)
    assert (play(game, PLAN)[-1].terminated, game.max_steps) == (True, 5)
    game.reset(seed=0)
    last = play(game, (*PLAN[:4], None))[-1]
    assert (last.terminated, last.truncated, last.rewards, last.info["success"]) == (False, True, (0.0,), False)


def test_no_action_and_any_other_text_get_the_engines_answer(games_file):
    game = make("ALFWorld", data=games_file, view="raw")
    game.reset(seed=0)
    key = game.state_key()
    assert game.step((None,)).observations == ("Nothing happens.",)
    assert game.step_text("dance with desk 1").observations == ("Nothing happens.",)
    assert game.step_text(" look ").observations[0].startswith("You are in the middle of a room.")
    assert game.state_key() == key
    message = (
        "action='dance' of player 0 is not legal in alfworld; use one of go to desk 1, go to drawer 1, inventory, "
        "look, or None for no action."
    )
    with pytest.raises(GameError, match=exact(message)):
        game.step(("dance",))


def test_step_text_wins_and_refuses_to_go_on(games_file):
    game = make("ALFWorld", data=games_file)
    with pytest.raises(GameError, match=exact("alfworld has not been started; call reset(seed=...) first.")):
        game.step_text("look")
    game.reset(seed=0)
    assert [game.step_text(command) for command in PLAN][-1].terminated
    with pytest.raises(GameError, match=exact("alfworld has ended; call reset(seed=...) to play again.")):
        game.step_text("look")


def test_the_full_view_begins_with_what_never_changes_and_grows_at_the_end(games_file):
    game = make("ALFWorld", data=games_file)
    start = game.reset(seed=0)[0]
    assert start.endswith(
        "[Household]\nYou are in the middle of a room. Looking quickly around you, you see a desk 1, and a drawer 1.\n"
        "Your task is to: put a pen in desk."
    )
    assert '"put (object) in/on (receptacle)"' in start
    first, second = (step.observations[0] for step in play(game, ("go to drawer 1", None)))
    assert first == start + "\n> go to drawer 1\nThe drawer 1 is closed."
    assert second == first + "\n> no valid command\nNothing happens."


def test_history_limits_what_is_shown(games_file):
    game = make("ALFWorld", data=games_file, history=1, wording="move")
    start = game.reset(seed=0)[0]
    assert '"move (object) to (receptacle)"' in start
    last = play(game, ("go to drawer 1", "open drawer 1"))[-1].observations[0]
    assert last == start + "\n> open drawer 1\nYou open the drawer 1. The drawer 1 is open. In it, you see a pen 1."


def test_arrival_keeps_the_words_of_the_newer_engine(games_file):
    game = make("ALFWorld", data=games_file, view="raw", wording="move", arrival=True)
    game.reset(seed=0)
    steps = play(game, ("go to drawer 1", "open drawer 1", "examine drawer 1"))
    assert [step.observations[0] for step in steps] == [
        "You arrive at drawer 1. The drawer 1 is closed.",
        "You open the drawer 1. The drawer 1 is open. In it, you see a pen 1.",
        "The drawer 1 is open. In it, you see a pen 1.",
    ]


def test_equal_states_have_equal_keys_and_others_have_not(games_file):
    game = make("ALFWorld", data=games_file)
    keys = []
    for commands in ((), ("look",), ("go to drawer 1",), ("go to drawer 1", "open drawer 1", "close drawer 1")):
        game.reset(seed=0)
        play(game, commands)
        keys.append(game.state_key())
    assert keys[0] == keys[1] != keys[2] == keys[3]
    game.reset(seed=1)
    assert game.state_key() not in keys


def test_render_shows_also_what_is_hidden(games_file):
    game = make("ALFWorld", data=games_file)
    game.reset(seed=0)
    play(game, ("go to desk 1",))
    assert (
        game.render() == "Task: put a pen in desk.\nHolding: nothing\n* desk 1: nothing\n  drawer 1 (closed): a pen 1"
    )


# ---- which game a seed plays -----------------------------------------------------------------------------------------


def test_the_first_seeds_play_every_game_once_and_then_again(games_file):
    game = make("ALFWorld", data=games_file)
    assert game.num_starts == 5
    played = []
    for seed in range(10):
        game.reset(seed=seed)
        played.append(game.world.key)
    assert len(set(played[:5])) == 5 and played[5:] == played[:5]


def test_a_panel_holds_every_game_of_a_split(games_file):
    panel = fixed_panel("ALFWorld", {"data": games_file}, 5)
    assert (panel.seeds, panel.num_starts) == ((0, 1, 2, 3, 4), 5)
    check_panel(panel)
    assert fixed_panel("ALFWorld", {"data": games_file, "split": "valid_unseen"}, 3).num_starts == 1


def test_a_panel_of_generated_households_has_as_many_as_asked_for():
    panel = fixed_panel("ALFWorld-Generated-Unseen", num_episodes=20)
    assert panel.num_starts == 20
    assert make("ALFWorld-Generated-Unseen").num_starts is None
    check_panel(panel)


def test_the_variable_names_the_data_where_the_setting_does_not(games_file, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", games_file)
    assert make("ALFWorld").num_starts == 5


def test_task_types_choose_the_games(tmp_path):
    path = tmp_path / "games.jsonl.gz"
    write_records(path, [record(0), record(1, task_type="pick_two_obj_and_place")])
    game = make("ALFWorld", data=str(path), task_types=["pick_two_obj_and_place"])
    assert game.num_starts == 1
    message = "task_types=['look_at_obj_in_light'] has no game in split='train'; name other types."
    with pytest.raises(ConfigError, match=exact(message)):
        make("ALFWorld", data=str(path), task_types=["look_at_obj_in_light"]).reset(seed=0)


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"split": "test"}, UnknownNameError, "Unknown split 'test'. Available: train, valid_seen, valid_unseen."),
        ({"wording": "puts"}, UnknownNameError, "Unknown wording 'puts'. Did you mean 'put'? Available: move, put."),
        ({"view": "text"}, UnknownNameError, "Unknown view 'text'. Available: full, raw."),
        ({"planner": "bfs"}, UnknownNameError, "Unknown planner 'bfs'. Available: oracle, search."),
        ({"source": "file"}, UnknownNameError, "Unknown source 'file'. Available: data, generated."),
        (
            {"data": "x"},
            ConfigError,
            "data='x' is not read with source='generated'; set source='data' or leave data out.",
        ),
        (
            {"task_types": ["look"]},
            UnknownNameError,
            "Unknown task type 'look'. Available: " + ", ".join(sorted(TASK_TYPES)) + ".",
        ),
        (
            {"task_types": []},
            ConfigError,
            "task_types=[] leaves nothing to play; name one or more, or leave task_types out.",
        ),
        ({"max_steps": 0}, ConfigError, "max_steps=0 leaves no step to play; set max_steps to 1 or more."),
        (
            {"history": 0},
            ConfigError,
            "history=0 hides the answer to the last command; set history to 1 or more, or leave it out to show "
            "everything.",
        ),
        (
            {"history": 3, "view": "raw"},
            ConfigError,
            "history=3 is not shown with view='raw'; set view='full' or leave history out.",
        ),
        (
            {"arrival": True},
            ConfigError,
            "arrival=True needs wording='move': alfworld 0.3 numbers places by a list that games do not keep; set "
            "wording='move' or arrival=False.",
        ),
    ],
)
def test_a_bad_setting_is_refused(settings, error, message):
    with pytest.raises(error, match=exact(message)):
        ALFWorld(**settings)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match=exact("seed=-1 is negative; use 0 or a positive integer.")):
        ALFWorld().reset(seed=-1)


def test_nothing_is_asked_before_the_start():
    message = "alfworld has not been started; call reset(seed=...) first."
    for call in ("observation", "legal_actions", "state_key", "render", "planner_action"):
        with pytest.raises(GameError, match=exact(message)):
            getattr(ALFWorld(), call)()


@pytest.mark.parametrize("settings", [{}, {"view": "raw", "wording": "move", "arrival": True, "planner": "oracle"}])
def test_the_game_keeps_the_contract(games_file, settings):
    check_game(lambda: make("ALFWorld", data=games_file, **settings))


# ---- the expert ------------------------------------------------------------------------------------------------------


def test_the_expert_searches_and_the_oracle_knows(games_file):
    game = make("ALFWorld", data=games_file)
    for planner, plan in (("search", ("go to desk 1", *PLAN)), ("oracle", PLAN)):
        game.planner = planner
        game.reset(seed=0)
        commands = []
        while (command := game.planner_action()) is not None:
            commands.append(command)
            game.step((command,))
        assert tuple(commands) == plan  # a pen is likelier on a desk than in a drawer, and a drawer takes two steps


def test_the_expert_does_not_look_at_what_was_not_seen():
    # The same household with the pen elsewhere: as long as neither place was seen the expert does the same.
    here = build_world(record())
    there = build_world(record() | {"objs": [["pen 1", "Pen", [0], "p"]]})
    assert expert_command(here, here.start, 0) == expert_command(there, there.start, 0) == "go to desk 1"
    assert expert_command(here, here.start, -1) == "go to drawer 1"


def test_the_expert_goes_on_from_a_mess():
    # After twenty random commands it still wins, whatever is held or lies about.
    won = 0
    for seed in range(40):
        game = make("ALFWorld-Generated", max_steps=120)
        game.reset(seed=seed)
        rng = generator(seed, "mess")
        step = None
        for _ in range(20):
            step = game.step((game.random_action(0, rng),))
            if step.terminated:
                break
        while not (step.terminated or step.truncated):
            step = game.step((game.planner_action(),))
        won += step.terminated
    assert won == 40


def test_the_expert_is_at_a_loss_where_the_object_is_not_there():
    world = build_world(record() | {"objs": [["pen 1", "Pen", [], "p"]]})
    state, seen = world.start, 0
    for expected in ("go to desk 1", "go to drawer 1", "open drawer 1", None):
        command = expert_command(world, state, seen)
        assert command == expected
        if command is not None:
            outcome = advance(world, state, command)
            assert outcome is not None
            state, seen = outcome.state, seen | (1 << outcome.shown if outcome.shown >= 0 else 0)
    assert seen == 0b11  # a closed door shows nothing: the drawer was told when it was opened
