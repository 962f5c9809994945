r"""ETO: clone an expert, then learn from one's own failures by comparison with it.

Paper: Song et al. 2024, "Trial and Error: Exploration-Based Trajectory Optimization of LLM Agents", arXiv:2403.02502; a
baseline of STEP-HRL. For an agent that writes its actions, such as ReAct with the whole history in its prompt.

1. Behaviour cloning on expert episodes.
2. A round: the policy plays the expert's starts once. Each start at which it does worse than the expert gives a pair,
   the expert's episode e_w and its own e_l; where it does better, the two change places.
3. The policy is moved by DPO on these pairs, with the policy at the beginning of the round as the reference:

   .. math:: L = -\log\sigma\Big(\beta \Big[\sum_t \log\frac{\pi_\theta(a^w_t|h^w_t)}{\pi_{ref}(a^w_t|h^w_t)}
             - \sum_t \log\frac{\pi_\theta(a^l_t|h^l_t)}{\pi_{ref}(a^l_t|h^l_t)}\Big]\Big)

4. Further rounds begin at 2 with the new policy.

The reference is needed only as one number for each episode of a pair, which is computed when the pairs are made and
kept with them; there is no second model. Both episodes of a pair go through the model in one token tree.

Departures: the expert wrote no thoughts here, so its answers are actions alone; the mean over pairs is taken over those
of a step; there is no warm-up of the learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stratagem.agents.history import HistoryAgent
from stratagem.agents.language import LanguageAgent
from stratagem.agents.reflexion import ReflexionAgent
from stratagem.algorithms.dpo import dpo_loss, dpo_margin
from stratagem.algorithms.episodes import describe_episodes
from stratagem.algorithms.eto_config import ETOConfig
from stratagem.algorithms.flat import flat_samples
from stratagem.algorithms.gradients import bound_gradients
from stratagem.algorithms.hierarchy import Sample, pack_samples, played_samples, unpack_samples
from stratagem.algorithms.ms_grpo import Iteration
from stratagem.algorithms.schedule import rate_factor
from stratagem.algorithms.step_hrl import batch_of
from stratagem.data.annotations import AnnotatedEpisode, read_annotations
from stratagem.data.expert import expert_episodes
from stratagem.errors import ConfigError
from stratagem.games.base import Game
from stratagem.models.base import TrainableModel
from stratagem.rollout import Episode, Player, play_episodes
from stratagem.types import StopReason, Trajectory, TrajectoryGroup

__all__ = ["ETOConfig", "Learner", "Pair", "Pairs", "check_trainable", "make_pairs", "train"]


@dataclass(frozen=True)
class Pair:
    """Two episodes from one start."""

    chosen: list[Sample]
    rejected: list[Sample]
    ref_chosen: float = 0.0
    """Sum of log pi_ref over the tokens of the better one's answers."""
    ref_rejected: float = 0.0


class Pairs:
    """What a checkpoint must hold besides weights and optimizer: the pairs of the round under way."""

    def __init__(self) -> None:
        """Start before the first round."""
        self.round = -1
        """Number of the round that the pairs are of, from 0."""
        self.pairs: list[Pair] = []

    def state(self) -> dict[str, Tensor]:
        """Return everything as tensors."""
        episodes = [episode for pair in self.pairs for episode in (pair.chosen, pair.rejected)]
        return {
            **pack_samples(episodes),
            "reference": torch.tensor([[p.ref_chosen, p.ref_rejected] for p in self.pairs], dtype=torch.float64),
            "round": torch.tensor([self.round]),
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`state` gave."""
        episodes = unpack_samples(tensors)
        numbers = tensors["reference"].reshape(-1, 2).tolist()
        self.round = int(tensors["round"][0])
        self.pairs = [
            Pair(episodes[2 * place], episodes[2 * place + 1], *reference) for place, reference in enumerate(numbers)
        ]


def make_pairs(
    expert: Sequence[Sequence[Sample]], returns: Sequence[float], played: Sequence[Trajectory]
) -> list[Pair]:
    """Return the pairs of a round; starts at which both do equally well give none.

    Args:
        expert: its episodes.
        returns: what the game paid the expert in each.
        played: the policy's episodes from the same starts, in the same order.
    """
    pairs = []
    for best, paid, trajectory in zip(expert, returns, played, strict=True):
        own = played_samples(trajectory)
        if trajectory.stop_reason is StopReason.GAME_FAILED or not own or trajectory.game_return == paid:
            continue
        worse = trajectory.game_return < paid
        pairs.append(Pair(list(best), own) if worse else Pair(own, list(best)))
    return pairs


class Learner:
    """Model, pairs, optimizer and the number of the iteration: all that a checkpoint must hold."""

    def __init__(self, model: TrainableModel, config: ETOConfig) -> None:
        """Make the optimizer."""
        self.model = model
        self.config = config
        self.iteration = 0
        self.parameters = model.named_parameters()
        self.heads = Pairs()
        """Under the name by which a run saves it."""
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=config.bc_learning_rate, weight_decay=config.weight_decay, foreach=True
        )

    @property
    def round(self) -> int:
        """Number of the round, from 0; -1 while cloning."""
        if self.iteration < self.config.bc_iterations:
            return -1
        return (self.iteration - self.config.bc_iterations) // self.config.round_iterations

    def rate(self) -> float:
        """Return the learning rate: a function of the iteration alone."""
        config = self.config
        if self.round >= 0:
            return config.of_round(config.learning_rates, self.round)
        factor = rate_factor(self.iteration, total=config.bc_iterations, warmup=0, decay=config.bc_decay)
        return config.bc_learning_rate * factor

    def clone(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Make one step of behaviour cloning: the mean of -log p over all tokens of the answers."""
        self.optimizer.zero_grad(set_to_none=True)
        count = sum(len(sample.completion_ids) for sample in samples)
        loss, computed, seen = 0.0, 0, 0
        for part in self.model.split([sample.row for sample in samples], self.config.max_tokens_per_pass):
            batch = self.model.logprobs([samples[place].row for place in part])
            share = -batch.logprobs.sum() / count
            share.backward()  # type: ignore[no-untyped-call]
            loss += float(share.detach())
            computed += batch.num_computed
            seen += batch.num_seen
        return {"bc_loss": loss} | self._step() | {"tokens_computed": float(computed), "tokens_seen": float(seen)}

    def compare(self, pairs: Sequence[Pair]) -> dict[str, float]:
        """Make one step of DPO: the mean over pairs."""
        beta = self.config.of_round(self.config.betas, self.round)
        self.optimizer.zero_grad(set_to_none=True)
        found: list[dict[str, float]] = []
        computed = seen = 0
        for pair in pairs:
            rows = [sample.row for sample in (*pair.chosen, *pair.rejected)]
            batch = self.model.logprobs(rows)
            border = sum(len(sample.completion_ids) for sample in pair.chosen)
            chosen, rejected = batch.logprobs[:border].sum()[None], batch.logprobs[border:].sum()[None]
            reference = torch.tensor([[pair.ref_chosen], [pair.ref_rejected]], device=chosen.device, dtype=chosen.dtype)
            loss = dpo_loss(chosen, rejected, reference[0], reference[1], beta=beta)
            (loss.sum() / len(pairs)).backward()  # type: ignore[no-untyped-call]
            margin = dpo_margin(chosen.detach(), rejected.detach(), reference[0], reference[1])
            found.append(
                {
                    "dpo_loss": float(loss.detach()),
                    "margin": float(margin),
                    "margin_positive": float(margin > 0),
                    "log_ratio_chosen": float(chosen.detach() - reference[0]),
                    "log_ratio_rejected": float(rejected.detach() - reference[1]),
                }
            )
            computed += batch.num_computed
            seen += batch.num_seen
        metrics = {name: float(np.mean([row[name] for row in found])) for name in found[0]}
        return metrics | self._step() | {"tokens_computed": float(computed), "tokens_seen": float(seen)}

    @torch.no_grad()
    def refer(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return pairs with the present policy as their reference."""
        return [
            Pair(pair.chosen, pair.rejected, self._log_pi(pair.chosen), self._log_pi(pair.rejected)) for pair in pairs
        ]

    def _log_pi(self, episode: Sequence[Sample]) -> float:
        return float(self.model.logprobs([sample.row for sample in episode]).logprobs.sum())

    def _step(self) -> dict[str, float]:
        norms = bound_gradients(
            self.parameters, {}, max_norm=self.config.max_grad_norm, learns=True, iteration=self.iteration + 1
        )
        self.optimizer.param_groups[0]["lr"] = self.rate()
        self.optimizer.step()
        self.model.weights_changed()
        return {"grad_norm": norms["grad_norm"]}


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
    """Clone, then try and compare round by round, from the learner's iteration on; yield after each iteration.

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
        ConfigError: the agent cannot be trained, or a round gave no pair.
        RunError: the annotation file cannot be used.
    """
    config = learner.config
    check_trainable(agent)
    if config.annotations is not None:
        annotated = read_annotations(Path(config.annotations))[: config.num_expert_episodes]
    else:
        annotated = expert_episodes(make_game, config.num_expert_episodes, seed=seed, excluded_starts=excluded_starts)
    game = make_game()
    try:
        expert = [flat_samples(agent, game, episode) for episode in annotated]
    finally:
        game.close()
    while learner.iteration < config.num_iterations:
        groups: list[TrajectoryGroup] = []
        failed: list[Trajectory] = []
        metrics: dict[str, float] = {}
        number = learner.round
        memory = learner.heads
        if number > memory.round:
            learner.model.weights_changed()
            player = agent.with_temperature(config.explore_temperature)
            played = _try_starts(
                make_game, [player, *opponents], annotated, config, (seed, "explore", number), max_concurrent, on_finish
            )
            returns = [sum(step.reward for step in episode.steps) for episode in annotated]
            pairs = make_pairs(expert, returns, played)
            if not pairs:
                raise ConfigError(
                    f"All {len(played)} episodes of round {number + 1} went as well as the expert's, so there is "
                    "nothing to compare; raise explore_temperature or num_expert_episodes, or clone less."
                )
            memory.pairs, memory.round = learner.refer(pairs), number
            learner.optimizer.state.clear()  # as a script of its own would begin
            failed = [t for t in played if t.stop_reason is StopReason.GAME_FAILED]
            groups = [TrajectoryGroup((t,)) for t in played if t.stop_reason is not StopReason.GAME_FAILED and t.steps]
            metrics |= describe_episodes(groups) | {"num_pairs": float(len(pairs))}
        collected: list[dict[str, float]] = []
        for turn in range(config.steps_per_iteration):
            collected.append(_one_step(learner, expert, turn, seed))
        for key in dict.fromkeys(key for row in collected for key in row):
            numbers = [row[key] for row in collected]
            metrics[key] = float(np.sum(numbers) if key.startswith("tokens_") else np.mean(numbers))
        metrics["learning_rate"] = learner.rate()
        learner.iteration += 1
        advantages: list[dict[int, float]] = [{} for _ in groups]
        yield Iteration(learner.iteration, groups, advantages, failed, metrics)


def _one_step(learner: Learner, expert: Sequence[Sequence[Sample]], turn: int, seed: int) -> dict[str, float]:
    """Make one step of the stage that the learner is in, on what the number of the step alone chooses."""
    config, number = learner.config, learner.round
    if number < 0:
        step = learner.iteration * config.steps_per_iteration + turn
        samples, epoch = batch_of(expert, step, config.batch_episodes, seed=seed, stage="clone")
        return learner.clone(samples) | {"epoch": epoch}
    before = config.bc_iterations + number * config.round_iterations
    step = (learner.iteration - before) * config.steps_per_iteration + turn
    pairs = learner.heads.pairs
    some, epoch = batch_of([[pair] for pair in pairs], step, config.batch_pairs, seed=seed, stage=f"round {number}")
    return learner.compare(some) | {"epoch": epoch}


def _try_starts(
    make_game: Callable[[], Game],
    players: Sequence[Player],
    annotated: Sequence[AnnotatedEpisode],
    config: ETOConfig,
    address: tuple[int | str, ...],
    max_concurrent: int,
    on_finish: Callable[[int, Trajectory], None] | None,
) -> list[Trajectory]:
    episodes = [Episode(episode.seed, episode.course, (*address, place)) for place, episode in enumerate(annotated)]
    return play_episodes(
        make_game, players, episodes, max_steps=config.max_steps, max_concurrent=max_concurrent, on_finish=on_finish
    )


def check_trainable(agent: object) -> None:
    """Refuse an agent that cannot be trained.

    Raises:
        ConfigError: it does not write its actions.
    """
    if not isinstance(agent, LanguageAgent | HistoryAgent) or isinstance(agent, ReflexionAgent):
        raise ConfigError(
            "algorithm.name='eto' trains an agent that writes its actions; set agent.name = 'react', or 'language' "
            "with agent.context_steps = 'all'."
        )
