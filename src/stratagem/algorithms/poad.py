r"""Policy optimization with action decomposition (POAD), and its baselines NTPO and TWOSOME.

Papers: Wen et al. 2024, "Reinforcing LLM Agents via Policy Optimization with Action Decomposition", arXiv:2405.15821
(POAD, NTPO); Tan et al. 2024, "True Knowledge Comes from Practice", arXiv:2401.14151 (TWOSOME). All three are PPO
(Schulman et al. 2017, arXiv:1707.06347) with a critic on the model's own hidden states. They differ in what a *unit* of
decision is, and in the discount between units (:mod:`stratagem.algorithms.credit`):

===========  ======================  =========================================
``credit``   unit                    discount
===========  ======================  =========================================
``poad``     token                   gamma_a after an action, none inside it
``ntpo``     token                   gamma_a after an action, gamma_w inside it
``twosome``  action                  gamma_a
===========  ======================  =========================================

For each iteration of :func:`train`:

1. Episodes are played; the policy that played is theta_old.
2. V of every unit under the present critic; advantages and returns R = A + V, backwards (``make_samples``).
3. ``num_epochs`` passes in ``num_minibatches`` steps over the units (``Learner.step``), each minimising the mean of

   .. math:: -\min(w A, \operatorname{clip}(w, 1-\epsilon, 1+\epsilon) A) - c_H H
             + c_V \max\big((V-R)^2, (V_{clip}-R)^2\big)

   with w = pi_theta / pi_theta_old of the unit. Once the mean of w - 1 - log w is above ``target_kl``, pi rests.

What pi is depends on who plays. A language agent samples tokens: a token's probability is the model's, an action's is
the product over the completion. A scoring agent (:mod:`stratagem.agents.scoring`) chooses among the admissible actions
by their normalised scores: ``twosome`` trains log pi of that choice, through the tokens of all candidates; ``poad`` and
``ntpo`` train the tokens of the chosen action with the model's own token probabilities, as the authors' code does,
though those are not what the choice was drawn from. With the agent's ``choice = "token"`` they are: the policy of a
token is then its share among those that go on to an admissible action.

Departures from the papers:

- Whole episodes are collected instead of a fixed number of steps. One that a limit cut off counts the value of its last
  state (``bootstrap_truncated``); the authors' code counts 0.
- The critic's last layer starts at zero, and it may read the trained model too (:class:`.HeadConfig`).
- ``critic_warmup`` lets the critic learn alone at first; off by default.
- Policy and critic share one AdamW with two learning rates; gradients are clipped for each on its own.
- A policy that has gone further than ``target_kl`` rests until the next iteration; the authors' code looks again at
  each minibatch.
- An action's entropy under a language agent is the sum over its tokens of the next-token entropies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from stratagem.agents.scoring import ScoringAgent
from stratagem.algorithms.advantages import group_normalised
from stratagem.algorithms.checks import check_ratio_gap
from stratagem.algorithms.credit import discounts, token_advantages
from stratagem.algorithms.episodes import describe_episodes
from stratagem.algorithms.gradients import bound_gradients
from stratagem.algorithms.losses import clipped_surrogate, clipped_value_loss
from stratagem.algorithms.ms_grpo import Iteration
from stratagem.algorithms.ms_grpo import check_trainable as check_sampling
from stratagem.algorithms.poad_config import POADConfig
from stratagem.algorithms.schedule import rate_factor
from stratagem.algorithms.units import Agent, Sample, sample_units
from stratagem.errors import ConfigError
from stratagem.games.base import Game
from stratagem.models.base import CriticModel, TokenRow
from stratagem.models.heads import Heads, check_trunk
from stratagem.rollout import Player, play_groups
from stratagem.seeding import generator
from stratagem.types import Step, StopReason, Trajectory

__all__ = ["Learner", "POADConfig", "Sample", "check_trainable", "make_samples", "train"]


class Learner:
    """Model, critic, optimizer and the number of the iteration: all that a checkpoint must hold."""

    def __init__(self, model: CriticModel, config: POADConfig) -> None:
        """Make the critic and the optimizer.

        Raises:
            ConfigError: the critic asks for weights apart from those that train, and there are none.
        """
        check_trunk(model, config.critic)
        self.model = model
        self.config = config
        self.iteration = 0
        self.parameters = model.named_parameters()
        device = next(iter(self.parameters.values())).device
        self.heads = Heads(model.hidden_size, {"value": 1}, config.critic, device=device)
        self.critic_parameters = self.heads.named_parameters()
        self.optimizer = torch.optim.AdamW(
            [
                {"params": list(self.parameters.values()), "lr": config.learning_rate},
                {"params": list(self.critic_parameters.values()), "lr": config.critic_learning_rate},
            ],
            eps=config.adam_eps,
            weight_decay=0.0,
            foreach=True,
        )
        self.policy_rests = False
        """Set in an iteration, once the policy has gone far enough."""

    def rates(self) -> tuple[float, float]:
        """Return the learning rates of policy and critic: functions of the iteration alone."""
        config = self.config
        factor = rate_factor(self.iteration, total=config.num_iterations, warmup=0, decay=config.decay)
        return config.learning_rate * factor, config.critic_learning_rate * factor

    @torch.no_grad()
    def values(self, rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Return V before each token of each completion; equal rows cost once."""
        distinct = list(dict.fromkeys((tuple(prompt), tuple(completion)) for prompt, completion in rows))
        found: dict[TokenRow, np.ndarray] = {}
        for part in self.model.split(distinct, self.config.max_tokens_per_pass):
            some = [distinct[i] for i in part]
            hidden = self.model.hidden_states(some, base=self.config.critic.trunk == "base")
            flat = self.heads("value", hidden).double().cpu().numpy()
            ends = np.cumsum([len(completion) for _, completion in some])
            found.update(zip(some, np.split(flat, ends[:-1]), strict=True))
        return [found[tuple(prompt), tuple(completion)] for prompt, completion in rows]

    def parts(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """Cut samples into micro-batches; equal ones stay together, since they cost no more than one."""
        equal: dict[TokenRow, list[Sample]] = {}
        for sample in samples:
            equal.setdefault(sample.row, []).append(sample)
        cut = self.model.split(list(equal), self.config.max_tokens_per_pass)
        together = list(equal.values())
        return [[sample for number in part for sample in together[number]] for part in cut]

    def step(self, samples: Sequence[Sample], agent: Agent) -> dict[str, float]:
        """Make one optimizer step on the samples and return its metrics; micro-batches add up to the whole gradient."""
        config = self.config
        learns = not self.policy_rests and self.iteration >= config.critic_warmup
        self.optimizer.zero_grad(set_to_none=True)
        num_units = sum(len(sample.advantages) for sample in samples)
        sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "ratio_gap"), 0.0)
        computed = seen = 0
        for some in self.parts(samples):
            with torch.set_grad_enabled(learns):
                units = sample_units(self.model, some, agent, config)
            old, advantages, returns, old_values = _unit_tensors(some, units.logprobs.device)
            logprobs, entropy = units.logprobs[units.index], units.entropy[units.index]
            values = self.heads("value", units.states)[units.index]
            policy_loss = clipped_surrogate(
                logprobs, old, advantages, clip_low=config.clip_range, clip_high=config.clip_range
            )
            value_loss = clipped_value_loss(values, old_values, returns, clip_range=config.value_clip)
            loss = policy_loss - config.ent_coef * entropy + config.vf_coef * value_loss
            (loss.sum() / num_units).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                log_ratio = logprobs - old
                ratio = log_ratio.exp()
                outside = (ratio < 1 - config.clip_range) & (advantages < 0)
                outside |= (ratio > 1 + config.clip_range) & (advantages > 0)
                for name, of_unit in (
                    ("policy_loss", policy_loss),
                    ("value_loss", value_loss),
                    ("entropy", entropy),
                    ("approx_kl", ratio - 1 - log_ratio),
                    ("clip_fraction", outside),
                ):
                    sums[name] += float(of_unit.sum()) / num_units
                sums["ratio_gap"] = max(sums["ratio_gap"], float((ratio - 1).abs().max()))
            computed += units.num_computed
            seen += sum(sample.num_seen for sample in some)
        if config.target_kl is not None and sums["approx_kl"] > config.target_kl:
            self.policy_rests = True
        norms = bound_gradients(
            self.parameters,
            self.critic_parameters,
            max_norm=config.max_grad_norm,
            learns=learns and not self.policy_rests,
            iteration=self.iteration + 1,
        )
        for group, rate in zip(self.optimizer.param_groups, self.rates(), strict=True):
            group["lr"] = rate
        self.optimizer.step()
        self.model.weights_changed()
        counts = {"tokens_computed": float(computed), "tokens_seen": float(seen)}
        return {**sums, **norms, **counts}


def _unit_tensors(samples: Sequence[Sample], device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return [U] old log-probabilities, advantages, returns and old values."""
    parts = ("old_logprobs", "advantages", "returns", "values")
    flat = [np.concatenate([getattr(sample, part) for sample in samples]) for part in parts]
    old, advantages, returns, values = (torch.tensor(x, dtype=torch.float32, device=device) for x in flat)
    return old, advantages, returns, values


def learnt_steps(trajectory: Trajectory, *, bootstrap_truncated: bool) -> tuple[tuple[Step, ...], Step | None]:
    """Return the steps to learn from, and the step whose value stands for what comes after them.

    A limit says nothing about the state that it was reached in, so the value of that state counts. What the player saw
    after the last step is not recorded; the last step but one ends in a state that is.
    """
    cut_off = trajectory.stop_reason in (StopReason.MAX_STEPS, StopReason.CONTEXT)
    if bootstrap_truncated and cut_off and len(trajectory.steps) > 1:
        return trajectory.steps[:-1], trajectory.steps[-1]
    return trajectory.steps, None


def make_samples(
    learner: Learner, trajectories: Sequence[Trajectory], *, by_branch: bool = False
) -> list[list[Sample]]:
    """Return the samples of each episode: values, advantages and returns of every unit.

    Args:
        learner: its critic and settings.
        trajectories: one for each episode.
        by_branch: tokens were drawn among those that go on to a legal action.
    """
    config = learner.config
    whole_actions = config.credit == "twosome"
    chosen = [learnt_steps(t, bootstrap_truncated=config.bootstrap_truncated) for t in trajectories]
    length = 1 if whole_actions else None  # the value of an action is read before its first token
    rows = [
        (step.prompt_ids, step.completion_ids[:length])
        for steps, after in chosen
        for step in (*steps, *(() if after is None else (after,)))
    ]
    values = iter(learner.values(rows))
    episodes: list[list[Sample]] = []
    for steps, after in chosen:
        of_units = [next(values) for _ in steps]
        bootstrap = 0.0 if after is None else float(next(values)[0 if config.next_value == "first" else -1])
        advantages = token_advantages(
            of_units,
            [step.reward + step.invalid_penalty + step.shaping for step in steps],
            gamma_a=discounts([s.duration for s in steps], gamma_a=config.gamma_a, macro=config.macro_discount),
            gamma_w=config.gamma_w,
            gae_lambda=config.gae_lambda,
            bootstrap=bootstrap,
            next_value=config.next_value,
        )
        episodes.append(
            [
                Sample(
                    prompt_ids=step.prompt_ids,
                    completion_ids=step.completion_ids,
                    candidates=step.candidates if whole_actions or by_branch else (),
                    old_logprobs=_old_logprobs(step, whole_actions=whole_actions),
                    values=before,
                    advantages=credit,
                    returns=credit + before,
                )
                for step, before, credit in zip(steps, of_units, advantages, strict=True)
            ]
        )
    return _normalised(episodes) if config.normalise_advantages else episodes


def _old_logprobs(step: Step, *, whole_actions: bool) -> np.ndarray:
    if not whole_actions:
        return np.array(step.logprobs)
    if step.candidates:
        return np.array([step.candidate_logprobs[step.candidates.index(step.completion_ids)]])
    return np.array([sum(step.logprobs)])


def _normalised(episodes: list[list[Sample]]) -> list[list[Sample]]:
    """Return samples whose advantages have mean 0 and standard deviation 1 over all units."""
    flat = np.concatenate([sample.advantages for episode in episodes for sample in episode])
    if len(flat) < 2:
        return episodes
    numbers = iter(group_normalised(flat))
    return [
        [replace(sample, advantages=np.array([next(numbers) for _ in sample.advantages])) for sample in episode]
        for episode in episodes
    ]


def update(learner: Learner, samples: Sequence[Sample], agent: Agent, seed: int) -> dict[str, float]:
    """Learn from the samples: ``num_epochs`` passes in ``num_minibatches`` steps each.

    Raises:
        RuntimeError: sampler and learner disagree on the probabilities of the very same weights.
    """
    config = learner.config
    learner.policy_rests = False
    collected: list[dict[str, float]] = []
    for epoch in range(config.num_epochs if samples else 0):
        order = generator(seed, "minibatch", learner.iteration, epoch).permutation(len(samples))
        for part in np.array_split(order, min(config.num_minibatches, len(samples))):
            metrics = learner.step([samples[i] for i in part], agent)
            if not collected:
                check_ratio_gap(learner.model, metrics["ratio_gap"], metrics["approx_kl"])
            collected.append(metrics)
    rests = float(learner.policy_rests)
    learner.iteration += 1
    if not collected:
        return {"num_updates": 0.0}
    averaged = {key: float(np.mean([metrics[key] for metrics in collected])) for key in collected[0]}
    for key in ("tokens_computed", "tokens_seen"):
        averaged[key] = float(sum(metrics[key] for metrics in collected))
    averaged["ratio_gap"] = collected[0]["ratio_gap"]
    return {**averaged, "policy_rests": rests, "num_updates": float(len(collected))}


def describe_values(samples: Sequence[Sample]) -> dict[str, float]:
    """Return what the critic thought before it learnt: its mean, and the share of the returns' variance explained."""
    if not samples:
        return {}
    values, returns = (np.concatenate([getattr(s, name) for s in samples]) for name in ("values", "returns"))
    spread = float(returns.var())
    explained = 1 - float((returns - values).var()) / spread if spread > 0 else float("nan")
    return {"value_mean": float(values.mean()), "explained_variance": explained}


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
    """Play and learn from the learner's iteration on; yield after each iteration.

    Args:
        learner: holds the model of ``agent``.
        agent: plays seat 0 and is trained: samples tokens without truncation, or chooses among actions.
        make_game: a new game for each episode that is under way.
        seed: of the run.
        opponents: who plays seats 1, 2, ...
        excluded_starts: state keys of evaluation panels; no episode starts there.
        max_concurrent: episodes under way at once.
        on_finish: called as episodes end (progress).

    Raises:
        ConfigError: the agent's settings cannot be trained.
    """
    config = learner.config
    check_trainable(agent)
    while learner.iteration < config.num_iterations:
        number = learner.iteration + 1
        learner.model.weights_changed()  # theta_old <- theta
        groups, failed = play_groups(
            make_game,
            [agent, *opponents],
            num_groups=config.num_groups,
            group_size=config.group_size,
            address=(seed, "train", number),
            excluded_starts=excluded_starts,
            max_steps=config.max_steps,
            max_concurrent=max_concurrent,
            smallest=1,
            on_finish=on_finish,
        )
        by_branch = isinstance(agent, ScoringAgent) and agent.choice == "token"
        episodes = make_samples(learner, [t for group in groups for t in group.trajectories], by_branch=by_branch)
        samples = [sample for episode in episodes for sample in episode]
        rates = dict(zip(("learning_rate", "critic_learning_rate"), learner.rates(), strict=True))
        metrics = {**describe_episodes(groups), **rates, **describe_values(samples)}
        metrics |= update(learner, samples, agent, seed)
        credit = iter(float(np.mean(np.concatenate([s.advantages for s in episode]))) for episode in episodes)
        yield Iteration(
            number, groups, [{j: next(credit) for j in range(len(g.trajectories))} for g in groups], failed, metrics
        )


def check_trainable(agent: Agent) -> None:
    """Refuse acting whose log-probabilities the learner cannot reproduce.

    Raises:
        ConfigError: greedy or truncated sampling.
    """
    if not isinstance(agent, ScoringAgent):
        check_sampling(agent)
    elif agent.temperature <= 0:
        raise ConfigError("agent.temperature=0 always gives the same episode, so nothing is learnt; set it above 0.")
