"""Text to action: the paper's extraction function psi (Dilkes et al. 2025, arXiv:2508.10839).

psi takes the text between the first ``<action>`` and the ``</action>`` that follows it, strips it, lowers it, and
accepts it if it is exactly one of the legal words. Everything else is the paper's bottom: ``action=None`` and a reason.
No completion raises, and none is guessed at: there is no search for a legal word inside a sentence.

Where the paper is silent:

* Two closed blocks with different words contradict each other: ``AMBIGUOUS``. The same word twice is that word.
* ``<action>`` again before the first block is closed: ``NESTED``, even if the inner word is legal.
* A closing tag before the first block, or a block left open after a closed one, does not change the answer.
* Blocks inside ``<think>`` count like any other. An agent's completion ends at the first closing tag, so the first
  block it closes is its answer wherever that stands; the structure penalty is what speaks against it. A lone
  ``<action>`` mentioned in ``<think>`` makes the answer ``NESTED``.
* Tags are matched exactly: ``<Action>`` and ``< action >`` are text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

__all__ = ["ActionParser", "ParseError", "ParsedAction", "match_action", "parse_action"]


class ParseError(StrEnum):
    """Why a completion holds no valid action."""

    MISSING = "missing"
    """There is no opening tag."""
    UNCLOSED = "unclosed"
    """The first opening tag is never closed."""
    REVERSED = "reversed"
    """Never closed, but a closing tag stands before it."""
    NESTED = "nested"
    """A second opening tag stands inside the first block."""
    EMPTY = "empty"
    """There is nothing but white space between the tags."""
    AMBIGUOUS = "ambiguous"
    """Several blocks with different words, or one word that is two legal actions when case is ignored."""
    UNKNOWN = "unknown"
    """The text between the tags is not a legal action."""


@dataclass(frozen=True)
class ParsedAction:
    """Either a legal action or the reason why there is none."""

    action: str | None
    error: ParseError | None = None
    found: str | None = None
    """What stood between the tags, stripped; for reports."""


class ActionParser(Protocol):
    """A total function from any text to a legal action or a reason."""

    def __call__(self, text: str, legal_actions: Sequence[str]) -> ParsedAction:
        """Parse one completion, the assistant's prefix included."""
        ...


def match_action(word: str, legal_actions: Sequence[str]) -> ParsedAction:
    """Return the legal action that a word is, as it is spelled there; case is ignored where that leaves one."""
    if word in legal_actions:
        return ParsedAction(word, found=word)
    matches = {legal for legal in legal_actions if legal.strip().lower() == word.lower()}
    if len(matches) == 1:
        return ParsedAction(matches.pop(), found=word)
    return ParsedAction(None, ParseError.AMBIGUOUS if matches else ParseError.UNKNOWN, word)


def parse_action(text: str, legal_actions: Sequence[str], tag: str = "action") -> ParsedAction:
    """Return psi(text).

    >>> parse_action("<think>Go.</think><action> Up </action>", ("up", "down")).action
    'up'
    >>> parse_action("<action>not up, go down</action>", ("up", "down")).error
    <ParseError.UNKNOWN: 'unknown'>

    Args:
        text: what the assistant said, with the prefix it was given.
        legal_actions: the words that are legal now; one of them is returned as it is spelled here.
        tag: the name of the tag around the action.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = text.find(opening)
    if start < 0:
        return ParsedAction(None, ParseError.MISSING)
    end = text.find(closing, start)
    if end < 0:
        return ParsedAction(None, ParseError.REVERSED if closing in text[:start] else ParseError.UNCLOSED)
    content = text[start + len(opening) : end]
    if opening in content:
        return ParsedAction(None, ParseError.NESTED, content.strip())
    block = re.compile(f"{re.escape(opening)}(.*?){re.escape(closing)}", re.DOTALL)
    words = {found.strip().lower() for found in block.findall(text)}
    if len(words) > 1:
        return ParsedAction(None, ParseError.AMBIGUOUS, content.strip())
    if not content.strip():
        return ParsedAction(None, ParseError.EMPTY, "")
    return match_action(content.strip(), legal_actions)
