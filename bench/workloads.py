"""What the benchmarks compute: rows of (prompt ids, completion ids) made from games, equal on every machine.

=====  ==================================================================================================
(a)    Frozen Lake, short answers: random-policy episodes from few boards, ``left</action>``
(b)    Frozen Lake with 100 tokens of reasoning before the action
(c)    Snake, short answers; states hardly repeat
(d)    single turn: few questions, 16 completions of 128 tokens each
(e)    chat: prompts that hold all earlier turns of their episode, 8 turns
(f)    nothing shared: random tokens, rows of unequal length
a_full (a) at the size of a real iteration: 4 boards x 32 episodes
=====  ==================================================================================================

Long completions are random tokens. Completions of one prompt follow a common text for a geometric number of tokens
(mean 4) and never meet again, as samples of an untrained model at temperature 1 do; a trained model's share more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stratagem.agents.prompts import load_template
from stratagem.games import make
from stratagem.games.base import Game
from stratagem.seeding import derive_seed, generator

__all__ = ["LETTERS", "Encoder", "Row", "Workload", "build"]

Row = tuple[tuple[int, ...], tuple[int, ...]]

LETTERS = ("a", "b", "c", "d", "e", "f")

_FIRST_TOKEN = 100  # random tokens start here, above the special ones

_QUESTIONS = (
    "A train leaves at 9:40 and arrives at 11:05. How many minutes does the journey take?",
    "List three animals that can fly and say in one sentence how each of them does it.",
    "Which is larger, 3/7 or 4/9? Show how you compare the two fractions.",
    "Write a short note to a neighbour who lent you a ladder and would like to have it back.",
)


class Encoder(Protocol):
    """The part of :class:`stratagem.models.local.LocalModel` that makes tokens."""

    def encode_chat(self, messages: Sequence[tuple[str, str]], assistant_prefix: str = "") -> tuple[int, ...]:
        """Return the ids of a chat up to where the assistant goes on."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text."""
        ...


@dataclass(frozen=True)
class Workload:
    """One benchmark input."""

    letter: str
    title: str
    rows: tuple[Row, ...]
    max_new_tokens: int
    """New tokens of each prompt in the sampling benchmark."""

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """The prompts, one for each row."""
        return [prompt for prompt, _ in self.rows]

    @property
    def num_row_tokens(self) -> int:
        """Tokens that a row-by-row pass computes, without padding; nothing is predicted after the last token."""
        return sum(len(prompt) + len(completion) - 1 for prompt, completion in self.rows)


@dataclass(frozen=True)
class _Size:
    groups: int
    """Different starts, or questions, or rows of (f)."""
    members: int
    """Episodes from each start, or completions of each question."""
    length: int
    """Tokens of a completion (new tokens where the completion is an action), or turns of (e)."""
    rows: int | None = None
    """So many of the rows, from the first episode on; None is all."""


# Full sizes: the row-by-row side of one training pass takes up to a minute on two cores.
_FULL = {
    "a": _Size(2, 2, 4),
    "b": _Size(1, 1, 100, 12),
    "c": _Size(1, 2, 4, 15),
    "d": _Size(1, 16, 128),
    "e": _Size(1, 2, 8),
    "f": _Size(8, 1, 256),
    "a_full": _Size(4, 32, 4),
}
# Sampling is measured with as many prompts as a batch of an experiment has, where training on them takes minutes.
_SAMPLED = {"b": _Size(1, 6, 100, 64), "c": _Size(1, 6, 4, 64), "d": _Size(4, 16, 128)}
_QUICK = {
    "a": _Size(1, 2, 4, 6),
    "b": _Size(1, 1, 5, 6),
    "c": _Size(1, 1, 4, 6),
    "d": _Size(1, 3, 6),
    "e": _Size(1, 1, 2),
    "f": _Size(3, 1, 12),
    "a_full": _Size(1, 4, 4, 8),
}


def build(letter: str, encoder: Encoder, vocabulary: int, *, quick: bool = False, sampled: bool = False) -> Workload:
    """Make a workload.

    Args:
        letter: one of ``LETTERS`` or ``a_full``.
        encoder: makes tokens; its chat template is part of the workload.
        vocabulary: random tokens lie below it.
        quick: a few short rows, for the smoke test.
        sampled: the size of the sampling benchmark.
    """
    size = _QUICK[letter] if quick else (_FULL | (_SAMPLED if sampled else {}))[letter]
    kind = letter[0]
    if kind == "d":
        rows = _single_turn(encoder, size, vocabulary)
        questions = f"{size.groups} question{'s' * (size.groups > 1)}"
        title = f"single turn, {questions} x {size.members} completions x {size.length} tokens"
    elif kind == "f":
        rows = _nothing_shared(size, vocabulary)
        title = f"nothing shared, {size.groups} rows of random tokens"
    else:
        rows = {"a": _short, "b": _reasoning, "c": _short, "e": _chat}[kind](encoder, size, letter, vocabulary)
        episodes = f"{size.groups} start{'s' * (size.groups > 1)} x {size.members} episode{'s' * (size.members > 1)}"
        what = {
            "a": "Frozen Lake, short answers",
            "b": f"Frozen Lake, {size.length} tokens of reasoning",
            "c": "Snake, short answers",
            "e": f"chat of up to {size.length} turns",
        }[kind]
        title = f"{what}, {episodes}"
    rows = rows[: size.rows]
    return Workload(letter, f"{title}, {len(rows)} rows", tuple(rows), 4 if kind == "e" else size.length)


def _play(game: Game, group: int, member: int) -> list[tuple[str, str]]:
    """Return (observation, action) of each step of a random-policy episode; members of a group share their start."""
    rng = generator("bench", game.name, group, member)
    observations = game.reset(seed=derive_seed("bench", "start", group), course=member)
    steps: list[tuple[str, str]] = []
    while True:
        actions = [
            game.random_action(player, rng) if game.legal_actions(player) else None
            for player in range(game.num_players)
        ]
        assert actions[0] is not None
        steps.append((observations[0], actions[0]))
        result = game.step(actions)
        observations = result.observations
        if result.terminated or result.truncated:
            return steps


def _episodes(letter: str, size: _Size) -> list[list[tuple[str, str]]]:
    game = make("Snake-Standard" if letter == "c" else "FrozenLake-NotSlippery")
    played = [_play(game, group, member) for group in range(size.groups) for member in range(size.members)]
    game.close()
    return played


def _short(encoder: Encoder, size: _Size, letter: str, vocabulary: int) -> list[Row]:
    template = load_template("action")
    return [
        (
            encoder.encode_chat(template.messages(observation), template.assistant_prefix),
            encoder.encode(f"{action}</action>"),
        )
        for episode in _episodes(letter, size)
        for observation, action in episode
    ]


def _reasoning(encoder: Encoder, size: _Size, letter: str, vocabulary: int) -> list[Row]:
    template = load_template("think_action")
    prompts = [
        encoder.encode_chat(template.messages(observation), template.assistant_prefix)
        for episode in _episodes(letter, size)
        for observation, _ in episode
    ]
    return [(prompt, _branch(prompt, number, size.length, vocabulary)) for number, prompt in enumerate(prompts)]


def _branch(prompt: tuple[int, ...], number: int, length: int, vocabulary: int) -> tuple[int, ...]:
    """Return a random completion that leaves the prompt's common text after a geometric number of tokens."""
    common = generator("bench", "common", *map(int, prompt)).integers(_FIRST_TOKEN, vocabulary, length)
    rng = generator("bench", "branch", number)
    own = rng.integers(_FIRST_TOKEN, vocabulary, length)
    shared = min(int(rng.geometric(0.25)), length - 1)
    return tuple(int(token) for token in np.concatenate([common[:shared], own[shared:]]))


def _single_turn(encoder: Encoder, size: _Size, vocabulary: int) -> list[Row]:
    prompts = [encoder.encode_chat([("user", question)]) for question in _QUESTIONS[: size.groups]]
    return [
        (prompt, _branch(prompt, number * size.members + member, size.length, vocabulary))
        for number, prompt in enumerate(prompts)
        for member in range(size.members)
    ]


def _chat(encoder: Encoder, size: _Size, letter: str, vocabulary: int) -> list[Row]:
    """Prompts with the whole history: the rules once, then what changed, turn by turn."""
    template = load_template("action")
    rows: list[Row] = []
    for episode in _episodes(letter, size):
        first = episode[0][0].splitlines()
        messages: list[tuple[str, str]] = list(template.messages(episode[0][0]))
        for turn, (observation, action) in enumerate(episode[: size.length]):
            if turn:
                lines = observation.splitlines()
                changed = next((k for k, (old, new) in enumerate(zip(first, lines, strict=False)) if old != new), 0)
                messages.append(("user", "\n".join(lines[changed:])))
            answer = f"{action}</action>"
            rows.append((encoder.encode_chat(messages, template.assistant_prefix), encoder.encode(answer)))
            messages.append(("assistant", template.assistant_prefix + answer))
    return rows


def _nothing_shared(size: _Size, vocabulary: int) -> list[Row]:
    rows: list[Row] = []
    for number in range(size.groups):
        rng = generator("bench", "nothing shared", number)
        tokens = [int(token) for token in rng.integers(_FIRST_TOKEN, vocabulary, 2 * size.length)]
        prompt = int(rng.integers(size.length // 4, size.length + 1))
        completion = int(rng.integers(size.length // 4, size.length + 1))
        rows.append((tuple(tokens[:prompt]), tuple(tokens[size.length : size.length + completion])))
    return rows
