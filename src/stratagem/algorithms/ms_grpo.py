"""Multi-Step Group-Relative Policy Optimization (MS-GRPO).

Paper: Dilkes, Yazdanpanah, Stein 2025, "Reinforced Language Models for Sequential Decision Making", arXiv:2508.10839.

For each iteration of :func:`train`, as Algorithm 1:

1. theta_old <- theta: the sampler forgets what it computed with older weights (line 3).
2. Starts s_0 are drawn; G episodes are played from each, every step prompted with its own observation only (4-18).
3. C_j = sum_t (r_t + Phi_t), A_j = (C_j - mean) / std over the group (17, 19; eq. 4).
4. If T_ep is set: G' of G episodes are drawn with p_j ~ exp(|A_j| / T_ep), A_j recomputed on them (20-23; eq. 5).
5. Ascent on J = 1/G' sum_j 1/|y_j| sum_t sum_k min(w A_j, clip(w, 1 - eps_low, 1 + eps_up) A_j) - beta KL
   (24; eq. 1-3).

Departures from the paper:

- ``num_groups`` starts per iteration instead of one; J is averaged over them. Groups without a signal (std C = 0) are
  left out, unless KL or entropy is in the objective: those terms hold there too, and keep a policy from freezing.
- ``minibatch_groups`` and ``num_epochs`` allow several steps of ascent on one collection, which is what the clip is
  for; one step on everything is the paper's.
- KL is averaged over tokens like the surrogate (1/|y_j| within an episode); the paper leaves its normalisation open.
  The estimator is named: k3 is GRPO's.
- std is that of the population; the paper does not say.
- ``ent_coef`` and ``step_coef`` add an entropy bonus and step-level credit; both are 0 in the paper's objective.
- ``baseline``, ``dynamic_groups`` and ``adaptive_temperature`` are remedies for the inconsistency between runs that the
  paper reports (:func:`stratagem.algorithms.advantages.leave_one_out`, :mod:`stratagem.algorithms.dynamic`,
  :mod:`stratagem.algorithms.temperature`); all are off by default.
- ``average_decay`` plays panels with a moving average of the weights (:mod:`stratagem.algorithms.average`); off by
  default.
- ``minibatch_prompts`` makes each of several steps of prompts from all groups instead of whole groups.
- ``max_kl`` shortens steps of ascent that move the policy too far from theta_old; off by default.
- The paper gives no learning rate, eps, beta, T_ep, sampling temperature or step limit. The defaults here are marked
  "ours" or by their source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stratagem.agents.history import HistoryAgent
from stratagem.agents.language import LanguageAgent
from stratagem.algorithms.average import WeightAverage
from stratagem.algorithms.checks import check_ratio_gap
from stratagem.algorithms.dynamic import collect
from stratagem.algorithms.episodes import describe_episodes
from stratagem.algorithms.kl import KL_ESTIMATORS
from stratagem.algorithms.losses import clipped_surrogate
from stratagem.algorithms.ms_grpo_config import MSGRPOConfig
from stratagem.algorithms.samples import GroupSamples, Sample, make_samples
from stratagem.algorithms.schedule import rate_factor
from stratagem.algorithms.temperature import Thermostat, sampled_entropy
from stratagem.errors import ConfigError
from stratagem.games.base import Game
from stratagem.models.base import TrainableModel
from stratagem.rollout import Player, play_groups
from stratagem.seeding import generator
from stratagem.types import Trajectory, TrajectoryGroup

__all__ = [
    "GroupSamples",
    "Iteration",
    "Learner",
    "MSGRPOConfig",
    "Sample",
    "make_minibatches",
    "make_samples",
    "objective",
    "train",
]


@dataclass
class Iteration:
    """What one iteration did."""

    number: int
    """1 for the first."""
    groups: list[TrajectoryGroup]
    advantages: list[dict[int, float]]
    """A_j of the chosen episodes of each group."""
    failed: list[Trajectory]
    metrics: dict[str, float] = field(default_factory=dict)


def objective(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl: Tensor | None = None,
    kl_coef: float = 0.0,
    entropy: Tensor | None = None,
    ent_coef: float = 0.0,
) -> Tensor:
    """Return -J of eq. 1 for the tokens given: a sum, so parts of a batch add up to the whole.

    Args:
        logprobs: [T] log p_theta.
        old_logprobs: [T] log p_theta_old.
        advantages: [T] A_j of each token's episode.
        weights: [T] 1 / (G' |y_j|), divided by the number of groups that the step stands for.
        clip_low: eps_low.
        clip_high: eps_up.
        kl: [T] estimate of KL(p_theta || p_ref).
        kl_coef: beta.
        entropy: [T] entropy of the next-token distribution.
        ent_coef: weight of the entropy bonus.
    """
    loss = clipped_surrogate(logprobs, old_logprobs, advantages, clip_low=clip_low, clip_high=clip_high)
    if kl is not None and kl_coef:
        loss = loss + kl_coef * kl
    if entropy is not None and ent_coef:
        loss = loss - ent_coef * entropy
    return (weights * loss).sum()


@dataclass(frozen=True)
class Trust:
    """How far a step may go."""

    samples: tuple[Sample, ...]
    """Where the policy is compared with theta_old."""
    share: float = 1.0
    """Of ``max_kl``; the steps on one collection use it up one after the other."""


class Learner:
    """Model, optimizer and the number of the iteration: all that a checkpoint must hold.

    With an adaptive sampling temperature also that. Randomness is addressed by (seed, iteration, ...), so there is no
    generator state.
    """

    def __init__(self, model: TrainableModel, config: MSGRPOConfig) -> None:
        """Make the optimizer; the present weights become the reference policy if beta > 0."""
        self.model = model
        self.config = config
        self.iteration = 0
        self.parameters = model.named_parameters()
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=config.learning_rate, weight_decay=config.weight_decay, foreach=True
        )
        adaptive = config.adaptive_temperature
        self.thermostat = None if adaptive is None else Thermostat(adaptive)
        self.average = WeightAverage(model, config.average_decay) if config.average_decay else None
        self.on_update: Callable[[float], None] | None = None
        """Told the share of an update that is done, after each pass (progress)."""
        if config.kl_coef > 0:
            model.keep_reference()

    @property
    def heads(self) -> Thermostat | None:
        """What a checkpoint holds besides weights and optimizer, under the name that the driver asks for."""
        return self.thermostat

    def learning_rate(self) -> float:
        """Return the rate of the present iteration: warm-up, then decay; a function of the iteration alone."""
        config = self.config
        factor = rate_factor(
            self.iteration, total=config.num_iterations, warmup=config.warmup_iterations, decay=config.decay
        )
        return config.learning_rate * factor

    def step(
        self,
        samples: Sequence[Sample],
        num_groups: float,
        temperature: float,
        trust: Trust | None = None,
        *,
        place: tuple[int, int] = (0, 1),
    ) -> dict[str, float]:
        """Make one step of ascent on the samples of ``num_groups`` groups and return its metrics.

        Micro-batches add up to exactly the gradient of the whole. Without ``trust`` a step is judged on its own samples
        and may go the whole way to ``max_kl``. ``place`` says which step of how many of an update it is, for
        :attr:`on_update` alone.
        """
        config = self.config
        trust = trust or Trust(tuple(samples))
        self.optimizer.zero_grad(set_to_none=True)
        rows = [(sample.prompt_ids, sample.completion_ids) for sample in samples]
        sums = {"loss": 0.0, "kl": 0.0, "entropy": 0.0, "clipped": 0.0, "ratio_gap": 0.0, "approx_kl": 0.0}
        computed = seen = num_tokens = 0
        parts = self.model.split(rows, config.max_tokens_per_pass)
        for number, part in enumerate(parts, start=1):
            batch = self.model.logprobs([rows[i] for i in part], temperature=temperature)
            old, advantages, weights = _token_tensors([samples[i] for i in part], batch.logprobs.device)
            weights = weights / num_groups
            kl = None
            if config.kl_coef > 0:
                reference = self.model.reference_logprobs([rows[i] for i in part], temperature=temperature)
                kl = KL_ESTIMATORS[config.kl_estimator](batch.logprobs, reference)
                sums["kl"] += float((weights * kl).sum().detach())
            loss = objective(
                batch.logprobs,
                old,
                advantages,
                weights,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
                kl=kl,
                kl_coef=config.kl_coef,
                entropy=batch.entropy,
                ent_coef=config.ent_coef,
            )
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                log_ratio = batch.logprobs - old
                ratio = log_ratio.exp()
                outside = (ratio < 1 - config.clip_low) & (advantages < 0)
                outside |= (ratio > 1 + config.clip_high) & (advantages > 0)
                sums["loss"] += float(loss.detach())
                sums["clipped"] += float(outside.sum())
                sums["entropy"] += float((weights * batch.entropy).sum())
                sums["approx_kl"] += float((weights * (ratio - 1 - log_ratio)).sum())
                sums["ratio_gap"] = max(sums["ratio_gap"], float((ratio - 1).abs().max()))
            computed += batch.num_computed
            seen += batch.num_seen
            num_tokens += len(old)
            if self.on_update is not None:
                self.on_update((place[0] + number / len(parts)) / place[1])
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), config.max_grad_norm)
        if not torch.isfinite(norm):
            raise FloatingPointError(
                f"The gradient norm is {float(norm)} at iteration {self.iteration + 1}; expected a finite number. "
                'Lower algorithm.learning_rate or use model.dtype = "float32".'
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        before = None if config.max_kl is None else [p.detach().clone() for p in self.parameters.values()]
        self.optimizer.step()
        length: dict[str, float] = {}
        if before is not None:
            length["step_share"], length["step_kl"] = self._shorten(before, trust, temperature)
        self.model.weights_changed()
        total_weight = sum(s.weight * len(s.completion_ids) for s in samples) / num_groups
        return {
            "loss": sums["loss"],
            "kl_to_reference": sums["kl"],
            "entropy": sums["entropy"] / total_weight,
            "approx_kl": sums["approx_kl"] / total_weight,
            "clip_fraction": sums["clipped"] / num_tokens,
            "ratio_gap": sums["ratio_gap"],
            "grad_norm": float(norm),
            **length,
            "tokens_computed": float(computed),
            "tokens_seen": float(seen),
        }

    @torch.no_grad()
    def _shorten(self, before: list[Tensor], trust: Trust, temperature: float) -> tuple[float, float]:
        """Shorten the step that was just made until the policy is at most so far away from theta_old.

        Returns:
            The share of the step that was kept, and the KL after it, which is a guess where it was not computed again.
            Adam's moments keep the gradient as it was.
        """
        assert self.config.max_kl is not None
        limit = self.config.max_kl * trust.share
        rows = [(sample.prompt_ids, sample.completion_ids) for sample in trust.samples]
        old, _, _ = _token_tensors(trust.samples, before[0].device)
        share = 1.0
        while True:
            log_ratio = self.model.logprobs(rows, temperature=temperature).logprobs - old
            # The tokens were drawn from theta_old: k3 of KL(theta_old || theta), summed over a completion.
            kl = float((log_ratio.exp() - 1 - log_ratio).sum()) / len(rows)
            if kl <= limit or share < _MIN_SHARE:
                return share, kl
            factor = min(0.5, 0.9 * math.sqrt(limit / kl))
            share *= factor
            torch._foreach_lerp_(list(self.parameters.values()), before, 1 - factor)
            if kl <= _QUADRATIC * limit:
                # KL grows with the square of a short step from theta_old. Later steps of an iteration begin elsewhere:
                # for them this is too low, and they may go a little past their part.
                return share, kl * factor**2


def _token_tensors(samples: Sequence[Sample], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return [T] old log-probabilities, advantages and weights, the samples' tokens one after the other."""
    lengths = torch.tensor([len(s.completion_ids) for s in samples])
    old = torch.tensor([x for s in samples for x in s.old_logprobs], dtype=torch.float32)
    advantages = torch.tensor([s.advantage for s in samples], dtype=torch.float32).repeat_interleave(lengths)
    weights = torch.tensor([s.weight for s in samples], dtype=torch.float32).repeat_interleave(lengths)
    return old.to(device), advantages.to(device), weights.to(device)


_KL_ROWS = 12
"""Samples on which the length of a step is judged; few, since they cost a forward pass."""
_QUADRATIC = 8.0
"""Up to this many times ``max_kl`` the square law is trusted."""
_MIN_SHARE = 0.02
"""A step is not shortened further once it is below this share."""


def _judged(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Choose samples with different prompts, evenly from all groups: a step on one board also moves the others."""
    distinct = list({sample.prompt_ids: sample for sample in samples}.values())
    return tuple(distinct[:: -(-len(distinct) // _KL_ROWS)]) if distinct else ()


def make_minibatches(
    per_group: Sequence[Sequence[Sample]], config: MSGRPOConfig, rng: np.random.Generator
) -> list[tuple[list[Sample], float]]:
    """Return what each step of ascent is made of: samples, and how many groups they stand for.

    With ``minibatch_prompts`` the prompts of all groups are shared out evenly among the steps, each with all of its
    samples; else a step takes whole groups.

    Args:
        per_group: samples of each group.
        config: ``minibatch_groups`` and ``minibatch_prompts``.
        rng: draws the order.
    """
    if not per_group:
        return []
    if config.minibatch_prompts is None:
        size = config.minibatch_groups or len(per_group)
        order = rng.permutation(len(per_group))
        parts = [[per_group[i] for i in order[start : start + size]] for start in range(0, len(order), size)]
        return [([s for samples in part for s in samples], float(len(part))) for part in parts]
    by_prompt: dict[tuple[int, ...], list[Sample]] = {}
    for samples in per_group:
        for sample in samples:
            by_prompt.setdefault(sample.prompt_ids, []).append(sample)
    prompts = list(by_prompt.values())
    num_steps = -(-len(prompts) // config.minibatch_prompts)
    order = rng.permutation(len(prompts))
    shares = [[s for i in order[place::num_steps] for s in prompts[i]] for place in range(num_steps)]
    return [(samples, len(per_group) / num_steps) for samples in shares]


def update(learner: Learner, per_group: Sequence[GroupSamples], temperature: float, seed: int) -> dict[str, float]:
    """Learn from the groups that have samples: ``num_epochs`` passes in steps of :func:`make_minibatches`.

    Raises:
        RuntimeError: sampler and learner disagree on the probabilities of the very same weights.
    """
    config = learner.config
    useful = [group.samples for group in per_group if group.samples]
    collected: list[dict[str, float]] = []
    judged = _judged([s for samples in useful for s in samples])
    for epoch in range(config.num_epochs):
        rng = generator(seed, "minibatch", learner.iteration, epoch)
        minibatches = make_minibatches(useful, config, rng)
        for samples, num_groups in minibatches:
            num_steps = config.num_epochs * len(minibatches)
            trust = Trust(judged, (len(collected) + 1) / num_steps)
            metrics = learner.step(samples, num_groups, temperature, trust, place=(len(collected), num_steps))
            if not collected:
                check_ratio_gap(learner.model, metrics["ratio_gap"], metrics["approx_kl"])
            collected.append(metrics)
    learner.iteration += 1
    if learner.average is not None:
        learner.average.update()
    if not collected:
        return {"num_updates": 0.0}
    averaged = {key: float(np.mean([metrics[key] for metrics in collected])) for key in collected[0]}
    for key in ("tokens_computed", "tokens_seen"):
        averaged[key] = float(sum(metrics[key] for metrics in collected))
    averaged["ratio_gap"] = collected[0]["ratio_gap"]
    return {**averaged, "num_updates": float(len(collected))}


def train(
    learner: Learner,
    agent: LanguageAgent | HistoryAgent,
    make_game: Callable[[], Game],
    *,
    seed: int,
    opponents: Sequence[Player] = (),
    excluded_starts: frozenset[str] = frozenset(),
    max_concurrent: int = 1024,
    on_finish: Callable[[int, Trajectory], None] | None = None,
) -> Iterator[Iteration]:
    """Run Algorithm 1 from the learner's iteration on; yield after each iteration.

    Args:
        learner: holds the model of ``agent``.
        agent: plays seat 0 and is trained; must sample without truncation at a temperature above 0.
        make_game: a new game for each episode that is under way.
        seed: of the run.
        opponents: who plays seats 1, 2, ...
        excluded_starts: state keys of evaluation panels; no group starts there.
        max_concurrent: episodes under way at once.
        on_finish: called as episodes end (progress).

    Raises:
        ConfigError: the agent's sampling settings cannot be trained.
    """
    config, thermostat = learner.config, learner.thermostat
    check_trainable(agent)
    if thermostat is not None:
        thermostat.config.check(agent.generation.temperature)

    def play(first: int, count: int) -> tuple[list[TrajectoryGroup], list[Trajectory]]:
        return play_groups(
            make_game,
            [agent.with_temperature(temperature), *opponents],
            num_groups=count,
            first_group=first,
            group_size=config.group_size,
            address=(seed, "train", number),
            excluded_starts=excluded_starts,
            max_steps=config.max_steps,
            max_concurrent=max_concurrent,
            on_finish=on_finish,
        )

    def learn(place: int, group: TrajectoryGroup) -> GroupSamples:
        return make_samples(group, config, generator(seed, "aaw", number, place))

    while learner.iteration < config.num_iterations:
        number = learner.iteration + 1
        temperature = agent.generation.temperature
        if thermostat is not None and thermostat.temperature is not None:
            temperature = thermostat.temperature
        learner.model.weights_changed()  # theta_old <- theta
        found = collect(play, learn, num_groups=config.num_groups, max_extra=config.dynamic_groups)
        rate = learner.learning_rate()
        metrics = update(learner, found.learnt_from(config.num_groups), temperature, seed)
        metrics = {**describe_episodes(found.groups), "learning_rate": rate, **metrics}
        if found.groups:
            metrics["groups_without_signal"] = float(np.mean([not group.has_signal for group in found.samples]))
        if config.dynamic_groups:
            metrics["extra_groups"] = float(found.num_drawn - config.num_groups)
        if thermostat is not None:
            entropy = sampled_entropy(found.groups)
            thermostat.observe(temperature, entropy)
            metrics |= {"temperature": temperature, "sampled_entropy": float("nan") if entropy is None else entropy}
        yield Iteration(number, found.groups, [group.advantages for group in found.samples], found.failed, metrics)


def check_trainable(agent: LanguageAgent | HistoryAgent) -> None:
    """Refuse sampling whose log-probabilities the learner cannot reproduce.

    Raises:
        ConfigError: greedy or truncated sampling, or no sampling of tokens at all.
    """
    if not isinstance(agent, LanguageAgent | HistoryAgent):
        raise ConfigError(
            "agent.name='scoring' chooses among whole actions, and MS-GRPO trains tokens that were sampled; set "
            "agent.name = 'language', or algorithm.name = 'poad'."
        )
    generation = agent.generation
    if generation.temperature <= 0:
        raise ConfigError("agent.temperature=0 always gives the same episode, so nothing is learnt; set it above 0.")
    if generation.truncates:
        raise ConfigError(
            f"agent.top_k={generation.top_k!r}, top_p={generation.top_p!r}, min_p={generation.min_p!r} cut the "
            "sampling distribution, which the learner does not; the importance ratio would be wrong. Leave them out in "
            "training."
        )
