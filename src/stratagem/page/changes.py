"""Tokens coloured by how their probability differs between two sets of weights, where ``stratagem logprobs`` asked."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from stratagem.data.token_logprobs import (
    START,
    Place,
    TokenLogprobs,
    list_weights,
    logprobs_file,
    read_token_logprobs,
)
from stratagem.errors import RunError
from stratagem.page.data import RunData
from stratagem.types import Generation, Step

__all__ = ["SCALE", "Colouring", "colouring_of", "level_of", "summed", "words"]

_FACTORS = (1.1, 1.5, 3.0, 10.0)
"""A token is of level k where it became at least so many times as probable (or improbable)."""
_TIMES, _DIVIDED = "\u00d7", "\u00f7"

SCALE: tuple[tuple[str, str, str], ...] = (
    *((f"minus{k}", f"{_DIVIDED}{f:g}", f"divided by {f:g}") for k, f in reversed(list(enumerate(_FACTORS, start=1)))),
    ("zero", "same", "the same"),
    *((f"plus{k}", f"{_TIMES}{f:g}", f"times {f:g}") for k, f in enumerate(_FACTORS, start=1)),
)
"""(class, label, spoken) of each colour, from what became improbable to what became probable."""


def level_of(change: float) -> str:
    """Return the class of a change of log p.

    >>> level_of(math.log(2.0)), level_of(-math.log(20.0)), level_of(0.05)
    ('plus2', 'minus4', 'zero')
    """
    level = sum(abs(change) >= math.log(factor) for factor in _FACTORS)
    return "zero" if not level else f"{'plus' if change > 0 else 'minus'}{level}"


@dataclass(frozen=True)
class Colouring:
    """What the tokens of an episode are coloured by, and what could be chosen instead."""

    before: str
    """Weights; empty where the colour is the advantage."""
    after: str
    known: tuple[str, ...]
    """Weights under which this episode's tokens are known, in the order of training."""
    command: str
    """What makes them known, or known under further weights."""
    first: Mapping[Place, TokenLogprobs]
    second: Mapping[Place, TokenLogprobs]
    temperature: float
    problems: tuple[str, ...] = ()
    """Files that could not be read, in sentences."""

    @property
    def by_change(self) -> bool:
        """Whether tokens show a change, rather than the advantage of their episode."""
        return bool(self.before)

    @property
    def chosen(self) -> str:
        """The choice as the address holds it."""
        return f"{self.before}:{self.after}" if self.by_change else ""

    @property
    def query(self) -> str:
        """What keeps the choice in another address."""
        return f"?{urlencode({'change': self.chosen})}" if self.by_change else ""

    @property
    def choices(self) -> list[tuple[str, str]]:
        """(as the address holds it, in words) of every pair of weights."""
        return [(f"{a}:{b}", f"change, {words(a)} to {words(b)}") for a, b in combinations(self.known, 2)]

    def of(self, place: Place, said: Step | Generation) -> list[tuple[float, float]] | None:
        """Return (log p before, after) of each token; None where the files are about other tokens, or lack them."""
        first, second = self.first.get(place), self.second.get(place)
        if first is None or second is None:
            return None
        if not first.completion_ids == second.completion_ids == said.completion_ids:
            return None
        return list(zip(first.logprobs, second.logprobs, strict=True))


def colouring_of(run: RunData, request: Request, iteration: int, group: int, episode: int) -> Colouring:
    """Return the colouring that an address asks for; by advantage where the files for another are not there."""
    found: dict[str, Mapping[Place, TokenLogprobs]] = {}
    problems = []
    temperature = 1.0
    for weights in list_weights(run.path, iteration):
        path = logprobs_file(run.path, weights, iteration)
        try:
            answers, temperature = read_token_logprobs(path, group=group, episode=episode)
        except RunError as error:
            problems.append(str(error))
            continue
        if answers:
            found[weights] = answers
    before, _, after = request.query_params.get("change", "").partition(":")
    if before not in found or after not in found or before == after:
        before = after = ""
    return Colouring(
        before=before,
        after=after,
        known=tuple(found),
        command=f"stratagem logprobs {shlex.quote(str(run.path))} --iterations {iteration}",
        first=found.get(before, {}),
        second=found.get(after, {}),
        temperature=temperature,
        problems=tuple(problems),
    )


def words(weights: str) -> str:
    """Return weights in words.

    >>> words("start"), words("000030")
    ('untrained model', 'iteration 30')
    """
    if weights == START:
        return "untrained model"
    return f"iteration {int(weights)}" if weights.isdecimal() else weights


def summed(pairs: Sequence[tuple[float, float]] | None) -> dict[str, Any] | None:
    """Return log p of a whole answer under both weights."""
    if not pairs:
        return None
    before, after = (sum(part) for part in zip(*pairs, strict=True))
    return {"before": before, "after": after, "change": after - before}
