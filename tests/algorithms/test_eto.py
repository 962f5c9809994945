"""ETO: pairs of an expert's episodes and of one's own, and what is learnt from them."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stratagem.agents.hierarchical import HierarchicalAgent
from stratagem.agents.react import ReActAgent
from stratagem.agents.reflexion import ReflexionAgent
from stratagem.algorithms.eto import ETOConfig, Learner, Pair, Pairs, check_trainable, make_pairs
from stratagem.algorithms.hierarchy import Sample
from stratagem.errors import ConfigError
from stratagem.types import Step, StopReason, Trajectory

A, B = Sample("low", (0,), (0,), 1.0), Sample("low", (0,), (1,), 0.0)
A2 = Sample("low", (1,), (0,), 1.0)


def played(reward: float, reason: StopReason = StopReason.TERMINATED) -> Trajectory:
    steps = () if reason is StopReason.GAME_FAILED else (Step("o", "b", reward, prompt_ids=(0,), completion_ids=(1,)),)
    return Trajectory("g", 0, 0, 0, steps, True, False, reason, bool(reward))


def test_a_start_gives_a_pair_where_one_did_better() -> None:
    own = [Sample("low", (0,), (1,), 0.0)]
    better = [Sample("low", (0,), (1,), 2.0)]
    trajectories = [played(0.0), played(1.0), played(2.0), played(0.0, StopReason.GAME_FAILED)]
    assert make_pairs([[A]] * 4, [1.0] * 4, trajectories) == [Pair([A], own), Pair(better, [A])]


def learner(toys: SimpleNamespace, **settings: Any) -> Learner:
    model = toys.TableModel()
    config = ETOConfig(num_iterations=4, bc_iterations=2, round_iterations=1, learning_rates=(0.1, 0.2), **settings)
    return Learner(model, config)


def test_one_step_makes_the_better_episode_more_and_the_worse_one_less_probable(toys: SimpleNamespace) -> None:
    it = learner(toys)
    it.iteration = 2
    # Uniform over 4 tokens: log pi = log 1/4 for an answer of one token, twice that for an episode of two.
    (pair,) = it.refer([Pair([A, A2], [B])])
    assert pair.ref_chosen == pytest.approx(2 * math.log(0.25), rel=1e-6)
    assert pair.ref_rejected == pytest.approx(math.log(0.25), rel=1e-6)
    metrics = it.compare([pair])
    assert metrics["dpo_loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert metrics["margin"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["margin_positive"] == 0.0
    # dL/dlogit of A at prompt 0: -beta/2 (1 - p) from the chosen, +beta/2 (0 - p) from the rejected: with beta 0.1 and
    # p = 1/4 -0.0375 - 0.0125 = -0.05; of B: +0.0125 + 0.0375. At prompt 1: A -0.0375, others +0.0125 each.
    norm = math.sqrt(2 * 0.05**2 + 0.0375**2 + 3 * 0.0125**2)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    probabilities = it.model.table[0, 0].softmax(-1)  # type: ignore[attr-defined]
    assert probabilities[0] > 0.25 > probabilities[1]
    metrics = it.compare([pair])
    assert metrics["margin_positive"] == 1.0 and metrics["dpo_loss"] < math.log(2)
    assert metrics["log_ratio_chosen"] > 0 > metrics["log_ratio_rejected"]


def test_a_step_is_the_mean_over_its_pairs(toys: SimpleNamespace) -> None:
    gradients = []
    for pairs in ([Pair([A], [B])], [Pair([A2], [B])], [Pair([A], [B]), Pair([A2], [B])]):
        it = learner(toys, max_grad_norm=100.0)
        it.iteration = 2
        it.compare(it.refer(pairs))
        gradients.append(it.model.table.grad.clone())  # type: ignore[attr-defined]
    torch.testing.assert_close(gradients[2], (gradients[0] + gradients[1]) / 2, rtol=1e-6, atol=1e-9)


def test_a_round_has_its_own_rate_and_beta(toys: SimpleNamespace) -> None:
    it = learner(toys, betas=(0.1, 0.5), bc_learning_rate=0.4, bc_decay="linear")
    found = []
    for iteration in range(4):
        it.iteration = iteration
        found.append((it.round, it.rate()))
    assert found == [(-1, 0.4), (-1, 0.2), (0, 0.1), (1, 0.2)]
    assert it.config.of_round(it.config.betas, 7) == 0.5
    assert it.config.num_rounds == 2


def test_cloning_is_the_mean_over_tokens(toys: SimpleNamespace) -> None:
    it = learner(toys)
    assert it.clone([A, B])["bc_loss"] == pytest.approx(math.log(4), rel=1e-6)


def test_pairs_come_back_from_a_checkpoint() -> None:
    pairs = Pairs()
    again = Pairs()
    again.load_state(pairs.state())
    assert (again.round, again.pairs) == (-1, [])
    pairs.round, pairs.pairs = 1, [Pair([A, A2], [B], -1.5, -0.25), Pair([B], [A], -3.0, -4.0)]
    again.load_state(pairs.state())
    assert (again.round, again.pairs) == (1, pairs.pairs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_iterations": 10, "bc_iterations": 4, "round_iterations": 4},
            "round_iterations=4 does not divide the 6 iterations that bc_iterations=4 leaves of num_iterations=10; "
            "choose numbers that go together.",
        ),
        (
            {"num_iterations": 3, "bc_iterations": 5},
            "round_iterations=15 does not divide the -2 iterations that bc_iterations=5 leaves of num_iterations=3; "
            "choose numbers that go together.",
        ),
        ({"betas": ()}, "betas=[] must hold one number or more, each above 0 and finite."),
        (
            {"learning_rates": (1e-6, 0.0)},
            "learning_rates=[1e-06, 0.0] must hold one number or more, each above 0 and finite.",
        ),
        ({"explore_temperature": -1.0}, "explore_temperature=-1.0 must be 0 or more, and finite."),
        ({"batch_pairs": 0}, "batch_pairs=0 must be 1 or more."),
    ],
)
def test_settings_that_cannot_learn_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ETOConfig(**settings)


def test_only_an_agent_that_writes_actions_and_is_trained_is_taken(toys: SimpleNamespace) -> None:
    model: Any = toys.TableModel()
    check_trainable(toys.make_agent(model))
    check_trainable(ReActAgent.from_config(model))
    message = (
        "algorithm.name='eto' trains an agent that writes its actions; set agent.name = 'react', or 'language' with "
        "agent.context_steps = 'all'."
    )
    for agent in (HierarchicalAgent.from_config(model), ReflexionAgent.from_config(model)):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            check_trainable(agent)
