"""The rules on a household small enough to follow by hand."""

import pytest

from stratagem.games.alfworld_rules import (
    TASK_TYPES,
    WORDINGS,
    admissible_commands,
    advance,
    build_world,
    first_reply,
    is_won,
    listing,
)

KITCHEN = {
    "key": "train/pick_heat_then_place_in_recep-Apple-None-Shelf-1/trial_1",
    "type": "pick_heat_then_place_in_recep",
    "task": "put a hot apple in shelf.",
    "goal": ["Apple", "Shelf"],
    "agent": "start",
    # two shelves at one place; everything else has its own
    "recs": [
        ["countertop 1", "CounterTop", False, "a"],
        ["drawer 1", "Drawer", True, "b"],
        ["fridge 1", "Fridge", True, "c"],
        ["microwave 1", "Microwave", True, "d"],
        ["shelf 2", "Shelf", False, "e"],
        ["shelf 1", "Shelf", False, "e"],
        ["sinkbasin 1", "SinkBasin", False, "f"],
    ],
    "objs": [
        ["apple 2", "Apple", [2], "pchksK"],  # starts cool, in the fridge
        ["apple 1", "Apple", [0], "pchks"],
        ["bowl 1", "Bowl", [0, 6], "pckr"],  # in two receptacles at once
        ["desklamp 1", "DeskLamp", [1], "t"],  # in a closed drawer
        ["knife 1", "Knife", [0], "pc"],
        ["window 1", "Window", [0], ""],
    ],
    "can": {
        "CounterTop": ["Apple", "Bowl", "Knife"],
        "Drawer": ["Knife"],
        "Fridge": ["Apple", "Bowl"],
        "Microwave": ["Apple", "Bowl"],
        "Shelf": ["Apple", "Bowl"],
        "SinkBasin": ["Apple", "Bowl", "Knife"],
    },
}


def kitchen(task_type="pick_heat_then_place_in_recep", goal=("Apple", "Shelf")):
    return build_world(KITCHEN | {"type": task_type, "goal": list(goal)})


def play(world, *commands, wording="put"):
    """Return the state after commands and what was answered; None for "Nothing happens."."""
    state, replies = world.start, []
    for command in commands:
        outcome = advance(world, state, command, wording)
        replies.append(outcome and outcome.reply)
        state = state if outcome is None else outcome.state
    return state, replies


def test_the_first_text_lists_receptacles_and_states_the_task():
    assert first_reply(kitchen()) == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a countertop 1, a drawer 1, a fridge 1, a microwave 1, a shelf 2, a shelf 1, and a sinkbasin 1.\n\n"
        "Your task is to: put a hot apple in shelf."
    )


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "nothing"),
        (["apple 1"], "a apple 1"),
        (["cup 2", "cup 1"], "a cup 2, and a cup 1"),
        (["cup 2", "cup 1", "pan 1"], "a cup 2, a cup 1, and a pan 1"),
    ],
)
def test_a_listing_has_one_article_and_a_comma_before_and(names, text):
    assert listing(names) == text


def test_a_whole_episode_word_for_word():
    world = kitchen()
    episode = [
        ("go to countertop 1", "On the countertop 1, you see a apple 1, a bowl 1, a knife 1, and a window 1."),
        ("inventory", "You are not carrying anything."),
        ("take apple 1 from countertop 1", "You pick up the apple 1 from the countertop 1."),
        ("inventory", "You are carrying: a apple 1."),
        ("examine apple 1", "There's nothing special about apple 1."),
        ("examine countertop 1", "On the countertop 1, you see a bowl 1, a knife 1, and a window 1."),
        ("go to sinkbasin 1", "On the sinkbasin 1, you see a bowl 1."),
        ("clean apple 1 with sinkbasin 1", "You clean the apple 1 using the sinkbasin 1."),
        ("examine apple 1", "This is a clean apple 1."),
        ("go to fridge 1", "The fridge 1 is closed."),
        ("cool apple 1 with fridge 1", "You cool the apple 1 using the fridge 1."),
        ("examine apple 1", "This is a cool and clean apple 1."),
        ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a apple 2."),
        ("examine fridge 1", "The fridge 1 is open. In it, you see a apple 2."),
        ("close fridge 1", "You close the fridge 1."),
        ("go to microwave 1", "The microwave 1 is closed."),
        ("heat apple 1 with microwave 1", "You heat the apple 1 using the microwave 1."),
        ("examine apple 1", "This is a hot and clean apple 1."),
        ("go to shelf 1", "On the shelf 1, you see nothing."),
        ("look", "You are facing the shelf 2, and shelf 1. Next to it, you see nothing."),
        ("put apple 1 in/on shelf 1", "You put the apple 1 in/on the shelf 1."),
    ]
    state = world.start
    for command, reply in episode:
        assert not is_won(world, state)
        outcome = advance(world, state, command)
        assert outcome is not None, command
        assert outcome.reply == reply
        state = outcome.state
    assert is_won(world, state)


@pytest.mark.parametrize(
    ("before", "command"),
    [
        ((), "fly to shelf 1"),
        ((), ""),
        ((), "open fridge 1"),  # is not there
        ((), "go to shelf 9"),
        ((), "go to apple 1"),
        ((), "goto shelf 1"),
        (("go to shelf 1",), "go to shelf 1"),
        (("go to shelf 1",), "go to shelf 2"),  # the same place
        (("go to shelf 1",), "open shelf 1"),  # has no door
        (("go to fridge 1",), "close fridge 1"),  # is closed
        (("go to fridge 1",), "take apple 2 from fridge 1"),  # is closed
        (("go to fridge 1", "open fridge 1"), "open fridge 1"),
        (("go to countertop 1",), "take window 1 from countertop 1"),  # cannot be picked up
        (("go to countertop 1",), "take apple 2 from countertop 1"),  # is elsewhere
        (("go to countertop 1",), "examine apple 1"),  # is not held
        (("go to countertop 1", "take apple 1 from countertop 1"), "take knife 1 from countertop 1"),  # hand is full
        (("go to countertop 1", "take apple 1 from countertop 1"), "put knife 1 in/on countertop 1"),
        (("go to countertop 1", "take apple 1 from countertop 1"), "move apple 1 to countertop 1"),  # other wording
        (("go to countertop 1", "take apple 1 from countertop 1", "go to fridge 1"), "put apple 1 in/on fridge 1"),
        (("go to countertop 1", "take knife 1 from countertop 1", "go to shelf 1"), "put knife 1 in/on shelf 1"),
        (
            ("go to countertop 1", "take knife 1 from countertop 1", "go to microwave 1"),
            "heat knife 1 with microwave 1",
        ),
        (("go to countertop 1", "take apple 1 from countertop 1", "go to fridge 1"), "heat apple 1 with fridge 1"),
        (("go to countertop 1", "take bowl 1 from countertop 1"), "slice apple 1 with bowl 1"),
        (("go to countertop 1", "take knife 1 from countertop 1"), "slice bowl 1 with knife 1"),
        (("go to countertop 1",), "use desklamp 1"),  # is elsewhere
        ((), "help"),  # came with 0.4
    ],
)
def test_what_cannot_be_done_is_none(before, command):
    _, replies = play(kitchen(), *before, command)
    assert None not in replies[:-1]
    assert replies[-1] is None


def test_the_newer_wording_moves_and_helps():
    world = kitchen()
    _, replies = play(
        world, "go to countertop 1", "take apple 1 from countertop 1", "put apple 1 in/on countertop 1",
        "move apple 1 to countertop 1", "help", wording="move",
    )  # fmt: skip
    assert replies[2:4] == [None, "You move the apple 1 to the countertop 1."]
    assert replies[4] is not None
    assert replies[4].splitlines()[:2] == [
        "Available commands:",
        "  look:                             look around your current location",
    ]


def test_look_in_the_middle_of_the_room_tells_nothing():
    assert play(kitchen(), "look")[1] == [
        "You are in the middle of a room. Looking quickly around you, you see nothing."
    ]


def test_look_names_what_was_moved_between_receptacles_of_one_place():
    take = ("go to countertop 1", "take apple 1 from countertop 1", "go to shelf 1", "put apple 1 in/on shelf 1")
    moved = ("take apple 1 from shelf 1", "put apple 1 in/on shelf 2")
    back = ("take apple 1 from shelf 2", "put apple 1 in/on shelf 1")
    facing = "You are facing the shelf 2, and shelf 1. Next to it, you see "
    assert play(kitchen(), *take, "look")[1][-1] == facing + "nothing."
    assert play(kitchen(), *take, *moved, "look")[1][-1] == facing + "a apple 1."
    # It was taken from both; back in shelf 1 it is missing from shelf 2.
    assert play(kitchen(), *take, *moved, *back, "look")[1][-1] == facing + "a apple 1."
    assert play(kitchen(), *take, *moved, "take apple 1 from shelf 2", "look")[1][-1] == facing + "nothing."


def test_what_is_cool_at_the_start_is_cold_and_heating_undoes_it():
    state, replies = play(
        kitchen(), "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "examine apple 2",
        "go to microwave 1", "heat apple 2 with microwave 1", "examine apple 2",
    )  # fmt: skip
    assert replies[3] == "This is a cold apple 2."
    assert replies[6] == "This is a hot apple 2."
    assert (state.hot, state.cool) == (0b1, 0)


def test_taking_removes_from_one_receptacle_only():
    state, replies = play(
        kitchen(), "go to countertop 1", "take bowl 1 from countertop 1", "examine bowl 1", "go to sinkbasin 1"
    )
    assert replies[2] == "This is a normal bowl 1. In it, you see nothing."
    assert replies[3] == "On the sinkbasin 1, you see a bowl 1."
    assert state.contents[0] == (1, 4, 5) and state.contents[6] == (2,)


def test_a_knife_slices_what_lies_there():
    state, replies = play(
        kitchen(), "go to countertop 1", "take knife 1 from countertop 1", "slice apple 1 with knife 1",
        "put knife 1 in/on countertop 1", "take apple 1 from countertop 1", "examine apple 1",
    )  # fmt: skip
    assert replies[2] == "You sliced the apple 1 with the knife 1."
    assert replies[5] == "This is a sliced apple 1."
    assert state.sliced == 0b10


def test_a_lamp_in_a_closed_drawer_is_switched_on_and_the_held_object_wins_there():
    world = kitchen("look_at_obj_in_light", ("Apple", "DeskLamp"))
    state, replies = play(world, "go to drawer 1", "use desklamp 1", "use desklamp 1")
    assert replies == ["The drawer 1 is closed.", *["You turn on the desklamp 1."] * 2]
    assert not is_won(world, state)
    for command in ("go to countertop 1", "take apple 1 from countertop 1", "go to drawer 1"):
        assert not is_won(world, state)
        outcome = advance(world, state, command)
        assert outcome is not None and outcome.changed
        state = outcome.state
    assert is_won(world, state)  # by walking to a lamp that is on


def test_two_objects_win_in_one_receptacle_and_not_in_two_of_its_type():
    world = kitchen("pick_two_obj_and_place", ("Apple", "Shelf"))
    both = (
        "go to countertop 1", "take apple 1 from countertop 1", "go to shelf 2", "put apple 1 in/on shelf 2",
        "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "go to shelf 1",
    )  # fmt: skip
    state, replies = play(world, *both, "put apple 2 in/on shelf 1")
    assert None not in replies and not is_won(world, state)
    state, replies = play(world, *both, "put apple 2 in/on shelf 2")
    assert None not in replies and is_won(world, state)


@pytest.mark.parametrize(
    ("task_type", "treat"),
    [
        ("pick_and_place_simple", ()),
        ("pick_clean_then_place_in_recep", ("go to sinkbasin 1", "clean apple 1 with sinkbasin 1")),
        ("pick_heat_then_place_in_recep", ("go to microwave 1", "heat apple 1 with microwave 1")),
        ("pick_cool_then_place_in_recep", ("go to fridge 1", "cool apple 1 with fridge 1")),
    ],
)
def test_an_object_counts_only_in_the_condition_that_is_asked_for(task_type, treat):
    world = kitchen(task_type, ("Apple", "Shelf"))
    take = ("go to countertop 1", "take apple 1 from countertop 1")
    put = ("go to shelf 1", "put apple 1 in/on shelf 1")
    assert is_won(world, play(world, *take, *put)[0]) is (not treat)
    assert is_won(world, play(world, *take, *treat, *put)[0])


@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("task_type", TASK_TYPES[:1])
def test_the_admissible_commands_are_exactly_those_that_do_something(wording, task_type):
    # Every command that can be formed from the names of the household, tried in each state of a walk.
    world = kitchen(task_type)
    names = (*world.receptacles, *world.objects)
    every = {"look", "inventory", "help"}
    for a in names:
        every |= {f"{verb} {a}" for verb in ("go to", "open", "close", "use", "examine")}
        for b in names:
            every |= {f"take {a} from {b}", f"put {a} in/on {b}", f"move {a} to {b}", f"slice {a} with {b}"}
            every |= {f"{verb} {a} with {b}" for verb in ("clean", "heat", "cool")}
    put = "put knife 1 in/on drawer 1" if wording == "put" else "move knife 1 to drawer 1"
    walk = (
        "go to countertop 1", "take knife 1 from countertop 1", "slice apple 1 with knife 1", "go to sinkbasin 1",
        "clean knife 1 with sinkbasin 1", "go to drawer 1", "open drawer 1", put, "close drawer 1", "use desklamp 1",
        "go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "go to microwave 1", "go to shelf 1",
    )  # fmt: skip
    state = world.start
    for command in (*walk, None):
        found = {c for c in every if advance(world, state, c, wording) is not None}
        listed = admissible_commands(world, state, wording)
        assert set(listed) == found and list(listed) == sorted(listed)
        if command is not None:
            outcome = advance(world, state, command, wording)
            assert outcome is not None, command
            state = outcome.state
