"""STEP-HRL: the learner against explicit loops and against a table, and the run of its three parts."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from stratagem.agents.hierarchical import HierarchicalAgent, HierarchicalConfig, RoleSettings
from stratagem.agents.scoring import ScoringAgent
from stratagem.algorithms.hierarchy import Sample
from stratagem.algorithms.step_hrl import Learner, StepHRLConfig, batch_of, check_trainable, describe_roles, train
from stratagem.data.annotations import write_annotations
from stratagem.data.model_annotations import plain_episodes
from stratagem.errors import ConfigError
from stratagem.games import make
from stratagem.models.base import TokenRow
from stratagem.models.catalog import LoraSettings, ModelConfig, build_tiny
from stratagem.models.heads import HeadConfig
from stratagem.models.local import LocalModel
from stratagem.types import Generation, Step, StopReason, Trajectory, TrajectoryGroup

SMALL = HeadConfig(layers=(8,))


def tiny(**settings: Any) -> LocalModel:
    model, tokenizer = build_tiny()
    return LocalModel(model, tokenizer, ModelConfig("tiny", **settings))


def episode_samples() -> list[Sample]:
    """Two roles with chains, a third with an end only; prompts share their beginnings."""
    return [
        Sample("high", (5, 6, 7), (20, 2), 1.0, (5, 6, 8)),
        Sample("low", (5, 9, 7), (21, 22, 2), 0.0, (5, 9, 8)),
        Sample("low", (5, 9, 8), (21, 2), 1.0),
        Sample("progress", (6, 9), (23, 24, 25, 2), -1.0),
        Sample("high", (5, 6, 8), (26, 2), 0.5),
    ]


def trained_heads(learner: Learner) -> None:
    """Make heads and slow copies differ from zero and from each other."""
    with torch.no_grad():
        state = learner.critics.state()
        numbers = torch.Generator().manual_seed(1)
        for tensor in state.values():
            tensor.copy_(0.3 * torch.randn(tensor.shape, generator=numbers))


# ---- the losses of a step --------------------------------------------------------------------------------------------


def explicit_losses(learner: Learner, samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Return the three losses, one sample and one row at a time."""
    config, model, critics = learner.config, learner.model, learner.critics
    of_code = config.variant == "authors_code"
    sums: dict[str, list[Tensor]] = {"policy": []}
    counts = {role: sum(sample.role == role for sample in samples) for role in ("high", "low", "progress")}
    tokens = sum(len(sample.completion_ids) for sample in samples)
    for sample in samples:

        def state(ids: tuple[int, ...]) -> Tensor:
            return model.hidden_states([(ids, (0,))]).detach()

        at_prompt, at_answer = state(sample.prompt_ids), state(sample.prompt_ids + sample.completion_ids)
        value = critics(f"{sample.role}_v", at_prompt)[0]
        q_value = critics(f"{sample.role}_q", at_answer)[0]
        slow_q = critics.target(f"{sample.role}_q", at_prompt if of_code else at_answer)[0]
        after = 0.0
        if sample.next_prompt_ids:
            after = float(critics.target(f"{sample.role}_v", state(sample.next_prompt_ids))[0])
        of_q = (sample.reward + config.gamma * after - q_value) ** 2
        difference = value - slow_q
        below = bool(difference.detach() < 0)
        if of_code:  # as the authors' code has it
            weight = 1 - config.expectile if below else config.expectile
        else:
            weight = config.expectile if below else 1 - config.expectile
        sums.setdefault(f"q_{sample.role}", []).append(of_q)
        sums.setdefault(f"v_{sample.role}", []).append(weight * difference**2)
        log_p = model.logprobs([sample.row]).logprobs
        advantage = float((q_value - value).detach())
        if of_code:
            sums["policy"].append(-advantage * log_p.mean() / len(samples))
        else:
            factor = min(math.exp(advantage / config.awr_temperature), config.max_weight)
            sums["policy"].append(-factor * log_p.sum() / tokens)
    found = {name: torch.stack(parts).sum() for name, parts in sums.items()}
    return {name: loss / counts[name[2:]] if name != "policy" else loss for name, loss in found.items()}


@pytest.mark.parametrize("max_tokens", [8192, 1], ids=["one pass", "a pass for each"])
@pytest.mark.parametrize("variant", ["paper", "authors_code"])
def test_a_packed_step_is_the_sum_of_single_samples(variant: Any, max_tokens: int) -> None:
    config = StepHRLConfig(
        variant=variant, critic=SMALL, max_tokens_per_pass=max_tokens, max_grad_norm=1e9, max_weight=1.2
    )
    learner = Learner(tiny(), config)
    trained_heads(learner)
    samples = episode_samples()
    losses = explicit_losses(learner, samples)
    names = [*learner.parameters.values(), *learner.critic_parameters.values()]
    expected = torch.autograd.grad(sum(losses.values()), names, allow_unused=True)
    learner.optimizer.step = lambda: None  # type: ignore[method-assign, assignment, return-value]
    metrics = learner.improve(samples, learns=True)
    for role in ("high", "low", "progress"):
        assert metrics[f"q_loss_{role}"] == pytest.approx(float(losses[f"q_{role}"].detach()), rel=1e-4, abs=1e-6)
        assert metrics[f"v_loss_{role}"] == pytest.approx(float(losses[f"v_{role}"].detach()), rel=1e-4, abs=1e-6)
    for parameter, gradient in zip(names, expected, strict=True):
        found = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        torch.testing.assert_close(
            found, torch.zeros_like(parameter) if gradient is None else gradient, rtol=1e-3, atol=1e-5
        )


def test_the_variants_differ() -> None:
    found = []
    for variant in ("paper", "authors_code"):
        learner = Learner(tiny(), StepHRLConfig(variant=variant, critic=SMALL))  # type: ignore[arg-type]
        trained_heads(learner)
        found.append(learner.improve(episode_samples(), learns=True))
    assert found[0]["q_loss"] == pytest.approx(found[1]["q_loss"], rel=1e-5)
    assert abs(found[0]["v_loss"] - found[1]["v_loss"]) > 1e-3
    assert abs(found[0]["grad_norm"] - found[1]["grad_norm"]) > 1e-3


@pytest.mark.parametrize("variant", ["paper", "authors_code"])
def test_cloning_is_the_mean_of_minus_log_p(variant: Any) -> None:
    learner = Learner(tiny(), StepHRLConfig(variant=variant, critic=SMALL, max_grad_norm=1e9))
    samples = episode_samples()
    parts = [learner.model.logprobs([sample.row]).logprobs for sample in samples]
    loss = -torch.cat(parts).mean() if variant == "paper" else -torch.stack([part.mean() for part in parts]).mean()
    expected = torch.autograd.grad(loss, list(learner.parameters.values()))
    learner.optimizer.step = lambda: None  # type: ignore[method-assign, assignment, return-value]
    metrics = learner.clone(samples)
    for parameter, gradient in zip(learner.parameters.values(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-6)
    low = -float(torch.stack([parts[1].mean(), parts[2].mean()]).mean().detach())
    assert metrics["bc_loss_low"] == pytest.approx(low, rel=1e-5)
    assert all(parameter.grad is None for parameter in learner.critic_parameters.values())


def test_only_the_critics_learn_in_the_warm_up_and_the_slow_copies_follow() -> None:
    learner = Learner(tiny(), StepHRLConfig(critic=SMALL, tau=0.25, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in learner.parameters.items()}
    slow = {name: t.clone() for name, t in learner.critics.state().items() if name.startswith("target.")}
    learner.improve(episode_samples(), learns=False)
    assert all(torch.equal(before[name], p) for name, p in learner.parameters.items())
    state = learner.critics.state()
    assert any(not torch.equal(slow[name], state[name]) for name in slow)
    for name, old in slow.items():
        fast = state[name.removeprefix("target.")]
        torch.testing.assert_close(state[name], 0.75 * old + 0.25 * fast, rtol=1e-5, atol=1e-7)
    learner.improve(episode_samples(), learns=True)
    assert any(not torch.equal(before[name], p) for name, p in learner.parameters.items())


@pytest.mark.parametrize(
    ("settings", "trunk"),
    [
        ({}, "detached"),
        ({}, "shared"),
        ({"trainable_layers": 1}, "detached"),
        ({"lora": LoraSettings(rank=2)}, "base"),
    ],
    ids=["all weights", "shared trunk", "last layer", "lora"],
)
def test_whatever_trains_learns(settings: dict[str, Any], trunk: Any) -> None:
    config = StepHRLConfig(
        critic=HeadConfig(layers=(8,), trunk=trunk),
        bc_learning_rate=1e-2,
        learning_rate=1e-2,
        critic_learning_rate=1e-2,
        bc_iterations=1,
        weight_decay=0.0,
    )
    learner = Learner(tiny(**settings), config)
    losses = [learner.clone(episode_samples())["bc_loss"] for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]
    learner.iteration = 1
    learner.forget_moments()
    found = [learner.improve(episode_samples(), learns=True) for _ in range(12)]
    assert found[-1]["q_loss"] < 0.8 * found[0]["q_loss"]
    assert found[-1]["nll"] < found[0]["nll"]


# ---- against a table -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneHot:
    logprobs: Tensor
    entropy: Tensor
    hidden: Tensor
    num_computed: int
    num_seen: int


class Table:
    """Three states and two actions: a state of the model is one-hot, so that linear heads are tables."""

    name = "table"
    context_length = 10
    hidden_size = 3 + 6
    has_base = False
    end_id = 9

    def __init__(self) -> None:
        self.table = Parameter(torch.zeros(3, 2))

    def logprobs(self, rows: Sequence[TokenRow], *, temperature: float = 1.0) -> OneHot:
        logprobs, states = [], []
        for (s, *_), completion in rows:
            for place, token in enumerate(completion):
                action = completion[0] if place else None
                logprobs.append(
                    torch.log_softmax(self.table[s], 0)[token] if place == 0 and token < 2 else self.table.sum() * 0
                )
                states.append(s if action is None else 3 + 2 * s + action)
        hidden = torch.nn.functional.one_hot(torch.tensor(states), self.hidden_size).float()
        return OneHot(torch.stack(logprobs), torch.zeros(len(states)), hidden, len(states), len(states))

    def hidden_states(self, rows: Sequence[TokenRow], *, base: bool = False) -> Tensor:
        return self.logprobs(rows).hidden

    def split(self, rows: Sequence[TokenRow], max_tokens: int) -> list[list[int]]:
        return [list(range(len(rows)))]

    def named_parameters(self) -> dict[str, Parameter]:
        return {"table": self.table}

    def weights_changed(self) -> None:
        return None


DATA = [
    # (state, action, reward, next state): 1 is better in 0, 0 is better in 1 and 2 (which ends).
    (0, 0, 0.0, 0),
    (0, 1, 0.0, 1),
    (1, 0, 0.2, 2),
    (1, 1, 0.0, 0),
    (2, 0, 1.0, None),
    (2, 1, -1.0, None),
]


def expectile_of(numbers: Sequence[float], expectile: float) -> float:
    low, high = min(numbers), max(numbers)
    for _ in range(100):
        middle = (low + high) / 2
        slope = sum((expectile if x > middle else 1 - expectile) * (x - middle) for x in numbers)
        low, high = (middle, high) if slope > 0 else (low, middle)
    return low


def tabular_iql(gamma: float, expectile: float) -> tuple[np.ndarray, np.ndarray]:
    """Return V and Q by going round until nothing changes."""
    values, q_values = np.zeros(3), np.zeros((3, 2))
    for _ in range(500):
        for state, action, reward, after in DATA:
            q_values[state, action] = reward + (0.0 if after is None else gamma * values[after])
        values = np.array([expectile_of(list(q_values[state]), expectile) for state in range(3)])
    return values, q_values


def test_the_learner_comes_to_what_tabular_implicit_q_learning_does() -> None:
    gamma, expectile = 0.9, 0.9
    values, q_values = tabular_iql(gamma, expectile)
    assert q_values[0, 1] > q_values[0, 0] and q_values[1, 0] > q_values[1, 1]  # the oracle itself
    config = StepHRLConfig(
        gamma=gamma,
        expectile=expectile,
        awr_temperature=0.5,
        critic=HeadConfig(layers=()),
        critic_learning_rate=0.05,
        learning_rate=0.05,
        bc_iterations=0,
        weight_decay=0.0,
        max_grad_norm=1e9,
    )
    learner = Learner(Table(), config)  # type: ignore[arg-type]
    samples = [
        Sample("low", (state,), (action, 9), reward, () if after is None else (after,))
        for state, action, reward, after in DATA
    ]
    for step in range(900):
        learner.optimizer.param_groups[1]["lr"] = 0.05 if step < 500 else 0.005
        learner.improve(samples, learns=step >= 400)
    eye = torch.eye(9)
    found_v = learner.critics("low_v", eye[:3]).detach().numpy()
    found_q = learner.critics("low_q", eye[3:]).detach().numpy().reshape(3, 2)
    np.testing.assert_allclose(found_v, values, rtol=0, atol=5e-3)
    np.testing.assert_allclose(found_q, q_values, rtol=0, atol=5e-3)
    # Each action was taken once in each state, so pi is in proportion to the weights.
    weights = np.minimum(np.exp((q_values - values[:, None]) / 0.5), 20.0)
    policy = torch.softmax(learner.model.table, 1).detach().numpy()  # type: ignore[attr-defined]
    np.testing.assert_allclose(policy, weights / weights.sum(1, keepdims=True), rtol=0, atol=2e-2)


# ---- order of episodes -----------------------------------------------------------------------------------------------


def test_every_episode_comes_once_in_a_pass_and_the_order_needs_no_memory() -> None:
    episodes = [[Sample("low", (n,), (0,), 0.0)] for n in range(5)]
    taken = []
    for step in range(5):  # two passes
        samples, epoch = batch_of(episodes, step, 2, seed=0, stage="clone")
        assert epoch == step * 2 / 5
        taken += [sample.prompt_ids[0] for sample in samples]
    assert sorted(taken[:5]) == sorted(taken[5:]) == list(range(5))
    assert taken[:5] != taken[5:]
    assert batch_of(episodes, 3, 2, seed=0, stage="clone") == batch_of(episodes, 3, 2, seed=0, stage="clone")
    assert batch_of(episodes, 0, 5, seed=0, stage="clone") != batch_of(episodes, 0, 5, seed=0, stage="improve")


# ---- a run -----------------------------------------------------------------------------------------------------------

FEW = StepHRLConfig(
    num_iterations=3,
    bc_iterations=1,
    steps_per_iteration=1,
    batch_episodes=1,
    num_expert_episodes=2,
    collected_ratio=1.0,
    critic_warmup=1,
    critic=SMALL,
)
SHORT = HierarchicalConfig(
    high=RoleSettings(max_new_tokens=3), low=RoleSettings(max_new_tokens=3), progress=RoleSettings(max_new_tokens=3)
)


def test_a_run_clones_plays_once_and_learns_offline() -> None:
    make_game = partial(make, "ALFWorld-Generated", view="raw", task_types=["pick_and_place_simple"])
    model = tiny()
    learner = Learner(model, dataclasses.replace(FEW, max_steps=3))
    agent = HierarchicalAgent.from_config(model, SHORT)
    iterations = list(train(learner, agent, make_game, seed=0))
    assert [iteration.number for iteration in iterations] == [1, 2, 3]
    assert [len(iteration.groups) for iteration in iterations] == [0, 2, 0]
    assert [("bc_loss" in i.metrics, "q_loss" in i.metrics, "nll" in i.metrics) for i in iterations] == [
        (True, False, False),
        (False, True, False),
        (False, True, True),
    ]
    played = iterations[1]
    assert played.metrics["calls_high"] >= 1.0 and played.metrics["calls_progress"] == 2.0
    assert learner.heads.played is not None and len(learner.heads.played) == 2
    trajectory = played.groups[0].trajectories[0]
    assert len(trajectory.steps) == 3 and trajectory.steps[1].generations[0].role == "progress"
    # What was sampled is what is learnt from.
    sampled = {step.completion_ids for step in trajectory.steps}
    assert {s.completion_ids for s in learner.heads.played[0] if s.role == "low"} == sampled


def test_what_the_roles_said_is_counted() -> None:
    def episode(success: bool | None, *errors: str | None) -> TrajectoryGroup:
        high = Generation("high", "g", (1,), (1, 2), (), None)
        said = [Generation("progress", "p", (1,), (1, 2, 3), (), error) for error in errors]
        steps = (Step("o", "a", 0.0, generations=(high,)), *(Step("o", "a", 0.0, generations=(part,)) for part in said))
        reason = StopReason.TERMINATED if success else StopReason.MAX_STEPS
        return TrajectoryGroup((Trajectory("g", 0, 0, 0, steps, bool(success), not success, reason, success),))

    groups = [episode(True, None, "empty"), episode(None), episode(False, None), episode(True, None)]
    assert describe_roles(groups) == {
        "calls_high": 1.0,
        "malformed_rate_high": 0.0,
        "tokens_per_call_high": 2.0,
        "calls_progress": 1.0,
        "malformed_rate_progress": 0.25,
        "tokens_per_call_progress": 3.0,
        "collected_failure_rate": 0.5,
    }
    assert describe_roles([]) == {}
    assert "collected_failure_rate" not in describe_roles([episode(None)])


def test_annotations_from_a_file_are_cloned_on_any_game(tmp_path: Path) -> None:
    make_game = partial(make, "FrozenLake-NotSlippery", size=3, coordinates=False, max_steps=4)
    write_annotations(tmp_path / "lake.jsonl", plain_episodes(make_game, 3, seed=0))
    config = dataclasses.replace(FEW, num_iterations=1, annotations=str(tmp_path / "lake.jsonl"))
    model = tiny()
    agent = HierarchicalAgent.from_config(model, SHORT)
    (iteration,) = train(Learner(model, config), agent, make_game, seed=0)
    assert iteration.metrics["bc_loss"] > 0


def test_without_collected_episodes_it_learns_from_the_expert_alone() -> None:
    make_game = partial(make, "ALFWorld-Generated", view="raw", task_types=["pick_and_place_simple"])
    model = tiny()
    learner = Learner(model, dataclasses.replace(FEW, collected_ratio=0.0, bc_iterations=0, num_iterations=1))
    (iteration,) = train(learner, HierarchicalAgent.from_config(model, SHORT), make_game, seed=0)
    assert iteration.groups == [] and "q_loss" in iteration.metrics


def test_what_a_checkpoint_holds_comes_back() -> None:
    learner = Learner(tiny(), FEW)
    trained_heads(learner)
    for played in (None, [episode_samples(), []]):
        learner.heads.played = played
        other = Learner(tiny(), FEW)
        other.heads.load_state({name: tensor.clone() for name, tensor in learner.heads.state().items()})
        assert other.heads.played == played
        state = other.critics.state()
        assert all(torch.equal(tensor, state[name]) for name, tensor in learner.critics.state().items())


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_iterations": 0}, "num_iterations=0 must be 1 or more."),
        ({"batch_episodes": 0}, "batch_episodes=0 must be 1 or more."),
        (
            {"num_iterations": 5, "bc_iterations": 6},
            "bc_iterations=6 is not in 0..num_iterations=5; choose one that is.",
        ),
        ({"awr_temperature": 0.0}, "awr_temperature=0.0 must be above 0 and finite."),
        ({"learning_rate": math.inf}, "learning_rate=inf must be above 0 and finite."),
        ({"tau": 1.5}, "tau=1.5 is not in (0, 1]."),
        ({"expectile": 1.0}, "expectile=1.0 is not between 0 and 1; the paper uses 0.95."),
        ({"collected_ratio": -1.0}, "collected_ratio=-1.0 must be 0 or more, and finite."),
        ({"critic_warmup": -1}, "critic_warmup=-1 must be 0 or more."),
        ({"max_steps": 0}, "max_steps=0 plays nothing; set it to 1 or more, or leave it out."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_learn_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        StepHRLConfig(**settings)


def test_another_agent_is_refused(toys: SimpleNamespace) -> None:
    message = (
        "algorithm.name='step_hrl' trains the roles of a hierarchical agent, or to compare with it an agent that "
        "writes its actions; set agent.name = 'hierarchical', 'language' or 'react'."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_trainable(ScoringAgent(toys.TableModel()))
    check_trainable(toys.make_agent(toys.TableModel()))


def test_roles_on_several_models_are_refused(toys: SimpleNamespace) -> None:
    agent = HierarchicalAgent.from_config(toys.TableModel(), low=toys.TableModel())
    message = "The roles are on several models; expected one that all share, as it is what is trained."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_trainable(agent)


def test_critics_on_weights_that_are_not_there_are_refused() -> None:
    message = (
        "algorithm.critic.trunk='base' reads weights that do not train, and this model has none; add [model.lora], or "
        "set trunk to 'detached' or 'shared'."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Learner(tiny(), dataclasses.replace(FEW, critic=HeadConfig(trunk="base")))
