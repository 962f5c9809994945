r"""Reflexion: an agent that learns from its failures in words (Shinn et al. 2023, arXiv:2303.11366).

1. A :class:`~stratagem.agents.react.ReActAgent` plays an episode.
2. Before the next trial from the same start the model reads the attempt that failed and writes a reflection: what went
   wrong, and what to do otherwise.
3. The last ``memory`` reflections stand before the first observation of that trial, and so on, up to ``num_trials``.

Nothing is trained. :mod:`stratagem.evaluation.trials` plays the trials of a panel.

A reflection is the first thing that is said in a trial, so it is kept in ``Step.generations`` of the trial's first step
(role ``reflection``), with its tokens; the memory of a trial is read from the trajectories before it, and an evaluation
that was interrupted goes on from these. A reflection that cannot be used (nothing was said, or the attempt does not fit
into the model's context) is counted with its reason and is not remembered; the trial is played all the same.

Departures: an episode fails where the game says so, without the original's guess by repeated actions; an episode of a
game without a verdict counts as failed.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stratagem.agents.history import unrepeated
from stratagem.agents.language import Decision
from stratagem.agents.prompts import PromptTemplate, load_template, parse_template
from stratagem.agents.react import OBSERVATION, ReActAgent, ReActConfig, ReActEpisode
from stratagem.agents.roles import fill, parse_line
from stratagem.errors import ConfigError
from stratagem.models.base import GenerationConfig, LanguageModel, Request
from stratagem.types import Finish, Generation, Trajectory

__all__ = [
    "REFLECTION",
    "ReflexionAgent",
    "ReflexionConfig",
    "ReflexionEpisode",
    "load_reflection_template",
    "reflections_in",
    "transcript",
]

REFLECTION = "reflection"
"""The role of a reflection among :class:`stratagem.types.Generation`."""

_LESSONS = "What earlier attempts at this task taught:"


@dataclass(frozen=True)
class ReflexionConfig(ReActConfig):
    """Settings of a Reflexion agent; those of ReAct, and these."""

    num_trials: int = 3
    """Trials of an episode at most; Shinn et al. play up to 12 on ALFWorld."""
    memory: int = 3
    """So many of the last reflections are shown; 3 on ALFWorld."""
    reflection_tokens: int = 200
    """Tokens of a reflection."""
    reflection_temperature: float = 0.0
    """Divides the logits while reflecting; 0 is greedy."""
    reflection_template: str = "default"
    """"default", or the path of a template file, in which {observation} is the attempt and {lessons} what earlier ones
    taught."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        super().__post_init__()
        for name in ("num_trials", "memory"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} leaves nothing to learn from; set it to 1 or more.")
        self.reflecting()

    def reflecting(self) -> GenerationConfig:
        """Return the sampling settings of a reflection."""
        return GenerationConfig(self.reflection_tokens, self.reflection_temperature)


def load_reflection_template(name_or_path: str) -> PromptTemplate:
    """Return the built-in template of a reflection (``default``), or the one in a file.

    Raises:
        UnknownNameError: the file is not there.
        ConfigError: it is no template, or shows what is not known.
    """
    if name_or_path == "default":
        resource = importlib.resources.files("stratagem.agents").joinpath("templates", "reflection.txt")
        template = parse_template("reflection", resource.read_text(encoding="utf-8"))
    else:
        template = load_template(name_or_path)
    for name in re.findall(r"\{(\w+)\}", template.user):
        if name not in ("observation", "lessons"):
            raise ConfigError(
                f"reflection_template={name_or_path!r} holds {{{name}}}, which is not known; use {{observation}} for "
                "the attempt and {lessons} for earlier reflections."
            )
    return template


def transcript(trajectory: Trajectory) -> str:
    r"""Return an episode as text: what was observed and what was answered, in turn."""
    if not trajectory.steps:
        return ""
    lines = []
    shown = unrepeated([step.observation for step in trajectory.steps])
    for text, step in zip(shown, trajectory.steps, strict=True):
        lines += [f"{OBSERVATION}{text.strip()}", step.completion.strip() or "(no answer)"]
    return "\n".join(lines)


def reflections_in(attempts: Sequence[Trajectory]) -> list[str]:
    """Return the reflections that were made before and during these trials, oldest first; those that can be used."""
    said = [part for t in attempts for step in t.steps[:1] for part in step.generations if part.role == REFLECTION]
    found = [parse_line(part.completion)[0] for part in said]
    return [line for line in found if line is not None]


@dataclass(frozen=True)
class ReflexionAgent(ReActAgent):
    """A ReAct agent with a memory of failed attempts; without attempts it is the first trial."""

    config: ReflexionConfig = field(default_factory=ReflexionConfig)
    reflection: PromptTemplate | None = None
    """How the model is asked for a reflection."""
    attempts: tuple[Trajectory, ...] = ()
    """Failed trials from the start of the episode that is to be played, oldest first."""

    @classmethod
    def from_config(cls, model: LanguageModel, config: ReActConfig | None = None) -> ReflexionAgent:
        """Build an agent from its settings; None are the defaults.

        Raises:
            ConfigError: a template cannot be used.
        """
        config = config or ReflexionConfig()
        assert isinstance(config, ReflexionConfig)
        template = load_reflection_template(config.reflection_template)
        return cls(
            config.language_agent(model),
            config.context_steps,
            max_invalid=config.max_invalid,
            config=config,
            reflection=template,
        )

    def after(self, attempts: Sequence[Trajectory]) -> ReflexionAgent:
        """Return who plays the trial after these."""
        return replace(self, attempts=tuple(attempts))

    def begin(self) -> ReflexionEpisode:
        """Start an episode."""
        return ReflexionEpisode(self)

    def reflection_request(self, uniforms: np.ndarray | None = None) -> Request:
        """Return what the model is asked about the last attempt."""
        assert self.attempts and self.reflection is not None
        # Those that were made before the last attempt: what it was told.
        lessons = self.lessons(reflections_in(self.attempts))
        messages = fill(self.reflection, {"lessons": lessons, "observation": transcript(self.attempts[-1])})
        return Request(messages, self.config.reflecting(), uniforms)

    def lessons(self, reflections: Sequence[str]) -> str:
        """Return the text in which the last reflections are shown; empty without any."""
        last = reflections[-self.config.memory :]
        return "\n".join([_LESSONS, *(f"- {line}" for line in last)]) if last else ""


class ReflexionEpisode(ReActEpisode):
    """One trial: it begins with a reflection on the one before."""

    def __init__(self, agent: ReflexionAgent) -> None:
        """Start before the first observation."""
        super().__init__(agent)
        self.memory = agent
        self.reflects = bool(agent.attempts and agent.attempts[-1].steps)
        """Whether the reflection is still to be made."""
        self._acting = self.num_uniforms
        if self.reflects and agent.config.reflection_temperature > 0:
            self.num_uniforms += agent.config.reflection_tokens

    async def decide(
        self, observation: str, legal_actions: tuple[str, ...], uniforms: np.ndarray | None = None
    ) -> Decision:
        """Reflect if the last trial has not been thought about yet, and act.

        Args:
            observation: what is seen now.
            legal_actions: the words that are legal now.
            uniforms: [>= num_uniforms] in [0, 1): those of the answer, then those of the reflection.

        Raises:
            ModelError: the model cannot answer.
        """
        said: tuple[Generation, ...] = ()
        if self.reflects:
            said = (await self._reflect(uniforms),)
            self.reflects, self.num_uniforms = False, self._acting
        acting = None if uniforms is None or self._acting == 0 else uniforms[: self._acting]
        return replace(await super().decide(observation, legal_actions, acting), generations=said)

    async def _reflect(self, uniforms: np.ndarray | None) -> Generation:
        draws = None
        if uniforms is not None and self.memory.config.reflection_temperature > 0:
            draws = uniforms[self._acting :]
        completion = await self.agent.model.generate(self.memory.reflection_request(draws))
        full = completion.finish is Finish.CONTEXT and not completion.completion_ids
        line, error = parse_line(completion.text, cut_off=completion.finish is not Finish.STOP)
        reflections = reflections_in(self.memory.attempts)
        self.preface = self.memory.lessons(reflections if line is None else [*reflections, line])
        return Generation(
            REFLECTION,
            completion.text,
            completion.prompt_ids,
            completion.completion_ids,
            completion.logprobs,
            "context" if full else None if error is None else str(error),
            completion.finish,
        )
