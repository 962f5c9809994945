"""The language agent policy (LAP) of Dilkes et al. 2025: a language model that plays.

The paper's tuple (L, G, T, psi) is :class:`LanguageAgent`'s ``model``, ``generation``, ``template`` and ``parser``. One
decision is: fill the template with the current observation (no history), sample a completion, parse it. A completion
without a valid action is data: ``Decision.action`` is None and ``parse_error`` says why. What the game is then given is
the ``recovery`` strategy, which the rollout applies.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Literal

import numpy as np

from stratagem.agents.parsing import ActionParser, parse_action
from stratagem.agents.prompts import REACT_TEMPLATES, PromptTemplate, load_templates
from stratagem.errors import ConfigError
from stratagem.models.base import Completion, GenerationConfig, LanguageModel, Request
from stratagem.types import Generation

__all__ = ["AgentConfig", "ContextSteps", "Decision", "LanguageAgent", "Recovery", "Shaping", "check_context_steps"]

Recovery = Literal["no_action", "random", "end"]
"""What follows an invalid action: the game gets no action, a random legal one, or the episode ends."""

Shaping = Callable[[str, int], float]
"""Phi: (answer with the assistant's prefix, number of sampled tokens) -> a number, zero or less."""

ContextSteps = int | Literal["all"]
"""Past steps that a prompt shows besides the present observation."""

_MAX_EXPECTED = 8
"""With more legal actions, computing all of them ahead would cost more than it saves."""

_RECOVERIES: tuple[Recovery, ...] = ("no_action", "random", "end")


def _check(recovery: str, invalid_penalty: float) -> None:
    if recovery not in _RECOVERIES:
        raise ConfigError(f"recovery={recovery!r} is not a strategy; use one of {', '.join(_RECOVERIES)}.")
    if not invalid_penalty <= 0:
        raise ConfigError(
            f"invalid_penalty={invalid_penalty!r} would reward invalid actions; use a number of 0 or less."
        )


def check_context_steps(value: object) -> None:
    """Refuse what is neither a number of steps nor "all"."""
    if value != "all" and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise ConfigError(
            f"context_steps={value!r} is no number of past steps; use 0 for the present observation alone, 1 or more, "
            "or 'all'."
        )


@dataclass(frozen=True)
class AgentConfig:
    """Settings of a language agent, as a recipe writes them."""

    template: str | tuple[str, ...] = "action"
    """A built-in template or the path of a template file; "think_plan_action" is the paper's structure. A list is an
    ensemble: each group of training plays with one of them, evaluation with the first."""
    max_new_tokens: int = 200
    """Tokens of one completion; the paper trains with 200."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy. The paper does not say."""
    top_k: int | None = None
    """Keep the k most probable tokens; None is off."""
    top_p: float | None = None
    """Keep the smallest set of tokens whose probability reaches p; None is off."""
    min_p: float | None = None
    """Keep tokens with at least min_p times the highest probability; None is off."""
    recovery: Recovery = "no_action"
    """What follows an invalid action; the paper takes no action."""
    invalid_penalty: float = -0.5
    """Added to the environment reward of a step without a valid action; the paper uses -0.5."""
    tag: str = "action"
    """The tag around the action; its closing tag ends a completion."""
    context_steps: ContextSteps = 0
    """Past steps that are shown as a chat, or "all"; the paper shows none (:mod:`stratagem.agents.history`)."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        self.generation()  # checks max_new_tokens, temperature, top_k, top_p and min_p
        _check(self.recovery, self.invalid_penalty)
        if not re.fullmatch(r"[A-Za-z][\w-]*", self.tag):
            raise ConfigError(f"tag={self.tag!r} is not the name of a tag; write a word without brackets, as 'action'.")
        check_context_steps(self.context_steps)

    def generation(self) -> GenerationConfig:
        """Return the sampling settings; a completion ends at the closing tag."""
        return GenerationConfig(
            self.max_new_tokens, self.temperature, self.top_k, self.top_p, self.min_p, (f"</{self.tag}>",)
        )


@dataclass(frozen=True)
class Decision:
    """What the agent said and what it means."""

    action: str | None
    """The legal action, or None."""
    parse_error: StrEnum | None
    """Why ``action`` is None; None for a valid action."""
    completion: Completion
    """As sampled."""
    shaping: float = 0.0
    """Phi_t, the format penalty (0 without one)."""
    candidates: tuple[tuple[int, ...], ...] = ()
    """Token ids of every action that was chosen among; empty where tokens were sampled freely."""
    candidate_logprobs: tuple[float, ...] = ()
    """log pi of each of ``candidates``."""
    generations: tuple[Generation, ...] = ()
    """What was said before the action, as sampled."""


@dataclass(frozen=True)
class LanguageAgent:
    """A policy made of a language model, its sampling settings, a template and a parser."""

    model: LanguageModel
    generation: GenerationConfig
    template: PromptTemplate
    parser: ActionParser = parse_action
    format_penalty: Shaping | None = None
    """None is no shaping; see :class:`stratagem.rewards.format.FormatPenalty`."""
    recovery: Recovery = "no_action"
    invalid_penalty: float = -0.5
    ensemble: tuple[PromptTemplate, ...] = ()
    """Every template that training plays with, where there are several; ``template`` is the present one."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        _check(self.recovery, self.invalid_penalty)

    @property
    def num_uniforms(self) -> int:
        """Random numbers that one decision takes."""
        return self.generation.max_new_tokens if self.generation.temperature > 0 else 0

    @classmethod
    def from_config(
        cls, model: LanguageModel, config: AgentConfig, format_penalty: Shaping | None = None
    ) -> LanguageAgent:
        """Build an agent from its settings.

        Raises:
            ConfigError: the template is unknown, its tags do not hold ``config.tag``, or past steps are to be shown.
        """
        if config.context_steps != 0:
            raise ConfigError(
                f"context_steps={config.context_steps!r} needs an agent that remembers; build it with "
                "stratagem.agents.history.make_language_agent."
            )
        templates = load_templates(config.template)
        template = templates[0]
        if template.name in REACT_TEMPLATES and not template.tags:
            raise ConfigError(
                f"template={template.name!r} asks for no tags, which are what this agent reads; set agent.name = "
                "'react', or choose another template."
            )
        if template.tags and config.tag not in template.tags:
            raise ConfigError(
                f"tag={config.tag!r} is not asked for by template {template.name!r}, whose tags are "
                f"{', '.join(template.tags)}; set tag to one of them or choose another template."
            )
        return cls(
            model=model,
            generation=config.generation(),
            template=template,
            parser=partial(parse_action, tag=config.tag),
            format_penalty=format_penalty,
            recovery=config.recovery,
            invalid_penalty=config.invalid_penalty,
            ensemble=templates if len(templates) > 1 else (),
        )

    @property
    def num_templates(self) -> int:
        """Templates that training plays with."""
        return max(1, len(self.ensemble))

    def with_template(self, place: int) -> LanguageAgent:
        """Return the same agent with one of its templates, 0 for the first."""
        return replace(self, template=self.ensemble[place]) if self.ensemble else self

    def with_temperature(self, temperature: float) -> LanguageAgent:
        """Return the same agent at another sampling temperature."""
        return replace(self, generation=replace(self.generation, temperature=temperature))

    def request(
        self, observation: str, uniforms: np.ndarray | None = None, legal_actions: tuple[str, ...] = ()
    ) -> Request:
        """Return what the model is asked for one observation.

        Where the answer is one of a few short words, they are named, so that the model can compute them ahead.
        """
        prefix = self.template.assistant_prefix
        expected: tuple[str, ...] = ()
        if prefix.endswith(">") and len(self.generation.stop) == 1 and len(legal_actions) <= _MAX_EXPECTED:
            expected = tuple(f"{action}{self.generation.stop[0]}" for action in legal_actions)
        return Request(self.template.messages(observation), self.generation, uniforms, prefix, expected)

    def read(self, completion: Completion, legal_actions: tuple[str, ...]) -> Decision:
        """Return what a completion means; the prefix the assistant was given is part of its answer."""
        text = self.template.assistant_prefix + completion.text
        parsed = self.parser(text, legal_actions)
        # A server may count tokens without naming them.
        num_tokens = completion.num_completion_tokens or len(completion.completion_ids)
        shaping = self.format_penalty(text, num_tokens) if self.format_penalty is not None else 0.0
        return Decision(parsed.action, parsed.error, completion, shaping)

    async def decide(
        self, observation: str, legal_actions: tuple[str, ...], uniforms: np.ndarray | None = None
    ) -> Decision:
        """Sample and read one completion.

        Args:
            observation: what the player sees now.
            legal_actions: the words that are legal now.
            uniforms: [>= max_new_tokens] in [0, 1), one for each token; None for greedy or a server.

        Raises:
            ModelError: the model cannot answer.
        """
        return self.read(await self.model.generate(self.request(observation, uniforms, legal_actions)), legal_actions)
