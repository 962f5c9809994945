"""One whole iteration: MS-GRPO on Frozen Lake against TRL's GRPOTrainer on the same game's prompts.

TRL plays no game of several steps. It gets as many (prompt, completion) pairs as our episodes have steps, prompts
of these steps, and completions of the mean length that ours had. Both sides sample, reward, run forward and backward
on every pair and take one AdamW step on all weights in float32. The agent's invalid answers become random moves, so
that episodes go on as they do for a model that has learnt the format.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from measure import NotRun, Peer, Timing, alternate, peak_gib

from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.algorithms.ms_grpo import Iteration, Learner, MSGRPOConfig, train
from stratagem.games import make
from stratagem.models.catalog import ModelConfig, resolve
from stratagem.models.local import LocalModel

__all__ = ["IterationResult", "OurIteration", "compare", "peak_of_iteration"]

_GENERATIONS = 4
_MICRO_BATCH = 8


class OurIteration:
    """The same iteration again and again: the learning rate is too small to change an episode."""

    def __init__(
        self, name: str, *, num_groups: int, group_size: int, max_steps: int | None = None, max_tokens: int = 2048
    ) -> None:
        """Load the model in float32."""
        self.model = LocalModel.load(ModelConfig(name=name))
        self.agent = LanguageAgent.from_config(
            self.model, AgentConfig(template="action", max_new_tokens=8, recovery="random")
        )
        self.learner = Learner(
            self.model,
            MSGRPOConfig(
                num_groups=num_groups,
                group_size=group_size,
                sampled_group_size=None,
                episode_temperature=None,
                learning_rate=1e-9,
                max_steps=max_steps,
                max_tokens_per_pass=max_tokens,
            ),
        )

    def run(self) -> Iteration:
        """Play and learn once.

        Raises:
            NotRun: some groups carried no signal, so that not every step was learnt from.
        """
        self.learner.iteration = 0
        iteration = next(train(self.learner, self.agent, lambda: make("FrozenLake-NotSlippery"), seed=7))
        if "tokens_seen" not in iteration.metrics:
            raise NotRun("no episode of our iteration carries a signal")
        return iteration


@dataclass(frozen=True)
class IterationResult:
    """What the comparison gave."""

    timing: Timing
    """Of one size on both sides; seconds of TRL are scaled from ``their_pairs`` to ``our_pairs``."""
    our_pairs: int
    their_pairs: int
    new_tokens: int
    """Of each completion: TRL's all, our mean."""
    tokens_seen: int
    tokens_computed: int
    full_pairs: int
    """Steps of our iteration at real size."""
    full_seconds: float

    @property
    def full_speedup(self) -> float:
        """TRL's seconds per pair times the pairs of the real size, over our seconds."""
        theirs = sorted(self.timing.theirs)[len(self.timing.theirs) // 2]
        return theirs / self.our_pairs * self.full_pairs / self.full_seconds


def compare(name: str, repeats: int, threads: int, *, quick: bool) -> IterationResult:
    """Run both sides in turns, then ours once at real size.

    Raises:
        NotRun: TRL is not installed or fails, or an iteration has no signal.
    """
    groups, size, full_groups, full_size = (1, 6, 1, 8) if quick else (1, 4, 4, 32)
    max_steps = 6 if quick else None
    side = OurIteration(name, num_groups=groups, group_size=size, max_steps=max_steps)
    first = side.run()  # warms up, and says how much there is to do
    steps = [step for group in first.groups for t in group.trajectories for step in t.steps]
    new_tokens = max(1, round(sum(len(step.completion_ids) for step in steps) / len(steps)))
    # Whole micro-batches: TRL wants them.
    pairs = max(1, round(len(steps) / _MICRO_BATCH)) * _MICRO_BATCH
    prompts = [
        side.model.decode(steps[number * len(steps) // (pairs // _GENERATIONS)].prompt_ids)
        for number in range(pairs // _GENERATIONS)
    ]
    peer = Peer("trl", "trl_worker.py", threads)
    try:
        peer.ask(
            {
                "model": resolve(name),
                "prompts": prompts,
                "num_generations": _GENERATIONS,
                "new_tokens": new_tokens,
                "micro_batch": _MICRO_BATCH,
                "steps": repeats,
                "threads": threads,
            }
        )

        def ours() -> None:
            side.run()

        timing = alternate(ours, lambda: peer.ask({})["seconds"] * len(steps) / pairs, repeats)
    finally:
        peer.close()
    full = OurIteration(name, num_groups=full_groups, group_size=full_size, max_steps=max_steps)
    start = time.perf_counter()
    played = full.run()
    full_seconds = time.perf_counter() - start
    return IterationResult(
        timing=timing,
        our_pairs=len(steps),
        their_pairs=pairs,
        new_tokens=new_tokens,
        tokens_seen=int(first.metrics["tokens_seen"]),
        tokens_computed=int(first.metrics["tokens_computed"]),
        full_pairs=sum(len(t.steps) for group in played.groups for t in group.trajectories),
        full_seconds=full_seconds,
    )


MAX_TOKENS = 1024
"""Of a pass whose memory is measured, half the default: rates of products are the same from there on."""


def peak_of_iteration(name: str, *, quick: bool) -> dict[str, float]:
    """Run one iteration that trains all weights with G = 256 and return the peak memory of this process in GiB."""
    size = 8 if quick else 256
    side = OurIteration(name, num_groups=1, group_size=size, max_steps=6 if quick else None, max_tokens=MAX_TOKENS)
    start = time.perf_counter()
    played = side.run()
    return {
        "gib": peak_gib(),
        "seconds": time.perf_counter() - start,
        "group_size": float(size),
        "steps": float(sum(len(t.steps) for group in played.groups for t in group.trajectories)),
        "tokens_seen": played.metrics["tokens_seen"],
        "tokens_computed": played.metrics["tokens_computed"],
    }
