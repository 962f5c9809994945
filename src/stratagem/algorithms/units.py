"""Units of decision: what a sample of each credit is made of, and its probability under the present weights.

A unit is a token (POAD, NTPO) or a whole action (TWOSOME); see :mod:`stratagem.algorithms.poad`. Equal samples are
computed once: a game comes back to its states, and a policy to its actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratagem.agents.branches import branch_logprobs
from stratagem.agents.history import HistoryAgent
from stratagem.agents.language import LanguageAgent
from stratagem.agents.scoring import ScoringAgent
from stratagem.algorithms.poad_config import POADConfig
from stratagem.models.base import CriticModel, TokenRow
from stratagem.models.heads import trunk_states

__all__ = ["Agent", "Sample", "Units", "sample_units"]

Agent = LanguageAgent | HistoryAgent | ScoringAgent


@dataclass(frozen=True)
class Sample:
    """One action, as the loss needs it: numbers for each of its units."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    candidates: tuple[tuple[int, ...], ...]
    """What was chosen among, if the policy of the units depends on it; else empty."""
    old_logprobs: np.ndarray
    """log pi_old of each unit."""
    values: np.ndarray
    """V of each unit when the batch was collected."""
    advantages: np.ndarray
    returns: np.ndarray

    @property
    def row(self) -> TokenRow:
        """What goes through the model, as far as its cost is concerned."""
        if self.candidates:
            return self.prompt_ids, tuple(token for ids in self.candidates for token in ids)
        return self.prompt_ids, self.completion_ids

    @property
    def num_seen(self) -> int:
        """Tokens that a row-by-row pass would compute for it."""
        return sum(len(self.prompt_ids) + len(ids) - 1 for ids in self.candidates or (self.completion_ids,))


@dataclass(frozen=True)
class Units:
    """What a pass gives for the units of some samples, one sample after the other; equal samples share D units."""

    logprobs: Tensor
    """[D] log pi_theta."""
    entropy: Tensor
    """[D]."""
    states: Tensor
    """[D, C] what the value head reads."""
    index: Tensor
    """[U] which of the D each unit is."""
    num_computed: int


def sample_units(model: CriticModel, samples: Sequence[Sample], agent: Agent, config: POADConfig) -> Units:
    """Return log pi, entropy and hidden state of every unit, from one pass."""
    if samples[0].candidates:
        assert isinstance(agent, ScoringAgent)
        choices = _choices if config.credit == "twosome" else _branches
        return choices(model, samples, agent, config)
    return _sequences(model, samples, agent, config)


def _sequences(model: CriticModel, samples: Sequence[Sample], agent: Agent, config: POADConfig) -> Units:
    """Return units of token sequences: each token, or all of them as one action."""
    places: dict[TokenRow, int] = {}
    chosen = [places.setdefault((s.prompt_ids, s.completion_ids), len(places)) for s in samples]
    rows = list(places)
    batch = model.logprobs(rows, temperature=_temperature(agent))
    states = trunk_states(model, rows, batch, config.critic.trunk)
    logprobs, entropy = batch.logprobs, batch.entropy
    lengths = np.array([len(completion) for _, completion in rows])
    starts = np.cumsum(lengths) - lengths
    if config.credit == "twosome":  # the whole completion is one action
        owner = torch.from_numpy(np.repeat(np.arange(len(rows)), lengths)).to(logprobs.device)
        logprobs, entropy = (logprobs.new_zeros(len(rows)).index_add(0, owner, x) for x in (logprobs, entropy))
        states = states.index_select(0, torch.from_numpy(starts).to(states.device))
        index = np.array(chosen)
    else:
        index = np.concatenate([np.arange(starts[row], starts[row] + lengths[row]) for row in chosen])
    where = torch.from_numpy(index).to(logprobs.device)
    return Units(logprobs, entropy, states, where, batch.num_computed)


def _decisions(
    samples: Sequence[Sample],
) -> tuple[dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], int], list[TokenRow]]:
    """Return the number of the first row of each distinct decision, and the rows of all their candidates."""
    first: dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], int] = {}
    rows: list[TokenRow] = []
    for sample in samples:
        if first.setdefault((sample.prompt_ids, sample.candidates), len(rows)) == len(rows):
            rows.extend((sample.prompt_ids, ids) for ids in sample.candidates)
    return first, rows


def _choices(model: CriticModel, samples: Sequence[Sample], agent: ScoringAgent, config: POADConfig) -> Units:
    """Return log pi of each choice among candidates; equal decisions cost once.

    The value of a decision is read at the last token of its prompt, which all candidates share.
    """
    choices, rows = _decisions(samples)
    batch = model.logprobs(rows)
    states = trunk_states(model, rows, batch, config.critic.trunk)
    policies: list[Tensor] = []
    entropies: list[Tensor] = []
    firsts: list[int] = []
    start = 0
    for _, candidates in choices:
        lengths = [len(ids) for ids in candidates]
        texts = [model.decode(ids, skip_special_tokens=True) for ids in candidates]
        parts = torch.split(batch.logprobs[start : start + sum(lengths)], lengths)
        log_pi, _ = agent.log_policy(parts, texts, candidates)
        policies.append(log_pi)
        entropies.append(-(log_pi.exp() * log_pi).sum().expand(len(candidates)))
        firsts += [start] * len(candidates)
        start += sum(lengths)
    index = [choices[s.prompt_ids, s.candidates] + s.candidates.index(s.completion_ids) for s in samples]
    device = states.device
    return Units(
        torch.cat(policies).float(),
        torch.cat(entropies).float(),
        states.index_select(0, torch.tensor(firsts, device=device)),
        torch.tensor(index, device=device),
        batch.num_computed,
    )


def _branches(model: CriticModel, samples: Sequence[Sample], agent: ScoringAgent, config: POADConfig) -> Units:
    """Return log pi of each token of the chosen action among those that go on to a candidate."""
    decisions, rows = _decisions(samples)
    batch = model.logprobs(rows)
    states = trunk_states(model, rows, batch, config.critic.trunk)
    starts = np.cumsum([0, *(len(ids) for _, ids in rows)])
    found: list[tuple[Tensor, Tensor]] = []
    for (_, candidates), row in decisions.items():
        tokens = batch.logprobs[starts[row] : starts[row + len(candidates)]].double()  # as in sampling
        found.append(branch_logprobs(tokens, candidates, temperature=agent.temperature))
    index: list[int] = []
    for sample in samples:
        row = decisions[sample.prompt_ids, sample.candidates] + sample.candidates.index(sample.completion_ids)
        index.extend(range(starts[row], starts[row + 1]))
    return Units(
        torch.cat([logprobs for logprobs, _ in found]).float(),
        torch.cat([entropy for _, entropy in found]).float(),
        states,
        torch.tensor(index, device=states.device),
        batch.num_computed,
    )


def _temperature(agent: Agent) -> float:
    # A scoring agent's temperature is that of its choice among actions, not of tokens.
    return 1.0 if isinstance(agent, ScoringAgent) else agent.generation.temperature
