r"""STEP-HRL: clone three roles from an expert, then learn from episodes that they played, one step at a time.

Paper: Zhen et al. 2026, "Hierarchical Reinforcement Learning with Augmented Step-Level Transitions for LLM Agents",
arXiv:2604.05808. The roles are those of :mod:`stratagem.agents.hierarchical`, their transitions those of
:mod:`stratagem.algorithms.hierarchy`. All roles share the policy; each has its own critic: two heads, V at the last
token of a prompt and Q at the last token of an answer.

1. Behaviour cloning on annotated expert episodes (``Learner.clone``): -log pi(u | s) of every role.
2. Once: the cloned policies play new episodes (``collect``), which join those of the expert.
3. Offline RL (``Learner.improve``), for the critics of each role

   .. math:: L_Q = (r + \gamma \bar V(s') - Q(s, u))^2, \qquad
             L_V = |\tau_2 - 1(\bar Q(s, u) < V(s))|\, (\bar Q(s, u) - V(s))^2

   with slow copies moved by tau_1 after each step, and for the policy, after ``critic_warmup`` steps,

   .. math:: L_\pi = -\min(e^{A/\beta}, w_{max}) \log\pi(u|s), \qquad A = Q(s, u) - V(s)

A step is on whole episodes. So all decisions of all roles of an episode, and the next states of most of them, are in
one token tree, and what their prompts share is computed once.

``variant="authors_code"`` does what the authors' code does instead: Q of the V loss is read at the last token of the
*prompt*, the sides of the expectile are exchanged, the weight is A itself, and log pi(u | s) is the mean over tokens.

Departures from the paper:

- A batch is a number of episodes, not of decisions; a loss is the mean over the decisions of each role (critics) or
  over the tokens of all (policy; the authors' code: over decisions). The authors clone the high level in every fourth
  step only, here in each.
- ``exp`` is bounded by ``max_weight``, which the paper does not mention.
- V(s') is read from the present model by the slow head; there is no slow copy of the model.
- An agent without roles can be trained by the same losses (:mod:`stratagem.algorithms.flat`), to compare with.
- Heads are as wide as :class:`.HeadConfig` says and start at zero; the authors' are as wide as the model.
- An episode that a limit cut off counts as ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from stratagem.agents.hierarchical import HierarchicalAgent
from stratagem.agents.history import HistoryAgent
from stratagem.agents.language import LanguageAgent
from stratagem.agents.reflexion import ReflexionAgent
from stratagem.algorithms.episodes import describe_episodes
from stratagem.algorithms.flat import flat_samples
from stratagem.algorithms.hierarchy import Sample, annotated_samples, played_samples
from stratagem.algorithms.ms_grpo import Iteration
from stratagem.algorithms.step_hrl_config import StepHRLConfig
from stratagem.algorithms.step_hrl_learner import Learner
from stratagem.data.annotations import AnnotatedEpisode, read_annotations
from stratagem.data.expert import expert_episodes
from stratagem.errors import ConfigError
from stratagem.games.base import Game
from stratagem.rollout import Player, play_groups
from stratagem.seeding import generator
from stratagem.types import Trajectory, TrajectoryGroup

__all__ = ["Agent", "Learner", "StepHRLConfig", "batch_of", "check_trainable", "collect", "describe_roles", "train"]

Agent = HierarchicalAgent | LanguageAgent | HistoryAgent
"""Who can be trained."""

T = TypeVar("T")


def batch_of(episodes: Sequence[Sequence[T]], step: int, size: int, *, seed: int, stage: str) -> tuple[list[T], float]:
    """Return the samples of a step and how many passes over the episodes came before it; nothing is kept in between.

    Args:
        episodes: what there is.
        step: number of the step within its stage.
        size: episodes of one step.
        seed: of the run.
        stage: steps of another stage are in another order.
    """
    chosen: list[T] = []
    order: np.ndarray | None = None
    for place in range(step * size, (step + 1) * size):
        epoch, position = divmod(place, len(episodes))
        if order is None or position == 0:
            order = generator(seed, "order", stage, epoch).permutation(len(episodes))
        chosen.extend(episodes[order[position]])
    return chosen, step * size / len(episodes)


def collect(
    agent: Agent,
    make_game: Callable[[], Game],
    config: StepHRLConfig,
    *,
    seed: int,
    opponents: Sequence[Player] = (),
    excluded_starts: frozenset[str] = frozenset(),
    max_concurrent: int = 1024,
    on_finish: Callable[[int, Trajectory], None] | None = None,
) -> tuple[list[TrajectoryGroup], list[Trajectory]]:
    """Let the cloned policies play; return groups of one, and the episodes whose game failed.

    An agent without roles has no high level to vary what is done, and plays at ``collect_temperature``.
    """
    player: Player
    if isinstance(agent, HierarchicalAgent):
        player = agent.with_temperatures(
            config.collect_temperature, config.collect_low_temperature, config.collect_temperature
        )
    else:
        player = agent.with_temperature(config.collect_temperature)
    return play_groups(
        make_game,
        [player, *opponents],
        num_groups=config.num_collected,
        group_size=1,
        address=(seed, "collect"),
        excluded_starts=excluded_starts,
        max_steps=config.max_steps,
        max_concurrent=max_concurrent,
        smallest=1,
        on_finish=on_finish,
    )


def train(
    learner: Learner,
    agent: Agent,
    make_game: Callable[[], Game],
    *,
    seed: int,
    opponents: Sequence[Player] = (),
    excluded_starts: frozenset[str] = frozenset(),
    max_concurrent: int = 1024,
    on_finish: Callable[[int, Trajectory], None] | None = None,
) -> Iterator[Iteration]:
    """Clone, play once, and learn offline, from the learner's iteration on; yield after each iteration.

    Args:
        learner: holds the model of ``agent``.
        agent: plays seat 0 and is trained.
        make_game: a new game for each episode that is under way.
        seed: of the run.
        opponents: who plays seats 1, 2, ...
        excluded_starts: state keys of evaluation panels; no episode starts there.
        max_concurrent: episodes under way at once.
        on_finish: called as episodes end (progress).

    Raises:
        ConfigError: the agent cannot be trained, or there is nobody to clone.
        RunError: the annotation file cannot be used.
    """
    config = learner.config
    check_trainable(agent)
    if config.annotations is not None:
        annotated = read_annotations(Path(config.annotations))[: config.num_expert_episodes]
    else:
        annotated = expert_episodes(make_game, config.num_expert_episodes, seed=seed, excluded_starts=excluded_starts)
    expert = _expert_samples(agent, make_game, annotated)
    while learner.iteration < config.num_iterations:
        number = learner.iteration + 1
        clones = number <= config.bc_iterations
        stage, before = ("clone", 0) if clones else ("improve", config.bc_iterations)
        groups: list[TrajectoryGroup] = []
        failed: list[Trajectory] = []
        metrics: dict[str, float] = {}
        if not clones and learner.heads.played is None:
            learner.model.weights_changed()
            if config.num_collected:
                groups, failed = collect(
                    agent,
                    make_game,
                    config,
                    seed=seed,
                    opponents=opponents,
                    excluded_starts=excluded_starts,
                    max_concurrent=max_concurrent,
                    on_finish=on_finish,
                )
            learner.heads.played = [played_samples(t) for group in groups for t in group.trajectories]
            learner.forget_moments()
            metrics |= describe_episodes(groups) | describe_roles(groups)
        episodes = expert if clones else [*expert, *filter(None, learner.heads.played or ())]
        collected: list[dict[str, float]] = []
        for turn in range(config.steps_per_iteration):
            step = (learner.iteration - before) * config.steps_per_iteration + turn
            samples, epoch = batch_of(episodes, step, config.batch_episodes, seed=seed, stage=stage)
            if clones:
                collected.append(learner.clone(samples))
            else:
                collected.append(learner.improve(samples, learns=step >= config.critic_warmup))
            collected[-1] |= {"epoch": epoch, "num_samples": float(len(samples))}
        for key in dict.fromkeys(key for row in collected for key in row):
            numbers = [row[key] for row in collected if key in row]
            metrics[key] = float(np.sum(numbers) if key.startswith("tokens_") else np.mean(numbers))
        metrics["learning_rate"] = learner.policy_rate()
        learner.iteration += 1
        advantages: list[dict[int, float]] = [{} for _ in groups]
        yield Iteration(number, groups, advantages, failed, metrics)


def _expert_samples(
    agent: Agent, make_game: Callable[[], Game], annotated: Sequence[AnnotatedEpisode]
) -> list[list[Sample]]:
    if isinstance(agent, HierarchicalAgent):
        return [annotated_samples(agent, episode) for episode in annotated]
    game = make_game()
    try:
        return [flat_samples(agent, game, episode) for episode in annotated]
    finally:
        game.close()


def describe_roles(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Return how the roles fared in episodes: subtasks, words of each, and the share that could not be used."""
    played = [t for group in groups for t in group.trajectories]
    if not played:
        return {}
    found: dict[str, float] = {}
    for role in ("high", "progress"):
        said = [part for t in played for step in t.steps for part in step.generations if part.role == role]
        found[f"calls_{role}"] = len(said) / len(played)
        if said:
            found[f"malformed_rate_{role}"] = sum(part.parse_error is not None for part in said) / len(said)
            found[f"tokens_per_call_{role}"] = sum(len(part.completion_ids) for part in said) / len(said)
    if any(t.success is not None for t in played):  # an episode without a verdict counts as a failure beside others
        found["collected_failure_rate"] = 1 - sum(bool(t.success) for t in played) / len(played)
    return found


def check_trainable(agent: object) -> None:
    """Refuse an agent that cannot be trained.

    Raises:
        ConfigError: it does not write answers, or its roles are on several models.
    """
    if not isinstance(agent, Agent) or isinstance(agent, ReflexionAgent):
        raise ConfigError(
            "algorithm.name='step_hrl' trains the roles of a hierarchical agent, or to compare with it an agent that "
            "writes its actions; set agent.name = 'hierarchical', 'language' or 'react'."
        )
    if isinstance(agent, HierarchicalAgent) and len({id(model) for model in agent.models.values()}) > 1:
        raise ConfigError("The roles are on several models; expected one that all share, as it is what is trained.")
