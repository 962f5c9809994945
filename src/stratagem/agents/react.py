r"""ReAct: a thought and an action in turn, over the whole history (Yao et al. 2023, arXiv:2210.03629).

Each answer is ``Thought: ...`` and ``Action: ...`` on lines of their own, each observation is marked with
``Observation: ``, and all of the episode stands in the prompt as a chat. This is the form that ETO (Song et al. 2024,
arXiv:2403.02502) and STEP-HRL's baseline use. An action may be any text: in ALFWorld one that is not admissible is
answered with "Nothing happens.", as in the original; in other games it is an invalid action like any other.

Nothing is trained: the prompt does it all. ``react`` says the form and goes with any game, ``react_alfworld`` adds
ALFWorld's commands and an example of an episode, without which a model that does not know the game cannot guess them.

Departures: the original puts examples and episode into one text to be continued; here it is a chat, as
instruction-tuned models expect. The original thinks as often as it likes; here once before each action.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stratagem.agents.history import HistoryAgent, HistoryEpisode
from stratagem.agents.language import ContextSteps, Decision, LanguageAgent, Recovery, check_context_steps
from stratagem.agents.parsing import ParsedAction, ParseError, match_action
from stratagem.agents.prompts import REACT_TEMPLATES, PromptTemplate, load_template
from stratagem.errors import ConfigError, UnknownNameError
from stratagem.models.base import GenerationConfig, LanguageModel, Request

__all__ = [
    "ReActAgent",
    "ReActConfig",
    "ReActEpisode",
    "load_react_template",
    "parse_react",
    "react_answer",
]

OBSERVATION = "Observation: "
"""Stands before each observation; a model that writes it goes on with what it cannot know, and is stopped."""

_ACTION = re.compile(r"^[ \t]*action[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)


def load_react_template(name_or_path: str) -> PromptTemplate:
    """Return a template of this agent: a built-in one by name, or the one in a file.

    Raises:
        UnknownNameError: neither a built-in name nor a file.
        ConfigError: it is no template, or asks for tags, which this agent does not read.
    """
    if name_or_path not in REACT_TEMPLATES and not Path(name_or_path).is_file():
        raise UnknownNameError("ReAct template", name_or_path, REACT_TEMPLATES)
    template = load_template(name_or_path)
    if template.tags or template.assistant_prefix:
        raise ConfigError(
            f"template={name_or_path!r} asks for tags or begins the answer, and a ReAct agent reads lines that begin "
            f"with 'Thought:' and 'Action:'; use one of {', '.join(REACT_TEMPLATES)}, or a file without headers."
        )
    return template


def react_answer(action: str) -> str:
    """Return an answer that :func:`parse_react` reads as ``action``; without a thought, which nobody wrote.

    >>> react_answer("go to shelf 1")
    'Action: go to shelf 1'
    """
    return f"Action: {action}"


def parse_react(text: str, legal_actions: Sequence[str]) -> ParsedAction:
    r"""Return the action of a ReAct answer: what stands behind ``Action:`` at the beginning of a line.

    The rest of that line is stripped, and is the action if it is exactly one of the legal ones when case is ignored.
    Two such lines with different words are ambiguous. What follows an ``Observation:`` that the model made up is left
    out.

    >>> parse_react("Thought: The shelf is near.\nAction: go to shelf 1", ("go to shelf 1", "look")).action
    'go to shelf 1'
    >>> parse_react("I go to the shelf.", ("go to shelf 1", "look")).error
    <ParseError.MISSING: 'missing'>

    Args:
        text: the completion.
        legal_actions: the words that are legal now.
    """
    own = re.split(rf"^[ \t]*{OBSERVATION.strip()}", text, maxsplit=1, flags=re.IGNORECASE | re.MULTILINE)[0]
    found = [" ".join(line.split()) for line in _ACTION.findall(own)]
    if not found:
        return ParsedAction(None, ParseError.MISSING)
    if len({line.lower() for line in found}) > 1:
        return ParsedAction(None, ParseError.AMBIGUOUS, found[0])
    if not found[0]:
        return ParsedAction(None, ParseError.EMPTY, "")
    return match_action(found[0], legal_actions)


@dataclass(frozen=True)
class ReActConfig:
    """Settings of a ReAct agent, as a recipe writes them."""

    template: str = "react"
    """A built-in template or the path of a template file; "react_alfworld" is for ALFWorld."""
    max_new_tokens: int = 200
    """Tokens of a thought and an action."""
    temperature: float = 0.0
    """Divides the logits; 0 is greedy, as the baselines of STEP-HRL are evaluated."""
    context_steps: ContextSteps = "all"
    """Past steps that are shown, or "all", which is ReAct."""
    recovery: Recovery = "no_action"
    """What follows an invalid action: the game gets no action, or the episode ends ("end")."""
    invalid_penalty: float = 0.0
    """Added to the environment reward of a step without a valid action."""
    max_invalid: int | None = None
    """So many invalid actions in a row end the episode, which a greedy agent would not get out of; None is off."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        self.generation()
        check_context_steps(self.context_steps)
        if self.max_invalid is not None and self.max_invalid < 1:
            raise ConfigError(f"max_invalid={self.max_invalid!r} leaves no step; set it to 1 or more, or leave it out.")

    def generation(self) -> GenerationConfig:
        """Return the sampling settings; a completion ends where the model makes up an observation."""
        return GenerationConfig(self.max_new_tokens, self.temperature, stop=(f"\n{OBSERVATION.strip()}",))

    def language_agent(self, model: LanguageModel) -> LanguageAgent:
        """Return what asks for one step.

        Raises:
            UnknownNameError: the template is neither a built-in name nor a file.
            ConfigError: the template is none, or a setting has a bad value.
        """
        return LanguageAgent(
            model=model,
            generation=self.generation(),
            template=load_react_template(self.template),
            parser=parse_react,
            recovery=self.recovery,
            invalid_penalty=self.invalid_penalty,
        )


@dataclass(frozen=True)
class ReActAgent(HistoryAgent):
    """A history agent that thinks before it acts."""

    max_invalid: int | None = None
    """See :class:`ReActConfig`."""

    @classmethod
    def from_config(cls, model: LanguageModel, config: ReActConfig | None = None) -> ReActAgent:
        """Build an agent from its settings; None are the defaults.

        Raises:
            ConfigError: see :meth:`ReActConfig.language_agent`.
        """
        config = config or ReActConfig()
        return cls(config.language_agent(model), config.context_steps, max_invalid=config.max_invalid)

    def begin(self) -> ReActEpisode:
        """Start an episode."""
        return ReActEpisode(self)


class ReActEpisode(HistoryEpisode):
    """The decisions of one episode."""

    def __init__(self, agent: ReActAgent) -> None:
        """Start before the first observation."""
        super().__init__(agent)
        self.preface = ""
        """Stands before the first observation."""
        self._max_invalid = agent.max_invalid
        self._invalid = 0

    def request(
        self, observation: str, uniforms: np.ndarray | None = None, legal_actions: tuple[str, ...] = ()
    ) -> Request:
        """Return what the model is asked, with every observation marked as one."""
        request = super().request(observation, uniforms, legal_actions)
        messages = [
            (role, f"{OBSERVATION}{content.strip()}" if role == "user" else content)
            for role, content in request.messages
        ]
        if self.preface:
            first = next(place for place, (role, _) in enumerate(messages) if role == "user")
            messages[first] = ("user", f"{self.preface}\n\n{messages[first][1]}")
        return replace(request, messages=tuple(messages))

    async def decide(
        self, observation: str, legal_actions: tuple[str, ...], uniforms: np.ndarray | None = None
    ) -> Decision:
        """Sample, read and remember one completion; see :meth:`HistoryEpisode.decide`."""
        decision = await super().decide(observation, legal_actions, uniforms)
        self._invalid = self._invalid + 1 if decision.action is None else 0
        if self._invalid == self._max_invalid:
            self.recovery = "end"
        return decision
