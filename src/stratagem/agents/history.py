r"""A language agent that remembers: the last k steps, or the whole episode, shown as a chat.

MS-GRPO conditions every step on the present observation alone. This agent is its ablation: it shows the model what was
seen and said before. The messages of step t are

1. the template's system section;
2. for each remembered step, oldest first: what was observed (user), and what was answered (assistant), exactly as it
   was sampled, valid or not;
3. the present observation (user).

**Static text stands once.** The first user turn is the template's user section with the whole observation. Later ones
hold the observation alone, without its first lines as long as these have never changed in what is shown
(:func:`unrepeated`): a game says its rules first. Where that is all of it, :data:`UNCHANGED`
says so. So a prompt grows by what is new in an observation and an answer.

**Tokens.** ``Request.sampled`` holds the ids of the answers as sampled, and a model in this process puts them into the
prompt as they are. With ``context_steps="all"`` the prompt of step t + 1 therefore begins with the prompt of step t and
its completion, and an episode is one path of the token tree. It does not where the chat template writes an earlier
turn otherwise than the last one, nor for a stop id that is not the template's own end of a turn: that token is left
out. Once a window of k steps moves, prompts share their beginning only, up to the rules. A served model is sent text.

**Credit.** MS-GRPO gives every token of an episode the same advantage A, with weight 1 / (G |y|) where y is everything
that was generated in it. With the whole episode as context, row t of an episode is (o_0 y_0 ... o_t, y_t), and a causal
model gives its tokens the probability they have in the one sequence (o_0 y_0 ... o_T y_T):

.. math::
    \sum_t \sum_k \frac{1}{|y|} \nabla \log \pi(y_{t,k} \mid o_0, y_0, \dots, o_t, y_{t,<k}) A
    = \nabla \frac{1}{|y|} \sum_{i \in \text{answers}} \log \pi(\tau_i \mid \tau_{<i}) A

The right side is StarPO with GRPO's advantage (RAGEN, Wang et al. 2025, arXiv:2504.20073) for a loss on answer tokens,
averaged over those of the episode: conditioning on the episode is all that differs from MS-GRPO. The clip is per token
and changes nothing about this. What remains different is how a *batch* is averaged: code that takes one mean over the
tokens of all episodes weighs a token by 1 / sum_j |y_j|, so long episodes count more; eq. 1 of MS-GRPO, kept here,
weighs episodes alike. RAGEN's observations were also part of the loss in its paper's runs (its code masks them since);
here they never are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from stratagem.agents.language import (
    AgentConfig,
    ContextSteps,
    Decision,
    LanguageAgent,
    Recovery,
    Shaping,
    check_context_steps,
)
from stratagem.agents.prompts import PromptTemplate
from stratagem.models.base import GenerationConfig, LanguageModel, Request
from stratagem.types import Finish

__all__ = ["UNCHANGED", "HistoryAgent", "HistoryEpisode", "Turn", "chat", "make_language_agent", "unrepeated"]

UNCHANGED = "Nothing has changed."
"""Stands for an observation that is the same as all before it; the only words here that are no one's own."""


@dataclass(frozen=True)
class Turn:
    """A step that is remembered."""

    observation: str
    """As the game showed it."""
    completion: str
    """As sampled, without the assistant's prefix."""
    completion_ids: tuple[int, ...] = ()
    """As sampled; empty where the model does not name them (a server)."""


def unrepeated(observations: Sequence[str]) -> list[str]:
    r"""Return the texts of consecutive observations without the first lines that have never changed.

    The first observation is whole. A line of a later one is left out if it stands at the beginning of every observation
    up to there; so what is left out is always what the first one says. Where nothing would be left, the text is
    ``UNCHANGED`` if the observation is the one before it again and has several lines, else its last line.

    >>> unrepeated(["Rules.\nAt 0.\nGo on.", "Rules.\nAt 1.\nGo on.", "Rules.\nAt 0.\nGo on."])
    ['Rules.\nAt 0.\nGo on.', 'At 1.\nGo on.', 'At 0.\nGo on.']

    Args:
        observations: one or more, oldest first.
    """
    first = observations[0].split("\n")
    num_same = len(first)
    shown = [observations[0]]
    for before, observation in pairwise(observations):
        lines = observation.split("\n")
        pairs = zip(first[:num_same], lines, strict=False)
        num_same = next((place for place, (a, b) in enumerate(pairs) if a != b), min(num_same, len(lines)))
        if num_same < len(lines):
            shown.append("\n".join(lines[num_same:]))
        else:
            shown.append(UNCHANGED if observation == before and len(lines) > 1 else lines[-1])
    return shown


def chat(template: PromptTemplate, turns: Sequence[Turn], observation: str) -> tuple[tuple[str, str], ...]:
    """Return the (role, content) messages that show remembered steps and the present observation.

    Without turns they are ``template.messages(observation)``.
    """
    shown = unrepeated([*(turn.observation for turn in turns), observation])
    messages = list(template.messages(shown[0]))
    for turn, text in zip(turns, shown[1:], strict=True):
        messages += [("assistant", template.assistant_prefix + turn.completion), ("user", text)]
    return tuple(messages)


@dataclass(frozen=True)
class HistoryAgent:
    """A language agent and how much of the episode it is shown. It holds no state; :meth:`begin` starts an episode."""

    agent: LanguageAgent
    """Its model, sampling settings, template, parser and penalties."""
    context_steps: ContextSteps
    """So many of the last steps, or "all"."""

    def __post_init__(self) -> None:
        """Refuse what is no number of steps."""
        check_context_steps(self.context_steps)

    @property
    def model(self) -> LanguageModel:
        """See :class:`~stratagem.agents.language.LanguageAgent`."""
        return self.agent.model

    @property
    def generation(self) -> GenerationConfig:
        """See :class:`~stratagem.agents.language.LanguageAgent`."""
        return self.agent.generation

    @property
    def recovery(self) -> Recovery:
        """See :class:`~stratagem.agents.language.LanguageAgent`."""
        return self.agent.recovery

    @property
    def invalid_penalty(self) -> float:
        """See :class:`~stratagem.agents.language.LanguageAgent`."""
        return self.agent.invalid_penalty

    @property
    def num_uniforms(self) -> int:
        """Random numbers that one decision takes."""
        return self.agent.num_uniforms

    @property
    def template(self) -> PromptTemplate:
        """See :class:`~stratagem.agents.language.LanguageAgent`."""
        return self.agent.template

    @property
    def num_templates(self) -> int:
        """Templates that training plays with."""
        return self.agent.num_templates

    def with_template(self, place: int) -> HistoryAgent:
        """Return the same agent with one of its templates, 0 for the first."""
        return replace(self, agent=self.agent.with_template(place))

    def with_temperature(self, temperature: float) -> HistoryAgent:
        """Return the same agent at another sampling temperature."""
        return replace(self, agent=self.agent.with_temperature(temperature))

    def begin(self) -> HistoryEpisode:
        """Start an episode."""
        return HistoryEpisode(self)


class HistoryEpisode:
    """The decisions of one episode, and what they are remembered by."""

    def __init__(self, agent: HistoryAgent) -> None:
        """Start before the first observation."""
        self.agent = agent.agent
        self.context_steps = agent.context_steps
        self.recovery, self.invalid_penalty = agent.recovery, agent.invalid_penalty
        self.num_uniforms = agent.num_uniforms
        self.turns: list[Turn] = []
        """Every step so far, oldest first."""

    @property
    def shown(self) -> list[Turn]:
        """The steps that the next request shows."""
        start = 0 if self.context_steps == "all" else max(0, len(self.turns) - self.context_steps)
        return self.turns[start:]

    def request(
        self, observation: str, uniforms: np.ndarray | None = None, legal_actions: tuple[str, ...] = ()
    ) -> Request:
        """Return what the model is asked: that of the agent, with the remembered steps before the observation."""
        turns = self.shown
        request = self.agent.request(observation, uniforms, legal_actions)
        return replace(
            request,
            messages=chat(self.agent.template, turns, observation),
            sampled=tuple(turn.completion_ids for turn in turns),
        )

    def remember(self, observation: str, completion: str, completion_ids: tuple[int, ...] = ()) -> None:
        """Add a step; :meth:`decide` does it by itself."""
        self.turns.append(Turn(observation, completion, completion_ids))

    async def decide(
        self, observation: str, legal_actions: tuple[str, ...], uniforms: np.ndarray | None = None
    ) -> Decision:
        """Sample, read and remember one completion.

        Args:
            observation: what is seen now.
            legal_actions: the words that are legal now.
            uniforms: [>= num_uniforms] in [0, 1), one for each token; None for greedy or a server.

        Raises:
            ModelError: the model cannot answer.
        """
        completion = await self.agent.model.generate(self.request(observation, uniforms, legal_actions))
        if completion.finish is not Finish.CONTEXT or completion.completion_ids:  # otherwise nothing was said
            self.remember(observation, completion.text, completion.completion_ids)
        return self.agent.read(completion, legal_actions)


def make_language_agent(
    model: LanguageModel, config: AgentConfig, format_penalty: Shaping | None = None
) -> LanguageAgent | HistoryAgent:
    """Build the agent that the settings ask for; with ``context_steps=0`` one that remembers nothing.

    Raises:
        ConfigError: see :meth:`stratagem.agents.language.LanguageAgent.from_config`.
    """
    agent = LanguageAgent.from_config(model, replace(config, context_steps=0), format_penalty)
    return agent if config.context_steps == 0 else HistoryAgent(agent, config.context_steps)
