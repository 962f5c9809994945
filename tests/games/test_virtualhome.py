import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from stratagem.errors import ConfigError, GameError
from stratagem.evaluation.panels import EvaluationResult, fixed_panel, panel_optima
from stratagem.games import VARIANTS, make
from stratagem.games import virtualhome_entertainment as entertainment
from stratagem.games import virtualhome_food as food
from stratagem.games.virtualhome import GAMMA, make_task, solve
from stratagem.types import Step, StopReason, Trajectory

FOOD = [
    "walk to the pancake",
    "grab the pancake",
    "walk to the microwave",
    "open the microwave",
    "put the pancake in the microwave",
    "close the microwave",
]
EVENING = [
    "walk to the living room",
    "walk to the tv",
    "turn on the tv",
    "walk to the kitchen",
    "walk to the chips",
    "grab the chips",
    "walk to the milk",
    "grab the milk",
    "walk to the living room",
    "walk to the sofa",
    "sit on the sofa",
]
ROOMS = "There are four rooms: the kitchen, bathroom, bedroom, and living room. "


def exact(message: str) -> str:
    return f"^{re.escape(message)}$"


def recorded(*parts: str) -> Path:
    """Return a file of recorded data; skip the test where there is none."""
    named = os.environ.get("STRATAGEM_SHARED_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data"
    path = folder.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"recorded data is not here: {'/'.join(parts)}; set STRATAGEM_SHARED_DATA to its folder")
    return path


def play(name: str, words: list[str], **params):
    game = make(name, **params)
    game.reset(seed=0)
    steps = []
    for word in words:
        steps.append(game.step((word,)))
    return game, steps


# ---- recorded data ---------------------------------------------------------------------------------------------------


def test_food_preparation_is_the_recorded_process_state_by_state():
    table = json.loads(recorded("virtualhome_mdp", "food_preparation.json").read_text())
    task = make_task("food_preparation")
    assert list(task.words) == table["actions"]
    known = {0: food.START}
    queue = [0]
    for number in queue:
        state, row = known[number], table["states"][number]
        assert "".join(map(str, food.bits(state))) == row["obs"]
        assert task.prompt(state) == row["prompt"]
        assert list(task.admissible(state)) == row["admissible"]
        for action, after in enumerate(row["next"]):
            reached = task.advance(state, action)
            assert task.solved(reached) is (after == -1)
            if after == -1:
                continue
            if after not in known:
                known[after] = reached
                queue.append(after)
            assert known[after] == reached, (number, action)
    assert len(known) == len(table["states"]) == 51


# ---- golden episodes -------------------------------------------------------------------------------------------------


def test_the_shortest_food_preparation_takes_six_steps():
    game, steps = play("VirtualHome-FoodPreparation", FOOD)
    assert [step.rewards[0] for step in steps] == [0, 0, 0, 0, 0, 1]
    assert [step.terminated for step in steps] == [False] * 5 + [True]
    assert dict(steps[-1].info) == {"success": True}
    kitchen = f"{ROOMS}You are in the kitchen. You notice pancake and microwave. "
    end = "In order to heat up the pancake in the microwave, your next step is to"
    assert [step.observations[0] for step in steps[:3]] == [
        f"{kitchen}Currently, you are not grabbing anything in hand. The pancake is close to you. "
        f"The microwave is not opend. {end}",
        f"{kitchen}Currently, you have grabbed the pancake in hand. The microwave is not close to you. "
        f"The microwave is not opend. {end}",
        f"{kitchen}Currently, you have grabbed the pancake in hand. The microwave is close to you. "
        f"The microwave is not opend. {end}",
    ]
    assert game.legal_actions() == ()


def test_the_shortest_evening_takes_eleven_steps():
    _, steps = play("VirtualHome-Entertainment", EVENING)
    assert [step.rewards[0] for step in steps] == [0] * 10 + [1]
    assert steps[-1].terminated
    assert steps[1].observations[0] == (
        f"{ROOMS}You are in the living room and you notice a coffee table, a TV and a sofa. The TV is close to you. "
        "In order to enjoy the chips and the milk while watching TV, your next step is to"
    )
    assert steps[5].observations[0] == (
        f"{ROOMS}You are in the kitchen and notice chips and milk. The milk is not close to you. "
        "Currently, you have grabbed the chips in hand. "
        "In order to enjoy the chips and the milk while watching TV, your next step is to"
    )
    assert steps[9].observations[0] == (
        f"{ROOMS}You are in the living room and you notice a coffee table, a TV and a sofa. The sofa is close to you. "
        "Currently, the TV is turned on, you have grabbed the chips and the milk in hand. "
        "In order to enjoy the chips and the milk while watching TV, your next step is to"
    )


def test_chips_in_hand_are_told_twice_beside_furniture():
    words = ["walk to the chips", "grab the chips", "walk to the living room", "walk to the coffee table"]
    game, steps = play("VirtualHome-Entertainment", words)
    held = "Currently, you have grabbed the chips in hand. "
    assert f"The coffee table is close to you. {held}{held}In order" in steps[-1].observations[0]
    assert game.legal_actions()[-3:] == ("walk to the tv", "walk to the sofa", "put the chips on the coffee table")


def test_an_item_on_the_table_is_told_as_if_the_television_were_far():
    words = ["walk to the chips", "grab the chips", "walk to the milk", "grab the milk", "walk to the living room"]
    words += ["walk to the coffee table", "put the chips on the coffee table"]
    game, steps = play("VirtualHome-Entertainment", words)
    assert (
        "The TV is not close to you. Currently, you have the chips on the coffee table and the milk in your hand. In"
    ) in steps[-1].observations[0]
    assert game.legal_actions() == (
        *("walk to the kitchen", "walk to the bathroom", "walk to the bedroom", "walk to the tv", "walk to the sofa"),
    )


def test_who_sits_cannot_walk_and_is_not_offered_to_stand_up():
    words = ["walk to the living room", "walk to the tv", "turn on the tv", "walk to the sofa", "sit on the sofa"]
    game, _ = play("VirtualHome-Entertainment", words)
    key = game.state_key()
    assert game.legal_actions() == ("walk to the kitchen", "walk to the bathroom", "walk to the bedroom")
    game.step(("walk to the kitchen",))
    assert game.state_key() == key
    assert game.optimal_return() == 0.0


def test_standing_up_is_there_with_every_action():
    words = ["walk to the living room", "walk to the sofa", "sit on the sofa", "stand up from the sofa"]
    game, _ = play("VirtualHome-Entertainment", words, every_action=True)
    game.step(("walk to the kitchen",))
    assert "kitchen      you" in game.render()


def test_a_full_hand_is_offered_the_switch_by_poad_and_not_by_twosome():
    words = [*EVENING[4:9], "walk to the tv"]
    assert play("VirtualHome-Entertainment", words)[0].legal_actions()[-2:] == ("turn on the tv", "turn off the tv")
    game, _ = play("VirtualHome-Entertainment", words, full_hands_switch=False)
    assert game.legal_actions()[-2:] == ("walk to the coffee table", "walk to the sofa")


def test_walking_to_the_item_in_hand_goes_back_where_it_was_recorded():
    game, _ = play(
        "VirtualHome-FoodPreparation",
        ["walk to the pancake", "grab the pancake", "walk to the bathroom", "walk to the bedroom"],
    )
    state = game._state
    # The record follows one walk behind: the bathroom. The walk back swaps record and room.
    assert (state.room, state.item_room) == (3, 2)
    after = food.advance(state, 4)
    assert (after.room, after.item_room, after.close_appliance) == (2, 3, False)


def test_the_milk_that_is_gone_is_what_the_kitchen_offers_to_walk_to():
    words = ["walk to the milk", "grab the milk", "walk to the living room", "walk to the coffee table"]
    words += ["put the milk on the coffee table", "walk to the kitchen"]
    game, steps = play("VirtualHome-Entertainment", words)
    assert "and only notice chips. The chips are not close to you. In order" in steps[-1].observations[0]
    assert game.legal_actions()[-1] == "walk to the milk"


# ---- values ----------------------------------------------------------------------------------------------------------


def test_the_values_of_food_preparation():
    values = solve(make_task("food_preparation"))
    assert values.optimal[50, 0] == pytest.approx(0.95**5, abs=1e-12)  # six steps: 0.77378
    assert values.uniform[50, 0] == pytest.approx(0.00288, abs=5e-6)


def test_the_values_of_entertainment():
    values = solve(make_task("entertainment"))
    assert values.optimal[50, 0] == pytest.approx(0.95**10, abs=1e-12)  # eleven steps: 0.59874
    assert values.uniform[50, 0] == pytest.approx(0.00043, abs=5e-6)


def test_the_value_of_the_uniform_policy_is_what_playing_it_gives():
    # By hand with two actions left from a closed-in state: in front of the open microwave with the pancake in it,
    # close to both, the offer is three rooms, open (does nothing) and close (ends): 1/5 + 4/5 * ... with rooms lost.
    task = make_task("food_preparation")
    state = food.START
    for word in FOOD[:5]:
        state = food.advance(state, task.words.index(word))
    values = solve(task, gamma=0.5)
    row = values.states[state]
    assert [task.words[action] for action in values.choices[row]][-2:] == ["open the microwave", "close the microwave"]
    assert values.uniform[1, row] == pytest.approx(1 / 5)
    # With two steps: 1/5 at once; 1/5 opens, stays and has 1/5 after a discount of 0.5; three walks lead to nothing.
    assert values.uniform[2, row] == pytest.approx(1 / 5 + 1 / 5 * 0.5 * 1 / 5)


def test_fewer_steps_than_the_task_needs_are_worth_nothing():
    values = solve(make_task("food_preparation"), horizon=6)
    assert values.optimal[5, 0] == 0.0
    assert values.optimal[6, 0] > 0.0


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("VirtualHome")])
def test_every_variant_has_the_values_of_its_task_and_a_planner_that_reaches_them(name):
    game = make(name)
    game.reset(seed=3)
    best = game.optimal_return(gamma=GAMMA)
    assert best == pytest.approx(0.95**10 if name.endswith("Entertainment") else 0.95**5)
    assert game.optimal_return() == 1.0
    assert 0 < game.uniform_return(gamma=GAMMA) < 0.01
    discount = 1.0
    while True:
        step = game.step((game.planner_action(),))
        if step.terminated:
            break
        discount *= GAMMA
    assert discount == pytest.approx(best)


def test_a_panel_with_a_discount_reports_the_share_of_the_optimum():
    panel = fixed_panel("VirtualHome-FoodPreparation", num_episodes=2, gamma=GAMMA)
    assert panel_optima(panel) == pytest.approx([0.95**5] * 2)
    steps = (*(Step("o", "walk", reward=0.0) for _ in range(7)), Step("o", "walk", reward=1.0))
    played = [
        Trajectory("virtualhome", seed, 0, 0, steps, True, False, StopReason.TERMINATED, True) for seed in panel.seeds
    ]
    result = EvaluationResult.from_trajectories(panel, played, panel_optima(panel))
    assert result.mean == pytest.approx(0.95**7)
    assert result.share_of_optimum == pytest.approx(0.95**2)  # two steps more than the best
    assert result.gamma == GAMMA
    assert EvaluationResult.from_json(result.to_json()) == result


# ---- variants, settings, text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "goal", "put"),
    [
        ("Cheese", "heat up the cheese in the microwave", "put the cheese in the microwave"),
        ("ApplePie", "heat up the apple pie in the microwave", "put the apple pie in the microwave"),
        ("WashingPlate", "heat up the dishes in the dishwasher", "put the dishes in the dishwasher"),
        ("Laundry", "heat up the clothes in the washing machine", "put the clothes in the washing machine"),
    ],
)
def test_a_variant_only_swaps_words(name, goal, put):
    game = make(f"VirtualHome-FoodPreparation-{name}")
    (text,) = game.reset(seed=0)
    assert f"In order to {goal}, your next step is to" in text
    assert game._task.words[7] == put
    plain = solve(make_task("food_preparation"))
    assert np.array_equal(solve(game._task).uniform, plain.uniform)


def test_listed_actions_stand_before_the_prompt():
    game = make("virtualhome", list_actions=True)
    (text,) = game.reset(seed=0)
    assert text.startswith('[Available Actions]\n"walk to the living room"\n"walk to the bathroom"\n')
    assert text.endswith("your next step is to")


def test_no_action_counts_as_a_step_and_changes_nothing():
    game = make("virtualhome", max_steps=1)
    game.reset(seed=0)
    key = game.state_key()
    step = game.step((None,))
    assert (step.truncated, step.terminated, step.info["success"], game.state_key()) == (True, False, False, key)


def test_an_action_that_is_not_offered_is_refused():
    game = make("virtualhome")
    game.reset(seed=0)
    with pytest.raises(GameError, match=r"^action='grab the pancake' of player 0 is not legal in virtualhome; use one"):
        game.step(("grab the pancake",))


def test_the_television_can_only_be_switched_with_a_free_hand():
    state = entertainment.START._replace(room=0, close=frozenset({entertainment.TV}), held=(True, True))
    assert entertainment.advance(state, 13) == state
    assert entertainment.advance(state._replace(held=(True, False)), 13).tv_on


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"task": "cooking"},
            "task='cooking' is not a task of virtualhome; use one of food_preparation, entertainment.",
        ),
        ({"item": "Pizza"}, "item='Pizza' cannot stand in an action; write lowercase words."),
        (
            {"item": "kitchen"},
            "item='kitchen' and appliance='microwave' would make two actions equal; use two names, not of rooms.",
        ),
        ({"max_steps": 0}, "max_steps=0 leaves no step to play; set max_steps to 1 or more."),
    ],
)
def test_settings_that_cannot_be_played_are_refused(params, message):
    with pytest.raises(ConfigError, match=exact(message)):
        make("virtualhome", **params)


def test_reading_before_the_start_is_refused():
    with pytest.raises(GameError, match=exact("virtualhome has not been started; call reset(seed=...) first.")):
        make("virtualhome").observation()


def test_the_picture_shows_who_and_what_is_where():
    game = make("virtualhome")
    game.reset(seed=0)
    assert game.render() == (
        "living room\nkitchen      you, microwave (closed), pancake\nbathroom\nbedroom\nclose to you: nothing"
    )


def test_a_discount_that_is_none_is_refused_by_a_panel():
    message = "gamma=0 is not a discount; set gamma above 0 and at most 1."
    with pytest.raises(ConfigError, match=exact(message)):
        fixed_panel("virtualhome", gamma=0)
