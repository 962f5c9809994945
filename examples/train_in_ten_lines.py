"""Train a language model on Frozen Lake: ``python examples/train_in_ten_lines.py [MODEL]``.

Without a model this takes seconds with ``tiny``, a random two-layer model: it shows the machinery, not learning. The
same lines train ``smollm2-135m-instruct``, a model folder or a hub id; what the demo does besides (a warm start,
evaluation, checkpoints, a report) is ``stratagem train frozen_lake_demo``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from stratagem.agents.language import AgentConfig, LanguageAgent
from stratagem.algorithms import ms_grpo
from stratagem.games import make
from stratagem.models.catalog import ModelConfig
from stratagem.models.local import LocalModel


def main(argv: Sequence[str] | None = None) -> None:
    """Train for three iterations and print what happened in each."""
    (name,) = (sys.argv[1:] if argv is None else argv) or ("tiny",)
    model = LocalModel.load(ModelConfig(name=name))
    # "random": an answer without a valid action costs its penalty, and a random action is played instead.
    agent = LanguageAgent.from_config(model, AgentConfig(max_new_tokens=8, recovery="random"))
    config = ms_grpo.MSGRPOConfig(num_iterations=3, num_groups=2, group_size=8, sampled_group_size=4, max_steps=8)
    learner = ms_grpo.Learner(model, config)
    for iteration in ms_grpo.train(learner, agent, partial(make, "FrozenLake-NotSlippery"), seed=0):
        metrics = iteration.metrics
        valid = 1 - metrics["invalid_action_rate"]
        print(f"iteration {iteration.number}: return {metrics['return_mean']:.2f}, valid {valid:.0%}")


if __name__ == "__main__":
    main()
