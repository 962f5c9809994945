r"""Acting by scoring: a choice among admissible actions by the probability of their words, as in TWOSOME.

TWOSOME (Tan et al. 2024, arXiv:2401.14151) never samples text. Each admissible action a, tokens w_1 .. w_n, gets the
score

.. math:: s(a) = \frac{1}{N(a)} \sum_i \log p(w_i \mid \text{prompt}, w_{<i}), \qquad
          \pi(a|o) = \operatorname{softmax}_a s(a)

where N(a) is the number of words of the action (the paper's default), of its tokens, or 1. Without a length the short
action wins. POAD (Wen et al. 2024, arXiv:2405.15821) acts the same way and then trains the tokens of the chosen action.

All actions of all episodes that wait are scored in one pass over a token tree: the prompt is computed once, and so is
every beginning that two actions share. One uniform number picks the action by the inverse CDF, over the actions in
alphabetical order, so that the draw does not depend on the order in which a game names them.

With ``choice="token"`` the action is drawn token by token instead (:mod:`stratagem.agents.branches`); ours.

Departures: the papers' prompt is raw text, which is the default here too (no template); with a template the model is
asked in a chat instead. A raw prompt gets no beginning-of-text token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from stratagem.agents.branches import branch_logprobs
from stratagem.agents.language import Decision, Recovery
from stratagem.agents.prompts import PromptTemplate, load_template
from stratagem.errors import ConfigError, GameError
from stratagem.models.base import Completion, LabelLogprobs, TokenRow
from stratagem.types import Finish

if TYPE_CHECKING:  # a recipe is checked without loading torch
    from torch import Tensor

__all__ = [
    "Choice",
    "Normalisation",
    "ScoringAgent",
    "ScoringConfig",
    "ScoringModel",
    "action_logprobs",
    "action_size",
]

Choice = Literal["action", "token"]
"""One draw among whole actions, or one for each token."""

Normalisation = Literal["words", "tokens", "none"]
"""What an action's log-probability is divided by."""

_NORMALISATIONS: tuple[Normalisation, ...] = ("words", "tokens", "none")


class ScoringModel(Protocol):
    """The part of :class:`stratagem.models.base.TrainableModel` that scores."""

    name: str
    context_length: int

    def logprobs(self, rows: Sequence[TokenRow], *, temperature: float = 1.0) -> LabelLogprobs:
        """Return log-probabilities of completions."""
        ...

    def split(self, rows: Sequence[TokenRow], max_tokens: int) -> list[list[int]]:
        """Cut rows into micro-batches of at most ``max_tokens`` computed tokens; lists of row numbers."""
        ...

    def encode_chat(self, messages: Sequence[tuple[str, str]], assistant_prefix: str = "") -> tuple[int, ...]:
        """Return the ids of a chat up to where the assistant goes on."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text."""
        ...

    async def aclose(self) -> None:
        """Release what the model holds."""
        ...


def action_size(action: str, num_tokens: int, normalisation: Normalisation) -> int:
    """Return N(a).

    >>> action_size("take the bowl", 5, "words"), action_size("take the bowl", 5, "tokens")
    (3, 5)
    """
    return {"words": len(action.split()), "tokens": num_tokens, "none": 1}[normalisation]


def action_logprobs(
    logprobs: Tensor, lengths: Sequence[int], sizes: Sequence[int], *, temperature: float = 1.0
) -> Tensor:
    r"""Return log pi of each action of one decision, with gradients.

    .. math:: \log\pi(a) = \log\operatorname{softmax}_a \Big(\frac{1}{T\,N(a)}\sum_i \log p(w_i)\Big)

    Args:
        logprobs: [sum of lengths] log p of each token, the actions one after the other.
        lengths: tokens of each action.
        sizes: N(a) of each action.
        temperature: T > 0; 1 in the paper.

    Returns:
        [actions] log-probabilities.
    """
    import torch

    sums = torch.stack([part.sum() for part in torch.split(logprobs, list(lengths))])
    scores = sums / torch.tensor(sizes, dtype=sums.dtype, device=sums.device)
    return torch.log_softmax(scores / temperature, dim=0)


def _check(choice: str, normalisation: str, temperature: float, max_tokens: int) -> None:
    if choice not in ("action", "token"):
        raise ConfigError(f"choice={choice!r} is no way to choose; use 'action' or 'token'.")
    if choice == "token" and normalisation != "words":
        raise ConfigError(
            f"normalisation={normalisation!r} has no effect with choice='token', which divides by nothing; leave it "
            "out."
        )
    if normalisation not in _NORMALISATIONS:
        raise ConfigError(
            f"normalisation={normalisation!r} is not a length of an action; use one of {', '.join(_NORMALISATIONS)}."
        )
    if not 0 <= temperature < float("inf"):
        raise ConfigError(
            f"temperature={temperature!r} is not a temperature; use 0 for the best action or a positive number."
        )
    if max_tokens < 1:
        raise ConfigError(f"max_tokens={max_tokens!r} scores nothing; set it to 1 or more.")


@dataclass(frozen=True)
class ScoringConfig:
    """Settings of a scoring agent."""

    template: str | None = None
    """A template's name or file; None gives the model the observation as raw text, as the papers do."""
    choice: Choice = "action"
    """"action": among the scores of whole actions, as in the papers. "token": token by token among those that go on to
    a legal action."""
    normalisation: Normalisation = "words"
    """What an action's log-probability is divided by: its words (the paper's default), its tokens, or nothing."""
    temperature: float = 1.0
    """Divides what is chosen by; 1 in the paper, 0 takes the most probable action."""
    max_tokens: int = 8192
    """Tokens of one pass through the model."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        _check(self.choice, self.normalisation, self.temperature, self.max_tokens)


@dataclass
class _Queue:
    """Who waits for scores, and the task that answers; one for each agent."""

    waiting: list[tuple[tuple[TokenRow, ...], asyncio.Future[list[Tensor]]]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True)
class ScoringAgent:
    """A policy that chooses among the legal actions by their probability as text."""

    model: ScoringModel
    template: PromptTemplate | None = None
    normalisation: Normalisation = "words"
    temperature: float = 1.0
    max_tokens: int = 8192
    choice: Choice = "action"
    recovery: Recovery = "no_action"
    """For the rollout; every choice is legal, so nothing is ever recovered."""
    invalid_penalty: float = 0.0
    _queue: _Queue = field(default_factory=_Queue, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        _check(self.choice, self.normalisation, self.temperature, self.max_tokens)

    @classmethod
    def from_config(cls, model: ScoringModel, config: ScoringConfig) -> ScoringAgent:
        """Build an agent from its settings.

        Raises:
            ConfigError: the template is unknown.
        """
        template = None if config.template is None else load_template(config.template)
        return cls(model, template, config.normalisation, config.temperature, config.max_tokens, config.choice)

    @property
    def num_uniforms(self) -> int:
        """Random numbers that one decision takes."""
        return 1 if self.temperature > 0 else 0

    def prompt_ids(self, observation: str) -> tuple[int, ...]:
        """Return the tokens that an observation becomes."""
        if self.template is None:
            return self.model.encode(observation)
        return self.model.encode_chat(self.template.messages(observation), self.template.assistant_prefix)

    def candidate_ids(self, legal_actions: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of each action as they go on from the prompt.

        Raises:
            GameError: two actions are equal, so that a choice between them means nothing.
        """
        lead = " " if self.template is None else ""
        candidates = tuple(tuple(self.model.encode(lead + action)) for action in legal_actions)
        for number, ids in enumerate(candidates):
            if ids in candidates[:number]:
                raise GameError(
                    f"Action {legal_actions[number]!r} is offered twice among {len(candidates)} actions; a game must "
                    "give each action a text of its own."
                )
        return candidates

    async def decide(
        self, observation: str, legal_actions: tuple[str, ...], uniforms: np.ndarray | None = None
    ) -> Decision:
        """Score the legal actions and draw one.

        Args:
            observation: what the player sees now.
            legal_actions: what is chosen among.
            uniforms: [>= 1] in [0, 1); None takes the most probable action.

        Raises:
            GameError: two actions are equal.
            ModelError: the model cannot answer.
        """
        prompt = self.prompt_ids(observation)
        candidates = self.candidate_ids(legal_actions)
        if len(prompt) + max(map(len, candidates)) > self.model.context_length:
            full = Completion("", Finish.CONTEXT, prompt, num_prompt_tokens=len(prompt))
            return Decision(None, None, full)
        parts = await self._score(tuple((prompt, ids) for ids in candidates))
        log_pi, tokens = self.log_policy(parts, legal_actions, candidates)
        chosen = _draw(log_pi, legal_actions, uniforms)
        completion = Completion(
            text=legal_actions[chosen],
            finish=Finish.STOP,
            prompt_ids=prompt,
            completion_ids=candidates[chosen],
            logprobs=tuple(tokens[chosen].tolist()),
            num_prompt_tokens=len(prompt),
            num_completion_tokens=len(candidates[chosen]),
        )
        return Decision(
            legal_actions[chosen], None, completion, candidates=candidates, candidate_logprobs=tuple(log_pi.tolist())
        )

    def log_policy(
        self, parts: Sequence[Tensor], actions: Sequence[str], candidates: tuple[tuple[int, ...], ...]
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the policy of one decision, with gradients.

        Args:
            parts: the model's log-probabilities of the tokens of each action.
            actions: their texts.
            candidates: their tokens.

        Returns:
            [actions] float64 log pi, and the log-probabilities of the tokens of each action: the model's own, or with
            ``choice="token"`` those among the tokens that go on to a legal action.

        Raises:
            GameError: ``choice="token"`` and an action is the beginning of another.
        """
        import torch

        lengths = [len(part) for part in parts]
        temperature = self.temperature or 1.0  # greedy play records the policy of temperature 1
        # Sums of many tokens: float64, so that they do not add rounding of their own.
        flat = torch.cat(list(parts)).double()
        if self.choice == "token":
            tokens = torch.split(branch_logprobs(flat, candidates, temperature=temperature)[0], lengths)
            return torch.stack([part.sum() for part in tokens]), tokens
        sizes = [action_size(action, n, self.normalisation) for action, n in zip(actions, lengths, strict=True)]
        return action_logprobs(flat, lengths, sizes, temperature=temperature), parts

    async def _score(self, rows: tuple[TokenRow, ...]) -> list[Tensor]:
        """Return the token log-probabilities of each row; calls that wait at the same time share a pass."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Tensor]] = loop.create_future()
        queue = self._queue
        queue.waiting.append((rows, future))
        if queue.task is None or queue.task.done():
            queue.task = loop.create_task(self._serve())
        return await future

    async def _serve(self) -> None:
        queue = self._queue
        while queue.waiting:
            while True:  # let everyone who just got an answer act and ask again, so that they share the pass
                count = len(queue.waiting)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                if len(queue.waiting) == count:
                    break
            asked = [(rows, future) for rows, future in queue.waiting if not future.done()]
            queue.waiting.clear()
            try:
                answers = self.score_rows([row for rows, _ in asked for row in rows])
            except Exception as error:
                for _, future in asked:
                    future.set_exception(error)
                continue
            start = 0
            for rows, future in asked:
                future.set_result(answers[start : start + len(rows)])
                start += len(rows)

    def score_rows(self, rows: Sequence[TokenRow]) -> list[Tensor]:
        """Return [tokens] float32 log-probabilities of each row's completion, on the CPU; equal rows cost once."""
        import torch

        distinct = list(dict.fromkeys((tuple(prompt), tuple(ids)) for prompt, ids in rows))
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}
        for part in self.model.split(distinct, self.max_tokens):
            some = [distinct[number] for number in part]
            with torch.no_grad():
                flat = self.model.logprobs(some).logprobs.cpu()
            found.update(zip(some, torch.split(flat, [len(ids) for _, ids in some]), strict=True))
        return [found[tuple(prompt), tuple(ids)] for prompt, ids in rows]


def _draw(log_pi: Tensor, actions: Sequence[str], uniforms: np.ndarray | None) -> int:
    """Return the number of the drawn action; by the inverse CDF over the actions in alphabetical order."""
    order = sorted(range(len(actions)), key=lambda number: actions[number])
    if uniforms is None:
        return max(order, key=lambda number: float(log_pi[number]))
    weights = np.exp(log_pi.double().numpy()[order])
    # Divided by their sum, so that rounding leaves no gap above the last.
    place = int(np.searchsorted(np.cumsum(weights) / weights.sum(), float(uniforms[0]), side="right"))
    return order[min(place, len(order) - 1)]
