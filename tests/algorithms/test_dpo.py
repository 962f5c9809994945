from __future__ import annotations

import math
import re

import pytest
import torch

from stratagem.algorithms.dpo import dpo_loss, dpo_margin

CHOSEN, REJECTED = torch.tensor([-1.0, -5.0]), torch.tensor([-3.0, -2.0])
REF_CHOSEN, REF_REJECTED = torch.tensor([-2.0, -4.0]), torch.tensor([-2.0, -4.0])


def test_the_loss_is_minus_log_sigmoid_of_the_margin() -> None:
    # Pair 0: (-1 + 2) - (-3 + 2) = 2; pair 1: (-5 + 4) - (-2 + 4) = -3.
    assert dpo_margin(CHOSEN, REJECTED, REF_CHOSEN, REF_REJECTED).tolist() == [2.0, -3.0]
    # beta = 0.5: log(1 + e^-1) = 0.3132617, log(1 + e^1.5) = 1.7014133
    loss = dpo_loss(CHOSEN, REJECTED, REF_CHOSEN, REF_REJECTED, beta=0.5)
    torch.testing.assert_close(loss, torch.tensor([0.3132617, 1.7014133]), rtol=1e-6, atol=0.0)


def test_at_the_reference_the_loss_is_log_two_and_its_gradient_half_of_beta() -> None:
    chosen, rejected = REF_CHOSEN.clone().requires_grad_(), REF_REJECTED.clone().requires_grad_()
    loss = dpo_loss(chosen, rejected, REF_CHOSEN, REF_REJECTED, beta=0.3)
    torch.testing.assert_close(loss, torch.full((2,), math.log(2)), rtol=1e-6, atol=0.0)
    loss.sum().backward()
    torch.testing.assert_close(chosen.grad, torch.full((2,), -0.15), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(rejected.grad, torch.full((2,), 0.15), rtol=1e-6, atol=0.0)


def test_the_reference_has_no_gradient() -> None:
    reference = REF_CHOSEN.clone().requires_grad_()
    chosen = CHOSEN.clone().requires_grad_()
    dpo_loss(chosen, REJECTED, reference, REF_REJECTED, beta=0.1).sum().backward()
    assert reference.grad is None


def test_exchanging_the_two_turns_the_margin_around() -> None:
    there = dpo_margin(CHOSEN, REJECTED, REF_CHOSEN, REF_REJECTED)
    back = dpo_margin(REJECTED, CHOSEN, REF_REJECTED, REF_CHOSEN)
    assert torch.equal(there, -back)


def test_a_margin_that_is_far_off_gives_a_finite_loss() -> None:
    far = torch.tensor([-1e4])
    loss = dpo_loss(far, -far, torch.zeros(1), torch.zeros(1), beta=0.5)
    torch.testing.assert_close(loss, torch.tensor([1e4]), rtol=1e-6, atol=0.0)  # 0.5 * 2e4


def test_shapes_must_agree() -> None:
    message = (
        "Shapes differ or are not one-dimensional: chosen [2], rejected [1], ref_chosen [2], ref_rejected [2]; "
        "expected one number for each token."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        dpo_loss(CHOSEN, REJECTED[:1], REF_CHOSEN, REF_REJECTED, beta=0.1)
