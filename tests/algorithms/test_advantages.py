from __future__ import annotations

import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from stratagem.agents.base import make_policy
from stratagem.algorithms.advantages import (
    aaw_probabilities,
    aaw_sample,
    anchor_state_advantages,
    balance_states,
    best_targets,
    group_normalised,
    leave_one_out,
    matching_advantages,
    pooled_targets,
    returns_to_go,
)
from stratagem.games import make
from stratagem.rollout import play_groups

returns = st.lists(st.floats(-100, 100), min_size=2, max_size=20)


def test_golden_advantages_by_hand() -> None:
    # mean 2, deviations (-2, 0, 2), population variance 8/3, std 1.63299
    np.testing.assert_allclose(group_normalised(np.array([0.0, 2.0, 4.0])), [-(1.5**0.5), 0.0, 1.5**0.5], rtol=1e-12)
    # mean 0.25, deviations (-.25, -.25, -.25, .75), variance (3 * .0625 + .5625) / 4 = .1875
    expected = np.array([-0.25, -0.25, -0.25, 0.75]) / 0.1875**0.5
    np.testing.assert_allclose(group_normalised(np.array([0.0, 0.0, 0.0, 1.0])), expected, rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, -3.0, 0.1, 1e9, 1e-9])
def test_equal_returns_give_exactly_zero(value: float) -> None:
    assert group_normalised(np.full(7, value)).tolist() == [0.0] * 7


def test_a_rounding_error_is_no_signal() -> None:
    # The same rewards summed in another order: 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1 in float64.
    values = np.array([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1])
    assert values[0] != values[1]
    assert group_normalised(values).tolist() == [0.0, 0.0]


def test_a_small_true_difference_is_a_signal() -> None:
    np.testing.assert_allclose(group_normalised(np.array([1.0, 1.0 + 1e-6])), [-1.0, 1.0], rtol=1e-6)


@given(returns)
def test_advantages_have_mean_zero_and_variance_one_or_zero(values: list[float]) -> None:
    advantages = group_normalised(np.array(values))
    assert abs(advantages.mean()) < 1e-4
    assert advantages.std() == pytest.approx(1.0, abs=1e-6) or not advantages.any()


@given(returns, st.randoms(use_true_random=False))
def test_the_order_of_the_group_does_not_matter(values: list[float], random: object) -> None:
    order = np.random.default_rng(len(values)).permutation(len(values))
    shuffled = group_normalised(np.array(values)[order])
    np.testing.assert_allclose(shuffled, group_normalised(np.array(values))[order], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("values", "shape"), [([5.0], "(1,)"), ([], "(0,)"), ([[1.0, 2.0]], "(1, 2)")])
def test_a_group_of_one_has_no_advantage(values: list[float], shape: str) -> None:
    message = f"returns has shape {shape}; a group needs two or more episodes to compare. Raise G."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        group_normalised(np.array(values))


# ---- absolute-advantage-weighted sampling ----------------------------------------------------------------------------


def test_golden_probabilities_by_hand() -> None:
    # |A| / T = (0, ln 2, ln 2, ln 4) with T = 1/2: weights 1, 2, 2, 4 of 9
    advantages = np.array([0.0, 1.0, -1.0, -2.0]) * np.log(2) / 2
    np.testing.assert_allclose(aaw_probabilities(advantages, temperature=0.5), np.array([1, 2, 2, 4]) / 9, rtol=1e-12)


def test_a_low_temperature_prefers_extremes_and_a_high_one_is_uniform() -> None:
    advantages = np.array([0.1, -2.0, 1.0])
    assert aaw_probabilities(advantages, temperature=1e-3).tolist() == [0.0, 1.0, 0.0]
    np.testing.assert_allclose(aaw_probabilities(advantages, temperature=1e6), [1 / 3] * 3, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_means_nothing_is_refused(temperature: float) -> None:
    message = f"temperature={temperature!r} must be above 0; AAW sampling is switched off with None."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        aaw_probabilities(np.ones(3), temperature=temperature)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        aaw_sample(np.ones(3), 2, temperature=temperature, rng=np.random.default_rng(0))


@pytest.mark.parametrize("size", [0, 5])
def test_more_or_less_than_the_group_cannot_be_drawn(size: int) -> None:
    message = f"size={size!r} cannot be drawn from 4 episodes; choose 1 to 4."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        aaw_sample(np.ones(4), size, temperature=1.0, rng=np.random.default_rng(0))


def test_pairs_are_drawn_one_after_the_other_without_replacement() -> None:
    advantages, count = np.array([0.1, -1.4, 0.6, 1.1]), 20_000
    p = aaw_probabilities(advantages, temperature=0.8)
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    # first i then j, or first j then i
    expected = np.array([p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j]) for i, j in pairs])
    assert expected.sum() == pytest.approx(1.0)
    rng = np.random.default_rng(0)
    drawn = [tuple(aaw_sample(advantages, 2, temperature=0.8, rng=rng).tolist()) for _ in range(count)]
    counts = np.array([drawn.count(pair) for pair in pairs])
    assert counts.sum() == count
    statistic = ((counts - count * expected) ** 2 / (count * expected)).sum()
    assert statistic < chi2.ppf(0.999, df=5)
    # the test can fail: drawing with equal probabilities would be far off
    assert ((counts - count / 6) ** 2 / (count / 6)).sum() > 10 * chi2.ppf(0.999, df=5)


def test_the_whole_group_is_everyone_once() -> None:
    chosen = aaw_sample(np.array([0.0, 1.0, -1.0]), 3, temperature=1.0, rng=np.random.default_rng(0))
    assert chosen.tolist() == [0, 1, 2]


def test_a_very_low_temperature_does_not_underflow() -> None:
    # exp(-1e6) is 0; the two extremes must come first and the rest must still be drawn at random
    advantages = np.array([2.0, 0.0, 0.0, 0.0, -2.0])
    third = set()
    for seed in range(40):
        chosen = aaw_sample(advantages, 3, temperature=1e-6, rng=np.random.default_rng(seed)).tolist()
        assert {0, 4} <= set(chosen)
        third |= set(chosen) - {0, 4}
    assert third == {1, 2, 3}


def test_anchor_state_credit_compares_steps_from_the_same_state_only() -> None:
    # State a: returns 1, 0, 0, 1 -> mean 0.5, std 0.5 -> +1, -1, -1, +1. State b: 2, 4 -> -1, +1. State c: once -> 0.
    keys = ["a", "b", "a", "c", "a", "b", "a"]
    returns = np.array([1.0, 2.0, 0.0, 9.0, 0.0, 4.0, 1.0])
    assert anchor_state_advantages(keys, returns).tolist() == [1.0, -1.0, -1.0, 0.0, -1.0, 1.0, 1.0]


def test_anchor_state_credit_is_zero_where_all_returns_of_a_state_are_equal() -> None:
    assert anchor_state_advantages(["a", "a", "b"], np.array([0.3, 0.3, 1.0])).tolist() == [0.0, 0.0, 0.0]


def test_anchor_state_credit_names_a_mismatch() -> None:
    message = "2 state keys for 3 returns; give one of each for every step."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        anchor_state_advantages(["a", "b"], np.zeros(3))


def test_pooled_targets_average_what_followed_a_state() -> None:
    # gamma 0.5. Returns-to-go: episode 1 (0.5, 1), episode 2 (1, 0, 0). b: 1 and 0 -> V(b) = 0.5; c: V(c) = 0.
    # Targets: 0 + 0.5 * V(b) = 0.25, 1; then 1 + 0.5 * V(b) = 1.25, 0 + 0.5 * V(c) = 0, 0.
    targets = pooled_targets([["a", "b"], ["a", "b", "c"]], [[0.0, 1.0], [1.0, 0.0, 0.0]], gamma=0.5)
    assert [t.tolist() for t in targets] == [[0.25, 1.0], [1.25, 0.0, 0.0]]


def test_pooled_targets_of_equal_moves_in_a_deterministic_game_are_equal() -> None:
    targets = pooled_targets([["a", "b"], ["a", "b"], ["a", "c"]], [[0, 1], [0, 0], [0, 1]], gamma=0.9)
    assert targets[0][0] == targets[1][0] == pytest.approx(0.45)
    assert targets[2][0] == pytest.approx(0.9)


def best(*episodes: tuple[str, str, list[float], bool], gamma: float = 0.5) -> list[list[float]]:
    """Episodes as (states, moves, rewards, cut off), a letter for each state and move; "-" is no action."""
    keys, moves, rewards, cut_off = zip(*episodes, strict=True)
    actions = [[None if move == "-" else move for move in of_episode] for of_episode in moves]
    return [t.tolist() for t in best_targets([list(k) for k in keys], actions, rewards, cut_off, gamma=gamma)]


def test_best_targets_join_what_two_episodes_found_out() -> None:
    # a -x-> b -y-> goal (1) and c -z-> b -w-> hole (0): V*(b) = 1, V*(a) = V*(c) = 0.5. The second episode fell, and
    # its first step still led to a state that is worth 1.
    found = best(("ab", "xy", [0.0, 1.0], False), ("cb", "zw", [0.0, 0.0], False))
    assert found == [[0.5, 1.0], [0.5, 0.0]]


def test_best_targets_are_the_optimal_values_of_a_walk() -> None:
    # Cells 0 1 2 3 in a row, the goal right of 3. Walks to and fro; gamma 0.5: V*(3) = 1, V*(2) = 1/2, V*(1) = 1/4,
    # V*(0) = 1/8. A step left is worth gamma V* of where it leads, a bump into the wall gamma V*(0).
    found = best(("0010", "lrlr", [0.0] * 4, True), ("1212323", "rlrrlrr", [0.0] * 6 + [1.0], False))
    assert found[0] == pytest.approx([1 / 16, 1 / 8, 1 / 16, 1 / 8])
    assert found[1] == pytest.approx([1 / 4, 1 / 8, 1 / 4, 1 / 2, 1 / 4, 1 / 2, 1.0])


def test_best_targets_average_over_chance_and_count_penalties() -> None:
    # From a, x leads to b twice and to the goal (3) once: Q(a, x) = (0.5 V*(b) + 0.5 V*(b) + 3) / 3 with V*(b) = 1.
    # A step is compared by where it led itself. An answer without an action costs 0.25 and stays in a.
    goal = ("a", "x", [3.0], False)
    other = ("ab", "xy", [0.0, 1.0], False)
    silent = ("aab", "-xy", [-0.25, 0.0, 1.0], False)
    found = best(goal, other, silent)
    value_of_a = (0.5 + 0.5 + 3.0) / 3
    assert found == [[3.0], [0.5, 1.0], pytest.approx([-0.25 + 0.5 * value_of_a, 0.5, 1.0])]


def test_what_follows_a_cut_off_step_is_told_by_others_or_is_zero() -> None:
    # Both episodes end in a with x. The third went on from there to b, which is worth 1.
    known = best(("a", "x", [0.0], True), ("ab", "xy", [0.0, 1.0], False))
    assert known == [[0.5], [0.5, 1.0]]
    assert best(("a", "x", [0.0], True), ("a", "y", [0.0], False)) == [[0.0], [0.0]]
    # What it earned is known in any case: V*(b) = 1, though nobody saw what comes after y.
    assert best(("ab", "xy", [0.0, 1.0], True)) == [[0.5, 1.0]]
    assert best(("ab", "x-", [0.0, -0.5], True)) == [[-0.25, -0.5]]
    assert best(("a", "x", [0.0], False), ("ab", "xy", [0.0, 1.0], False))[0] == [0.0]  # it ended there, by its rules


def test_best_targets_of_a_loop_without_discount_end() -> None:
    # A loop that pays: as many moves ahead as there are states, not for ever.
    (targets,) = best(("aba", "xyx", [1.0, 1.0, 1.0], True), gamma=1.0)
    assert targets == pytest.approx([1 + 2.0, 1 + 2.0, 1 + 2.0])


def test_best_targets_of_nothing() -> None:
    assert best_targets([], [], [], [], gamma=0.9) == []
    assert [t.tolist() for t in best_targets([[]], [[]], [[]], [True], gamma=0.9)] == [[]]


def test_the_best_targets_of_random_play_lead_to_the_goal_as_fast_as_the_planner() -> None:
    make_game = partial(make, "FrozenLake-NotSlippery")
    group, _ = play_groups(make_game, [make_policy("random")], num_groups=1, group_size=128, address=(4, "test"))
    episodes = group[0].trajectories
    keys = [[step.state_key for step in t.steps] for t in episodes]
    actions = [[step.action for step in t.steps] for t in episodes]
    rewards = [[step.reward for step in t.steps] for t in episodes]
    targets = best_targets(keys, actions, rewards, [not t.terminated for t in episodes], gamma=0.95)
    moves: dict[str, tuple[float, str | None]] = {}
    for of_episode, done, found in zip(keys, actions, targets, strict=True):
        for key, action, value in zip(of_episode, done, found, strict=True):
            moves[key] = max((value, action or ""), moves.get(key, (0.0, "")))
    lengths = []
    for choose in (lambda game: moves[game.state_key()][1], lambda game: game.planner_action(0)):
        game = make_game()
        game.reset(seed=episodes[0].seed)
        length, step = 0, None
        while step is None or not step.terminated:
            step = game.step((choose(game),))
            length += 1
        assert step.rewards == (1.0,)
        lengths.append(length)
    assert lengths[0] == lengths[1]


def test_matching_advantages_by_hand() -> None:
    # State a: x twice (1 and 0.5: mean 0.75), y once (0.25), z five times (0). Range 0.75, temperature 0.5:
    # exponents 0, (0.25 - 0.75) / 0.375 = -4/3, -0.75 / 0.375 = -2; shares of the visits 2/8, 1/8, 5/8.
    keys, moves = ["a"] * 8, list("xxyzzzzz")
    weights = np.exp([0.0, -4 / 3, -2.0])
    x, y, z = weights / weights.sum()
    found = matching_advantages(keys, moves, np.array([1.0, 0.5, 0.25, 0, 0, 0, 0, 0]), temperature=0.5)
    np.testing.assert_allclose(found, [4 * x - 1] * 2 + [8 * y - 1] + [1.6 * z - 1] * 5, rtol=1e-12)
    assert found.sum() == pytest.approx(0.0)  # a baseline: the credit of a state adds up to nothing


def test_matching_advantages_of_equal_actions_keep_them_equal() -> None:
    # Worth the same, tried 3 and 1 times: q = 1/2 each, p = 3/4 and 1/4.
    found = matching_advantages(["a"] * 4, [None, None, None, "x"], np.full(4, 7.0), temperature=0.1)
    assert found == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 1.0])
    alone = matching_advantages(["a", "a", "b"], ["x", "x", "y"], np.array([0.0, 1.0, 2.0]), temperature=1.0)
    assert alone.tolist() == [0.0, 0.0, 0.0]
    assert matching_advantages([], [], np.array([]), temperature=1.0).tolist() == []


def test_an_answer_without_an_action_does_not_set_the_scale() -> None:
    # Far from the goal the best move is worth 0.13 and a detour 0.08; one invalid answer costs 0.5.
    keys, moves = ["a"] * 100, ["right"] * 80 + ["left"] * 20
    worth = np.array([0.13] * 80 + [0.08] * 20)
    plain = matching_advantages(keys, moves, worth, temperature=0.2)
    found = matching_advantages([*keys, "a"], [*moves, None], np.append(worth, -0.42), temperature=0.2)
    assert plain[0] == pytest.approx(1 / (1 + math.exp(-5)) / 0.8 - 1)
    np.testing.assert_allclose(found[:100], 1.01 * (plain + 1) - 1, rtol=1e-12)
    assert found[100] == pytest.approx(-1.0)
    # Where all moves are worth the same, they share what the invalid answer does not get.
    equal = matching_advantages(["a"] * 4, ["x", "x", "y", None], np.array([0.0, 0.0, 0.0, -0.5]), temperature=0.2)
    assert equal == pytest.approx([0.5 * 4 / 2 - 1, 0.5 * 4 / 2 - 1, 0.5 * 4 - 1, -1.0])


def test_matching_advantages_do_not_depend_on_the_size_of_rewards() -> None:
    keys, moves, worth = ["a"] * 5, list("xyxzz"), np.array([0.3, 0.1, 0.7, -0.2, 0.0])
    found = matching_advantages(keys, moves, worth, temperature=0.3)
    np.testing.assert_allclose(matching_advantages(keys, moves, 1e-4 * worth + 3.0, temperature=0.3), found, rtol=1e-7)
    with pytest.raises(ValueError, match=re.escape("temperature=0 must be above 0.")):
        matching_advantages(keys, moves, worth, temperature=0)


def test_the_gradient_under_matching_advantages_is_that_of_the_cross_entropy() -> None:
    """sum over visits of A d log pi(a) / d logits, divided by their number, is q - pi where the visits are pi's."""
    p = {"x": 0.5, "y": 0.3, "z": 0.2}
    moves = [move for move, share in p.items() for _ in range(round(10 * share))]
    worth = np.array([{"x": 0.0, "y": 1.0, "z": 0.5}[move] for move in moves])
    credit = matching_advantages(["a"] * 10, moves, worth, temperature=0.5)
    logits = torch.tensor([p[move] for move in "xyz"], dtype=torch.float64).log().requires_grad_()
    log_p = torch.log_softmax(logits, dim=0)
    (torch.tensor(credit) * log_p[["xyz".index(move) for move in moves]]).mean().backward()
    weights = np.exp([-2.0, 0.0, -1.0])
    np.testing.assert_allclose(logits.grad, weights / weights.sum() - np.array([0.5, 0.3, 0.2]), rtol=1e-9)


def test_balanced_states_weigh_the_same() -> None:
    # a is seen 4 times, b once: 2.5 visits of a state on average, factors 2.5/4 and 2.5/1.
    scaled = balance_states(["a", "a", "b", "a", "a"], np.array([1.0, -1.0, 1.0, 1.0, 1.0]))
    assert scaled.tolist() == [0.625, -0.625, 2.5, 0.625, 0.625]


def test_returns_to_go_are_discounted_from_the_step_on() -> None:
    # gamma 0.5: 1 + 0.5 * (0 + 0.5 * 4) = 2; 0 + 0.5 * 4 = 2; 4.
    assert returns_to_go([1.0, 0.0, 4.0], gamma=0.5).tolist() == [2.0, 2.0, 4.0]
    assert returns_to_go([], gamma=0.5).tolist() == []


# ---- leave-one-out baseline ------------------------------------------------------------------------------------------


def test_golden_leave_one_out_advantages_by_hand() -> None:
    # 3 - (0 + 0 + 1) / 3 = 8/3; 0 - (3 + 0 + 1) / 3 = -4/3, twice; 1 - (3 + 0 + 0) / 3 = 0
    np.testing.assert_allclose(
        leave_one_out(np.array([3.0, 0.0, 0.0, 1.0])), [8 / 3, -4 / 3, -4 / 3, 0.0], rtol=1e-12, atol=1e-15
    )
    # of two, each is compared with the other
    np.testing.assert_allclose(leave_one_out(np.array([9.0, 10.0])), [-1.0, 1.0], rtol=1e-12)


@given(returns)
def test_leave_one_out_is_a_loop_over_the_others_and_a_multiple_of_the_deviation(values: list[float]) -> None:
    array = np.array(values)
    count = len(values)
    found = leave_one_out(array)
    loop = [values[j] - sum(values[:j] + values[j + 1 :]) / (count - 1) for j in range(count)]
    np.testing.assert_allclose(found, loop, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(found, count / (count - 1) * (array - array.mean()), rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(found, count / (count - 1) * array.std() * group_normalised(array), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, -3.0, 0.1, 1e9])
def test_equal_returns_give_exactly_zero_without_the_spread_too(value: float) -> None:
    assert leave_one_out(np.full(7, value)).tolist() == [0.0] * 7


def test_leave_one_out_needs_another_episode() -> None:
    message = "returns has shape (1,); a group needs two or more episodes to compare. Raise G."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        leave_one_out(np.array([1.0]))
