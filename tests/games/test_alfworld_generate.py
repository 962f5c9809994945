"""Generated households: separated by layout, after the same containment rules, always solvable."""

from collections import Counter

import pytest

from stratagem.games import make
from stratagem.games.alfworld_expert import expert_command
from stratagem.games.alfworld_facts import ACCEPTS, LIKELY, TRAITS_OF
from stratagem.games.alfworld_generate import NUM_LAYOUTS, NUM_TRAIN_LAYOUTS, generate_record, layouts
from stratagem.games.alfworld_rules import TASK_TYPES, advance, build_world, is_won

ROOMS = ("kitchen", "living", "bed", "bath")


def room_number(record):
    return int(record["key"].split("/")[1].rsplit("-", 1)[1])


def steps_of_the_expert(world, limit):
    """Return how many commands the expert takes to win; None where it does not."""
    state, seen = world.start, 0
    for number in range(1, limit + 1):
        command = expert_command(world, state, seen)
        outcome = None if command is None else advance(world, state, command)
        if outcome is None:
            return None
        state, seen = outcome.state, seen | (1 << outcome.shown if outcome.shown >= 0 else 0)
        if is_won(world, state):
            return number
    return None


@pytest.mark.parametrize("room", ROOMS)
def test_no_two_layouts_of_a_kind_have_the_same_receptacles(room):
    assert len(layouts(room)) == NUM_LAYOUTS
    assert len({layout.counts for layout in layouts(room)}) == NUM_LAYOUTS


def test_training_and_evaluation_have_no_layout_in_common():
    found = {}
    for split in ("train", "valid_seen", "valid_unseen"):
        found[split] = {room_number(generate_record(seed, split)) for seed in range(300)}
    assert found["train"] & found["valid_unseen"] == set()
    assert found["valid_seen"] & found["valid_unseen"] == set()
    assert found["valid_seen"] <= {first + i for first in (1, 201, 301, 401) for i in range(NUM_TRAIN_LAYOUTS)}
    assert found["valid_unseen"] <= {first + i for first in (1, 201, 301, 401) for i in range(24, 30)}
    assert len(found["train"]) > 80 and len(found["valid_unseen"]) > 20


def test_a_seed_is_one_household_and_another_split_is_another():
    assert generate_record(7, "train") == generate_record(7, "train")
    assert generate_record(7, "train") != generate_record(7, "valid_seen")
    assert generate_record(7, "train") != generate_record(8, "train")


def test_all_task_types_come_about_equally_often():
    counts = Counter(generate_record(seed, "train")["type"] for seed in range(600))
    # 600 / 6 = 100 of each; four standard deviations are 4 * sqrt(600 * 1/6 * 5/6) = 37.
    assert set(counts) == set(TASK_TYPES)
    assert all(63 <= count <= 137 for count in counts.values())


def test_only_the_task_types_that_are_asked_for_are_drawn():
    game = make("ALFWorld-Generated", task_types=["look_at_obj_in_light"])
    for seed in range(10):
        game.reset(seed=seed)
        assert game.world.task_type == "look_at_obj_in_light"


def test_objects_lie_where_they_do_and_names_count_down():
    for seed in range(50):
        record = generate_record(seed, "train")
        kinds = [receptacle[1] for receptacle in record["recs"]]
        for _, kind, inside, letters in record["objs"]:
            assert letters == TRAITS_OF.get(kind, "")
            assert all(LIKELY[kind][kinds[where]] > 0 for where in inside)
        for entries in (record["recs"], record["objs"]):
            names = [entry[0] for entry in entries]
            assert len(set(names)) == len(names)
            # sorted by class, the highest number first
            assert names == sorted(names, key=lambda name: (name.split()[0], -int(name.split()[1])))
        objects = {item[1] for item in record["objs"]}
        for kind, accepted in record["can"].items():
            assert set(accepted) == set(ACCEPTS[kind]) & objects


def test_no_household_is_won_at_the_start_and_the_sentence_names_the_goal():
    for seed in range(200):
        world = build_world(generate_record(seed, "valid_unseen"))
        assert not is_won(world, world.start)
        assert world.goal[0].lower() in world.task and world.goal[1].lower() in world.task


@pytest.mark.parametrize("split", ["train", "valid_unseen"])
def test_the_expert_wins_every_one_of_200_households_within_50_commands(split):
    steps = [steps_of_the_expert(build_world(generate_record(seed, split)), 50) for seed in range(200)]
    assert None not in steps
    assert 6 < sum(steps) / len(steps) < 11
