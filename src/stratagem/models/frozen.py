"""Hidden states below the first layer that trains: computed once for each distinct token, then reused.

With ``trainable_layers`` the lower layers never change, so what they make of a token depends on the token and its
ancestors alone, not on the weights of the moment. Sampling computes it anyway; the learner, which meets the same tokens
right after, starts at the first layer that trains. Exact: the same numbers, computed fewer times.

The upper layers are run by lending the decoder a shorter list of layers, so there is no copy of its forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stratagem.errors import ConfigError
from stratagem.models.tree import TokenTree

__all__ = ["FROZEN_STATE_MODELS", "LOST", "ROOT", "FrozenStates", "freeze_below"]

FROZEN_STATE_MODELS = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Architectures whose decoder hands its embeddings to the first layer as they are and treats all layers alike, so that
the upper ones can be run alone. Tested one by one."""

ROOT = -1
"""Stands before a first token."""
LOST = -2
"""A token for which there was no room."""


class FrozenStates:
    """States at the input of layer ``boundary`` of a decoder, by the path of tokens that led there."""

    def __init__(self, decoder: Any, boundary: int, *, width: int, capacity: int) -> None:
        """Listen to the decoder from now on.

        Args:
            decoder: has ``layers``.
            boundary: number of the first layer that trains, at least 1.
            width: C, of a hidden state.
            capacity: tokens kept; further ones are computed again each time, until :meth:`clear`.
        """
        self._decoder = decoder
        self._boundary = boundary
        self._numbers: dict[tuple[int, int], int] = {}
        weight = next(decoder.parameters())
        self._states = torch.empty((capacity, width), dtype=weight.dtype, device=weight.device)
        self._passing: Tensor | None = None
        decoder.layers[boundary].register_forward_pre_hook(self._listen, with_kwargs=True)

    def __len__(self) -> int:
        """Return how many tokens are kept."""
        return len(self._numbers)

    def _listen(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        self._passing = hidden.detach()[0]

    def clear(self) -> None:
        """Forget everything."""
        self._numbers.clear()

    def place(self, parent: int, token: int) -> int:
        """Return the number of a token after the token numbered ``parent``; a new number where there is room."""
        if parent == LOST:
            return LOST
        number = self._numbers.get((parent, token))
        if number is None:
            if len(self._numbers) == len(self._states):
                return LOST
            number = self._numbers[parent, token] = len(self._numbers)
        return number

    def keep(self, numbers: Sequence[int]) -> None:
        """Keep the states of the forward pass that was just made.

        Args:
            numbers: of each of its rows; LOST ones are left out.
        """
        passing, self._passing = self._passing, None
        assert passing is not None
        kept = torch.tensor(numbers, device=passing.device)
        rows = torch.nonzero(kept >= 0)[:, 0]
        self._states[kept[rows]] = passing[rows]

    def place_tree(self, tree: TokenTree) -> list[int]:
        """Return the numbers of a tree's nodes."""
        numbers: list[int] = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            numbers.append(self.place(numbers[parent] if parent >= 0 else ROOT, token))
        return numbers

    def of_tree(self, tree: TokenTree) -> Tensor | None:
        """Return [N, C] states of a tree's nodes, or None if one of them is not kept."""
        numbers: list[int] = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            number = self._numbers.get((numbers[parent] if parent >= 0 else ROOT, token), LOST)
            if number < 0:
                return None
            numbers.append(number)
        return self._states[torch.tensor(numbers, device=self._states.device)]

    @contextmanager
    def upper_layers(self) -> Iterator[None]:
        """Lend the decoder its upper layers only; it then takes states of :meth:`of_tree` as embeddings."""
        layers = self._decoder.layers
        self._decoder.layers = layers[self._boundary :]
        try:
            yield
        finally:
            self._decoder.layers = layers


def freeze_below(model: PreTrainedModel, count: int, *, capacity: int) -> FrozenStates | None:
    """Leave the last ``count`` decoder layers and the final norm to train, and nothing else.

    Returns:
        Room for the states of ``capacity`` tokens below them, for the architectures that allow it.

    Raises:
        ConfigError: the model has fewer layers.
    """
    decoder = model.get_decoder()
    if count > len(decoder.layers):
        raise ConfigError(f"trainable_layers={count} but the model has {len(decoder.layers)}; use at most that many.")
    model.requires_grad_(False)
    for module in (*decoder.layers[-count:], decoder.norm):
        module.requires_grad_(True)
    text = model.config.get_text_config()
    boundary = len(decoder.layers) - count
    if boundary == 0 or text.model_type not in FROZEN_STATE_MODELS:
        return None
    return FrozenStates(decoder, boundary, width=int(text.hidden_size), capacity=capacity)
