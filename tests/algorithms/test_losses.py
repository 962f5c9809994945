from __future__ import annotations

import math
import re

import pytest
import torch

from stratagem.algorithms.losses import check_same_shape, clipped_surrogate

LOW, HIGH = 0.1, 0.3


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        # ratio in [0.9, 1.3]: loss = -w A, d loss / d log p = -w A
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 2.0, -2.4, -2.4),
        (0.95, -2.0, 1.9, 1.9),
        # above: a positive advantage is cut at 1.3, a negative one is not
        (1.5, 2.0, -2.6, 0.0),
        (1.5, -2.0, 3.0, 3.0),
        # below: a negative advantage is cut at 0.9, a positive one is not
        (0.5, -2.0, 1.8, 0.0),
        (0.5, 2.0, -1.0, -1.0),
        (1.0, 0.0, 0.0, 0.0),
    ],
)
def test_golden_values_on_each_side_of_each_clip(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    old = torch.tensor([-1.5])
    logprobs = (old + math.log(ratio)).requires_grad_()
    value = clipped_surrogate(logprobs, old, torch.tensor([advantage]), clip_low=LOW, clip_high=HIGH)
    assert value.shape == (1,)
    value.sum().backward()  # type: ignore[no-untyped-call]
    assert value.item() == pytest.approx(loss, rel=1e-5)
    assert logprobs.grad is not None
    assert float(logprobs.grad) == pytest.approx(gradient, rel=1e-5, abs=1e-7)


def test_at_ratio_one_the_gradient_is_that_of_reinforce() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs = -torch.rand(20, generator=generator)
    advantages = torch.randn(20, generator=generator)
    one, two = logprobs.clone().requires_grad_(), logprobs.clone().requires_grad_()
    clipped_surrogate(one, logprobs, advantages, clip_low=LOW, clip_high=HIGH).sum().backward()  # type: ignore[no-untyped-call]
    (-(advantages * two).sum()).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(one.grad, two.grad, rtol=1e-6, atol=0.0)


def test_the_order_of_tokens_does_not_matter() -> None:
    generator = torch.Generator().manual_seed(1)
    old, new, advantages = (
        -torch.rand(9, generator=generator),
        -torch.rand(9, generator=generator),
        torch.arange(9.0) - 4,
    )
    order = torch.randperm(9, generator=generator)
    plain = clipped_surrogate(new, old, advantages, clip_low=LOW, clip_high=HIGH)
    shuffled = clipped_surrogate(new[order], old[order], advantages[order], clip_low=LOW, clip_high=HIGH)
    torch.testing.assert_close(shuffled, plain[order], rtol=0.0, atol=0.0)


def test_gradients_flow_through_the_new_logprobs_only() -> None:
    tensors = [torch.tensor([-1.0], requires_grad=True) for _ in range(3)]
    clipped_surrogate(*tensors, clip_low=LOW, clip_high=HIGH).sum().backward()  # type: ignore[no-untyped-call]
    assert [tensor.grad is None for tensor in tensors] == [False, True, True]


def test_shapes_that_would_broadcast_are_refused() -> None:
    message = (
        "Shapes differ or are not one-dimensional: logprobs [3], old_logprobs [3], advantages [1]; expected one number "
        "for each token."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        clipped_surrogate(torch.zeros(3), torch.zeros(3), torch.zeros(1), clip_low=LOW, clip_high=HIGH)
    message = "Shapes differ or are not one-dimensional: left [2, 1], right [2, 1]; expected one number for each token."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_same_shape(left=torch.zeros(2, 1), right=torch.zeros(2, 1))
