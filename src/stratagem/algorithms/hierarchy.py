r"""Episodes of a hierarchical agent as the transitions of its three roles.

Each role has its own decision process (Zhen et al. 2026, arXiv:2604.05808, section 3.1 and the authors' code):

=============  ====================================================  ===================  ==============================
role           reward                                                ends                 the next state s'
=============  ====================================================  ===================  ==============================
``high``       sum of the game's rewards within the subtask          with the episode     its prompt at the next subtask
``low``        1 for the last action of a subtask, -1 for an         with the subtask     its prompt at the next step
               invalid action, else 0
``progress``   as ``low``, for the action that it sums up            with the subtask     its prompt after the next step
=============  ====================================================  ===================  ==============================

The last action of a subtask is the one that the low level says completes it; nobody checks (the paper names this as a
limitation). An episode that a limit cut off ends there like any other, as in the authors' code: the limit is part of
the task, and a failure without an end would teach nothing. A played episode has no progress for its last action; its
last progress stands for it.

Without subtasks (``use_subtasks = false``) there is no ``high``, and the others get what the game pays, -1 for an
invalid action, and end with the episode: nobody believes an agent that calls the whole task complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratagem.agents.hierarchical import HierarchicalAgent
from stratagem.agents.roles import ROLES, Role, TaskView, low_answer, parse_low, past_step
from stratagem.data.annotations import AnnotatedEpisode, one_subtask
from stratagem.models.base import TokenRow
from stratagem.types import Step, Trajectory

__all__ = ["Sample", "annotated_samples", "pack_samples", "played_samples", "unpack_samples"]

INVALID_REWARD = -1.0
"""For an invalid action; from the authors' code, as that for a subtask, 1."""


@dataclass(frozen=True)
class Sample:
    """One decision of one role: (s, u, r, s')."""

    role: Role
    prompt_ids: tuple[int, ...]
    """s."""
    completion_ids: tuple[int, ...]
    """u, with the token that ends it."""
    reward: float
    next_prompt_ids: tuple[int, ...] = ()
    """s'; empty where there is none."""

    @property
    def done(self) -> bool:
        """Whether nothing comes after."""
        return not self.next_prompt_ids

    @property
    def row(self) -> TokenRow:
        """What is cloned."""
        return self.prompt_ids, self.completion_ids


@dataclass(frozen=True)
class _Said:
    """A decision before what follows it is known."""

    role: Role
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    reward: float
    ends: bool


def _chain(said: Sequence[_Said]) -> list[Sample]:
    """Return samples whose next state is the next prompt of the same role, where the decision does not end there."""
    following: dict[Role, tuple[int, ...]] = {role: () for role in ROLES}
    samples = []
    for part in reversed(said):
        after = () if part.ends else following[part.role]
        samples.append(Sample(part.role, part.prompt, part.completion, part.reward, after))
        following[part.role] = part.prompt
    return samples[::-1]


def annotated_samples(agent: HierarchicalAgent, episode: AnnotatedEpisode) -> list[Sample]:
    """Return the samples of an expert episode, in the order in which they would be said.

    Args:
        agent: its templates are filled and its models' tokenizers used.
        episode: annotated.
    """
    models = {role: agent.models[role] for role in ROLES}

    def said(role: Role, messages: Sequence[tuple[str, str]], answer: str, reward: float, ends: bool) -> _Said:
        model, prefix = models[role], agent.templates[role].assistant_prefix
        completion = (*model.encode(answer), model.end_id)  # type: ignore[attr-defined]
        return _Said(role, model.encode_chat(messages, prefix), completion, reward, ends)  # type: ignore[attr-defined]

    use_progress, use_subtasks = agent.config.use_progress, agent.config.use_subtasks
    if not use_subtasks:
        episode = one_subtask(episode)
    view = TaskView(episode.task, episode.scene, "")
    found: list[_Said] = []
    completed: list[str] = []
    history: list[str] = []
    began = 0
    for number, step in enumerate(episode.steps):
        last = episode.steps[-1].subtask_number
        if use_subtasks and (number == 0 or episode.steps[number - 1].done):
            before = episode.steps[number - 1].next_progress if number and use_progress else "None"
            messages = agent.high_messages(view, completed, before, step.observation, history)
            reward = sum(other.reward for other in episode.steps if other.subtask_number == step.subtask_number)
            found.append(said("high", messages, step.subtask, reward, step.subtask_number == last))
            began = len(history)
        progress = step.progress if use_progress else "None"
        messages = agent.low_messages(view, step.subtask, progress, step.observation, (), history[began:])
        reward = float(step.done) if use_subtasks else step.reward
        found.append(said("low", messages, low_answer(step.action, step.done), reward, step.done))
        if use_progress:
            messages = agent.progress_messages(view, step.subtask, progress, step.action, step.next_observation)
            found.append(said("progress", messages, step.next_progress, reward, step.done))
        if agent.config.use_history:
            history.append(past_step(step.observation, step.action))
        if step.done:
            completed.append(step.subtask)
    return _chain(found)


def played_samples(trajectory: Trajectory) -> list[Sample]:
    """Return the samples of an episode that a hierarchical agent played, token for token as they were sampled."""
    steps = trajectory.steps
    begins = [number for number, step in enumerate(steps) if any(part.role == "high" for part in step.generations)]
    use_subtasks = bool(begins)  # the first step has one, where there are any
    ends = {begin - 1 for begin in begins if begin} | {len(steps) - 1}
    found: list[_Said] = []
    for number, step in enumerate(steps):
        for part in step.generations:
            role: Role = "high" if part.role == "high" else "progress"
            if role == "high":
                after = next((begin for begin in begins if begin > number), len(steps))
                reward, end = sum(other.reward for other in steps[number:after]), after == len(steps)
            else:  # sums up the action before; the last one that there is stands for the last action
                end = number - 1 in ends or number == len(steps) - 1
                about = step if number == len(steps) - 1 and number - 1 not in ends else steps[number - 1]
                reward = _low_reward(about, use_subtasks)
            found.append(_Said(role, part.prompt_ids, part.completion_ids, reward, end))
        found.append(
            _Said("low", step.prompt_ids, step.completion_ids, _low_reward(step, use_subtasks), number in ends)
        )
    return _chain([part for part in found if part.prompt and part.completion])


def _low_reward(step: Step, use_subtasks: bool) -> float:
    if step.action is None:
        return INVALID_REWARD
    if not use_subtasks:
        return step.reward
    return float(parse_low(step.completion, (step.action,)).done)


# ---- as tensors, for a checkpoint ----------------------------------------------------------------------------------


def pack_samples(episodes: Sequence[Sequence[Sample]]) -> dict[str, Tensor]:
    """Return episodes of samples as a few tensors."""
    samples = [sample for episode in episodes for sample in episode]
    tokens = [t for s in samples for part in (s.prompt_ids, s.completion_ids, s.next_prompt_ids) for t in part]
    lengths = [[len(s.prompt_ids), len(s.completion_ids), len(s.next_prompt_ids)] for s in samples]
    return {
        "tokens": torch.tensor(tokens, dtype=torch.int32),
        "lengths": torch.tensor(lengths, dtype=torch.int32).reshape(-1, 3),
        "rewards": torch.tensor([s.reward for s in samples], dtype=torch.float64),
        "roles": torch.tensor([ROLES.index(s.role) for s in samples], dtype=torch.int32),
        "sizes": torch.tensor([len(episode) for episode in episodes], dtype=torch.int32),
    }


def unpack_samples(tensors: Mapping[str, Tensor]) -> list[list[Sample]]:
    """Return what :func:`pack_samples` packed."""
    lengths = tensors["lengths"].numpy()
    bounds = np.cumsum(lengths.reshape(-1))[:-1]
    parts = [tuple(part.tolist()) for part in np.split(tensors["tokens"].numpy(), bounds)]
    samples = iter(
        Sample(ROLES[role], parts[3 * number], parts[3 * number + 1], reward, parts[3 * number + 2])
        for number, (role, reward) in enumerate(
            zip(tensors["roles"].tolist(), tensors["rewards"].tolist(), strict=True)
        )
    )
    return [[next(samples) for _ in range(size)] for size in tensors["sizes"].tolist()]
