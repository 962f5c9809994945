r"""Choosing a legal action token by token.

The legal actions, as tokens, form a trie. Word by word the next token is drawn among those that still lead to a legal
action, with the model's probabilities for them:

.. math:: \pi(w_j | w_{<j}) = \frac{p(w_j | w_{<j})^{1/T}}{\sum_{w \in C(w_{<j})} p(w | w_{<j})^{1/T}}

where C are the children in the trie. The probability of an action is the product, so a draw token by token and a draw
among whole actions with these products are the same. A token without an alternative has probability 1 and nothing to
learn. Where tokens get the credit (POAD), this is the policy whose tokens are trained and the one that plays: with one
softmax over the scores of whole actions, the two are not the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from stratagem.errors import GameError

if TYPE_CHECKING:  # a recipe is checked without loading torch
    from torch import Tensor

__all__ = ["branch_logprobs"]


@dataclass(frozen=True)
class _Branches:
    """The trie of some actions: S tokens one after the other, D distinct children, G points of choice."""

    child: Tensor
    """[S] which of the D each token is."""
    first: Tensor
    """[D] one of the S tokens that each child stands for."""
    point: Tensor
    """[D] where it is chosen."""
    num_points: int


@lru_cache(maxsize=4096)
def _branches(candidates: tuple[tuple[int, ...], ...]) -> _Branches:
    import torch

    ends = set(candidates)
    child: list[int] = []
    first: list[int] = []
    point: list[int] = []
    children: dict[tuple[int, ...], int] = {}
    points: dict[tuple[int, ...], int] = {}
    for ids in candidates:
        for length in range(1, len(ids) + 1):
            beginning = ids[:length]
            if length < len(ids) and beginning in ends:
                raise GameError(
                    f"The action of tokens {beginning} is the beginning of another, {ids}; token by token nothing says "
                    "where it ends. Set agent.choice = 'action'."
                )
            if beginning not in children:
                children[beginning] = len(first)
                first.append(len(child))
                point.append(points.setdefault(ids[: length - 1], len(points)))
            child.append(children[beginning])
    return _Branches(torch.tensor(child), torch.tensor(first), torch.tensor(point), len(points))


def branch_logprobs(
    logprobs: Tensor, candidates: tuple[tuple[int, ...], ...], *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return log pi of each token among those that go on to a legal action, and the entropy of the choice it is from.

    Args:
        logprobs: [S] the model's log p of each token, the actions one after the other; gradients pass through.
        candidates: tokens of each action, all different.
        temperature: T > 0.

    Returns:
        [S] log-probabilities and [S] entropies in nats; 0 and 0 where there is one way to go on.

    Raises:
        GameError: an action is the beginning of another.
    """
    tree = _branches(candidates)
    point, child = tree.point.to(logprobs.device), tree.child.to(logprobs.device)
    scaled = logprobs.index_select(0, tree.first.to(logprobs.device)) / temperature
    highest = scaled.new_full((tree.num_points,), float("-inf"))
    highest = highest.scatter_reduce(0, point, scaled.detach(), "amax")
    total = scaled.new_zeros(tree.num_points).index_add(0, point, (scaled - highest[point]).exp())
    log_pi = scaled - (total.log() + highest)[point]
    entropy = scaled.new_zeros(tree.num_points).index_add(0, point, -log_pi.exp() * log_pi)
    return log_pi[child], entropy[point][child]
