r"""What a step of an agent costs: tokens and seconds, for agents that are shown the history and agents that are not.

All are led through one and the same episode: observations and actions are an expert's, as in figure 3 of Zhen et al.
2026 (arXiv:2604.05808). Nothing is sampled to count tokens, so the numbers are exact. Three agents:

- ``flat``: a ReAct agent, all observations and actions as a chat. The expert wrote no thoughts, so it has none here;
  real ones would make its prompts longer still.
- ``history``: a hierarchy with histories (the paper's eq. 1 and 2, "HRL" in its figure). The high level is shown the
  whole episode when a subtask is named, the low level what happened within the subtask.
- ``step_hrl``: the agent of :mod:`stratagem.agents.hierarchical`, with all three roles.

``prompt`` counts the tokens of all prompts of a step, ``generated`` those of its answers. ``new`` counts the tokens of
both that do not stand at the beginning of anything the episode computed before: what is left to compute where equal
beginnings are kept, as a token tree or a server with a prefix cache does. It is the number that a chat is good at.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stratagem.agents.hierarchical import HierarchicalAgent, HierarchicalConfig
from stratagem.agents.react import ReActAgent
from stratagem.algorithms.flat import flat_samples
from stratagem.algorithms.hierarchy import annotated_samples
from stratagem.data.annotations import AnnotatedEpisode
from stratagem.games.base import Game
from stratagem.models.base import GenerationConfig

__all__ = ["AGENTS", "AgentKind", "Call", "StepCost", "count_tokens", "episode_calls", "measure_seconds"]

AgentKind = Literal["flat", "history", "step_hrl"]
AGENTS: dict[AgentKind, str] = {
    "flat": "flat, all of the history (ReAct's form)",
    "history": "hierarchy with histories",
    "step_hrl": "STEP-HRL",
}
"""Agent -> what tables call it."""


@dataclass(frozen=True)
class Call:
    """One request to the model."""

    role: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    """What the expert would have said."""


@dataclass(frozen=True)
class StepCost:
    """What one step costs."""

    calls: int
    prompt: int
    """Tokens of all its prompts."""
    generated: int
    """Tokens of all its answers."""
    new: int
    """Tokens of both that are no beginning of anything before."""


def episode_calls(kind: AgentKind, model: Any, game: Game, episode: AnnotatedEpisode) -> list[list[Call]]:
    """Return the requests of each step of an episode.

    Args:
        kind: which agent.
        model: its tokenizer is used.
        game: the one that the episode is of, from which the flat agent's prompts come.
        episode: annotated.
    """
    if kind == "flat":
        samples = flat_samples(ReActAgent.from_config(model), game, episode)
        return [[Call("flat", sample.prompt_ids, sample.completion_ids)] for sample in samples]
    config = HierarchicalConfig(use_history=True, use_progress=False) if kind == "history" else None
    steps: list[list[Call]] = [[]]
    for sample in annotated_samples(HierarchicalAgent.from_config(model, config), episode):
        # An action ends a step; the progress of the last one is never asked for.
        steps[-1].append(Call(sample.role, sample.prompt_ids, sample.completion_ids))
        if sample.role == "low":
            steps.append([])
    return steps[:-1]


def count_tokens(steps: Iterable[Sequence[Call]]) -> list[StepCost]:
    """Return what each step of an episode costs."""
    known: dict[int, Any] = {}  # a token -> what followed it
    costs = []
    for calls in steps:
        new = 0
        for call in calls:
            node = known
            for token in (*call.prompt_ids, *call.answer_ids):
                if token not in node:
                    node[token] = {}
                    new += 1
                node = node[token]
        costs.append(
            StepCost(
                len(calls),
                sum(len(call.prompt_ids) for call in calls),
                sum(len(call.answer_ids) for call in calls),
                new,
            )
        )
    return costs


def measure_seconds(model: Any, steps: Sequence[Sequence[Call]], *, keep: bool) -> list[tuple[float, int]]:
    """Return the seconds of each step, and the tokens that were generated in it.

    An answer is sampled greedily with as many tokens as the expert's has at most; one that the model ends earlier is
    shorter, so both numbers are needed to compare.

    Args:
        model: a :class:`stratagem.models.local.LocalModel`.
        steps: of :func:`episode_calls`.
        keep: equal beginnings are kept from call to call of this episode; without, each call computes its whole prompt.
    """
    model.weights_changed()  # forgets other episodes
    found = []
    for calls in steps:
        started, generated = time.perf_counter(), 0
        for call in calls:
            if not keep:
                model.weights_changed()
            config = GenerationConfig(max_new_tokens=len(call.answer_ids), temperature=0.0)
            (row,) = model.sample([call.prompt_ids], config)
            generated += len(row.completion_ids)
        found.append((time.perf_counter() - started, generated))
    return found
