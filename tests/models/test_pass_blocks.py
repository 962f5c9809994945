"""Attention of a sampling pass, cut into blocks and forks, against a softmax over each token's own path."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from stratagem.models.attention import Block, Fork, _attend
from stratagem.models.pass_blocks import fork_blocks, union_blocks

CAPACITY, SIZE = 400, 8


def slots(seed: int, *lengths: int) -> list[np.ndarray]:
    """Return runs of slots that do not overlap."""
    order = np.random.default_rng(seed).permutation(CAPACITY)
    ends = np.cumsum((0, *lengths))
    return [order[start:end] for start, end in itertools.pairwise(ends)]


def join(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts)


A, B, C, D, E = slots(3, 60, 30, 7, 1, 40)

PATHS = {
    "one_row": [A],
    "rows_that_share_nothing": [A, B, C],
    "rows_that_share_a_beginning": [join(A, B), join(A, C), join(A, D)],
    "a_row_that_another_goes_on_from": [A, join(A, D), join(A, D, C)],
    "a_row_of_one_token": [D, A],
    "two_families": [join(A, B[:3]), join(A, B[3:9]), join(E, C[:2]), join(E, C[2:])],
}


def expected(query: Tensor, key: Tensor, value: Tensor, paths: list[np.ndarray]) -> Tensor:
    """Return [B, H, D], one query and one head at a time."""
    share = query.shape[1] // key.shape[1]
    found = torch.empty_like(query)
    for number, path in enumerate(paths):
        for head in range(query.shape[1]):
            keys, values = key[path, head // share], value[path, head // share]
            found[number, head] = torch.softmax(keys @ query[number, head], 0) @ values
    return found


def tensors(count: int, key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(count, 4, SIZE, generator=generator)
    key, value = (torch.randn(CAPACITY, key_heads, SIZE, generator=generator) for _ in range(2))
    return query, key, value


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("kind", ["forks", "union", "both"])
def test_each_token_attends_to_its_path(kind: str, name: str, key_heads: int) -> None:
    paths = PATHS[name]
    query, key, value = tensors(len(paths), key_heads)
    cut = {"forks": len(paths), "union": 0, "both": 1}[kind]
    blocks: list[Block | Fork] = [*fork_blocks(paths[:cut], 0, key_heads), *union_blocks(paths[cut:], cut, CAPACITY)]
    unused = np.setdiff1d(np.arange(CAPACITY), np.concatenate(paths))
    key[unused] = value[unused] = torch.nan  # what a slot held before must not matter
    torch.testing.assert_close(_attend(query, key, value, blocks), expected(query, key, value, paths))


def test_a_fork_of_rows_that_share_nothing_is_exact_too() -> None:
    # One fork of 3 rows x 3 keys costs 2000 + 4 x 9 + 3 x 3; one more fork alone would cost 2000.
    paths = [C[:2], C[2:5], C[5:]]
    query, key, value = tensors(3, 2)
    forks = fork_blocks(paths, 0, 2)
    assert [(fork.start, fork.stop, len(fork.trunk)) for fork in forks] == [(0, 3, 0)]
    torch.testing.assert_close(_attend(query, key, value, forks), expected(query, key, value, paths))


def test_families_that_share_little_are_cut_apart() -> None:
    # 2 x 8 rows, each family with 4,000 tokens of its own and one more for each row. Cut apart, one family costs
    # 2000 + 4 (4000 + 8) + 8 x 4001 = 50,040; together they would fetch 16 x 4001 keys: 4 x 64,016 = 256,064.
    left, right = np.arange(4000), np.arange(4000, 8000)
    paths = [join(family, np.array([8000 + n])) for family in (left, right) for n in range(8)]
    forks = fork_blocks(paths, 5, 3)
    assert [(fork.start, fork.stop) for fork in forks] == [(5, 13), (13, 21)]
    assert [fork.trunk.tolist()[:2] for fork in forks] == [[0, 3], [12000, 12003]]  # slot x 3 heads
    assert [tuple(fork.bias.shape) for fork in forks] == [(8, 1), (8, 1)]


def test_rows_of_one_prompt_are_one_fork() -> None:
    prompt = np.arange(100)
    paths = [join(prompt, 100 + 10 * n + np.arange(1 + n)) for n in range(20)]
    (fork,) = fork_blocks(paths, 0, 1)
    assert len(fork.trunk) == 100
    # row n has 1 + n keys of its own, the longest 20
    assert torch.isfinite(fork.bias).sum(1).tolist() == list(range(1, 21))


def test_nothing_makes_no_block() -> None:
    assert fork_blocks([], 0, 1) == union_blocks([], 0, 10) == []
