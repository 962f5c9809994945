"""The language model behind an agent: tokens in, tokens out; it knows nothing of games.

Log-probabilities are those of the *sampling distribution*: softmax(logits / temperature), then top-k, top-p, min-p
truncation and renormalisation, in this order. The learner recomputes them with the temperature alone and refuses
truncated sampling for training, so that the importance ratio starts at one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stratagem.errors import ConfigError
from stratagem.types import Finish

if TYPE_CHECKING:  # a recipe is checked without loading torch
    from torch import Tensor
    from torch.nn import Parameter

__all__ = [
    "Completion",
    "CriticModel",
    "GenerationConfig",
    "LabelHidden",
    "LabelLogprobs",
    "LanguageModel",
    "Request",
    "TokenRow",
    "TrainableModel",
]


@dataclass(frozen=True)
class GenerationConfig:
    """How tokens are drawn (the papers' G)."""

    max_new_tokens: int = 200
    """Completion limit in tokens; 200 in MS-GRPO's training."""
    temperature: float = 1.0
    """Divides the logits; 0 means the most probable token."""
    top_k: int | None = None
    """Keep the k most probable tokens; None is off."""
    top_p: float | None = None
    """Keep the smallest set of tokens whose probability reaches p; None is off."""
    min_p: float | None = None
    """Keep tokens with at least min_p times the highest probability; None is off."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion once they appear; kept in it."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens={self.max_new_tokens!r} leaves nothing to sample; set it to 1 or more.")
        if self.temperature < 0:
            raise ConfigError(f"temperature={self.temperature!r} is negative; use 0 for greedy or a positive number.")
        if math.isinf(self.temperature):
            raise ConfigError(f"temperature={self.temperature!r} draws every token alike; use a finite number.")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k={self.top_k!r} keeps no token; use 1 or more, or leave it out.")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ConfigError(f"{name}={value!r} is not in (0, 1]; leave it out to switch it off.")

    @property
    def truncates(self) -> bool:
        """Whether some tokens with positive probability can never be drawn."""
        return self.top_k is not None or self.min_p is not None or (self.top_p is not None and self.top_p < 1)


@dataclass(frozen=True)
class Request:
    """One completion to sample."""

    messages: tuple[tuple[str, str], ...]
    """(role, content) pairs, oldest first."""
    config: GenerationConfig
    uniforms: np.ndarray | None = None
    """[>= max_new_tokens] float64 in [0, 1): token k is the inverse CDF at uniforms[k]. None: greedy only, or a model
    that cannot take them (a server)."""
    assistant_prefix: str = ""
    """Text the assistant's turn begins with; part of the prompt, never trained."""
    expected: tuple[str, ...] = ()
    """Completions that are likely; a model in this process computes them ahead. They never change what is drawn."""
    sampled: tuple[tuple[int, ...], ...] = ()
    """Ids of the assistant's turns in ``messages``, in order, as sampled after ``assistant_prefix``; a model in this
    process puts them into the prompt instead of tokenising their text again. An empty entry is tokenised, and so is
    every turn where this is empty."""


@dataclass(frozen=True)
class Completion:
    """What a model answered."""

    text: str
    """The completion, special tokens left out, without ``assistant_prefix``."""
    finish: Finish
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    """As sampled, including the stop id; empty where the model does not say (a server)."""
    logprobs: tuple[float, ...] = ()
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0


class LanguageModel(Protocol):
    """Anything that completes chats. Concurrent calls of ``generate`` are batched by the model."""

    name: str
    context_length: int

    async def generate(self, request: Request) -> Completion:
        """Sample one completion.

        Raises:
            ModelError: the model cannot answer (a server is gone, the prompt does not fit).
        """
        ...

    async def aclose(self) -> None:
        """Release what the model holds."""
        ...


class LabelLogprobs(Protocol):
    """What a training pass gives for a list of rows, the completion tokens of all rows one after the other."""

    @property
    def logprobs(self) -> Tensor:
        """[T] float32 log p of each completion token, with gradients."""
        ...

    @property
    def entropy(self) -> Tensor:
        """[T] entropy in nats of the distribution that each token was drawn from, with gradients."""
        ...

    @property
    def num_computed(self) -> int:
        """Tokens that went through the model."""
        ...

    @property
    def num_seen(self) -> int:
        """Tokens that a row-by-row pass without padding would compute."""
        ...


TokenRow = tuple[Sequence[int], Sequence[int]]
"""(prompt ids, completion ids)."""


class TrainableModel(LanguageModel, Protocol):
    """A model in this process whose weights can be trained; see :mod:`stratagem.models.local`."""

    def logprobs(self, rows: Sequence[TokenRow], *, temperature: float = 1.0) -> LabelLogprobs:
        """Return log-probabilities of completions, with gradients."""
        ...

    def reference_logprobs(self, rows: Sequence[TokenRow], *, temperature: float = 1.0) -> Tensor:
        """Return log-probabilities under the reference policy, aligned with :meth:`logprobs`."""
        ...

    def split(self, rows: Sequence[TokenRow], max_tokens: int) -> list[list[int]]:
        """Cut rows into micro-batches of at most ``max_tokens`` computed tokens; lists of row numbers."""
        ...

    def encode_chat(
        self,
        messages: Sequence[tuple[str, str]],
        assistant_prefix: str = "",
        sampled: Sequence[tuple[int, ...]] = (),
    ) -> tuple[int, ...]:
        """Return the ids of a chat up to where the assistant goes on; ``sampled`` as in :class:`Request`."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text."""
        ...

    def named_parameters(self) -> dict[str, Parameter]:
        """Return the parameters that train."""
        ...

    def keep_reference(self) -> None:
        """Take the present weights as the reference policy."""
        ...

    def weights_changed(self) -> None:
        """Forget what was computed with the old weights."""
        ...


class LabelHidden(LabelLogprobs, Protocol):
    """A training pass that also gives what a value head reads."""

    @property
    def hidden(self) -> Tensor:
        """[T, C] final hidden state *before* each completion token, with gradients; the prompt's for the first one."""
        ...


class CriticModel(TrainableModel, Protocol):
    """A trainable model whose hidden states heads can read; see :mod:`stratagem.models.heads`."""

    @property
    def hidden_size(self) -> int:
        """C."""
        ...

    @property
    def has_base(self) -> bool:
        """Whether there are weights apart from those that train."""
        ...

    def logprobs(self, rows: Sequence[TokenRow], *, temperature: float = 1.0) -> LabelHidden:
        """Return log-probabilities and hidden states of completions, with gradients, from one pass."""
        ...

    def hidden_states(self, rows: Sequence[TokenRow], *, base: bool = False) -> Tensor:
        """Return the hidden states alone; with ``base`` those of the weights that never train, without gradients."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids."""
        ...
