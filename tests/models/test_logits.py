from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stratagem.models import logits as logits_module
from stratagem.models.logits import label_logprobs

NUM_ROWS, WIDTH, VOCABULARY = 7, 6, 11
# Row 0 has two labels, row 2 the same label twice, rows 1 and 5 none; ascending, as promised by the caller.
ROWS = torch.tensor([0, 0, 2, 2, 3, 4, 6])
TOKENS = torch.tensor([1, 10, 5, 5, 0, 7, 3])


def inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(NUM_ROWS, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, requires_grad=True)
    bias = torch.randn(VOCABULARY, generator=generator, requires_grad=True)
    return hidden, weight, bias


def plain(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, *, temperature: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """The same with automatic differentiation over a whole [L, V] table."""
    logits = hidden @ weight.T
    if bias is not None:
        logits = logits + bias
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_p = torch.log_softmax(logits / temperature, dim=-1)
    return log_p[ROWS, TOKENS], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 7, 100], ids=lambda n: f"chunk{n}")
@pytest.mark.parametrize("with_entropy", [False, True], ids=["logprobs", "entropy"])
@pytest.mark.parametrize("softcap", [None, 1.5], ids=["no_cap", "cap"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("with_bias", [False, True], ids=["no_bias", "bias"])
def test_values_and_gradients_are_those_of_log_softmax(
    monkeypatch: pytest.MonkeyPatch,
    chunk_rows: int,
    with_entropy: bool,
    softcap: float | None,
    temperature: float,
    with_bias: bool,
) -> None:
    monkeypatch.setattr(logits_module, "_CHUNK_FLOATS", chunk_rows * VOCABULARY)
    generator = torch.Generator().manual_seed(1)
    label_weights = torch.randn(len(ROWS), generator=generator)
    entropy_weights = torch.randn(NUM_ROWS, generator=generator) * with_entropy
    results = []
    for function in (label_logprobs, plain):
        hidden, weight, bias = inputs()
        used = bias if with_bias else None
        if function is label_logprobs:
            logprobs, entropy = label_logprobs(
                hidden, weight, rows=ROWS, tokens=TOKENS, bias=used, temperature=temperature, softcap=softcap
            )
        else:
            logprobs, entropy = plain(hidden, weight, used, temperature=temperature, softcap=softcap)
        ((label_weights * logprobs).sum() + (entropy_weights * entropy).sum()).backward()  # type: ignore[no-untyped-call]
        results.append((logprobs, entropy, hidden.grad, weight.grad, *([bias.grad] if with_bias else [])))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_golden_value_by_hand() -> None:
    # logits (0, ln 3): p = (1/4, 3/4); H = ln 4 - (3/4) ln 3
    hidden = torch.tensor([[1.0]])
    weight = torch.tensor([[0.0], [math.log(3)]])
    logprobs, entropy = label_logprobs(hidden, weight, rows=torch.tensor([0, 0]), tokens=torch.tensor([0, 1]))
    torch.testing.assert_close(logprobs, torch.tensor([math.log(0.25), math.log(0.75)]), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(entropy, torch.tensor([math.log(4) - 0.75 * math.log(3)]), rtol=1e-6, atol=0.0)


def test_temperature_divides_the_logits_and_not_the_logprob() -> None:
    # logits (0, ln 3) at T = 1/2: (0, ln 9): p = (1/10, 9/10); log(3/4) / T would be log(9/16)
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [math.log(3)]])
    logprobs, _ = label_logprobs(hidden, weight, rows=torch.tensor([0]), tokens=torch.tensor([1]), temperature=0.5)
    torch.testing.assert_close(logprobs, torch.tensor([math.log(0.9)]), rtol=1e-6, atol=0.0)


def test_weights_that_do_not_train_get_no_gradient() -> None:
    hidden, weight, _ = inputs()
    frozen = weight.detach()
    logprobs, _ = label_logprobs(hidden, frozen, rows=ROWS, tokens=TOKENS)
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert frozen.grad is None


def test_entropy_is_not_negative_and_at_most_log_vocabulary() -> None:
    hidden, weight, bias = inputs(3)
    _, entropy = label_logprobs(hidden * 20, weight, rows=ROWS, tokens=TOKENS, bias=bias)
    assert (entropy > -1e-5).all()
    assert (entropy < math.log(VOCABULARY) + 1e-5).all()
