"""The format penalty Phi of MS-GRPO (Dilkes et al. 2025, arXiv:2508.10839), one number per completion.

Phi = length + structure + extra text:

1. length: linear from 0 at 180 tokens to -0.5 at 200;
2. structure: -0.5 for each missing, unnecessary or badly nested tag;
3. extra text: -0.5 for any text after the last ``</action>``.

It shapes training only: the environment return that is evaluated does not hold it.

How faults of structure are counted, which the paper leaves open. With E the expected tags ``<t1></t1><t2></t2>...``
(all different) and F the tags found, in order:

* missing: expected tags that F does not hold;
* unnecessary: tags of F that are not expected, and each occurrence beyond the first of one that is;
* badly nested: of the expected tags that F holds, those that would have to move for the rest to stand in order, that is
  their number less the length of the longest subsequence of F in expected order.

So one fault is counted once: a tag is either absent, too many, or in the wrong place. The sum is |E| + |F| - D - L,
with D the expected tags that F holds and L that longest length.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from stratagem.errors import ConfigError

__all__ = [
    "FormatPenalty",
    "FormatPenaltyConfig",
    "extra_text_penalty",
    "length_penalty",
    "structure_faults",
    "structure_penalty",
]

_TAG = re.compile(r"<(/?)([A-Za-z][\w-]*)\s*(/?)>")


def length_penalty(num_tokens: int, *, start: int = 180, limit: int = 200, max_penalty: float = -0.5) -> float:
    """Return a penalty that grows linearly from 0 at ``start`` to ``max_penalty`` at ``limit`` tokens and stays there.

    >>> length_penalty(190)
    -0.25
    """
    share = min(max((num_tokens - start) / (limit - start), 0.0), 1.0)
    return max_penalty * share if share > 0 else 0.0


def _longest_increasing(ranks: Sequence[int]) -> int:
    # Patience sorting: ends[k] is the smallest end of an increasing subsequence of length k + 1.
    ends: list[int] = []
    for rank in ranks:
        place = bisect_left(ends, rank)
        ends[place : place + 1] = [rank]
    return len(ends)


def structure_faults(text: str, tags: Sequence[str]) -> int:
    """Count the missing, unnecessary and badly nested tags of ``text``; see the module for the definition.

    >>> structure_faults("<think>a</think><action>up</action>", ("think", "action"))
    0
    >>> structure_faults("<think>a<action>up</think></action>", ("think", "action"))
    1
    """
    expected = [f"<{slash}{tag}>" for tag in tags for slash in ("", "/")]
    rank = {tag: place for place, tag in enumerate(expected)}
    # A self-closed <tag/> keeps its slash here, so it is never an expected one.
    found = [f"<{match[1]}{match[2]}{match[3]}>" for match in _TAG.finditer(text)]
    held = [rank[tag] for tag in found if tag in rank]
    return len(expected) + len(found) - len(set(held)) - _longest_increasing(held)


def structure_penalty(text: str, tags: Sequence[str], *, each: float = -0.5) -> float:
    """Return ``each`` times the number of faults of structure."""
    faults = structure_faults(text, tags)
    return each * faults if faults else 0.0


def extra_text_penalty(text: str, *, tag: str = "action", penalty: float = -0.5) -> float:
    """Return ``penalty`` if text follows the last closing tag of the action.

    White space is not text. Tags are not either: they are counted as faults of structure. Without a closing tag
    nothing can follow it, and the penalty is 0.
    """
    _, closing, tail = text.rpartition(f"</{tag}>")
    return penalty if closing and _TAG.sub("", tail).strip() else 0.0


@dataclass(frozen=True)
class FormatPenaltyConfig:
    """Sizes of the penalties; 0 switches one off."""

    length: float = -0.5
    """Reached at ``length_limit`` tokens; the paper uses -0.5."""
    length_start: int = 180
    """Tokens from which the length penalty grows; the paper uses 180."""
    length_limit: int = 200
    """Tokens at which it is full; the paper uses 200."""
    structure: float = -0.5
    """For each missing, unnecessary or badly nested tag; the paper uses -0.5."""
    extra_text: float = -0.5
    """For text after the last closing tag of the action; the paper uses -0.5."""

    def __post_init__(self) -> None:
        """Refuse rewards for bad format and an empty slope."""
        for name in ("length", "structure", "extra_text"):
            value = getattr(self, name)
            if not value <= 0:
                raise ConfigError(f"{name}={value!r} would reward bad format; use a number of 0 or less.")
        if not 0 <= self.length_start < self.length_limit:
            raise ConfigError(
                f"length_start={self.length_start!r} and length_limit={self.length_limit!r} leave no slope; "
                "set 0 <= length_start < length_limit."
            )


@dataclass(frozen=True)
class FormatPenalty:
    """Phi as a function of one completion, for :class:`stratagem.agents.language.LanguageAgent`."""

    tags: tuple[str, ...]
    """What the prompt template asks for, in order (``PromptTemplate.tags``)."""
    config: FormatPenaltyConfig = field(default_factory=FormatPenaltyConfig)
    tag: str = "action"
    """The tag around the action."""

    def __post_init__(self) -> None:
        """Refuse a structure penalty without a structure."""
        if self.config.structure and not self.tags:
            raise ConfigError(
                f"structure={self.config.structure!r} has no tags to look for; add a line 'tags: ...' to the template "
                "or set structure to 0."
            )
        if len(set(self.tags)) < len(self.tags):
            raise ConfigError(f"tags={self.tags!r} names a tag twice; an answer holds each tag once.")

    def parts(self, text: str, num_tokens: int) -> dict[str, float]:
        """Return the three penalties by name; their sum is Phi."""
        config = self.config
        return {
            "length": length_penalty(
                num_tokens, start=config.length_start, limit=config.length_limit, max_penalty=config.length
            ),
            "structure": structure_penalty(text, self.tags, each=config.structure) if config.structure else 0.0,
            "extra_text": extra_text_penalty(text, tag=self.tag, penalty=config.extra_text),
        }

    def __call__(self, text: str, num_tokens: int) -> float:
        """Return Phi.

        Args:
            text: the answer, with the prefix that the assistant was given.
            num_tokens: sampled tokens, without that prefix.
        """
        return sum(self.parts(text, num_tokens).values())
