"""The fused kernel's rule of who attends to whom, and its result in PyTorch's unfused form, against our own kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from stratagem.models import attention
from stratagem.models.attention import TreeLayout, _TreeAttention
from stratagem.models.flex import flex_tree_attention, tree_block_mask
from stratagem.models.local import LocalModel
from stratagem.models.tree import Row, TokenTree, build_tree

# On a CPU it is not compiled, and says so once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def make_rows(length: int = 12) -> list[Row]:
    """Rows that part early, late and in the middle, and two roots."""
    rng = np.random.default_rng(2)
    start = rng.integers(3, 259, length).tolist()
    rows = []
    for shared in (1, length // 2, length - 1, length):
        for _ in range(3):
            prompt = [*start[:shared], *rng.integers(3, 259, rng.integers(1, length)).tolist()]
            rows.append((tuple(prompt), tuple(rng.integers(3, 259, rng.integers(1, 6)).tolist())))
    return [*rows, rows[0], ((5,), (6, 7, 8))]


TREE = build_tree(make_rows())


def attended(tree: TokenTree, window: int | None) -> np.ndarray:
    """Return [N, N] who attends to whom, by walking up from each node."""
    found = np.zeros((tree.num_nodes, tree.num_nodes), dtype=bool)
    for node in range(tree.num_nodes):
        ancestor, steps = node, 0
        while ancestor >= 0 and (window is None or steps < window):
            found[node, ancestor] = True
            ancestor, steps = int(tree.parents[ancestor]), steps + 1
    return found


@pytest.mark.parametrize("window", [None, 1, 4])
def test_the_rule_is_ancestors_and_itself(window: int | None) -> None:
    mask = tree_block_mask(TREE, window=window, device="cpu")
    nodes = torch.arange(TREE.num_nodes)
    zero = torch.tensor(0)
    rule = mask.mask_mod(zero, zero, nodes[:, None], nodes[None, :])
    assert np.array_equal(rule.numpy(), attended(TREE, window))


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("size", [1, 4, 16, 128])
def test_the_blocks_that_are_visited_are_those_with_a_key(size: int, window: int | None) -> None:
    mask = tree_block_mask(TREE, window=window, device="cpu", block_size=size)
    padded = np.zeros((-(-TREE.num_nodes // size) * size,) * 2, dtype=bool)
    padded[: TREE.num_nodes, : TREE.num_nodes] = attended(TREE, window)
    blocks = padded.reshape(len(padded) // size, size, -1, size).any((1, 3))
    assert np.array_equal(mask.to_dense()[0, 0].bool().numpy(), blocks)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_the_result_is_that_of_our_kernel(key_heads: int, window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, h, TREE.num_nodes, 16, generator=generator) for h in (4, key_heads, key_heads))
    mask = tree_block_mask(TREE, window=window, device="cpu")
    fused = flex_tree_attention(query, key, value, mask, 0.3)
    rows = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    ours = _TreeAttention.apply(*rows, TreeLayout(TREE, block_size=8).blocks(window), 0.3)
    torch.testing.assert_close(fused[0].transpose(0, 1), ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ["qwen3", "gemma3_text"])  # heads of 16; the second has windows
@torch.no_grad()
def test_a_model_computes_the_same_with_it(make_local: Callable[..., LocalModel], architecture: str) -> None:
    model = make_local(architecture)
    calls: list[Tensor] = []

    def counted(*args: Tensor) -> Tensor:
        calls.append(args[0])
        return flex_tree_attention(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "flex_tree_attention", counted)
        fused = model._tree_hidden(TREE, TreeLayout(TREE, fused=True))
        assert len(calls) == 2  # layers
        ours = model._tree_hidden(TREE, TreeLayout(TREE))
        assert len(calls) == 2
    torch.testing.assert_close(fused, ours, rtol=1e-4, atol=1e-4)


def test_it_is_off_unless_asked_for(make_local: Callable[..., LocalModel], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> Tensor:
        raise AssertionError("the fused kernel was used")

    monkeypatch.setattr(attention, "flex_tree_attention", refused)
    make_local("qwen3").logprobs(make_rows())


def test_narrow_heads_are_left_to_our_kernel(make_local: Callable[..., LocalModel]) -> None:
    model, layout = make_local("llama"), TreeLayout(TREE, fused=True)  # heads of 8
    with torch.no_grad():
        model._tree_hidden(TREE, layout)
    assert layout._masks == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 4, 40])
@pytest.mark.parametrize("length", [12, 100, 300])  # trees smaller and larger than a block of the kernel
def test_on_cuda_values_and_gradients_are_those_of_our_kernel(length: int, window: int | None) -> None:
    tree = build_tree(make_rows(length))
    generator = torch.Generator().manual_seed(1)
    shapes = [(1, heads, tree.num_nodes, 64) for heads in (9, 3, 3, 9)]
    query, key, value, weights = (torch.randn(shape, generator=generator).cuda() for shape in shapes)
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    fused = flex_tree_attention(*inputs, tree_block_mask(tree, window=window, device="cuda"), 0.125)
    gradients = torch.autograd.grad((weights * fused).sum(), inputs)
    rows = (tensor[0].transpose(0, 1).contiguous() for tensor in inputs)
    blocks = TreeLayout(tree, device="cuda", fused=False).blocks(window)
    ours = _TreeAttention.apply(*rows, blocks, 0.125).transpose(0, 1)[None]
    expected = torch.autograd.grad((weights * ours).sum(), inputs)
    for found, wanted in zip((fused, *gradients), (ours, *expected), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
