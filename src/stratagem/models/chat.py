"""A chat as token ids: the chat template's control tokens, everybody's words, and answers exactly as they were sampled.

Control tokens come from the chat template and the assistant's prefix alone: one that is spelled out in a message, such
as ``<|im_end|>`` in a game's text, is tokenised as the letters that it is and ends no turn.

An answer that was sampled before and is shown again keeps its ids. Its text might be tokenised otherwise (two tokens
where three were drawn) or lack what the text does not show, so the template is filled with a place holder for it, the
text between the place holders is tokenised, and the ids are put in between.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatEncoder"]

_MAX_KNOWN = 20_000
"""Texts whose ids are kept."""

Messages = Sequence[tuple[str, str]]
"""(role, content) pairs, oldest first."""


class ChatEncoder:
    """A tokenizer with its chat template; remembers what it has encoded."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        """Wrap a tokenizer.

        Args:
            tokenizer: may lack a chat template, as long as no chat is encoded.
            name: of the model, for messages.
        """
        self._tokenizer = tokenizer
        self._name = name
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        # The longest first, so that a token that begins with another one is taken whole.
        self._special = sorted(special, key=lambda token: (-len(token), token))
        self._known: dict[Any, tuple[int, ...]] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text: no special tokens around it, and none that is only spelled out in it."""
        known = self._known.get(text)
        if known is None:
            ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
            known = self._keep(text, tuple(ids))
        return known

    def encode_chat(
        self,
        messages: Messages,
        assistant_prefix: str = "",
        sampled: Sequence[tuple[int, ...]] = (),
        *,
        stop_ids: frozenset[int] = frozenset(),
    ) -> tuple[int, ...]:
        """Return the ids of a chat up to where the assistant goes on.

        Args:
            messages: (role, content) pairs, oldest first.
            assistant_prefix: text the assistant's turn begins with.
            sampled: see :class:`stratagem.models.base.Request`.
            stop_ids: left out at the end of ``sampled`` answers, whose turns the template ends.

        Raises:
            ConfigError: there is no chat template, or it leaves out or repeats an earlier answer.
        """
        if any(sampled):
            return self._encode_history(messages, assistant_prefix, sampled, stop_ids)
        key = (tuple(messages), assistant_prefix)
        known = self._known.get(key)
        if known is None:
            marks = self._marks([content for _, content in messages])
            text = self._render([(role, _replace(content, marks)) for role, content in messages])
            known = self._keep(key, self._tokenise(f"{text}{assistant_prefix}", marks))
        return known

    def _encode_history(
        self, messages: Messages, assistant_prefix: str, sampled: Sequence[tuple[int, ...]], stop_ids: frozenset[int]
    ) -> tuple[int, ...]:
        """Tokenise what stands between sampled answers, part by part; parts are kept, since a chat grows by them."""
        marks = self._marks([content for _, content in messages])
        taken = {*marks.values(), *"".join(content for _, content in messages)}
        hole = next(chr(code) for code in range(0xE000, 0xF900) if chr(code) not in taken)
        assert len(sampled) == sum(role == "assistant" for role, _ in messages), "one entry for each answer"
        answers = iter(sampled)
        turns = []
        for role, content in messages:
            is_sampled = role == "assistant" and bool(next(answers))
            turns.append((role, f"{assistant_prefix}{hole}" if is_sampled else _replace(content, marks)))
        said = [ids for ids in sampled if ids]
        parts = f"{self._render(turns)}{assistant_prefix}".split(hole)
        if len(parts) != len(said) + 1:
            raise ConfigError(
                f"The chat template of model {self._name!r} shows earlier answers {len(parts) - 1} times; expected "
                f"{len(said)}, each once. Set agent.context_steps = 0, or put a chat_template.jinja that keeps them "
                "into its folder."
            )
        found: list[int] = []
        for part, ids in zip(parts, [*said, ()], strict=True):
            key = (part, tuple(marks.items()))
            found += self._known.get(key) or self._keep(key, self._tokenise(part, marks))
            found += ids[:-1] if ids and ids[-1] in stop_ids else ids
        return tuple(found)

    def _render(self, messages: Messages) -> str:
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"Model {self._name!r} has no chat template; expected an instruction-tuned model. Choose one, put a "
                "chat_template.jinja into its folder, or let an agent read raw text (agent.name = 'scoring', no "
                "template)."
            )
        turns = [{"role": role, "content": content} for role, content in messages]
        return f"{self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)}"

    def _tokenise(self, text: str, marks: Mapping[str, str]) -> tuple[int, ...]:
        """Return the ids of a text in which marks stand for special tokens that are only spelled out."""
        if not marks:
            return tuple(self._tokenizer(text, add_special_tokens=False).input_ids)
        spelled = {mark: token for token, mark in marks.items()}
        found: list[int] = []
        for part in re.split(f"([{''.join(spelled)}])", text):
            found += self._tokenizer(
                spelled.get(part, part), add_special_tokens=False, split_special_tokens=part in spelled
            ).input_ids
        return tuple(found)

    def _marks(self, contents: Sequence[str]) -> dict[str, str]:
        """Return special tokens that are spelled out in texts -> a character for each that stands in none of them."""
        text = "".join(contents)
        found = [token for token in self._special if token in text]
        unused = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in text)
        return dict(zip(found, unused, strict=False))

    def _keep(self, key: Any, ids: tuple[int, ...]) -> tuple[int, ...]:
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        self._known[key] = ids
        return ids


def _replace(text: str, marks: Mapping[str, str]) -> str:
    for token, mark in marks.items():
        text = text.replace(token, mark)
    return text
