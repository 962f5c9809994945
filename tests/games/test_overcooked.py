import gzip
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from stratagem.agents.base import PlannerPolicy, RandomPolicy
from stratagem.errors import ConfigError, GameError
from stratagem.evaluation.panels import fixed_panel, panel_optima
from stratagem.evaluation.play import evaluate
from stratagem.games import make
from stratagem.games.checks import check_game
from stratagem.games.overcooked_plan import explore, optimal_values, steps_to_dish
from stratagem.games.overcooked_rules import LAYOUTS, State, Thing, advance, macros, read_kitchen, start_state
from stratagem.games.overcooked_text import action_words, observation_vector, prompt
from stratagem.rollout import Episode, play_episodes

TOMATO = read_kitchen(LAYOUTS["tomato"], ("tomato",), 1)
BOTH = read_kitchen(LAYOUTS["tomato_lettuce"], ("tomato", "lettuce"), 1)

PLAN = ["get tomato", "go to knife 1", "chop", "get tomato", "get plate 1", "deliver"]
WORDS = [
    "pick up the tomato",
    "put the tomato on the cutting board",
    "chop the tomato",
    "pick up the tomato",
    "take the bowl",
    "serve the dish",
]


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


def play_macro(kitchen, state, name):
    """Play one macro action of one cook; return the state, its primitive rewards and whether a dish was served."""
    rewards = []
    while True:
        moment = advance(kitchen, state, (name,), (len(rewards),))
        state = moment.state
        rewards.append(moment.reward)
        if moment.served or moment.ended[0]:
            return state, rewards, moment.served


def after(kitchen, *names):
    state = start_state(kitchen)
    for name in names:
        state, _, _ = play_macro(kitchen, state, name)
    return state


# ---- recorded data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dish", ["tomato salad", "lettuce-tomato salad"])
def test_recorded_episodes_are_played_step_for_step(dish):
    episodes = json.loads(gzip.decompress(recorded("overcooked_traces", "traces.json.gz").read_bytes()))
    kitchen = TOMATO if dish == "tomato salad" else BOTH
    count = 0
    for number, episode in enumerate(episode for episode in episodes if episode["task"] == dish):
        name = "Overcooked-TomatoSalad" if dish == "tomato salad" else "Overcooked-TomatoLettuceSalad"
        game = make(name)
        (text,) = game.reset(seed=number)
        assert text == episode["reset_text"]["prompt"]
        assert list(game.legal_actions()) == episode["reset_text"]["avaliable_action"]
        assert game.grid_observation().tolist() == episode["reset_obs"]
        total, elapsed = 0.0, 0
        for place, step in enumerate(episode["steps"]):
            where = (number, place)
            word = game.legal_actions()[macros(kitchen).index(step["a"])]
            result = game.step((word,))
            assert result.observations == (step["text"]["prompt"],), where
            assert list(action_words(kitchen, game._state, 0)) == step["text"]["avaliable_action"], where
            assert game.grid_observation().tolist() == step["obs"], where
            assert result.rewards[0] == pytest.approx(step["r"], abs=1e-7), where
            assert result.info["duration"] == step["n"], where
            assert (result.terminated or result.truncated) is step["done"], where
            total += 0.99**elapsed * result.rewards[0]
            elapsed += result.info["duration"]
            count += 1
        assert total == pytest.approx(episode["return_gamma099"], abs=1e-7)
        assert elapsed == episode["primitive_steps"]
    assert count > 900


# ---- golden episodes -------------------------------------------------------------------------------------------------


def test_a_tomato_salad_in_28_primitive_steps():
    game = make("Overcooked-TomatoSalad")
    (text,) = game.reset(seed=0)
    assert text == (
        "There is a fixed cutting board in the room. You notice a tomato on the table. Currently you don't have "
        "anything in hand. To serve the dish of a bowl only containing chopped tomato, you should first"
    )
    steps = []
    for word in WORDS:
        steps.append(game.step((word,)))
    # Walk right and pick up; four left, put down; three chops; pick up; eight to the bowl, fill it, take it; six to the
    # counter that serves, serve.
    assert [step.info["duration"] for step in steps] == [2, 5, 3, 1, 10, 7]
    # -0.001 - 0.99 * 0.001; the third chop earns 0.2: 0.99^2 * 0.2 - 0.001 (1 + 0.99 + 0.9801).
    assert steps[0].rewards[0] == pytest.approx(-0.00199, abs=1e-12)
    assert steps[2].rewards[0] == pytest.approx(0.19602 - 0.0029701, abs=1e-12)
    # 0.99^6 * 1 - 0.001 (1 - 0.99^7) / 0.01.
    assert steps[5].rewards[0] == pytest.approx(0.99**6 - 0.1 * (1 - 0.99**7), abs=1e-12)
    assert steps[5].terminated
    assert dict(steps[5].info) == {"duration": 7, "success": True, "primitive_steps": 28}
    assert steps[1].observations[0] == (
        "There is a fixed cutting board in the room. An unchopped tomato is on the cutting board. Currently you are "
        "standing in front of the cutting board without anything in hand. To serve the dish of a bowl only containing "
        "chopped tomato, you should first"
    )
    assert steps[4].observations[0] == (
        "There is a fixed cutting board in the room. Currently you are carrying a bowl containing chopped tomato. To "
        "serve the dish of a bowl only containing chopped tomato, you should first"
    )


@pytest.mark.parametrize(("kitchen", "steps", "states"), [(TOMATO, 28, 24), (BOTH, 45, 1156)], ids=["tomato", "both"])
def test_the_shortest_plan_by_search(kitchen, steps, states):
    graph = explore(kitchen)
    assert len(graph.states) == states
    assert steps_to_dish(kitchen)[0].min() == steps


@pytest.mark.parametrize(
    ("name", "steps"), [("Overcooked-TomatoSalad", 28), ("Overcooked-TomatoLettuceSalad", 45)], ids=["tomato", "both"]
)
def test_the_planner_serves_in_the_fewest_steps_and_earns_the_discounted_optimum(name, steps):
    game = make(name)
    game.reset(seed=0)
    best = game.optimal_return(gamma=0.99)
    total, elapsed = 0.0, 0
    while True:
        result = game.step((game.planner_action(),))
        total += 0.99**elapsed * result.rewards[0]
        elapsed += result.info["duration"]
        if result.terminated:
            break
    assert elapsed == steps
    assert total == pytest.approx(best, abs=1e-12)
    assert game.planner_action() is None


def test_the_optimum_is_what_playing_its_actions_gives_with_few_steps():
    # With 10 steps nothing is served: pick up (2), put down (5), chop (3) is all of it.
    values = optimal_values(TOMATO, horizon=10, gamma=0.99, macro_gamma=0.99)
    assert values[10, 0] == pytest.approx(0.99**9 * 0.2 - 0.1 * (1 - 0.99**10), abs=1e-12)
    # With 9 the third chop does not come in time: every step costs, whatever is done.
    assert values[9, 0] == pytest.approx(-0.1 * (1 - 0.99**9), abs=1e-12)


def test_without_a_discount_serving_wrongly_and_chopping_again_pays():
    # The reward of a chop (0.2) is more than the cost of a wrong dish (0.1) and of the way.
    game = make("Overcooked-TomatoSalad")
    game.reset(seed=0)
    assert game.optimal_return() > 1.5
    assert game.optimal_return(gamma=0.99) == pytest.approx(0.9205, abs=1e-4)


def test_a_panel_discounts_by_primitive_steps():
    panel = fixed_panel("Overcooked-TomatoSalad", num_episodes=1, gamma=0.99)
    optima = panel_optima(panel)
    result, trajectories = evaluate(panel, [PlannerPolicy()], address=(0, "test"), optima=optima)
    assert [step.duration for step in trajectories[0].steps] == [2, 5, 3, 1, 10, 7]
    assert "duration" not in trajectories[0].info
    assert result.mean == pytest.approx(0.92051809, abs=1e-7)
    assert result.share_of_optimum == pytest.approx(1.0)


# ---- rules -----------------------------------------------------------------------------------------------------------


def test_a_macro_without_anything_to_do_ends_on_arrival():
    # Three rows left of (1, 4) is in front of the board; empty hands do not act, so no step more is spent.
    state, rewards, _ = play_macro(TOMATO, start_state(TOMATO), "go to knife 1")
    assert (divmod(state.cooks[0], 7), len(rewards)) == ((1, 1), 3)
    _, rewards, _ = play_macro(TOMATO, state, "go to knife 1")
    assert len(rewards) == 1


def test_chopping_with_something_in_hand_passes_the_time():
    state = after(TOMATO, "get tomato", "go to knife 1", "get plate 1", "get tomato")
    assert state.things == (Thing(7), Thing(-1, cook=0))
    later, rewards, _ = play_macro(TOMATO, state, "chop")
    assert (later.things, len(rewards)) == (state.things, 3)


def test_a_food_that_is_not_of_the_dish_earns_nothing_when_it_is_cut():
    state, rewards, _ = play_macro(BOTH, after(BOTH, "get onion", "go to knife 2"), "chop")
    assert state.things[2].chopped
    assert rewards == [-0.001] * 3


def test_a_wrong_dish_costs_and_goes_back_where_it_started_uncut():
    state = after(TOMATO, "get tomato", "go to knife 1", "chop", "get tomato")
    state, rewards, served = play_macro(TOMATO, state, "deliver")
    assert not served
    assert rewards[-1] == pytest.approx(-0.101)
    assert state.things[0] == Thing(TOMATO.homes[0])


def test_a_bowl_with_too_little_in_it_is_a_wrong_dish():
    state = after(BOTH, "get tomato", "go to knife 1", "chop", "get tomato", "get plate 1")
    assert state.things[0].in_bowl
    state, rewards, served = play_macro(BOTH, state, "deliver")
    assert (served, rewards[-1]) == (False, pytest.approx(-0.101))
    assert state.things == tuple(Thing(home) for home in BOTH.homes)


def test_a_cook_goes_where_it_remembers_and_then_where_things_start():
    # The tomato was moved out of sight; the cook believes it on the board, does not find it, and thinks of its home.
    state = State((29,), (Thing(5), Thing(47)), ((7, 47),))
    seen = []
    while True:
        moment = advance(TOMATO, state, ("get tomato",), (0,))
        state = moment.state
        seen.append((divmod(state.cooks[0], 7), state.memory[0][0]))
        if moment.ended[0]:
            break
    # From (4, 1) up; from (3, 1) the board at (1, 0) is in view and empty, so the way turns to (0, 5).
    assert seen[0] == ((3, 1), 5)
    assert seen[-2:] == [((1, 5), 5), ((1, 5), 12)]  # in hand, the tomato is where the cook is


def test_only_what_is_near_is_in_the_vector():
    assert observation_vector(TOMATO, start_state(TOMATO), 0) == (
        *(0, 5, 0),  # the tomato is in view
        *(0, 0),  # the bowl is not
        *(0, 0),  # nor the board, four columns away
        *(0, 0),
        *(1, 4),
        *(1, 0, 0, 0, 0, 0, 0),
    )


def test_a_full_bowl_is_no_longer_called_empty():
    state = after(BOTH, "get tomato", "go to knife 1", "chop", "get tomato", "get plate 1")
    assert "take the bowl" in action_words(BOTH, state, 0)
    assert "take the empty bowl" in action_words(BOTH, start_state(BOTH), 0)
    assert "Currently you are carrying a bowl containing chopped tomato. To serve" in prompt(BOTH, state, 0)


# ---- two cooks, other kitchens ---------------------------------------------------------------------------------------


def test_two_cooks_keep_the_contract_and_read_of_each_other():
    check_game(lambda: make("Overcooked-TomatoSalad", num_cooks=2))
    game = make("Overcooked-TomatoSalad", num_cooks=2)
    texts = game.reset(seed=0)
    assert "Another cook is" not in texts[0]  # three rows away
    game.step(("pick up the tomato", "take the bowl"))
    assert game.planner_action(0) is None
    assert game.optimal_return() is None


def test_a_cook_that_is_busy_has_no_action_and_goes_on():
    game = make("Overcooked-TomatoSalad", num_cooks=2)
    game.reset(seed=0)
    # The first picks the tomato up in two steps; the second walks to the board in four rows and columns more.
    step = game.step(("pick up the tomato", "walk to the cutting board"))
    assert step.info["duration"] == 2
    assert game.legal_actions(1) == ()
    assert game.legal_actions(0) != ()
    assert step.rewards == (pytest.approx(-0.00199), pytest.approx(-0.00199))
    step = game.step((None, None))  # the first stands still for a step, the second walks on
    assert step.info["duration"] == 1
    # The discount of the second goes on within its macro action: 0.99^2.
    assert step.rewards == (pytest.approx(-0.001), pytest.approx(-0.0009801))


def test_cooks_do_not_enter_each_other_and_are_free_again():
    kitchen = read_kitchen(("###t#", "k12_#", "s###b"), ("tomato",), 2)
    state = start_state(kitchen)
    moment = advance(kitchen, state, ("get tomato", None), (0, 0))
    assert moment.state.cooks == state.cooks
    assert moment.ended == (True, True)


def test_two_cooks_are_played_by_the_rollout():
    (trajectory,) = play_episodes(
        lambda: make("Overcooked-TomatoSalad", num_cooks=2, max_steps=60),
        [RandomPolicy(), RandomPolicy()],
        [Episode(0, 0, (0, "test"))],
    )
    assert sum(step.duration for step in trajectory.steps) == trajectory.info["primitive_steps"] == 60


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_every_kitchen_can_be_played_to_the_end(layout):
    game = make("overcooked", layout=layout, max_steps=400)
    game.reset(seed=0)
    while True:
        step = game.step((game.planner_action(),))
        if step.terminated or step.truncated:
            break
    assert step.terminated


def test_a_kitchen_of_ones_own():
    game = make("overcooked", layout=["###t#", "k_1_#", "s__b#", "#####"])
    game.reset(seed=0)
    assert game.render() == "# # # t #\nk _ 1 _ #\ns _ _ b #\n# # # # #\n1 holds nothing"
    assert game.planner_action() == "pick up the tomato"


def test_no_action_is_one_primitive_step():
    game = make("Overcooked-TomatoSalad", max_steps=2)
    game.reset(seed=0)
    key = game.state_key()
    step = game.step((None,))
    assert (step.rewards, step.info["duration"], game.state_key()) == ((-0.001,), 1, key)
    step = game.step((None,))
    assert (step.truncated, step.info["success"]) == (True, False)


def test_listed_actions_stand_before_the_prompt():
    game = make("Overcooked-TomatoSalad", list_actions=True)
    (text,) = game.reset(seed=0)
    assert text.startswith('[Available Actions]\n"pick up the tomato"\n"take the bowl"\n')


def test_a_macro_that_is_cut_off_by_the_limit_truncates():
    game = make("Overcooked-TomatoSalad", max_steps=3)
    game.reset(seed=0)
    step = game.step(("take the bowl",))
    assert (step.truncated, step.info["duration"]) == (True, 3)
    assert step.rewards[0] == pytest.approx(-0.001 * (1 + 0.99 + 0.9801))


def test_the_grid_observation_is_the_vector():
    game = make("Overcooked-TomatoSalad")
    game.reset(seed=0)
    assert game.grid_observation().dtype == np.int64


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"layout": "huge"},
            "layout='huge' is not a kitchen; use one of tomato, tomato_lettuce, large_tomato, large_tomato_lettuce, or "
            "rows such as ['###t#', 'k_1_#', 's___#', '###b#'].",
        ),
        ({"num_cooks": 3}, "num_cooks=3 cannot cook here; set num_cooks to 1 or 2."),
        ({"max_steps": 0}, "max_steps=0 leaves no step to play; set max_steps to 1 or more."),
        ({"gamma": 0.0}, "gamma=0.0 is not a discount; set gamma above 0 and at most 1."),
        (
            {"layout": ["###", "#1"]},
            "layout='###/#1' is not a rectangle of at least 3x3; give rows of equal length.",
        ),
        (
            {"layout": ["#t#", "k1x", "sb#"]},
            "layout='#t#/k1x/sb#' holds 'x'; use only # _ t l o b k s 1 2.",
        ),
        (
            {"layout": ["#t_", "k1#", "sb#"]},
            "layout='#t_/k1#/sb#' has floor at its edge; put counters (#) all around.",
        ),
        ({"layout": ["#t#", "k1#", "s##"]}, "layout='#t#/k1#/s##' holds 'b' 0 times; write it once."),
        ({"layout": ["#t#", "#1#", "sb#"]}, "layout='#t#/#1#/sb#' has 0 cutting boards (k); give it one to four."),
        (
            {"order": ["lettuce"]},
            "order=['lettuce'] cannot be cooked from tomato; name foods of the layout.",
        ),
    ],
)
def test_settings_that_cannot_be_cooked_are_refused(params, message):
    with pytest.raises(ConfigError, match=exact(message)):
        make("overcooked", **params)


def test_reading_before_the_start_is_refused():
    with pytest.raises(GameError, match=exact("overcooked has not been started; call reset(seed=...) first.")):
        make("overcooked").observation()


def test_a_cook_puts_nothing_down_where_the_other_took_the_bowl_away():
    kitchen = read_kitchen(LAYOUTS["tomato"], ("tomato",), 2)
    # The first stands beside the bowl's home with a cut tomato; the second has the bowl, out of the first one's sight.
    state = State((40, 8), (Thing(-1, cook=0, chops=3), Thing(-1, cook=1)), ((40, 47), (5, 8)))
    moment = advance(kitchen, state, ("get plate 1", None), (0, 0))
    assert moment.state.things == state.things
    assert moment.ended == (True, True)
