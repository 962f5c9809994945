"""A pass over the tree is a pass over the rows: the same log-probabilities and the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from stratagem.models.attention import TREE_ATTENTION
from stratagem.models.catalog import LoraSettings
from stratagem.models.local import LocalModel
from stratagem.models.tree import Row, build_tree

EOS = 2  # also the pad token
Maker = Callable[..., LocalModel]


def make_rows() -> list[Row]:
    """Rows as an agent makes them: one beginning, states that come again, short and long and empty answers."""
    rng = np.random.default_rng(0)
    start = rng.integers(3, 259, 9).tolist()
    states = [[*start, *rng.integers(3, 259, length).tolist()] for length in (1, 4, 4, 8)]
    answers = [rng.integers(3, 259, length).tolist() for length in (1, 2, 3, 6)]
    rows = [(state, answer) for state in states for answer in answers]
    rows += [
        (states[0], [EOS]),  # EOS first
        (states[1], [*answers[2], EOS]),
        (states[1], [*answers[2][:2], EOS]),  # leaves the one before it in the middle
        (states[2], answers[3]),  # a row again
        (states[3][:-1], [states[3][-1], *answers[0]]),  # the border of prompt and completion elsewhere
        ([5], [6]),  # another root
    ]
    return [(tuple(prompt), tuple(completion)) for prompt, completion in rows]


ROWS = make_rows()
COEFFICIENTS = torch.randn(sum(len(c) for _, c in ROWS), generator=torch.Generator().manual_seed(3))


def reference(model: PreTrainedModel, rows: Sequence[Row], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Each row alone through transformers' own attention: no padding, no positions given, no code of ours."""
    logprobs, entropy = [], []
    for prompt, completion in rows:
        ids = torch.tensor([[*prompt, *completion]])
        log_p = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float() / temperature, -1)
        span = range(len(prompt) - 1, len(prompt) + len(completion) - 1)
        logprobs.append(torch.stack([log_p[k, ids[0, k + 1]] for k in span]))
        entropy.append(torch.stack([-(log_p[k].exp() * log_p[k]).sum() for k in span]))
    return torch.cat(logprobs), torch.cat(entropy)


def gradients(loss: Tensor, parameters: dict[str, Any]) -> Tensor:
    for parameter in parameters.values():
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten().float() for p in parameters.values() if p.grad is not None])


def assert_same_direction(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    cosine = torch.nn.functional.cosine_similarity(ours.double(), theirs.double(), dim=0)
    assert float(cosine) > 0.99999
    assert float(ours.norm() / theirs.norm()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("block", [3, 128], ids=["small_blocks", "one_block"])
def test_the_tree_equals_rows(
    architecture: str, block: int, make_local: Maker, make_architecture: Callable[[str], PreTrainedModel]
) -> None:
    model = make_local(architecture, attention_block=block)
    assert model.tree_refused is None
    assert model.module.config._attn_implementation == TREE_ATTENTION
    plain = make_architecture(architecture).eval()
    assert plain.config._attn_implementation == "sdpa"
    temperature = 0.8
    batch = model.logprobs(ROWS, temperature=temperature)
    expected, expected_entropy = reference(plain, ROWS, temperature)
    torch.testing.assert_close(batch.logprobs, expected, rtol=0.0, atol=1e-4)
    torch.testing.assert_close(batch.entropy, expected_entropy, rtol=0.0, atol=1e-4)
    loss = (COEFFICIENTS * batch.logprobs).sum() + 0.1 * batch.entropy.sum()
    expected_loss = (COEFFICIENTS * expected).sum() + 0.1 * expected_entropy.sum()
    assert_same_direction(
        gradients(loss, model.named_parameters()), gradients(expected_loss, dict(plain.named_parameters()))
    )


def test_padded_rows_equal_the_tree(architecture: str, make_local: Maker) -> None:
    model = make_local(architecture)
    with torch.no_grad():
        tree, rows = model.logprobs(ROWS), model.logprobs_by_row(ROWS)
    torch.testing.assert_close(tree.logprobs, rows.logprobs, rtol=0.0, atol=1e-4)
    torch.testing.assert_close(tree.entropy, rows.entropy, rtol=0.0, atol=1e-4)
    assert tree.num_computed == build_tree(ROWS).num_nodes < tree.num_seen == rows.num_seen < rows.num_computed


def test_a_row_beside_longer_ones_keeps_its_logprobs(make_local: Maker) -> None:
    # Pad side and positions: the pad token is EOS, which also ends some of the rows.
    model = make_local()
    with torch.no_grad():
        alone = torch.cat([model.logprobs_by_row([row]).logprobs for row in ROWS])
        torch.testing.assert_close(model.logprobs_by_row(ROWS).logprobs, alone, rtol=0.0, atol=1e-4)
        torch.testing.assert_close(model.logprobs(ROWS).logprobs, alone, rtol=0.0, atol=1e-4)


def test_lora_on_the_tree_equals_rows(make_local: Maker) -> None:
    model = make_local("qwen2", lora=LoraSettings(rank=4, alpha=8))
    parameters = model.named_parameters()
    assert parameters and all("lora_" in name for name in parameters)
    with torch.no_grad():
        for parameter in parameters.values():  # adapters start at zero, where half of their gradients are zero too
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    batch, rows = model.logprobs(ROWS), model.logprobs_by_row(ROWS)
    torch.testing.assert_close(batch.logprobs, rows.logprobs, rtol=0.0, atol=1e-4)
    assert_same_direction(
        gradients((COEFFICIENTS * batch.logprobs).sum(), parameters),
        gradients((COEFFICIENTS * rows.logprobs).sum(), parameters),
    )


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)], ids=["full", "lora"])
def test_gradient_checkpointing_computes_again_and_changes_nothing(
    make_local: Maker, lora: LoraSettings | None
) -> None:
    results = []
    for checkpointing in (False, True):
        model = make_local("gemma3_text", gradient_checkpointing=checkpointing, lora=lora)
        calls = []
        model.module.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))  # noqa: B023
        batch = model.logprobs(ROWS)
        results.append((batch.logprobs.detach(), gradients(batch.logprobs.sum(), model.named_parameters())))
        assert len(calls) == (2 if checkpointing else 1)
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0.0, atol=0.0)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-5)


def test_gradient_checkpointing_switches_no_dropout_on(make_local: Maker) -> None:
    model = make_local(gradient_checkpointing=True)
    model.module.model.layers[0].self_attn.attention_dropout = 0.9
    with torch.no_grad():
        first, second = model.logprobs_by_row(ROWS).logprobs, model.logprobs_by_row(ROWS).logprobs
    torch.testing.assert_close(first, second, rtol=0.0, atol=0.0)


def test_bfloat16_is_near_float32(make_local: Maker) -> None:
    with torch.no_grad():
        exact = make_local("llama").logprobs(ROWS).logprobs
        model = make_local("llama", dtype="bfloat16")
        tree, rows = model.logprobs(ROWS).logprobs, model.logprobs_by_row(ROWS).logprobs
    assert tree.dtype == torch.float32
    # 8 bits of mantissa: the tree is as far from float32 as rows are
    spread = (rows - exact).abs().mean()
    assert (tree - exact).abs().mean() < 2 * spread
    assert (tree - rows).abs().mean() < 2 * spread


def test_bfloat16_gradients_point_the_same_way(make_local: Maker) -> None:
    exact, coarse = make_local("llama"), make_local("llama", dtype="bfloat16")
    left = gradients((COEFFICIENTS * exact.logprobs(ROWS).logprobs).sum(), exact.named_parameters())
    right = gradients((COEFFICIENTS * coarse.logprobs(ROWS).logprobs).sum(), coarse.named_parameters())
    assert float(torch.nn.functional.cosine_similarity(left, right, dim=0)) > 0.97


def test_the_order_of_rows_changes_no_gradient(make_local: Maker) -> None:
    model = make_local("mistral")
    order = np.random.default_rng(5).permutation(len(ROWS))
    lengths = [len(c) for _, c in ROWS]
    pieces = COEFFICIENTS.split(lengths)
    forward = model.logprobs(ROWS).logprobs
    shuffled = model.logprobs([ROWS[i] for i in order]).logprobs
    expected = torch.cat([forward.detach().split(lengths)[i] for i in order])
    torch.testing.assert_close(shuffled.detach(), expected, rtol=0.0, atol=1e-5)
    parameters = model.named_parameters()
    torch.testing.assert_close(
        gradients((torch.cat([pieces[i] for i in order]) * shuffled).sum(), parameters),
        gradients((COEFFICIENTS * forward).sum(), parameters),
        rtol=1e-4,
        atol=1e-4,
    )


def test_a_repeated_row_counts_as_often_as_it_stands_there(make_local: Maker) -> None:
    model = make_local()
    parameters = model.named_parameters()
    once = gradients(model.logprobs([ROWS[3]]).logprobs.sum(), parameters)
    thrice = gradients(model.logprobs([ROWS[3]] * 3).logprobs.sum(), parameters)
    assert_same_direction(thrice, 3 * once)


def test_only_completion_tokens_train(make_local: Maker) -> None:
    # The loss of the prompt's tokens alone is nothing: no label, no gradient from an observation.
    model = make_local()
    batch = model.logprobs(ROWS)
    assert batch.logprobs.shape == (sum(len(completion) for _, completion in ROWS),)
    # The gradient of the label alone reaches the table row of a token that stands only in a completion's last place
    # through the output layer alone; with untied input it would be zero.
    untied = make_local("llama_bias")
    untied.logprobs([((5, 6, 7), (8,))]).logprobs.sum().backward()  # type: ignore[no-untyped-call]
    grad = untied.module.get_input_embeddings().weight.grad
    assert sorted(grad.abs().sum(1).nonzero().flatten().tolist()) == [5, 6, 7]


def test_the_first_completion_token_is_predicted_by_the_last_prompt_token(make_local: Maker) -> None:
    model = make_local()
    with torch.no_grad():
        ids = torch.tensor([[7, 8, 9]])
        expected = torch.log_softmax(model.module(input_ids=ids, use_cache=False).logits[0, -1], -1)
        rows = [((7, 8, 9), (token,)) for token in range(259)]
        torch.testing.assert_close(model.logprobs(rows).logprobs, expected, rtol=0.0, atol=1e-5)


def test_gemma3_without_a_cap_has_none(make_local: Maker) -> None:
    assert make_local("gemma3_text").module.config.final_logit_softcapping is None
    assert make_local("gemma3_softcap").module.config.final_logit_softcapping == 2.0


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_the_last_layers_alone_get_the_gradient_that_they_have_in_the_whole(
    make_local: Maker, checkpointing: bool
) -> None:
    whole, top = make_local(), make_local(trainable_layers=1, gradient_checkpointing=checkpointing)
    parameters = top.named_parameters()
    assert {name.split(".")[1] for name in parameters} == {"layers", "norm"}
    assert {name.split(".")[2] for name in parameters if "layers" in name} == {"1"}
    expected = whole.logprobs(ROWS)
    (COEFFICIENTS * expected.logprobs).sum().backward()  # type: ignore[no-untyped-call]
    batch = top.logprobs(ROWS)
    torch.testing.assert_close(batch.logprobs, expected.logprobs, rtol=0.0, atol=0.0)
    found = gradients((COEFFICIENTS * batch.logprobs).sum(), parameters)
    grads = dict(whole.module.named_parameters())
    assert_same_direction(found, torch.cat([grads[name].grad.flatten() for name in parameters]))
    assert all(p.grad is None for name, p in top.module.named_parameters() if name not in parameters)
