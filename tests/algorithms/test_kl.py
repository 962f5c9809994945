from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stratagem.algorithms.kl import KL_ESTIMATORS, kl_k1, kl_k2, kl_k3

# A bandit with three arms: everything can be summed over the arms.
LOGITS = torch.tensor([0.3, -0.5, 1.1])
REFERENCE = torch.log_softmax(torch.tensor([1.0, 0.2, -0.4]), 0)


def policy() -> tuple[Tensor, Tensor]:
    logits = LOGITS.clone().requires_grad_()
    return logits, torch.log_softmax(logits, 0)


def exact_kl(left: Tensor, right: Tensor) -> Tensor:
    return (left.exp() * (left - right)).sum()


def gradient_of(value: Tensor, logits: Tensor) -> Tensor:
    (grad,) = torch.autograd.grad(value, logits)
    return grad


def test_golden_values_by_hand() -> None:
    # p = 0.5, p_ref = 0.25: r = 1/2, log r = -ln 2
    logprobs, reference = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    torch.testing.assert_close(kl_k1(logprobs, reference), torch.tensor([math.log(2)]), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(kl_k2(logprobs, reference), torch.tensor([math.log(2) ** 2 / 2]), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(kl_k3(logprobs, reference), torch.tensor([math.log(2) - 0.5]), rtol=1e-6, atol=0.0)
    # p = 0.25, p_ref = 0.5: r = 2; k1 is negative, k3 is not
    assert float(kl_k1(reference, logprobs)) == pytest.approx(-math.log(2))
    assert float(kl_k3(reference, logprobs)) == pytest.approx(1 - math.log(2))


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_equal_policies_have_no_divergence(name: str) -> None:
    logprobs = torch.tensor([-0.1, -3.0, -20.0])
    assert KL_ESTIMATORS[name](logprobs, logprobs).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(name: str) -> None:
    _, logprobs = policy()
    expected = (logprobs.exp() * KL_ESTIMATORS[name](logprobs, REFERENCE)).sum()
    torch.testing.assert_close(expected, exact_kl(logprobs, REFERENCE), rtol=1e-6, atol=1e-7)


def test_k2_is_biased() -> None:
    _, logprobs = policy()
    expected = (logprobs.exp() * kl_k2(logprobs, REFERENCE)).sum()
    assert abs((expected - exact_kl(logprobs, REFERENCE)).item()) > 0.01


def test_k3_is_never_negative() -> None:
    difference = torch.linspace(-5, 5, 1001, dtype=torch.float64)
    assert (kl_k3(difference, torch.zeros_like(difference)) >= 0).all()
    tiny = torch.tensor([1e-8, -1e-8, 1e-4])  # r - 1 - log r loses all its digits here unless expm1 is used
    torch.testing.assert_close(kl_k3(tiny, torch.zeros(3)), tiny**2 / 2, rtol=1e-2, atol=1e-15)


def expected_gradient(name: str) -> Tensor:
    """Mean over arms drawn from the policy of the gradient of the estimator at that arm."""
    total = torch.zeros(3)
    for arm in range(3):
        logits, logprobs = policy()
        total += logprobs[arm].exp().detach() * gradient_of(KL_ESTIMATORS[name](logprobs[arm], REFERENCE[arm]), logits)
    return total


def test_k1_as_a_loss_has_no_expected_gradient() -> None:
    torch.testing.assert_close(expected_gradient("k1"), torch.zeros(3), rtol=0.0, atol=1e-6)


def test_k2_as_a_loss_has_the_gradient_of_kl_to_the_reference() -> None:
    logits, logprobs = policy()
    torch.testing.assert_close(
        expected_gradient("k2"), gradient_of(exact_kl(logprobs, REFERENCE), logits), rtol=1e-5, atol=1e-6
    )


def test_k3_as_a_loss_has_the_gradient_of_kl_from_the_reference() -> None:
    logits, logprobs = policy()
    torch.testing.assert_close(
        expected_gradient("k3"), gradient_of(exact_kl(REFERENCE, logprobs), logits), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_no_gradient_reaches_the_reference(name: str) -> None:
    reference = torch.tensor([-1.0], requires_grad=True)
    logprobs = torch.tensor([-2.0], requires_grad=True)
    KL_ESTIMATORS[name](logprobs, reference).sum().backward()  # type: ignore[no-untyped-call]
    assert reference.grad is None
    assert logprobs.grad is not None


@pytest.mark.parametrize("name", ["k2", "k3"])
def test_descent_goes_towards_the_reference(name: str) -> None:
    _, logprobs = policy()
    before = exact_kl(logprobs, REFERENCE).detach()
    after = exact_kl(torch.log_softmax(LOGITS - 0.1 * expected_gradient(name), 0), REFERENCE)
    assert after < before
