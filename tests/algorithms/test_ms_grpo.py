from __future__ import annotations

import dataclasses
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stratagem.algorithms import ms_grpo
from stratagem.algorithms.ms_grpo import (
    Iteration,
    Learner,
    MSGRPOConfig,
    Sample,
    make_minibatches,
    make_samples,
    objective,
    train,
    update,
)
from stratagem.errors import ConfigError
from stratagem.games.base import GameStep
from stratagem.models.base import GenerationConfig
from stratagem.seeding import generator
from stratagem.types import TrajectoryGroup

ALL = dict(sampled_group_size=None, episode_temperature=None)  # learn from the whole group


def config(**settings: Any) -> MSGRPOConfig:
    return MSGRPOConfig(**({"group_size": 4, "learning_rate": 0.1, **ALL} | settings))


def samples_of(group: Any, settings: MSGRPOConfig | None = None) -> ms_grpo.GroupSamples:
    return make_samples(group, settings or config(), generator("test"))


def gradient(learner: Learner) -> Tensor:
    grads = [p.grad.flatten() for p in learner.parameters.values() if p.grad is not None]
    return torch.cat(grads)


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 1}, "group_size=1 gives zero advantage for every episode; set group_size >= 2."),
        ({"group_size": -1}, "group_size=-1 plays no episode; set group_size >= 2."),
        ({"group_size": 0}, "group_size=0 plays no episode; set group_size >= 2."),
        (
            {"step_target": "best"},
            "step_target='best' has no effect with step_coef=0, which gives no step-level credit; set step_coef above "
            "0, or step_target = 'return'.",
        ),
        (
            {"step_credit": "matching"},
            "step_credit='matching' has no effect with step_coef=0, which gives no step-level credit; set step_coef "
            "above 0, or step_credit = 'normalised'.",
        ),
        (
            {"sampled_group_size": 2},
            "sampled_group_size=2 and episode_temperature=None go together: set both for absolute-advantage-weighted "
            "sampling, or switch both off.",
        ),
        (
            {"sampled_group_size": 5, "episode_temperature": 1.0},
            "sampled_group_size=5 is not in 2..group_size=4; choose one that is, or switch sampling off.",
        ),
        (
            {"sampled_group_size": 2, "episode_temperature": 0.0},
            "episode_temperature=0.0 must be above 0; or switch it off.",
        ),
        ({"num_iterations": 0}, "num_iterations=0 must be 1 or more."),
        ({"num_groups": 0}, "num_groups=0 must be 1 or more."),
        ({"num_epochs": 0}, "num_epochs=0 must be 1 or more."),
        ({"max_tokens_per_pass": 0}, "max_tokens_per_pass=0 must be 1 or more."),
        ({"minibatch_prompts": 0}, "minibatch_prompts=0 must be 1 or more; leave it out for all."),
        (
            {"minibatch_prompts": 8, "minibatch_groups": 1},
            "minibatch_prompts=8 and minibatch_groups=1 both say what a step is made of; leave one of them out.",
        ),
        ({"step_temperature": 0.0}, "step_temperature=0.0 must be above 0."),
        (
            {"step_credit": "matching", "step_anchor": "group"},
            "step_credit='matching' compares the actions of one state, and step_anchor='group' does not; set "
            "step_anchor = 'state'.",
        ),
        ({"average_decay": 1.0}, "average_decay=1.0 is not in [0, 1); use 0 for no average."),
        ({"minibatch_groups": 0}, "minibatch_groups=0 must be 1 or more; leave it out for all."),
        ({"clip_low": 0.0}, "clip_low=0.0 must be above 0."),
        ({"clip_high": -0.2}, "clip_high=-0.2 must be above 0."),
        ({"learning_rate": 0}, "learning_rate=0 must be above 0."),
        ({"learning_rate": math.inf}, "learning_rate=inf is no step size; use a finite number."),
        ({"max_steps": 0}, "max_steps=0 plays nothing; set it to 1 or more, or leave it out."),
        ({"max_grad_norm": float("nan")}, "max_grad_norm=nan must be above 0."),
        ({"kl_coef": -0.1}, "kl_coef=-0.1 must be 0 or more."),
        ({"dynamic_groups": -1}, "dynamic_groups=-1 must be 0 or more."),
        ({"ent_coef": -1}, "ent_coef=-1 must be 0 or more."),
        ({"weight_decay": -1}, "weight_decay=-1 must be 0 or more."),
        ({"warmup_iterations": -1}, "warmup_iterations=-1 must be 0 or more."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_learn_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        config(**settings)


def test_defaults_are_those_of_the_paper() -> None:
    settings = MSGRPOConfig()
    assert (settings.num_iterations, settings.group_size, settings.sampled_group_size) == (700, 100, 25)
    assert (settings.num_groups, settings.num_epochs, settings.minibatch_groups) == (1, 1, None)


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        (
            GenerationConfig(temperature=0),
            "agent.temperature=0 always gives the same episode, so nothing is learnt; set it above 0.",
        ),
        (
            GenerationConfig(top_p=0.9),
            "agent.top_k=None, top_p=0.9, min_p=None cut the sampling distribution, which the learner does not; the "
            "importance ratio would be wrong. Leave them out in training.",
        ),
    ],
    ids=["greedy", "top_p"],
)
def test_sampling_that_cannot_be_trained_is_refused(
    toys: SimpleNamespace, generation: GenerationConfig, message: str
) -> None:
    model = toys.TableModel()
    agent = toys.make_agent(model, generation=generation)
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        next(train(Learner(model, config()), agent, toys.Bandit, seed=0))


# ---- eq. 4 and 5: what is learnt from a group ------------------------------------------------------------------------


def test_advantages_and_weights_by_hand(toys: SimpleNamespace) -> None:
    # Returns 1, 0, 0, 1: advantages 1, -1, -1, 1. |y| = 3, 1, 2, 5 tokens over 2, 1, 1, 3 steps. G' = 4.
    group = toys.make_group(
        [(0.0, (0, 1)), (1.0, (0,))],
        [(0.0, (1,))],
        [(0.0, (2, 1))],
        [(0.0, (0,)), (0.0, (1, 2, 0)), (1.0, (1,))],
    )
    found = samples_of(group)
    assert found.advantages == {0: 1.0, 1: -1.0, 2: -1.0, 3: 1.0}
    assert [s.advantage for s in found.samples] == [1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0]
    assert [1 / s.weight for s in found.samples] == pytest.approx([12, 12, 4, 8, 20, 20, 20])
    assert [s.completion_ids for s in found.samples] == [(0, 1), (0,), (1,), (2, 1), (0,), (1, 2, 0), (1,)]
    # each episode has weight 1 / G' in all
    assert sum(s.weight * len(s.completion_ids) for s in found.samples) == pytest.approx(1.0)


def test_penalty_and_shaping_are_part_of_the_return(toys: SimpleNamespace) -> None:
    group = toys.make_group([(1.0, (0,))], [(1.0, (0,))])
    first = group.trajectories[0]
    punished = dataclasses.replace(
        first, steps=(dataclasses.replace(first.steps[0], invalid_penalty=-0.5, shaping=-0.25),)
    )
    found = samples_of(dataclasses.replace(group, trajectories=(punished, group.trajectories[1])))
    assert found.advantages == {0: -1.0, 1: 1.0}


@pytest.mark.parametrize("value", [0.0, -1.0, 0.3])
def test_a_group_of_equal_returns_has_no_samples(toys: SimpleNamespace, value: float) -> None:
    found = samples_of(toys.make_group(*[[(value, (0,))]] * 4))
    assert found.samples == ()
    assert found.advantages == {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}


def test_chosen_episodes_get_advantages_among_themselves(toys: SimpleNamespace) -> None:
    # Returns 0, 0, 0, 0, 9, 10; at a tiny T_ep the two extremes 9 and 10 are chosen and compared with each other.
    group = toys.make_group(*[[(float(value), (0,))] for value in (0, 0, 0, 0, 9, 10)])
    found = samples_of(group, config(group_size=6, sampled_group_size=2, episode_temperature=1e-3))
    assert found.advantages == {4: -1.0, 5: 1.0}
    assert [(s.advantage, s.weight) for s in found.samples] == [(-1.0, 0.5), (1.0, 0.5)]


def test_the_leave_one_out_baseline_by_hand(toys: SimpleNamespace) -> None:
    # Returns 3, 0, 0, 1: 3 - 1/3, 0 - 4/3, 0 - 4/3, 1 - 1. The last one equals the mean of the others: left out.
    group = toys.make_group(*[[(value, (0,))] for value in (3.0, 0.0, 0.0, 1.0)])
    found = samples_of(group, config(baseline="leave_one_out"))
    assert found.advantages == pytest.approx({0: 8 / 3, 1: -4 / 3, 2: -4 / 3, 3: 0.0}, abs=1e-12)
    assert [s.advantage for s in found.samples] == pytest.approx([8 / 3, -4 / 3, -4 / 3])


def test_chosen_episodes_are_compared_with_the_other_chosen_ones(toys: SimpleNamespace) -> None:
    # As with eq. 4 the extremes 9 and 10 are chosen, then compared: 9 - 10 and 10 - 9.
    group = toys.make_group(*[[(float(value), (0,))] for value in (0, 0, 0, 0, 9, 10)])
    sampling = dict(group_size=6, sampled_group_size=2, episode_temperature=1e-3)
    found = samples_of(group, config(baseline="leave_one_out", **sampling))
    assert found.advantages == {4: -1.0, 5: 1.0}


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_episodes_chosen_do_not_depend_on_the_baseline_or_the_size_of_rewards(
    toys: SimpleNamespace, scale: float
) -> None:
    values = (0, 1, 2, 5, 7, 7, 8, 9)
    group = toys.make_group(*[[(scale * value, (0,))] for value in values])
    sampling = dict(group_size=8, sampled_group_size=4, episode_temperature=1.0)
    one, other = (samples_of(group, config(baseline=name, **sampling)) for name in ("group", "leave_one_out"))
    plain = samples_of(toys.make_group(*[[(float(v), (0,))] for v in values]), config(**sampling))
    assert list(one.advantages) == list(other.advantages) == list(plain.advantages)
    assert max(map(abs, other.advantages.values())) > 2 * scale


def test_chosen_episodes_of_equal_return_have_no_signal(toys: SimpleNamespace) -> None:
    group = toys.make_group(*[[(float(value), (0,))] for value in (9, 9, 0, 0, 0, 0, 0, 0)])
    found = samples_of(group, config(group_size=8, sampled_group_size=2, episode_temperature=1e-3))
    assert found.advantages == {0: 0.0, 1: 0.0}
    assert found.samples == ()


def test_a_group_that_lost_episodes_is_sampled_down_to_what_is_left(toys: SimpleNamespace) -> None:
    group = toys.make_group([(0.0, (0,))], [(1.0, (0,))])
    found = samples_of(group, config(group_size=8, sampled_group_size=4, episode_temperature=1.0))
    assert found.advantages == {0: -1.0, 1: 1.0}


def with_state_keys(group: TrajectoryGroup, *keys: tuple[str, ...]) -> TrajectoryGroup:
    return TrajectoryGroup(
        tuple(
            dataclasses.replace(
                t, steps=tuple(dataclasses.replace(x, state_key=k) for x, k in zip(t.steps, names, strict=True))
            )
            for t, names in zip(group.trajectories, keys, strict=True)
        )
    )


def test_step_level_credit_is_added_to_the_episodes_advantage(toys: SimpleNamespace) -> None:
    # Returns 1 and 0: A = +1, -1. Returns-to-go at gamma 0.5: (0.5, 1) and (0, 0). Both start in one state, where 0.5
    # against 0 gives +1, -1; the second states differ, so they have nothing to compare with and give 0. step_coef 0.5.
    group = toys.make_group([(0.0, (0,)), (1.0, (1,))], [(0.0, (1,)), (0.0, (0,))])
    group = with_state_keys(group, ("s", "u"), ("s", "v"))
    found = samples_of(group, config(step_coef=0.5, step_gamma=0.5))
    assert [s.advantage for s in found.samples] == [1.5, 1.0, -1.5, -1.0]
    assert found.advantages == {0: 1.0, 1: -1.0}


def test_step_level_credit_from_pooled_values(toys: SimpleNamespace) -> None:
    # gamma 1. From s, two episodes step to u, one to v. V(u) = mean(1, 0) = 0.5, V(v) = 0, so the targets at s are 0.5,
    # 0.5, 0: mean 1/3, std sqrt(2)/6: +1/sqrt(2), +1/sqrt(2), -sqrt(2). The second episode is credited for reaching u,
    # though it earned nothing. At u: 1 against 0 is +1, -1; at v there is nothing to compare with.
    group = toys.make_group([(0.0, (0,)), (1.0, (1,))], [(0.0, (0,)), (0.0, (0,))], [(0.0, (1,)), (0.0, (0,))])
    group = with_state_keys(group, ("s", "u"), ("s", "u"), ("s", "v"))
    found = samples_of(group, config(group_size=3, step_coef=1.0, step_gamma=1.0, step_target="value"))
    high, low = (
        math.sqrt(2),
        -1 / math.sqrt(2),
    )  # A of returns 1, 0, 0: mean 1/3, std sqrt(2)/3
    expected = [high + 1 / high, high + 1, low + 1 / high, low - 1, low - high, low]
    assert [s.advantage for s in found.samples] == pytest.approx(expected)


def test_step_level_credit_from_the_best_found_out_by_matching(toys: SimpleNamespace) -> None:
    # gamma 1. s -0-> u in two episodes, s -1-> v in one; at u "up" earned 1, "down" nothing: V*(u) = 1, V*(v) = 0. At s
    # the first action is worth 1 (taken in 2 of 3 visits), the other 0; at temperature 1, q = (e, 1) / (e + 1); at u
    # both were taken once. A of returns 1, 0, 0 is sqrt(2), -1/sqrt(2), -1/sqrt(2).
    group = toys.make_group([(0.0, (0,)), (1.0, (0,))], [(0.0, (0,)), (0.0, (1,))], [(0.0, (1,)), (0.0, (0,))])
    group = with_state_keys(group, ("s", "u"), ("s", "u"), ("s", "v"))
    acted = [
        dataclasses.replace(t, steps=tuple(dataclasses.replace(s, action=str(s.completion_ids)) for s in t.steps))
        for t in group.trajectories
    ]
    group = TrajectoryGroup(tuple(acted))
    settings = {"step_target": "best", "step_credit": "matching", "step_temperature": 1.0}
    found = samples_of(group, config(group_size=3, step_coef=2.0, step_gamma=1.0, **settings))
    better = math.e / (math.e + 1)
    credits = [1.5 * better - 1, 2 * better - 1, 1.5 * better - 1, 2 * (1 - better) - 1, 3 * (1 - better) - 1, 0.0]
    returns = [math.sqrt(2)] * 2 + [-1 / math.sqrt(2)] * 4
    assert [s.advantage for s in found.samples] == pytest.approx(
        [a + 2 * credit for a, credit in zip(returns, credits, strict=True)]
    )


def test_credit_that_keeps_equal_actions_equal_is_no_signal(toys: SimpleNamespace) -> None:
    group = toys.make_group([(0.0, (0,))], [(0.0, (0,))], [(0.0, (1,))])
    group = with_state_keys(group, ("s",), ("s",), ("s",))
    for name, signal in (("", False), ("1", True)):
        acted = [
            dataclasses.replace(
                t, steps=tuple(dataclasses.replace(s, action=f"a{s.completion_ids[0]}", reward=reward) for s in t.steps)
            )
            for t, reward in zip(group.trajectories, (float(name or 0), 0.0, 0.0), strict=True)
        ]
        found = samples_of(
            TrajectoryGroup(tuple(acted)), config(group_size=3, step_coef=2.0, step_credit="matching", kl_coef=0.1)
        )
        assert found.has_signal is signal
        assert any(sample.advantage for sample in found.samples)


def test_step_level_credit_balanced_over_states(toys: SimpleNamespace) -> None:
    # Returns-to-go at gamma 1 from s: 1, 0 -> +1, -1; u and v are visited once each. Four visits of three states: 4/3
    # visits of a state on average, s has 2, so its credit is scaled by (4/3) / 2 = 2/3. A = +1, -1.
    group = toys.make_group([(0.0, (0,)), (1.0, (1,))], [(0.0, (1,)), (0.0, (0,))])
    group = with_state_keys(group, ("s", "u"), ("s", "v"))
    found = samples_of(group, config(step_coef=1.0, step_gamma=1.0, step_balance=True))
    assert [s.advantage for s in found.samples] == pytest.approx([1 + 2 / 3, 1, -1 - 2 / 3, -1])


def test_step_level_credit_over_the_whole_group_where_no_state_repeats(toys: SimpleNamespace) -> None:
    # gamma 0.5: returns-to-go 0.5, 1 and 0, 0: mean 0.375, std sqrt((0.25 + 1)/4 - 0.375^2) = 0.414578. A = +1, -1.
    group = toys.make_group([(0.0, (0,)), (1.0, (1,))], [(0.0, (1,)), (0.0, (0,))])
    group = with_state_keys(group, ("s", "u"), ("t", "v"))
    found = samples_of(group, config(step_coef=1.0, step_gamma=0.5, step_anchor="group"))
    credit = [0.125 / 0.414578, 0.625 / 0.414578, -0.375 / 0.414578, -0.375 / 0.414578]
    assert [s.advantage for s in found.samples] == pytest.approx(
        [1 + credit[0], 1 + credit[1], -1 + credit[2], -1 + credit[3]], rel=1e-5
    )


def test_step_level_credit_is_a_signal_where_returns_are_equal(toys: SimpleNamespace) -> None:
    # Both episodes return 1, one step against two: A = 0, but from the common start 1 against 0.5 is +1, -1.
    group = toys.make_group([(1.0, (0,))], [(0.0, (1,)), (1.0, (0,))])
    assert not samples_of(group).has_signal
    assert samples_of(group, config(step_coef=1.0, step_gamma=0.5)).has_signal


def test_an_episode_without_advantage_is_computed_only_for_kl_or_entropy(toys: SimpleNamespace) -> None:
    group = toys.make_group(*[[(value, (0,))] for value in (-1.0, 0.0, 1.0)])
    assert len(samples_of(group).samples) == 2
    assert len(samples_of(group, config(kl_coef=0.1)).samples) == 3
    assert len(samples_of(group, config(ent_coef=0.1)).samples) == 3


# ---- eq. 1 to 3: the objective ---------------------------------------------------------------------------------------


def test_objective_by_hand() -> None:
    # Episode 1: one token, A = 1, ratio 1.5 clipped to 1.2, weight 1/2:            0.5 * -1.2        = -0.6
    # Episode 2: two tokens, A = -1, ratios 1.0 and 0.9, weight 1/4: 0.25 * (1.0 + 0.9)               =  0.475
    # KL 0.1, 0.2, 0.4 times beta 0.5:               0.5 * (0.5 * 0.1 + 0.25 * 0.2 + 0.25 * 0.4)       =  0.1
    # entropy 1, 2, 2 times 0.01:                 - 0.01 * (0.5 * 1 + 0.25 * 2 + 0.25 * 2)             = -0.015
    old = torch.tensor([-1.0, -2.0, -0.5])
    logprobs = old + torch.log(torch.tensor([1.5, 1.0, 0.9]))
    loss = objective(
        logprobs,
        old,
        torch.tensor([1.0, -1.0, -1.0]),
        torch.tensor([0.5, 0.25, 0.25]),
        clip_low=0.2,
        clip_high=0.2,
        kl=torch.tensor([0.1, 0.2, 0.4]),
        kl_coef=0.5,
        entropy=torch.tensor([1.0, 2.0, 2.0]),
        ent_coef=0.01,
    )
    assert loss.item() == pytest.approx(-0.6 + 0.475 + 0.1 - 0.015, rel=1e-6)


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    rng = torch.Generator().manual_seed(0)
    columns = [torch.rand(10, generator=rng) for _ in range(4)]
    whole = objective(*columns, clip_low=0.2, clip_high=0.2)
    parts = [objective(*(c[a:b] for c in columns), clip_low=0.2, clip_high=0.2) for a, b in ((0, 1), (1, 7), (7, 10))]
    torch.testing.assert_close(whole, torch.stack(parts).sum(), rtol=1e-6, atol=0.0)


def test_the_first_gradient_is_that_of_reinforce(toys: SimpleNamespace) -> None:
    # -1/G sum_j A_j / |y_j| sum_k grad log p(y_k): two episodes, A = (1, -1), |y| = (2, 1), from the uniform policy.
    # grad log p of token i at a place: onehot(i) - 1/4.
    model = toys.TableModel(1, 2)
    learner = Learner(model, config(max_grad_norm=1e9))
    group = toys.make_group([(1.0, (2, 0))], [(0.0, (1,))], logprob=math.log(0.25))
    metrics = learner.step(samples_of(group).samples, 1, 1.0)
    onehot = torch.eye(4)
    expected = torch.stack(
        [-(0.25 * (onehot[2] - 0.25) - 0.5 * (onehot[1] - 0.25)), -0.25 * (onehot[0] - 0.25)]
    ).unsqueeze(0)
    torch.testing.assert_close(model.table.grad, expected, rtol=1e-5, atol=1e-7)
    assert metrics["ratio_gap"] < 1e-6
    assert metrics["clip_fraction"] == 0.0
    assert metrics["loss"] == pytest.approx(0.0, abs=1e-6)  # -1/2 * 1 + 1/2 * 1
    assert metrics["entropy"] == pytest.approx(math.log(4), rel=1e-6)
    assert metrics["grad_norm"] == pytest.approx(float(expected.norm()), rel=1e-5)


def test_the_order_of_episodes_changes_no_gradient(toys: SimpleNamespace) -> None:
    episodes = [[(1.0, (2, 0))], [(0.0, (1,)), (0.0, (1,))], [(0.5, (3,))]]
    found = []
    for order in ((0, 1, 2), (2, 0, 1)):
        learner = Learner(toys.TableModel(), config())
        group = toys.make_group(*(episodes[i] for i in order), logprob=math.log(0.25))
        learner.step(samples_of(group).samples, 1, 1.0)
        found.append(gradient(learner))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)


def test_episodes_of_3_5_and_1_steps_need_no_padding(toys: SimpleNamespace) -> None:
    # minibatch of 4 groups, 1 there; the gradient is the mean over episodes of the means over their tokens
    episodes = [[(0.0, (0,))] * 2 + [(1.0, (0,))], [(0.0, (1,))] * 5, [(0.0, (2,))]]
    model = toys.TableModel(1, 1)
    learner = Learner(model, config(minibatch_groups=4, max_grad_norm=1e9))
    found = samples_of(toys.make_group(*episodes, logprob=math.log(0.25)))
    metrics = update(learner, [found], 1.0, seed=0)
    assert metrics["num_updates"] == 1.0
    assert learner.iteration == 1
    # returns 1, 0, 0: A = (sqrt 2, -1/sqrt 2, -1/sqrt 2); whatever the lengths, each episode weighs 1/3
    onehot, high, low = torch.eye(4), 2**0.5, -(0.5**0.5)
    expected = -(high * (onehot[0] - 0.25) + low * (onehot[1] - 0.25) + low * (onehot[2] - 0.25)) / 3
    torch.testing.assert_close(model.table.grad.flatten(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("size", "updates"), [(None, 1), (2, 3), (5, 1)])
def test_minibatches_take_every_group_once_in_an_epoch(toys: SimpleNamespace, size: int | None, updates: int) -> None:
    learner = Learner(toys.TableModel(), config(minibatch_groups=size, learning_rate=1e-4))
    seen: list[int] = []
    plain = learner.step

    def recorded(samples: Any, num_groups: int, temperature: float, trust: object, **place: Any) -> dict[str, float]:
        seen.append(num_groups)
        return plain(samples, num_groups, temperature)

    learner.step = recorded  # type: ignore[method-assign]
    group = toys.make_group([(1.0, (0,))], [(0.0, (1,))], logprob=math.log(0.25))
    silent = toys.make_group([(0.0, (0,))], [(0.0, (1,))])
    metrics = update(learner, [samples_of(g) for g in (group, silent, group, group, group, group)], 1.0, seed=0)
    assert sorted(seen, reverse=True) == ([2, 2, 1] if size == 2 else [5])  # the silent group is left out
    assert metrics["num_updates"] == updates
    assert learner.iteration == 1  # the schedule advances by iterations, not by updates


def test_an_update_says_how_far_it_is(toys: SimpleNamespace) -> None:
    # Two steps (one for each group) of two passes (one for each row).
    learner = Learner(toys.TableModel(), config(minibatch_groups=1, max_tokens_per_pass=1, learning_rate=1e-4))
    told: list[float] = []
    learner.on_update = told.append
    group = toys.make_group([(1.0, (0,))], [(0.0, (1,))], logprob=math.log(0.25))
    update(learner, [samples_of(group), samples_of(group)], 1.0, seed=0)
    assert told == [0.25, 0.5, 0.75, 1.0]


def of_prompt(*prompt: int, count: int = 1) -> list[Sample]:
    return [Sample(prompt, (place,), (-1.0,), 1.0, 0.5) for place in range(count)]


def test_prompts_of_all_groups_are_shared_out_among_the_steps() -> None:
    groups = [
        [*of_prompt(1, 1, count=3), *of_prompt(1, 2), *of_prompt(7, 7)],
        [*of_prompt(2, 1), *of_prompt(2, 2), *of_prompt(7, 7, count=2)],  # (7, 7) is a state of both boards
        [*of_prompt(3, 1), *of_prompt(3, 2)],
    ]
    settings = config(minibatch_prompts=3)
    parts = make_minibatches(groups, settings, generator("test"))
    assert [num_groups for _, num_groups in parts] == [1.0, 1.0, 1.0]
    prompts = [{sample.prompt_ids for sample in samples} for samples, _ in parts]
    assert sorted(len(of_step) for of_step in prompts) == [2, 2, 3]
    assert sum(len(of_step) for of_step in prompts) == len(set.union(*prompts)) == 7  # a prompt is in one step only
    taken = sorted((s.prompt_ids, s.completion_ids) for samples, _ in parts for s in samples)
    assert taken == sorted((s.prompt_ids, s.completion_ids) for samples in groups for s in samples)
    assert make_minibatches(groups, settings, generator("test")) == parts
    assert make_minibatches(groups, settings, generator("other")) != parts


def test_all_prompts_in_one_step_are_all_groups_in_one_step() -> None:
    groups = [of_prompt(1, count=2), of_prompt(2)]
    for settings in ({}, {"minibatch_groups": 2}, {"minibatch_prompts": 2}, {"minibatch_prompts": 50}):
        ((samples, num_groups),) = make_minibatches(groups, config(**settings), generator("test"))
        assert num_groups == 2.0
        assert sorted(samples, key=str) == sorted([*groups[0], *groups[1]], key=str)
        assert make_minibatches([], config(**settings), generator("test")) == []


def test_steps_of_prompts_add_up_to_the_gradient_of_all(toys: SimpleNamespace) -> None:
    episodes = [[(1.0, (0,)), (0.0, (1,))], [(0.0, (1,)), (0.5, (2,))], [(0.0, (2,))]]
    groups = [samples_of(toys.make_group(*episodes, logprob=math.log(0.25))).samples for _ in range(3)]
    groups = [
        tuple(dataclasses.replace(s, prompt_ids=(number % 2, place)) for place, s in enumerate(samples))
        for number, samples in enumerate(groups)
    ]
    gradients = []
    for size in (5, 2):
        learner = Learner(toys.TableModel(), config(max_grad_norm=1e9, learning_rate=1e-12))
        parts = make_minibatches(groups, config(minibatch_prompts=size), generator("test"))
        assert len(parts) == (2 if size == 5 else 3)
        steps = []
        for samples, num_groups in parts:
            learner.step(samples, num_groups, 1.0)
            steps.append(gradient(learner))
        gradients.append(torch.stack(steps).mean(dim=0))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-8)


def test_j_is_averaged_over_the_groups_with_a_signal(toys: SimpleNamespace) -> None:
    group = toys.make_group([(1.0, (0,))], [(0.0, (1,))], logprob=math.log(0.25))
    found = []
    for count in (1, 3):
        learner = Learner(toys.TableModel(), config(max_grad_norm=1e9))
        update(learner, [samples_of(group)] * count, 1.0, seed=0)
        found.append(gradient(learner))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("parts", [1, 3, 100], ids=lambda n: f"rows{n}")
def test_micro_batches_of_the_table_give_one_gradient(toys: SimpleNamespace, parts: int) -> None:
    learner = Learner(toys.TableModel(), config(max_tokens_per_pass=parts, kl_coef=0.1, ent_coef=0.1))
    group = toys.make_group([(1.0, (2, 0)), (0.0, (1,))], [(0.0, (1,))], [(0.0, (2, 2, 3))], logprob=math.log(0.25))
    learner.step(samples_of(group, learner.config).samples, 1, 1.0)
    whole = Learner(toys.TableModel(), config(kl_coef=0.1, ent_coef=0.1))
    whole.step(samples_of(group, whole.config).samples, 1, 1.0)
    torch.testing.assert_close(gradient(learner), gradient(whole), rtol=0.0, atol=1e-7)


def test_an_eos_first_completion_gets_its_credit(toys: SimpleNamespace) -> None:
    model = toys.TableModel(1, 1)
    learner = Learner(model, config())
    group = toys.make_group([(1.0, (0,))], [(0.0, (toys.EOS,))], logprob=math.log(0.25))
    update(learner, [samples_of(group)], 1.0, seed=0)
    p = torch.softmax(model.table.detach()[0, 0], -1)
    assert p[toys.EOS] < 0.25 < p[0]


# ---- update ----------------------------------------------------------------------------------------------------------


def test_an_iteration_without_signal_changes_nothing_and_counts(toys: SimpleNamespace) -> None:
    model = toys.TableModel()
    learner = Learner(model, config(num_iterations=3, num_groups=2))
    agent = toys.make_agent(model, invalid_penalty=0.0)
    iterations = list(train(learner, agent, lambda: toys.Bandit(rewards=(0.0, 0.0)), seed=0))
    assert [iteration.number for iteration in iterations] == [1, 2, 3]
    assert learner.iteration == 3
    for iteration in iterations:
        assert iteration.metrics["groups_without_signal"] == 1.0
        assert iteration.metrics["num_updates"] == 0.0
        assert iteration.metrics["num_episodes"] == 8.0
        assert all(math.isfinite(value) for key, value in iteration.metrics.items() if key != "success_rate")
    assert not model.table.detach().any()


def test_a_stale_sampler_is_noticed(toys: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    model = toys.TableModel()
    learner = Learner(model, config(num_iterations=5, learning_rate=1.0, num_groups=4))
    monkeypatch.setattr(model, "weights_changed", lambda: None)
    with pytest.raises(
        RuntimeError,
        match=r"^Before any update the importance ratio is off by \d+\.\d{3}; expected 1\. The sampler used other "
        r"weights or another distribution than the learner; this is a bug, please report it\.$",
    ):
        list(train(learner, toys.make_agent(model), toys.Bandit, seed=0))
    assert learner.iteration == 1  # the second iteration is the first that can be stale


def test_the_second_epoch_feels_the_clip_and_the_first_ratio_is_reported(toys: SimpleNamespace) -> None:
    model = toys.TableModel()
    learner = Learner(model, config(num_epochs=3, learning_rate=0.5))
    group = toys.make_group([(1.0, (0,))], [(0.0, (1,))], logprob=math.log(0.25))
    metrics = update(learner, [samples_of(group)], 1.0, seed=0)
    assert metrics["num_updates"] == 3.0
    assert metrics["ratio_gap"] < 1e-6
    assert metrics["clip_fraction"] > 0.0
    assert metrics["approx_kl"] > 0.0


def test_a_gradient_that_is_not_finite_stops_with_a_message(toys: SimpleNamespace) -> None:
    learner = Learner(toys.TableModel(), config())
    sample = Sample((0,), (1,), (-1.0,), advantage=float("nan"), weight=1.0)
    message = (
        "The gradient norm is nan at iteration 1; expected a finite number. Lower algorithm.learning_rate or use "
        'model.dtype = "float32".'
    )
    with pytest.raises(FloatingPointError, match=f"^{re.escape(message)}$"):
        learner.step([sample], 1, 1.0)
    assert not learner.model.table.detach().any()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, [1, 1, 1, 1, 1]),
        ({"warmup_iterations": 2}, [0.5, 1, 1, 1, 1]),
        ({"decay": "linear"}, [1, 0.8, 0.6, 0.4, 0.2]),
        # after a warm-up of 1: (0, 1, 2, 3) of 4
        ({"decay": "linear", "warmup_iterations": 1}, [1, 1, 0.75, 0.5, 0.25]),
        ({"decay": "cosine", "warmup_iterations": 1}, [1, 1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]),
    ],
    ids=["constant", "warmup", "linear", "warmup_linear", "warmup_cosine"],
)
def test_learning_rates_by_hand(toys: SimpleNamespace, settings: dict[str, Any], rates: list[float]) -> None:
    learner = Learner(toys.TableModel(), config(num_iterations=5, learning_rate=2.0, **settings))
    found = []
    for number in range(5):
        learner.iteration = number
        found.append(learner.learning_rate())
    assert found == pytest.approx([2.0 * rate for rate in rates])


def test_the_rate_of_the_iteration_is_the_one_used(toys: SimpleNamespace) -> None:
    model = toys.TableModel()
    learner = Learner(model, config(num_iterations=4, decay="linear", num_groups=2))
    used = []
    for iteration in train(learner, toys.make_agent(model), toys.Bandit, seed=0):
        used.append((iteration.metrics["learning_rate"], learner.optimizer.param_groups[0]["lr"]))
    assert used == [(pytest.approx(rate), pytest.approx(rate)) for rate in (0.1, 0.075, 0.05, 0.025)]


# ---- KL and entropy --------------------------------------------------------------------------------------------------


def p_first(model: Any) -> float:
    return float(torch.softmax(model.table.detach()[0, 0], -1)[0])


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_a_strong_kl_penalty_keeps_the_policy_near_the_reference(toys: SimpleNamespace, estimator: Any) -> None:
    found = []
    for beta in (0.0, 10.0):
        model = toys.TableModel()
        settings = config(
            num_iterations=30,
            group_size=16,
            kl_coef=beta,
            kl_estimator=estimator,
            learning_rate=0.05,
            max_grad_norm=1e9,
        )
        iterations = list(train(Learner(model, settings), toys.make_agent(model), toys.Bandit, seed=0))
        found.append(p_first(model))
        assert iterations[0].metrics["kl_to_reference"] == pytest.approx(0.0, abs=1e-6)
    assert found[0] > 0.6
    assert 0.2 < found[1] < 0.4


def test_no_reference_is_kept_without_a_penalty(toys: SimpleNamespace) -> None:
    model = toys.TableModel()
    Learner(model, config())
    assert model.reference is None
    Learner(model, config(kl_coef=0.1))
    assert model.reference is not None


def test_the_entropy_bonus_slows_the_loss_of_entropy(toys: SimpleNamespace) -> None:
    found = []
    for weight in (0.0, 1.0):
        model = toys.TableModel()
        settings = config(num_iterations=30, group_size=16, ent_coef=weight, learning_rate=0.05)
        *_, last = train(Learner(model, settings), toys.make_agent(model), toys.Bandit, seed=0)
        found.append(last.metrics["entropy"])
    assert found[1] > found[0] + 0.2


# ---- train -----------------------------------------------------------------------------------------------------------


def test_the_bandit_is_solved_and_the_run_repeats(toys: SimpleNamespace) -> None:
    found = []
    for _ in range(2):
        model = toys.TableModel()
        settings = config(num_iterations=40, group_size=16, sampled_group_size=8, episode_temperature=1.0)
        iterations = list(train(Learner(model, settings), toys.make_agent(model), toys.Bandit, seed=3))
        found.append((model.table.detach(), [iteration.metrics["return_mean"] for iteration in iterations]))
    assert p_first(model) > 0.9
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_another_seed_plays_another_run(toys: SimpleNamespace) -> None:
    found = []
    for seed in (0, 1):
        model = toys.TableModel()
        list(
            train(
                Learner(model, config(num_iterations=3, group_size=8)), toys.make_agent(model), toys.Bandit, seed=seed
            )
        )
        found.append(model.table.detach())
    assert not torch.equal(*found)


def test_two_steps_resume_and_two_steps_are_four_steps(toys: SimpleNamespace) -> None:
    settings = config(num_iterations=4, group_size=8, sampled_group_size=4, episode_temperature=1.0, decay="linear")

    def metrics_of(iteration: Iteration) -> dict[str, float]:
        return {key: value for key, value in iteration.metrics.items() if key != "success_rate"}  # NaN here

    straight = toys.TableModel()
    whole = Learner(straight, settings)
    expected = [metrics_of(i) for i in train(whole, toys.make_agent(straight), toys.Bandit, seed=5)]

    first = toys.TableModel()
    learner = Learner(first, settings)
    run = train(learner, toys.make_agent(first), toys.Bandit, seed=5)
    found = [metrics_of(next(run)), metrics_of(next(run))]
    state = (first.table.detach().clone(), learner.optimizer.state_dict(), learner.iteration)

    second = toys.TableModel()
    second.table.data.copy_(state[0])
    resumed = Learner(second, settings)
    resumed.optimizer.load_state_dict(state[1])
    resumed.iteration = state[2]
    found += [metrics_of(i) for i in train(resumed, toys.make_agent(second), toys.Bandit, seed=5)]
    assert found == expected
    assert torch.equal(second.table, straight.table)

    # negative control: without the optimizer's state the run is another one
    third = toys.TableModel()
    third.table.data.copy_(state[0])
    forgetful = Learner(third, settings)
    forgetful.iteration = state[2]
    list(train(forgetful, toys.make_agent(third), toys.Bandit, seed=5))
    assert not torch.equal(third.table, straight.table)


def test_a_failed_game_is_reported_and_not_learnt_from(toys: SimpleNamespace) -> None:
    class Fragile(toys.Bandit):  # type: ignore[name-defined,misc]
        def step(self, actions: Any) -> GameStep:
            if actions[0] is None:
                raise OSError("no such move")
            result: GameStep = super().step(actions)
            return result

    model = toys.TableModel()
    learner = Learner(model, config(num_iterations=1, group_size=8))
    (iteration,) = train(learner, toys.make_agent(model), Fragile, seed=0)
    assert 0 < len(iteration.failed) < 8
    assert iteration.metrics["num_episodes"] == 8 - len(iteration.failed)
    assert iteration.metrics["invalid_action_rate"] == 0.0


def test_what_an_iteration_tells(toys: SimpleNamespace) -> None:
    model = toys.TableModel()
    learner = Learner(model, config(num_iterations=1, num_groups=2, group_size=8))
    (iteration,) = train(learner, toys.make_agent(model), lambda: toys.Bandit(rounds=2), seed=0)
    played = [t for group in iteration.groups for t in group.trajectories]
    steps = [step for t in played for step in t.steps]
    assert len(steps) == 32
    metrics = iteration.metrics
    assert metrics["episode_length"] == 2.0
    assert metrics["return_mean"] == pytest.approx(np.mean([t.environment_return for t in played]))
    assert metrics["invalid_action_rate"] == pytest.approx(sum(s.action is None for s in steps) / 32)
    assert metrics["tokens_per_step"] == pytest.approx(sum(len(s.completion_ids) for s in steps) / 32)
    assert math.isnan(metrics["success_rate"])
    assert [len(advantages) for advantages in iteration.advantages] == [8, 8]


@pytest.mark.parametrize(("max_kl", "share", "kl"), [(0.5, 1.0, 0.4538), (0.2, 0.5, 0.1135)], ids=["whole", "halved"])
def test_a_step_is_halved_until_the_policy_moved_little_enough(
    toys: SimpleNamespace, max_kl: float, share: float, kl: float
) -> None:
    # AdamW's first step moves each logit that has a gradient by the learning rate 1: token 0 up, token 1 down.
    # Whole step: p proportional to (e, 1/e, 1, 1), Z = (2.7183 + 0.3679 + 2) / 4 = 1.2715; r = p / 0.25 = 2.1377 and
    # 0.2893; k3 = 1.1377 - 0.7597 and -0.7107 + 1.2402; mean 0.4538. Half of it: 0.4538 / 4 = 0.1135 by the square law
    # (0.1218 if it were computed again).
    model = toys.TableModel(num_prompts=1, max_tokens=1)
    learner = Learner(model, config(learning_rate=1.0, max_kl=max_kl))
    group = toys.make_group([(1.0, (0,))], [(0.0, (1,))], logprob=math.log(0.25))
    metrics = learner.step(samples_of(group).samples, 1, 1.0)
    assert metrics["step_share"] == share
    assert metrics["step_kl"] == pytest.approx(kl, abs=1e-4)
    torch.testing.assert_close(model.table.detach()[0, 0], torch.tensor([share, -share, 0.0, 0.0]))


def test_a_step_far_outside_the_trust_region_is_looked_at_again(toys: SimpleNamespace) -> None:
    # Rate 2: p = (e^2, e^-2, 1, 1) / 9.5244; r = 3.1032 and 0.0568; k3 = 2.1032 - 1.1324 and -0.9432 + 2.8682; mean
    # 1.4479, more than 8 times 0.03. Factor 0.9 sqrt(0.03 / 1.4479) = 0.12955. Logits +-0.2591: Z = 1.0168; r = 1.2743
    # and 0.7590; k3 = 0.2743 - 0.2424 and -0.2410 + 0.2758; mean 0.03334 is still above 0.03: half of it.
    learner = Learner(toys.TableModel(), config(learning_rate=2.0, max_kl=0.03))
    group = toys.make_group([(1.0, (0,))], [(0.0, (1,))], logprob=math.log(0.25))
    metrics = learner.step(samples_of(group).samples, 1, 1.0)
    assert metrics["step_share"] == pytest.approx(0.12955 / 2, abs=1e-4)
    assert metrics["step_kl"] == pytest.approx(0.03334 / 4, abs=1e-4)


def test_without_a_trust_region_every_step_is_whole(toys: SimpleNamespace) -> None:
    learner = Learner(toys.TableModel(), config(learning_rate=5.0))
    group = toys.make_group([(1.0, (0,))], [(0.0, (1,))], logprob=math.log(0.25))
    metrics = learner.step(samples_of(group).samples, 1, 1.0)
    assert "step_share" not in metrics
    torch.testing.assert_close(learner.model.table.detach()[0, 0], torch.tensor([5.0, -5.0, 0.0, 0.0]))
