from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem.models.tree import Row, TokenTree, attention_blocks, build_tree, split_rows

tokens = st.integers(0, 2)  # few tokens, so that rows share prefixes
rows_strategy = st.lists(
    st.tuples(st.lists(tokens, min_size=1, max_size=6), st.lists(tokens, min_size=1, max_size=5)),
    min_size=1,
    max_size=12,
)


def ancestors(tree: TokenTree, node: int) -> list[int]:
    """Return the path from the root to ``node``, both included."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(tree.parents[node])
    return path[::-1]


def prefixes(rows: Sequence[Row]) -> set[tuple[int, ...]]:
    """Return what must be computed: every prefix of every row without its last token."""
    found = set()
    for prompt, completion in rows:
        full = (*prompt, *completion)[:-1]
        found |= {tuple(full[:length]) for length in range(1, len(full) + 1)}
    return found


# ---- the tree ------------------------------------------------------------------------------------------------------


def test_the_tree_of_the_documentation() -> None:
    # A=0 B=1 C=2 D=3 x=4 y=5 z=6; the rows and nodes are those of the module's text.
    tree = build_tree([((0, 1, 2), (4, 5)), ((0, 1, 2), (4, 6)), ((0, 1, 3), (4,))])
    assert tree.tokens.tolist() == [0, 1, 2, 4, 3]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 1]
    assert tree.depths.tolist() == [0, 1, 2, 3, 2]
    # labels in order of arrival: x after C, y after x, z after x, x after D
    assert tree.label_nodes.tolist() == [2, 3, 3, 4]
    assert tree.label_tokens.tolist() == [4, 5, 6, 4]
    assert [list(labels) for labels in tree.row_labels] == [[0, 1], [0, 2], [3]]
    assert tree.row_index.tolist() == [0, 1, 0, 2, 3]
    assert tree.num_row_tokens == 4 + 4 + 3
    assert (tree.num_nodes, tree.num_labels) == (5, 4)


@given(rows_strategy)
def test_the_path_to_every_label_spells_its_row(rows: list[Row]) -> None:
    tree = build_tree(rows)
    for (prompt, completion), labels in zip(rows, tree.row_labels, strict=True):
        assert len(labels) == len(completion)
        for position, label in enumerate(labels):
            path = ancestors(tree, int(tree.label_nodes[label]))
            assert [int(tree.tokens[node]) for node in path] == [*prompt, *completion[:position]]
            assert int(tree.label_tokens[label]) == completion[position]


@given(rows_strategy)
def test_nodes_are_the_distinct_prefixes(rows: list[Row]) -> None:
    tree = build_tree(rows)
    assert tree.num_nodes == len(prefixes(rows))
    assert tree.num_row_tokens == sum(len(prompt) + len(completion) - 1 for prompt, completion in rows)


@given(rows_strategy)
def test_labels_are_distinct_pairs_of_node_and_token(rows: list[Row]) -> None:
    tree = build_tree(rows)
    pairs = list(zip(tree.label_nodes.tolist(), tree.label_tokens.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert set(tree.row_index.tolist()) == set(range(len(pairs)))


@given(rows_strategy)
def test_nodes_are_in_depth_first_order(rows: list[Row]) -> None:
    tree = build_tree(rows)
    assert (tree.parents < np.arange(tree.num_nodes)).all()
    for node in range(tree.num_nodes):
        path = ancestors(tree, node)
        assert int(tree.depths[node]) == len(path) - 1
        # depth-first: the parent is on the path of the node before
        if node and tree.parents[node] >= 0:
            assert int(tree.parents[node]) in ancestors(tree, node - 1)


@given(rows_strategy)
def test_equal_rows_share_all_nodes_and_labels(rows: list[Row]) -> None:
    once, twice = build_tree(rows), build_tree([*rows, *rows])
    assert twice.num_nodes == once.num_nodes
    assert twice.num_labels == once.num_labels
    assert [labels.tolist() for labels in twice.row_labels] == 2 * [labels.tolist() for labels in once.row_labels]


def test_the_last_token_of_several_rows_is_a_label_of_each_and_no_node() -> None:
    tree = build_tree([((1,), (9,)), ((2,), (9,)), ((1, 2), (9,))])
    assert 9 not in tree.tokens
    assert sorted(tree.label_nodes.tolist()) == [0, 1, 2]
    assert set(tree.label_tokens.tolist()) == {9}


def test_a_last_token_that_another_row_goes_on_from_is_a_node_too() -> None:
    tree = build_tree([((1,), (2,)), ((1,), (2, 3))])
    assert tree.tokens.tolist() == [1, 2]
    assert [list(labels) for labels in tree.row_labels] == [[0], [0, 1]]


def test_one_node_can_have_several_labels() -> None:
    tree = build_tree([((1,), (token,)) for token in (5, 6, 7, 5)])
    assert tree.num_nodes == 1
    assert tree.label_nodes.tolist() == [0, 0, 0]
    assert tree.row_index.tolist() == [0, 1, 2, 0]


def test_prompt_and_completion_merge_over_their_border() -> None:
    # The same text, cut into prompt and completion at different places.
    tree = build_tree([((1, 2), (3, 4)), ((1,), (2, 3, 4)), ((1, 2, 3), (4,))])
    assert tree.tokens.tolist() == [1, 2, 3]
    assert [len(labels) for labels in tree.row_labels] == [2, 3, 1]
    assert tree.num_labels == 3


def test_rows_of_arrays_work_like_rows_of_tuples() -> None:
    rows = [((1, 2), (3, 4)), ((1, 5), (3,))]
    arrays = [(np.array(prompt), np.array(completion)) for prompt, completion in rows]
    assert build_tree(arrays).tokens.tolist() == build_tree(rows).tokens.tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "part"), [(((), (1,)), "prompt"), (((1,), ()), "completion")], ids=["prompt", "completion"]
)
def test_a_row_with_an_empty_part_is_refused(row: Row, part: str) -> None:
    message = f"Row 1 has an empty {part}; both parts need at least one token."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build_tree([((1,), (2,)), row])


def test_no_rows_are_refused() -> None:
    message = "rows is empty; a tree needs at least one (prompt ids, completion ids) pair."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build_tree([])


# ---- micro-batches -------------------------------------------------------------------------------------------------


@given(rows_strategy, st.integers(1, 40))
def test_parts_cover_every_row_once_within_the_budget(rows: list[Row], budget: int) -> None:
    parts = split_rows(rows, budget)
    assert sorted(number for part in parts for number in part) == list(range(len(rows)))
    for part in parts:
        assert (
            build_tree([rows[number] for number in part]).num_nodes <= budget
            or len(part) == 1
            or (
                # rows that add nothing to one that is too long by itself
                build_tree([rows[part[0]]]).num_nodes > budget
            )
        )


@given(rows_strategy)
def test_a_part_is_filled_up_before_the_next_is_begun(rows: list[Row]) -> None:
    # With room for all distinct prefixes there is one part: the count of a part's nodes is not an over-estimate.
    assert len(split_rows(rows, len(prefixes(rows)))) == 1


@given(rows_strategy, st.integers(1, 40))
def test_a_sum_over_labels_does_not_depend_on_the_cut(rows: list[Row], budget: int) -> None:
    def total(chosen: list[Row]) -> int:
        tree = build_tree(chosen)
        # a number for each label that depends on its whole path, summed over the tokens of all rows
        values = [
            hash((*(int(tree.tokens[n]) for n in ancestors(tree, int(node))), int(token))) % 1009
            for node, token in zip(tree.label_nodes, tree.label_tokens, strict=True)
        ]
        return sum(values[label] for label in tree.row_index)

    assert sum(total([rows[n] for n in part]) for part in split_rows(rows, budget)) == total(rows)


def test_rows_that_share_a_long_prefix_stay_together() -> None:
    left, right = tuple(range(100)), tuple(range(100, 200))
    rows = [(side, (number,)) for number in range(4) for side in (left, right)]
    assert [sorted(part) for part in split_rows(rows, 110)] == [[0, 2, 4, 6], [1, 3, 5, 7]]


# ---- attention blocks ----------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(rows_strategy, st.integers(1, 20), st.one_of(st.none(), st.integers(1, 8)))
def test_a_node_attends_to_its_last_ancestors_and_itself(rows: list[Row], block_size: int, window: int | None) -> None:
    tree = build_tree(rows)
    seen = 0
    for block in attention_blocks(tree.parents, tree.depths, block_size=block_size, window=window):
        assert block.start == seen
        assert block.mask.shape == (block.stop - block.start, len(block.keys))
        assert len(set(block.keys.tolist())) == len(block.keys)
        for offset in range(block.stop - block.start):
            attended = set(block.keys[block.mask[offset]].tolist())
            expected = ancestors(tree, block.start + offset)
            assert attended == set(expected if window is None else expected[-window:])
        seen = block.stop
    assert seen == tree.num_nodes
