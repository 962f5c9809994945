r"""A hierarchical agent that never sees a history: STEP-HRL (Zhen et al. 2026, arXiv:2604.05808).

Three roles, as a rule on one model (:mod:`stratagem.agents.roles`):

.. math::
    g_{k+1} \sim \pi^h(\cdot \mid c, G_k, \hat p_k, o^{k+1}_0), \qquad
    a_t \sim \pi^l(\cdot \mid g_k, p_t, o_t), \qquad
    p_t \sim \pi^p(\cdot \mid g_k, a_{t-1}, o_t, p_{t-1})

The high level names a subtask g from the task c, the completed subtasks G, the last local progress and the observation.
The low level answers with an action and whether it completes the subtask. After every action the local progress p is
written anew; it starts at ``None`` with each subtask. So every prompt has a bounded size, however long the episode.

An agent holds no state. :meth:`HierarchicalAgent.begin` starts an episode, and the :class:`HierarchicalEpisode` makes
its decisions. Every word that a model says is recorded: the low level's as the step itself, the others' in
``Step.generations``.

With ``use_history`` it is the hierarchy that the paper compares with (eq. 1 and 2; GLIDER, Hu et al. 2025): nobody sums
up, the high level is shown the whole episode and the low level all of its subtask, and prompts grow.

Departures: the prompts are in our own words; what holds for a whole episode (ALFWorld's list of receptacles) stands at
the beginning of a prompt and not behind the observation, so that the prompts of an episode share it; an invalid action
is given to the game as no action; only the last ``shown_subtasks`` completed subtasks are shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stratagem.agents.language import Decision, Recovery
from stratagem.agents.prompts import PromptTemplate
from stratagem.agents.roles import (
    NOTHING,
    ROLES,
    Role,
    TaskView,
    fill,
    load_role_template,
    parse_line,
    parse_low,
    past_step,
    read_start,
    tidy,
)
from stratagem.errors import ConfigError
from stratagem.models.base import Completion, GenerationConfig, LanguageModel, Request
from stratagem.types import Finish, Generation

__all__ = ["HierarchicalAgent", "HierarchicalConfig", "HierarchicalEpisode", "RoleSettings"]


@dataclass(frozen=True)
class RoleSettings:
    """How one role speaks."""

    template: str = "default"
    """"default", or the path of a template file."""
    temperature: float = 0.0
    """Divides the logits; 0 is greedy, as the paper evaluates."""
    max_new_tokens: int = 32
    """Limit of an answer; the paper's 32, and 150 for the progress."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        self.generation()

    def generation(self) -> GenerationConfig:
        """Return the sampling settings; an answer is one line."""
        return GenerationConfig(self.max_new_tokens, self.temperature, stop=("\n",))


@dataclass(frozen=True)
class HierarchicalConfig:
    """Settings of a hierarchical agent, as a recipe writes them."""

    high: RoleSettings = field(default_factory=RoleSettings)
    """Names subtasks."""
    low: RoleSettings = field(default_factory=RoleSettings)
    """Acts."""
    progress: RoleSettings = field(default_factory=lambda: RoleSettings(max_new_tokens=150))
    """Sums up."""
    task: str = "Play as well as you can."
    """The task of a game that states none."""
    max_subtask_steps: int | None = None
    """A subtask that takes longer is ended, as if it were completed; None is off, as in the paper."""
    max_invalid: int | None = None
    """So many invalid actions in a row end the episode, which a greedy agent would not get out of; None is off, as in
    the paper."""
    shown_subtasks: int = 10
    """So many of the last completed subtasks are shown; ours, it bounds the prompt."""
    use_progress: bool = True
    """False leaves the local progress out (the paper's ablation "w/o LP"): nobody sums up, and it stays ``None``."""
    use_history: bool = False
    """True shows what happened instead of the progress, which must be left out: the high level sees all observations
    and actions of the episode, the low level those of its subtask."""
    use_subtasks: bool = True
    """False leaves the high level out (the paper's ablation "w/o Hier"): the one subtask is the task, which lasts as
    long as the episode, and the progress sums up all of it."""
    recovery: Recovery = "no_action"
    """What follows an invalid action: the game gets no action, or the episode ends ("end")."""
    invalid_penalty: float = 0.0
    """Added to the environment reward of a step without a valid action; the paper has none."""

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        if self.recovery not in ("no_action", "end"):
            raise ConfigError(
                f"recovery={self.recovery!r} does not go with a hierarchical agent, whose progress tells what it did "
                "itself; use no_action or end."
            )
        if not -math.inf < self.invalid_penalty <= 0:
            raise ConfigError(
                f"invalid_penalty={self.invalid_penalty!r} would reward invalid actions; use a number of 0 or less."
            )
        for name in ("max_subtask_steps", "max_invalid"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value!r} leaves no step; set it to 1 or more, or leave it out.")
        if self.shown_subtasks < 1:
            raise ConfigError(f"shown_subtasks={self.shown_subtasks!r} shows none; set it to 1 or more.")
        if self.use_history and self.use_progress:
            raise ConfigError(
                "use_history=True shows everything that happened, so that nobody needs to sum it up; set "
                "use_progress=False beside it."
            )
        if not self.use_subtasks and self.max_subtask_steps is not None:
            raise ConfigError(
                f"max_subtask_steps={self.max_subtask_steps!r} ends subtasks, and use_subtasks=False has none; leave "
                "one of them out."
            )

    @property
    def max_new_tokens(self) -> int:
        """Tokens of one decision at most."""
        return self.high.max_new_tokens + self.low.max_new_tokens + self.progress.max_new_tokens

    @property
    def template(self) -> None:
        """Hold the place of the template that other agents have one of; each role has its own."""
        return None


@dataclass(frozen=True)
class HierarchicalAgent:
    """Three roles with their models, templates and sampling settings."""

    models: dict[Role, LanguageModel]
    """One object three times for a shared backbone."""
    templates: dict[Role, PromptTemplate]
    generation: dict[Role, GenerationConfig]
    config: HierarchicalConfig

    @classmethod
    def from_config(
        cls,
        model: LanguageModel,
        config: HierarchicalConfig | None = None,
        *,
        high: LanguageModel | None = None,
        low: LanguageModel | None = None,
        progress: LanguageModel | None = None,
    ) -> HierarchicalAgent:
        """Build an agent.

        Args:
            model: of every role that has none of its own.
            config: None is the paper's.
            high: names subtasks.
            low: acts.
            progress: sums up.

        Raises:
            ConfigError: a template cannot be read, or shows what its role is not told.
        """
        config = config or HierarchicalConfig()
        own = {"high": high, "low": low, "progress": progress}
        settings: dict[Role, RoleSettings] = {"high": config.high, "low": config.low, "progress": config.progress}
        return cls(
            {role: own[role] or model for role in ROLES},
            {role: load_role_template(role, settings[role].template, history=config.use_history) for role in ROLES},
            {role: settings[role].generation() for role in ROLES},
            config,
        )

    @property
    def model(self) -> LanguageModel:
        """The low level's, which is every role's where the backbone is shared."""
        return self.models["low"]

    @property
    def recovery(self) -> Recovery:
        """See :class:`HierarchicalConfig`."""
        return self.config.recovery

    @property
    def invalid_penalty(self) -> float:
        """See :class:`HierarchicalConfig`."""
        return self.config.invalid_penalty

    @property
    def num_uniforms(self) -> int:
        """Random numbers that one decision takes at most; every role has its own part."""
        return sum(self.role_uniforms(role) for role in ROLES)

    def role_uniforms(self, role: Role) -> int:
        """Return the random numbers that one answer of a role takes."""
        generation = self.generation[role]
        return generation.max_new_tokens if generation.temperature > 0 else 0

    def with_temperatures(self, high: float, low: float, progress: float) -> HierarchicalAgent:
        """Return the same agent at other temperatures."""
        temperatures: dict[Role, float] = {"high": high, "low": low, "progress": progress}
        generation = {role: replace(self.generation[role], temperature=temperatures[role]) for role in ROLES}
        return replace(self, generation=generation)

    def begin(self) -> HierarchicalEpisode:
        """Start an episode."""
        return HierarchicalEpisode(self)

    # ---- prompts: shared by playing and by learning ----------------------------------------------------------------

    def high_messages(
        self, view: TaskView, subtasks: Sequence[str], progress: str, observation: str, history: Sequence[str] = ()
    ) -> tuple[tuple[str, str], ...]:
        """Return what the high level is asked; ``history`` holds a :func:`past_step` for each step before."""
        shown = "; ".join(subtasks[-self.config.shown_subtasks :]) or NOTHING
        values = {"scene": view.scene, "task": view.task, "subtasks": shown, "progress": progress}
        values["history"] = "\n".join(history)
        return fill(self.templates["high"], values | {"observation": observation})

    def low_messages(
        self,
        view: TaskView,
        subtask: str,
        progress: str,
        observation: str,
        legal_actions: Sequence[str] = (),
        history: Sequence[str] = (),
    ) -> tuple[tuple[str, str], ...]:
        """Return what the low level is asked; ``history`` as for the high level, of this subtask."""
        values = {"scene": view.scene, "task": view.task, "subtask": subtask, "progress": progress}
        values["history"] = "\n".join(history)
        # A game may have thousands, which it lists only for those who look.
        actions = ", ".join(legal_actions) if "{actions}" in self.templates["low"].user else ""
        return fill(self.templates["low"], values | {"actions": actions, "observation": observation})

    def progress_messages(
        self, view: TaskView, subtask: str, progress: str, action: str, observation: str
    ) -> tuple[tuple[str, str], ...]:
        """Return what the progress is asked."""
        values = {"scene": view.scene, "task": view.task, "subtask": subtask, "progress": progress, "action": action}
        return fill(self.templates["progress"], values | {"observation": observation})


class HierarchicalEpisode:
    """The decisions of one episode: where it stands among its subtasks, and nothing older than that."""

    def __init__(self, agent: HierarchicalAgent) -> None:
        """Start before the first observation."""
        self.agent = agent
        self.recovery, self.invalid_penalty = agent.recovery, agent.invalid_penalty
        self.num_uniforms = agent.num_uniforms
        self.view: TaskView | None = None
        self.subtasks: list[str] = []
        """Completed ones."""
        self.subtask: str | None = None
        """The one under way; None where the next is to be named."""
        self.progress = NOTHING
        self.history: list[str] = []
        """Every step so far, where the agent is shown them."""
        self._began = 0
        self._action = NOTHING
        self._done = False
        self._steps = 0
        self._invalid = 0

    async def decide(
        self, observation: str, legal_actions: tuple[str, ...], uniforms: np.ndarray | None = None
    ) -> Decision:
        """Sum up the last action, name a subtask if one is needed, and act.

        Args:
            observation: what is seen now.
            legal_actions: the words that are legal now.
            uniforms: [>= num_uniforms] in [0, 1): those of high, of low, of progress; None for greedy or a server.

        Raises:
            ModelError: a model cannot answer.
        """
        agent = self.agent
        said: list[Generation] = []
        parts = self._parts(uniforms)
        if self.view is None:
            self.view = read_start(observation, agent.config.task)
            observation = self.view.observation
        else:
            observation = tidy(observation) or NOTHING
            if agent.config.use_progress:
                assert self.subtask is not None
                messages = agent.progress_messages(self.view, self.subtask, self.progress, self._action, observation)
                line, full = await self._line("progress", messages, parts["progress"], said)
                if full is not None:
                    return Decision(None, None, full, generations=tuple(said))
                self.progress = line or self.progress
            if self._done and agent.config.use_subtasks:
                assert self.subtask is not None
                self.subtasks.append(self.subtask)
                self.subtask = None
        if self.subtask is None and not agent.config.use_subtasks:
            self.subtask = self.view.task
        if self.subtask is None:
            messages = agent.high_messages(self.view, self.subtasks, self.progress, observation, self.history)
            line, full = await self._line("high", messages, parts["high"], said)
            if full is not None:
                return Decision(None, None, full, generations=tuple(said))
            self.subtask, self.progress, self._steps = line or self.view.task, NOTHING, 0
            self._began = len(self.history)
        own = self.history[self._began :]
        messages = agent.low_messages(self.view, self.subtask, self.progress, observation, legal_actions, own)
        completion = await self._ask("low", messages, parts["low"])
        answer = parse_low(completion.text, legal_actions)
        self._action = answer.said
        if agent.config.use_history:
            self.history.append(past_step(observation, answer.action or answer.said))
        self._invalid = self._invalid + 1 if answer.action is None else 0
        if self._invalid == agent.config.max_invalid:
            self.recovery = "end"
        self._steps += 1
        limit = agent.config.max_subtask_steps
        self._done = answer.done or (limit is not None and self._steps >= limit)
        return Decision(answer.action, answer.error, completion, generations=tuple(said))

    def _parts(self, uniforms: np.ndarray | None) -> dict[Role, np.ndarray | None]:
        found: dict[Role, np.ndarray | None] = {}
        start = 0
        for role in ROLES:
            count = self.agent.role_uniforms(role)
            found[role] = None if uniforms is None or count == 0 else uniforms[start : start + count]
            start += count
        return found

    async def _ask(self, role: Role, messages: tuple[tuple[str, str], ...], uniforms: np.ndarray | None) -> Completion:
        template = self.agent.templates[role]
        request = Request(messages, self.agent.generation[role], uniforms, template.assistant_prefix)
        return await self.agent.models[role].generate(request)

    async def _line(
        self, role: Role, messages: tuple[tuple[str, str], ...], uniforms: np.ndarray | None, said: list[Generation]
    ) -> tuple[str | None, Completion | None]:
        """Return one line of a role, or the completion that found no room in the model's context."""
        completion = await self._ask(role, messages, uniforms)
        if completion.finish is Finish.CONTEXT and not completion.completion_ids:
            return None, completion
        line, error = parse_line(completion.text, cut_off=completion.finish is not Finish.STOP)
        said.append(
            Generation(
                role,
                completion.text,
                completion.prompt_ids,
                completion.completion_ids,
                completion.logprobs,
                None if error is None else str(error),
                completion.finish,
            )
        )
        return line, None
