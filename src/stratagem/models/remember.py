"""Scores that are computed once for as long as the weights stay: states of a game come back, and so do its actions.

A policy that scores actions (:mod:`stratagem.agents.scoring`) asks for the same rows whenever an episode comes to a
state that another was in before. Between two changes of the weights the answer is the same, so it is looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stratagem.models.base import LabelLogprobs, TokenRow, TrainableModel

if TYPE_CHECKING:  # a recipe is checked without loading torch
    from torch import Tensor

__all__ = ["RememberedScores", "VersionedModel"]

_MAX_ROWS = 200_000
"""Rows that are kept; about 0.5 GiB with their tokens."""


class VersionedModel(TrainableModel, Protocol):
    """A model that says when its weights have changed."""

    version: int
    """Another number after each change."""


@dataclass(frozen=True)
class Scores:
    """What is known of some rows; without gradients."""

    logprobs: Tensor
    entropy: Tensor
    num_computed: int
    num_seen: int


class RememberedScores:
    """A model that answers :meth:`logprobs` from memory where it can; never with gradients."""

    def __init__(self, model: VersionedModel) -> None:
        """Wrap a model; its weights may change under it, as long as ``version`` does."""
        self.model = model
        self.name = model.name
        self.context_length = model.context_length
        self._version = model.version
        self._known: dict[TokenRow, tuple[Tensor, Tensor]] = {}

    def _current(self) -> dict[TokenRow, tuple[Tensor, Tensor]]:
        if self._version != self.model.version or len(self._known) > _MAX_ROWS:
            self._known.clear()
            self._version = self.model.version
        return self._known

    def logprobs(self, rows: Sequence[TokenRow], *, temperature: float = 1.0) -> LabelLogprobs:
        """Return log-probabilities at temperature 1; rows that are not known share one pass."""
        import torch

        assert temperature == 1.0, "scores are those of the model itself"
        known = self._current()
        new = [row for row in dict.fromkeys(map(_key, rows)) if row not in known]
        computed = seen = 0
        if new:
            with torch.no_grad():
                batch = self.model.logprobs(new)
            lengths = [len(completion) for _, completion in new]
            parts = (torch.split(x.cpu(), lengths) for x in (batch.logprobs, batch.entropy))
            known.update(zip(new, zip(*parts, strict=True), strict=True))
            computed, seen = batch.num_computed, batch.num_seen
        found = [known[_key(row)] for row in rows]
        return Scores(torch.cat([p for p, _ in found]), torch.cat([h for _, h in found]), computed, seen)

    def split(self, rows: Sequence[TokenRow], max_tokens: int) -> list[list[int]]:
        """Cut rows into micro-batches; those that are known go with the first one, since they cost nothing."""
        known = self._current()
        new = [number for number, row in enumerate(rows) if _key(row) not in known]
        old = sorted(set(range(len(rows))) - set(new))
        if not new:
            return [old] if old else []
        cut = [[new[i] for i in part] for part in self.model.split([rows[i] for i in new], max_tokens)]
        return [[*old, *cut[0]], *cut[1:]]

    def encode_chat(self, messages: Sequence[tuple[str, str]], assistant_prefix: str = "") -> tuple[int, ...]:
        """Return the ids of a chat up to where the assistant goes on."""
        return self.model.encode_chat(messages, assistant_prefix)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text."""
        return self.model.encode(text)

    async def aclose(self) -> None:
        """Release what the model holds."""
        await self.model.aclose()


def _key(row: TokenRow) -> TokenRow:
    return tuple(row[0]), tuple(row[1])
