from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from stratagem.algorithms.offline_losses import awr_weights, expectile_loss, policy_loss, q_loss


def test_a_value_below_its_target_costs_more_than_one_above_it() -> None:
    # d = target - V. d = +2: 0.9 * 4 = 3.6; d = -2: 0.1 * 4 = 0.4; d = 0: 0.
    loss = expectile_loss(torch.tensor([1.0, 5.0, 3.0]), torch.tensor([3.0, 3.0, 3.0]), expectile=0.9)
    torch.testing.assert_close(loss, torch.tensor([3.6, 0.4, 0.0]), rtol=1e-6, atol=0.0)


def test_half_an_expectile_is_half_the_squared_error() -> None:
    values, targets = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 2.0])
    torch.testing.assert_close(
        expectile_loss(values, targets, expectile=0.5), (values - targets).square() / 2, rtol=1e-6, atol=0.0
    )


def test_the_minimum_is_the_expectile_of_the_targets() -> None:
    # Of 0 and 1, each once: (1 - t) v = t (1 - v), so v = t = 0.95.
    value = torch.tensor([0.95], requires_grad=True)
    expectile_loss(value.expand(2), torch.tensor([0.0, 1.0]), expectile=0.95).sum().backward()
    assert value.grad is not None
    torch.testing.assert_close(value.grad, torch.zeros(1), rtol=0.0, atol=1e-6)


def test_q_looks_one_decision_ahead_and_not_beyond_an_end() -> None:
    # (1 + 0.5 * 4 - 2)^2 = 1; the second has no next state: (1 + 0 - 2)^2 = 1; (-1 + 0.5 * 2 - 2)^2 = 4.
    loss = q_loss(
        torch.tensor([2.0, 2.0, 2.0]),
        torch.tensor([1.0, 1.0, -1.0]),
        torch.tensor([4.0, math.nan, 2.0]),
        torch.tensor([True, False, True]),
        gamma=0.5,
    )
    torch.testing.assert_close(loss, torch.tensor([1.0, 1.0, 4.0]), rtol=1e-6, atol=0.0)


def test_only_values_and_q_values_learn() -> None:
    tensors = [torch.tensor([1.0], requires_grad=True) for _ in range(4)]
    values, targets, q_values, next_values = tensors
    loss = expectile_loss(values, targets, expectile=0.9)
    loss = loss + q_loss(q_values, torch.zeros(1), next_values, torch.tensor([True]), gamma=0.5)
    loss.sum().backward()
    assert [tensor.grad is not None for tensor in tensors] == [True, False, True, False]


def test_weights_grow_with_the_advantage_up_to_their_bound() -> None:
    # e^(0.5 / 0.5) = e; e^0 = 1; e^(-1 / 0.5) = e^-2; e^20 is bounded by 20, and so is what overflows.
    weights = awr_weights(torch.tensor([0.5, 0.0, -1.0, 10.0, 1e6]), temperature=0.5, max_weight=20.0)
    torch.testing.assert_close(weights, torch.tensor([math.e, 1.0, math.exp(-2), 20.0, 20.0]), rtol=1e-5, atol=0.0)


def test_with_all_weights_one_the_policy_clones() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    weights = awr_weights(torch.zeros(2, requires_grad=True), temperature=1.0, max_weight=20.0)
    loss = policy_loss(logprobs, weights)
    torch.testing.assert_close(loss, torch.tensor([1.0, 2.0]), rtol=1e-6, atol=0.0)
    loss.sum().backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.tensor([-1.0, -1.0]), rtol=1e-6, atol=0.0)
    assert not weights.requires_grad


def test_shapes_must_agree() -> None:
    message = "Shapes differ or are not one-dimensional: values [2], targets [1]; expected one number for each token."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        expectile_loss(torch.zeros(2), torch.zeros(1), expectile=0.9)


def test_weighted_cloning_comes_to_the_behaviour_times_the_weights() -> None:
    # Behaviour: a 3 of 4, b 1 of 4; weights 1 and 6: pi(a) = 3 / (3 + 6) = 1/3.
    table = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([table], lr=0.1)
    weights = torch.tensor([1.0, 1.0, 1.0, 6.0], dtype=torch.float64)
    for _ in range(300):
        optimizer.zero_grad()
        logprobs = torch.log_softmax(table, 0)[torch.tensor([0, 0, 0, 1])]
        policy_loss(logprobs, weights).sum().backward()
        optimizer.step()
    np.testing.assert_allclose(torch.softmax(table, 0).detach().numpy(), [1 / 3, 2 / 3], rtol=0, atol=1e-6)
