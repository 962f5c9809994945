"""What was said and chosen in a step: tokens with their probabilities, and the actions that were chosen among."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stratagem.page.changes import level_of
from stratagem.page.tokens import TokenReader
from stratagem.types import Generation, Step

__all__ = ["Candidate", "Token", "candidates_of", "format_probability", "tokens_of"]

_SURPRISES = 4
"""Levels of the underline."""


@dataclass(frozen=True)
class Token:
    """One token of an answer."""

    text: str
    special: bool
    chance: float | None
    """Its probability when it was sampled; None where that is not known."""
    surprise: int
    """How improbable, from 0 to 4."""
    change: tuple[float, float] | None = None
    """log p before and after, where two sets of weights are compared."""

    @property
    def tint(self) -> str:
        """The class of its change; empty where the answer's own colour holds."""
        return "" if self.change is None else level_of(self.change[1] - self.change[0])

    @property
    def before(self) -> float | None:
        """Its probability under the first weights."""
        return None if self.change is None else math.exp(self.change[0])

    @property
    def after(self) -> float | None:
        """Its probability under the second weights."""
        return None if self.change is None else math.exp(self.change[1])

    @property
    def note(self) -> str:
        """What is shown when it is pointed at."""
        if self.change is not None:
            first, second = self.change
            shares = f"{format_probability(math.exp(first))} before, {format_probability(math.exp(second))} after"
            return f"p = {shares}; log p {second - first:+.2f}"
        return "" if self.chance is None else f"p = {format_probability(self.chance)}"


@dataclass(frozen=True)
class Candidate:
    """An action that could have been chosen."""

    text: str
    chance: float
    chosen: bool


def format_probability(p: float) -> str:
    """Return a probability in percent; a small one as a power of ten, since 0.0% would say that it is impossible.

    >>> format_probability(0.364), format_probability(2.2e-7)
    ('36.4%', '2.2e-07')
    """
    return f"{p:.1%}" if p >= 0.001 else f"{p:.1e}"


def tokens_of(
    said: Step | Generation, reader: TokenReader | None, changes: Sequence[tuple[float, float]] | None = None
) -> list[Token]:
    """Return the tokens of an answer.

    Args:
        said: the answer.
        reader: ids to text; None shows ids.
        changes: (log p before, after) of each token, where two sets of weights are compared.
    """
    ids = said.completion_ids
    if reader is not None:
        pieces = [(piece.text, piece.special) for piece in reader.tokens(ids)]
    else:
        pieces = [(_id(number), False) for number in ids]
    logprobs: Sequence[float | None] = said.logprobs if len(said.logprobs) == len(ids) else [None] * len(ids)
    return [
        Token(
            text=text.replace("\n", "\u21b5\n"),
            special=special,
            chance=None if logprob is None else math.exp(logprob),
            surprise=0 if logprob is None else min(_SURPRISES, int(-logprob / 0.7)),
            change=None if changes is None else changes[place],
        )
        for place, ((text, special), logprob) in enumerate(zip(pieces, logprobs, strict=True))
    ]


def candidates_of(step: Step, reader: TokenReader | None) -> list[Candidate]:
    """Return the actions that were chosen among, the most probable first; none where tokens were sampled freely."""
    if len(step.candidates) != len(step.candidate_logprobs):
        return []
    found = []
    for ids, logprob in zip(step.candidates, step.candidate_logprobs, strict=True):
        chosen = ids == step.completion_ids
        text = "".join(piece.text for piece in reader.tokens(ids)).strip() if reader else " ".join(map(_id, ids))
        found.append(Candidate(step.action if chosen and step.action else text, math.exp(logprob), chosen))
    return sorted(found, key=lambda candidate: -candidate.chance)


def _id(number: int) -> str:
    return f"\u27e8{number}\u27e9"
