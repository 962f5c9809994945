"""Credit of tokens, exactly: small token MDPs are solved by enumeration."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch

from stratagem.algorithms.credit import discounts, token_advantages, token_backup
from stratagem.algorithms.losses import clipped_value_loss

GAMMA_A = 0.9

# state -> action (its tokens) -> (reward, next state or None at the end). Token 1 begins two actions of x; its short
# action (3,) pays less than a long one, so that a discount inside an action misleads.
MDP: dict[str, dict[tuple[int, ...], tuple[float, str | None]]] = {
    "x": {(1, 4, 5): (0.0, "y"), (1, 6): (0.3, None), (2, 4, 4, 5): (0.0, "z"), (3,): (0.75, None)},
    "y": {(1, 4): (1.0, None), (2, 5, 6): (0.0, "x"), (3,): (0.0, "z")},
    "z": {(1, 5): (0.0, "y"), (2, 2, 2): (0.1, "x"), (3,): (0.4, None)},
}


def action_optimum() -> dict[str, dict[tuple[int, ...], float]]:
    """Return Q* of the action-level MDP by plain value iteration: nothing knows of tokens."""
    q = {state: dict.fromkeys(actions, 0.0) for state, actions in MDP.items()}
    for _ in range(400):
        v = {state: max(values.values()) for state, values in q.items()}
        q = {
            state: {a: r + (GAMMA_A * v[after] if after else 0.0) for a, (r, after) in actions.items()}
            for state, actions in MDP.items()
        }
    return q


def token_optimum(gamma_w: float) -> dict[str, dict[tuple[int, ...], float]]:
    """Return the fixed point of the token-level backup."""
    values = dict.fromkeys(MDP, 0.0)
    q: dict[str, dict[tuple[int, ...], float]] = {}
    for _ in range(400):
        q = {
            state: token_backup(
                {a: r + (GAMMA_A * values[after] if after else 0.0) for a, (r, after) in actions.items()},
                gamma_w=gamma_w,
            )
            for state, actions in MDP.items()
        }
        values = {state: found[()] for state, found in q.items()}
    return q


def greedy(
    q: dict[tuple[int, ...], float], actions: dict[tuple[int, ...], tuple[float, str | None]]
) -> tuple[int, ...]:
    """Return the action that is spelled by taking the best token again and again."""
    prefix: tuple[int, ...] = ()
    while prefix not in actions:
        prefix = max((p for p in q if len(p) == len(prefix) + 1 and p[:-1] == prefix), key=lambda p: q[p])
    return prefix


def test_action_decomposition_reaches_the_optimum_of_whole_actions() -> None:
    wanted, found = action_optimum(), token_optimum(1.0)
    for state, actions in MDP.items():
        for action in actions:
            # the value of the last token is that of the action (the paper's consistency)
            assert found[state][action] == pytest.approx(wanted[state][action], abs=1e-12)
            for j in range(1, len(action)):  # a beginning is worth the best action that it can become
                best = max(value for a, value in wanted[state].items() if a[:j] == action[:j])
                assert found[state][action[:j]] == pytest.approx(best, abs=1e-12)
        assert found[state][()] == pytest.approx(max(wanted[state].values()), abs=1e-12)
        assert greedy(found[state], actions) == max(wanted[state], key=lambda a: wanted[state][a])


def test_a_discount_inside_an_action_misses_the_optimum() -> None:
    wanted, found = action_optimum(), token_optimum(0.8)
    assert greedy(token_optimum(1.0)["x"], MDP["x"]) == (1, 4, 5)  # 0.9 * 1, by way of y
    # Worth 0.8^2 * 0.9 * 0.8 in tokens; the short action pays 0.75 now.
    assert greedy(found["x"], MDP["x"]) == (3,)
    assert found["x"][()] == pytest.approx(0.75) != pytest.approx(wanted["x"][1, 4, 5])


@pytest.mark.parametrize("gamma_w", [1.0, 0.95, 0.9, 0.8, 0.5])
def test_the_discrepancy_of_the_naive_backup_is_that_of_the_formula(gamma_w: float) -> None:
    # One decision: a token of a has |a| - j tokens after it, and loses (1 - gamma_w^(|a| - j)) Q of what it leads to.
    actions = {(1, 2, 3, 4): 1.0, (2, 1): 0.7}
    naive, exact = token_backup(actions, gamma_w=gamma_w), token_backup(actions)
    for action, value in actions.items():
        for j in range(1, len(action) + 1):
            gap = exact[action[:j]] - naive[action[:j]]
            assert gap == pytest.approx((1 - gamma_w ** (len(action) - j)) * value, abs=1e-15)


def test_the_gap_to_the_optimum_grows_as_gamma_w_falls() -> None:
    best = action_optimum()["y"][1, 4]
    # y's best action has two tokens and pays 1, so its state is worth gamma_w to the naive backup
    gaps = [best - token_optimum(gamma_w)["y"][()] for gamma_w in (1.0, 0.95, 0.9, 0.8, 0.5)]
    assert gaps == pytest.approx([0.0, 0.05, 0.1, 0.2, 0.5], abs=1e-12)
    assert all(a < b for a, b in itertools.pairwise(gaps))


def test_a_backup_refuses_actions_whose_end_is_not_known() -> None:
    message = "Action (1,) is empty or the beginning of another; end each with a token of its own."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        token_backup({(1,): 0.0, (1, 2): 1.0})
    with pytest.raises(ValueError, match=r"^action_values is empty; a state needs at least one action\.$"):
        token_backup({})


def episode(*lengths: int, seed: int = 0) -> tuple[list[np.ndarray], list[float]]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=n) for n in lengths], rng.normal(size=len(lengths)).tolist()


def test_golden_advantages_of_tokens() -> None:
    values = [np.array([1.0, 2.0]), np.array([3.0])]
    rewards = [0.5, 1.0]
    # Last action, over: delta = 1 + 0 - 3 = -2, A = -2.
    # First action, last token: delta = 0.5 + 0.8 * 3 - 2 = 0.9, A = 0.9 + 0.8 * 0.5 * (-2) = 0.1.
    # First token, POAD: delta = 2 - 1 = 1, A = 1 + 0.5 * 0.1 = 1.05.
    found = token_advantages(values, rewards, gamma_a=[0.8, 0.8], gamma_w=1.0, gae_lambda=0.5)
    np.testing.assert_allclose(found[0], [1.05, 0.1], rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(found[1], [-2.0], rtol=0.0, atol=1e-12)
    # NTPO with gamma_w = 0.5: delta = 0.5 * 2 - 1 = 0, A = 0 + 0.5 * 0.5 * 0.1 = 0.025.
    found = token_advantages(values, rewards, gamma_a=[0.8, 0.8], gamma_w=0.5, gae_lambda=0.5)
    np.testing.assert_allclose(found[0], [0.025, 0.1], rtol=0.0, atol=1e-12)
    # Cut off with V = 10 after it: delta = 1 + 0.8 * 10 - 3 = 6.
    found = token_advantages(values, rewards, gamma_a=[0.8, 0.8], gamma_w=1.0, gae_lambda=0.5, bootstrap=10.0)
    np.testing.assert_allclose(found[1], [6.0], rtol=0.0, atol=1e-12)
    # Macro actions: the first took 3 ticks of time, 0.8^3 = 0.512: delta = 0.5 + 0.512 * 3 - 2 = 0.036,
    # A = 0.036 + 0.512 * 0.5 * (-2) = -0.476.
    gammas = discounts([3, 1], gamma_a=0.8, macro=True)
    found = token_advantages(values, rewards, gamma_a=gammas, gamma_w=1.0, gae_lambda=0.5)
    np.testing.assert_allclose(found[0][1], -0.476, rtol=0.0, atol=1e-12)
    assert discounts([3, 1], gamma_a=0.8, macro=False).tolist() == [0.8, 0.8]


def test_looking_at_the_last_token_of_the_next_action_is_another_estimate() -> None:
    values = [np.array([1.0]), np.array([2.0, 5.0])]
    settings = dict(gamma_a=[0.5, 0.5], gamma_w=1.0, gae_lambda=0.0)
    # delta = 0 + 0.5 * 2 - 1 = 0 with the first token's value, 0.5 * 5 - 1 = 1.5 with the last one's
    assert token_advantages(values, [0.0, 0.0], **settings)[0] == pytest.approx([0.0])  # type: ignore[arg-type]
    last = token_advantages(values, [0.0, 0.0], next_value="last", **settings)  # type: ignore[arg-type]
    assert last[0] == pytest.approx([1.5])


def test_with_gamma_w_of_one_the_naive_advantages_are_those_of_poad() -> None:
    values, rewards = episode(3, 1, 4)
    gammas = [GAMMA_A] * 3
    exact = np.concatenate(token_advantages(values, rewards, gamma_a=gammas, gamma_w=1.0, gae_lambda=0.95))
    for gamma_w, equal in ((1.0, True), (0.999, False)):
        naive = token_advantages(values, rewards, gamma_a=gammas, gamma_w=gamma_w, gae_lambda=0.95)
        assert np.array_equal(np.concatenate(naive), exact) == equal


def test_the_credit_of_the_tokens_adds_up_to_that_of_the_action() -> None:
    # lambda = 0: sum_j delta_j = r + gamma_a V_1(t + 1) - V_1(t), whatever the values between
    values, rewards = episode(3, 1, 4)
    gammas = [GAMMA_A] * 3
    whole = token_advantages([v[:1] for v in values], rewards, gamma_a=gammas, gamma_w=1.0, gae_lambda=0.0)
    for gamma_w, equal in ((1.0, True), (0.9, False)):
        parts = token_advantages(values, rewards, gamma_a=gammas, gamma_w=gamma_w, gae_lambda=0.0)
        assert np.allclose([p.sum() for p in parts], [w[0] for w in whole], rtol=0.0, atol=1e-12) == equal


def test_lambda_of_one_gives_the_return_of_the_episode_to_every_token() -> None:
    values, rewards = episode(2, 3)
    found = token_advantages(values, rewards, gamma_a=[GAMMA_A] * 2, gamma_w=1.0, gae_lambda=1.0)
    to_go = [rewards[0] + GAMMA_A * rewards[1], rewards[1]]
    for mine, before, target in zip(found, values, to_go, strict=True):
        np.testing.assert_allclose(mine + before, np.full(len(before), target), rtol=0.0, atol=1e-12)


def test_values_of_the_optimum_leave_no_advantage_to_the_best_tokens() -> None:
    # an episode of best actions from x: every delta is zero under BAD's values, and some are not under the naive ones
    for gamma_w, zero in ((1.0, True), (0.8, False)):
        q = token_optimum(gamma_w)
        path: list[tuple[str, tuple[int, ...]]] = [("x", (1, 4, 5)), ("y", (1, 4))]
        values = []
        for state, action in path:
            before = [
                max(v for p, v in q[state].items() if len(p) == j + 1 and p[:j] == action[:j])
                for j in range(len(action))
            ]
            values.append(np.array(before))
        rewards = [MDP[state][action][0] for state, action in path]
        found = token_advantages(values, rewards, gamma_a=[GAMMA_A] * 2, gamma_w=1.0, gae_lambda=0.95)
        assert np.allclose(np.concatenate(found), 0.0, rtol=0.0, atol=1e-9) == zero


def test_numbers_of_actions_rewards_and_discounts_must_agree() -> None:
    message = "2 actions with 1 rewards and 2 discounts; give one of each."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        token_advantages([np.zeros(1)] * 2, [0.0], gamma_a=[1.0, 1.0], gamma_w=1.0, gae_lambda=1.0)


def test_golden_value_losses_on_each_side_of_the_clip() -> None:
    values = torch.tensor([0.1, 0.5, -0.5, 0.5], requires_grad=True)
    returns = torch.tensor([1.0, 1.0, 1.0, 0.0])
    # Within 0.2: (0.1 - 1)^2. Too far towards R: the clipped 0.2 counts, (0.2 - 1)^2. Too far away from it: the plain
    # (-0.5 - 1)^2 is larger than (-0.2 - 1)^2. Past R: (0.5 - 0)^2 is larger than (0.2 - 0)^2.
    loss = clipped_value_loss(values, torch.zeros(4), returns, clip_range=0.2)
    torch.testing.assert_close(loss, torch.tensor([0.81, 0.64, 2.25, 0.25]), rtol=0.0, atol=1e-6)
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    torch.testing.assert_close(gradient, torch.tensor([-1.8, 0.0, -3.0, 1.0]), rtol=0.0, atol=1e-6)
    plain = clipped_value_loss(values, torch.zeros(4), returns, clip_range=None)
    torch.testing.assert_close(plain, torch.tensor([0.81, 0.25, 2.25, 0.25]), rtol=0.0, atol=1e-6)
