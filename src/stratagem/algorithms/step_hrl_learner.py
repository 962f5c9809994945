r"""What STEP-HRL trains: one step of cloning, one of offline RL, and all that a checkpoint must hold.

The paper, the formulas and the departures are in :mod:`stratagem.algorithms.step_hrl`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from stratagem.agents.roles import ROLES
from stratagem.algorithms.gradients import bound_gradients
from stratagem.algorithms.hierarchy import Sample, pack_samples, unpack_samples
from stratagem.algorithms.offline_losses import awr_weights, expectile_loss, policy_loss, q_loss
from stratagem.algorithms.schedule import rate_factor
from stratagem.algorithms.step_hrl_config import StepHRLConfig
from stratagem.models.base import CriticModel, TokenRow
from stratagem.models.heads import Heads, check_trunk, trunk_states

__all__ = ["EndingModel", "Learner", "Memory", "Reading"]


class EndingModel(CriticModel, Protocol):
    """A model that says which token ends an answer."""

    @property
    def end_id(self) -> int:
        """The token that ends an answer which was written for the model to learn."""
        ...


class Memory:
    """What a checkpoint must hold besides weights and optimizer: the critics, and the episodes that were played."""

    def __init__(self, critics: Heads) -> None:
        """Start without episodes."""
        self.critics = critics
        self.played: list[list[Sample]] | None = None
        """None until the cloned policies have played."""

    def state(self) -> dict[str, Tensor]:
        """Return everything as tensors."""
        found = {f"critics.{name}": tensor for name, tensor in self.critics.state().items()}
        if self.played is not None:
            found |= {f"played.{name}": tensor for name, tensor in pack_samples(self.played).items()}
        return found

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`state` gave.

        Raises:
            ConfigError: the critics were others.
        """
        parts: dict[str, dict[str, Tensor]] = {"critics": {}, "played": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        self.critics.load_state(parts["critics"])
        self.played = unpack_samples(parts["played"]) if parts["played"] else None


@dataclass(frozen=True)
class Reading:
    """What a pass gives for some samples."""

    logprobs: Tensor
    """[sum of completion lengths] of the completion tokens, with gradients."""
    owner: Tensor
    """[same] number of the sample of each token."""
    prompt_states: Tensor
    """[N, C] at the last token of s."""
    answer_states: Tensor
    """[N, C] at the last token of u."""
    next_states: Tensor
    """[N, C] at the last token of s'; anything where nothing comes after."""
    num_computed: int
    num_seen: int


class Learner:
    """Model, critics, played episodes, optimizer and the number of the iteration: all that a checkpoint must hold."""

    def __init__(self, model: EndingModel, config: StepHRLConfig) -> None:
        """Make the critics and the optimizer.

        Raises:
            ConfigError: the critics ask for weights apart from those that train, and there are none.
        """
        check_trunk(model, config.critic)
        self.model = model
        self.config = config
        self.iteration = 0
        self.parameters = model.named_parameters()
        device = next(iter(self.parameters.values())).device
        names = [f"{role}_{kind}" for role in ROLES for kind in ("v", "q")]
        self.critics = Heads(model.hidden_size, dict.fromkeys(names, 1), config.critic, targets=names, device=device)
        self.heads = Memory(self.critics)
        """Under the name by which a run saves it."""
        self.critic_parameters = self.critics.named_parameters()
        self.optimizer = torch.optim.AdamW(
            [
                {"params": list(self.parameters.values()), "lr": config.bc_learning_rate},
                {"params": list(self.critic_parameters.values()), "lr": config.critic_learning_rate},
            ],
            weight_decay=config.weight_decay,
            foreach=True,
        )

    def policy_rate(self) -> float:
        """Return the learning rate of the policy: a function of the iteration alone."""
        config = self.config
        if self.iteration >= config.bc_iterations:
            return config.learning_rate
        factor = rate_factor(self.iteration, total=config.bc_iterations, warmup=0, decay=config.bc_decay)
        return config.bc_learning_rate * factor

    # ---- one step of each kind ---------------------------------------------------------------------------------------

    def clone(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Make one step of behaviour cloning and return its metrics."""
        self.optimizer.zero_grad(set_to_none=True)
        totals = _Totals()
        counts = _counts(samples)
        computed = seen = 0
        for part in self.model.split([sample.row for sample in samples], self.config.max_tokens_per_pass):
            some = [samples[i] for i in part]
            batch = self.model.logprobs([sample.row for sample in some])
            owner = _owner([len(sample.completion_ids) for sample in some], batch.logprobs.device)
            ones = torch.ones(len(some), device=batch.logprobs.device)
            loss, log_pi = self._policy_loss(batch.logprobs, owner, ones, some, counts)
            loss.backward()  # type: ignore[no-untyped-call]
            totals.add("bc_loss", some, -log_pi, counts)
            computed += batch.num_computed
            seen += batch.num_seen
        metrics = totals.means() | self._step(learns=True)
        return metrics | {"tokens_computed": float(computed), "tokens_seen": float(seen)}

    def improve(self, samples: Sequence[Sample], *, learns: bool) -> dict[str, float]:
        """Make one step of offline RL and return its metrics.

        Args:
            samples: whole episodes.
            learns: False in the warm-up, where only the critics learn.
        """
        config = self.config
        of_code = config.variant == "authors_code"
        self.optimizer.zero_grad(set_to_none=True)
        totals = _Totals()
        counts = _counts(samples)
        computed = seen = 0
        for part in self.model.split([sample.row for sample in samples], config.max_tokens_per_pass):
            some = [samples[i] for i in part]
            with torch.set_grad_enabled(learns or config.critic.trunk == "shared"):
                reading = self.read(some)
            device = reading.logprobs.device
            rewards = torch.tensor([sample.reward for sample in some], device=device)
            continues = torch.tensor([not sample.done for sample in some], device=device)
            share = torch.tensor([1 / counts[sample.role] for sample in some], device=device)
            by_role = [[n for n, sample in enumerate(some) if sample.role == role] for role in ROLES]
            advantages = torch.zeros(len(some), device=device)
            critic_loss = torch.zeros((), device=device)
            for role, places in zip(ROLES, by_role, strict=True):
                if not places:
                    continue
                index = torch.tensor(places, device=device)
                prompts, answers, after = (
                    states.index_select(0, index)
                    for states in (reading.prompt_states, reading.answer_states, reading.next_states)
                )
                values, q_values = self.critics(f"{role}_v", prompts), self.critics(f"{role}_q", answers)
                targets = self.critics.target(f"{role}_q", prompts if of_code else answers)
                of_q = q_loss(
                    q_values,
                    rewards[index],
                    self.critics.target(f"{role}_v", after),
                    continues[index],
                    gamma=config.gamma,
                )
                expectile = 1 - config.expectile if of_code else config.expectile
                of_v = expectile_loss(values, targets, expectile=expectile)
                critic_loss = critic_loss + ((of_q + of_v) * share[index]).sum()
                advantages[index] = (q_values - values).detach()
                chosen = [some[n] for n in places]
                for name, numbers in (("q_loss", of_q), ("v_loss", of_v), ("value", values), ("q_value", q_values)):
                    totals.add(name, chosen, numbers, counts)
            weights = awr_weights(advantages, temperature=config.awr_temperature, max_weight=config.max_weight)
            totals.add("advantage", some, advantages, counts)
            totals.add("awr_weight", some, weights, counts)
            totals.add("awr_clipped", some, (weights >= config.max_weight * (1 - 1e-6)).float(), counts)
            loss = critic_loss
            if learns:
                of_policy, log_pi = self._policy_loss(
                    reading.logprobs, reading.owner, advantages if of_code else weights, some, counts
                )
                loss = loss + of_policy
                totals.add("nll", some, -log_pi, counts)
            loss.backward()  # type: ignore[no-untyped-call]
            computed += reading.num_computed
            seen += reading.num_seen
        metrics = totals.means() | self._step(learns=learns)
        self.critics.update_targets(config.tau)
        return metrics | {"tokens_computed": float(computed), "tokens_seen": float(seen)}

    def read(self, samples: Sequence[Sample]) -> Reading:
        """Send samples and the states that follow them through the model, all in one token tree."""
        # One token more after each answer and each next prompt: the state before it is the one at their last token.
        rows: list[TokenRow] = [(s.prompt_ids, (*s.completion_ids, s.completion_ids[-1])) for s in samples]
        followed = [number for number, sample in enumerate(samples) if not sample.done]
        rows += [(samples[number].next_prompt_ids, samples[number].completion_ids[-1:]) for number in followed]
        batch = self.model.logprobs(rows)
        states = trunk_states(self.model, rows, batch, self.config.critic.trunk)
        device = states.device
        lengths = torch.tensor([len(completion) for _, completion in rows], device=device)
        ends = torch.cumsum(lengths, 0)
        count = len(samples)
        firsts, lasts = (ends - lengths)[:count], ends[:count] - 1
        after = firsts.clone()
        after[torch.tensor(followed, dtype=torch.int64, device=device)] = (ends - 1)[count:]
        kept = torch.ones(int(ends[-1]), dtype=torch.bool, device=device)
        kept[lasts] = False
        kept[int(ends[count - 1]) :] = False
        return Reading(
            batch.logprobs[kept],
            _owner([len(sample.completion_ids) for sample in samples], device),
            states.index_select(0, firsts),
            states.index_select(0, lasts),
            states.index_select(0, after),
            batch.num_computed,
            batch.num_seen,
        )

    def _policy_loss(
        self, logprobs: Tensor, owner: Tensor, weights: Tensor, samples: Sequence[Sample], counts: Mapping[str, int]
    ) -> tuple[Tensor, Tensor]:
        """Return the share of these samples in the batch's loss, and the mean log p of a token of each."""
        lengths = torch.tensor([len(sample.completion_ids) for sample in samples], device=logprobs.device)
        log_pi = logprobs.new_zeros(len(samples)).index_add(0, owner, logprobs)
        if self.config.variant == "authors_code":
            loss = policy_loss(log_pi / lengths, weights).sum() / counts["samples"]
        else:
            loss = policy_loss(log_pi, weights).sum() / counts["tokens"]
        return loss, (log_pi / lengths).detach()

    def _step(self, *, learns: bool) -> dict[str, float]:
        """Clip, step, and return the norms of the gradients."""
        norms = bound_gradients(
            self.parameters,
            self.critic_parameters,
            max_norm=self.config.max_grad_norm,
            learns=learns,
            iteration=self.iteration + 1,
        )
        self.optimizer.param_groups[0]["lr"] = self.policy_rate()
        self.optimizer.step()
        self.model.weights_changed()
        return norms

    def forget_moments(self) -> None:
        """Start offline RL with a fresh optimizer, as a script of its own would."""
        self.optimizer.state.clear()


def _owner(lengths: Sequence[int], device: torch.device) -> Tensor:
    return torch.arange(len(lengths), device=device).repeat_interleave(torch.tensor(lengths, device=device))


def _counts(samples: Sequence[Sample]) -> dict[str, int]:
    """Return how many decisions each role has, and all, and how many tokens they say."""
    found = {role: sum(sample.role == role for sample in samples) for role in ROLES}
    return found | {"samples": len(samples), "tokens": sum(len(sample.completion_ids) for sample in samples)}


class _Totals:
    """Means over the decisions of each role, added up over micro-batches."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}

    def add(self, name: str, samples: Sequence[Sample], numbers: Tensor, counts: Mapping[str, int]) -> None:
        for sample, number in zip(samples, numbers.detach().tolist(), strict=True):
            key = f"{name}_{sample.role}"
            self.sums[key] = self.sums.get(key, 0.0) + number / counts[sample.role]

    def means(self) -> dict[str, float]:
        """Return each role's mean, and the mean of the roles under the bare name."""
        found: dict[str, float] = {}
        for name in dict.fromkeys(key.rpartition("_")[0] for key in self.sums):
            of_roles = [self.sums[f"{name}_{role}"] for role in ROLES if f"{name}_{role}" in self.sums]
            found[name] = float(np.mean(of_roles))
        return found | self.sums
