"""The choice token by token among those that go on to a legal action."""

from __future__ import annotations

import math

import pytest
import torch

from stratagem.agents.branches import branch_logprobs
from stratagem.errors import GameError

# Three actions in tokens, and the model's probabilities of them:
#   1 (0.2) -> 2 (0.5)        first choice: 1 or 4, 0.2 : 0.1
#           -> 3 (0.25) -> 5 (0.01)    second: 2 or 3, 0.5 : 0.25; after 3 there is no choice
#   4 (0.1)
CANDIDATES = ((1, 2), (1, 3, 5), (4,))
TOKENS = torch.log(torch.tensor([0.2, 0.5, 0.2, 0.25, 0.01, 0.1], dtype=torch.float64))


def test_a_token_gets_its_share_among_those_that_go_on_to_an_action() -> None:
    log_pi, entropy = branch_logprobs(TOKENS, CANDIDATES)
    assert log_pi.exp().tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 1 / 3, 1, 1 / 3])
    of_two = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert entropy.tolist() == pytest.approx([of_two, of_two, of_two, of_two, 0, of_two], abs=1e-12)


def test_the_products_over_actions_sum_to_one() -> None:
    log_pi, _ = branch_logprobs(TOKENS, CANDIDATES, temperature=3.0)
    actions = [part.sum().exp() for part in torch.split(log_pi, [2, 3, 1])]
    assert float(sum(actions)) == pytest.approx(1)


def test_a_temperature_divides_the_log_probabilities_at_every_choice() -> None:
    # At temperature 1/2 the odds of 2 : 1 become 4 : 1.
    log_pi, _ = branch_logprobs(TOKENS, CANDIDATES, temperature=0.5)
    assert log_pi.exp().tolist() == pytest.approx([4 / 5, 4 / 5, 4 / 5, 1 / 5, 1, 1 / 5])


def test_the_gradient_of_a_choice_reaches_its_alternatives_and_nothing_else() -> None:
    # d log pi(2) / d log p(2) = 1 - 2/3, and - 1/3 for its alternative 3; the first choice has no part in it. Token 1
    # stands twice among the actions and its first place stands for both.
    tokens = TOKENS.clone().requires_grad_()
    branch_logprobs(tokens, CANDIDATES)[0][1].backward()
    assert tokens.grad is not None
    assert tokens.grad.tolist() == pytest.approx([0, 1 / 3, 0, -1 / 3, 0, 0])
    tokens.grad = None
    branch_logprobs(tokens, CANDIDATES)[0][2].backward()
    assert tokens.grad.tolist() == pytest.approx([1 / 3, 0, 0, 0, 0, -1 / 3])


def test_probabilities_that_underflow_still_give_a_policy() -> None:
    tokens = torch.tensor([-900.0, -1000.0], dtype=torch.float64, requires_grad=True)
    log_pi, entropy = branch_logprobs(tokens, ((1,), (2,)))
    assert log_pi.tolist() == pytest.approx([0, -100])
    (log_pi.sum() + entropy.sum()).backward()
    assert tokens.grad is not None and torch.isfinite(tokens.grad).all()


def test_an_action_that_begins_another_is_refused() -> None:
    message = (
        "The action of tokens (1,) is the beginning of another, (1, 2); token by token nothing says where it ends. Set "
        "agent.choice = 'action'."
    )
    with pytest.raises(GameError) as caught:
        branch_logprobs(TOKENS[:3], ((1,), (1, 2)))
    assert str(caught.value) == message
