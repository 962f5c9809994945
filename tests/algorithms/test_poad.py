"""POAD, NTPO and TWOSOME on a policy that is a table, with a critic that is one too."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stratagem.agents.parsing import ParsedAction, ParseError
from stratagem.algorithms import ms_grpo
from stratagem.algorithms.credit import token_advantages
from stratagem.algorithms.poad import Learner, POADConfig, check_trainable, learnt_steps, make_samples, train, update
from stratagem.errors import ConfigError
from stratagem.models.heads import HeadConfig
from stratagem.types import StopReason

LINEAR = HeadConfig(layers=())


@dataclass(frozen=True)
class Batch:
    logprobs: Tensor
    entropy: Tensor
    num_computed: int
    num_seen: int
    hidden: Tensor


@pytest.fixture
def table(toys: SimpleNamespace) -> Any:
    """Return a maker of table models whose hidden states name the prompt and the place: V is a table as well."""

    class CriticTable(toys.TableModel):  # type: ignore[misc, name-defined]
        has_base = False

        @property
        def hidden_size(self) -> int:
            return int(self.table.shape[0] * self.table.shape[1])

        def hidden_states(self, rows: Any, *, base: bool = False) -> Tensor:
            places = [p[0] * self.table.shape[1] + k for p, c in rows for k in range(len(c))]
            return torch.eye(self.hidden_size)[torch.tensor(places)]

        def logprobs(self, rows: Any, *, temperature: float = 1.0) -> Batch:
            found = super().logprobs(rows, temperature=temperature)
            return Batch(found.logprobs, found.entropy, found.num_computed, found.num_seen, self.hidden_states(rows))

    return CriticTable


def config(**settings: Any) -> POADConfig:
    defaults: dict[str, Any] = dict(learning_rate=0.1, critic_learning_rate=0.1, critic=LINEAR, ent_coef=0.0)
    return POADConfig(**(defaults | settings))


def learner_of(table: Any, values: Sequence[float] | None = None, **settings: Any) -> Learner:
    """Return a learner whose critic says ``values`` for the places of the first prompt."""
    learner = Learner(table(), config(**settings))
    if values is not None:
        weight = learner.heads.named_parameters()["value.0.weight"]
        weight.data[0, : len(values)] = torch.tensor(values)
    return learner


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(num_minibatches=0), "num_minibatches=0 must be 1 or more."),
        (dict(gamma_a=0.0), "gamma_a=0.0 is not in (0, 1]; use 1 for no discount."),
        (dict(gamma_w=1.5, credit="ntpo"), "gamma_w=1.5 is not in (0, 1]; use 1 for no discount."),
        (
            dict(gamma_w=0.9),
            "gamma_w=0.9 has no effect with credit='poad', which does not discount inside an action; leave it out, or "
            'set credit = "ntpo".',
        ),
        (
            dict(credit="ntpo"),
            'gamma_w=1.0 makes credit="ntpo" the same as "poad"; set gamma_w below 1, such as gamma_a, or credit = '
            '"poad".',
        ),
        (dict(gae_lambda=1.1), "gae_lambda=1.1 is not in [0, 1]; the papers use 0.95."),
        (dict(clip_range=0.0), "clip_range=0.0 must be above 0 and finite."),
        (dict(target_kl=0.0), "target_kl=0.0 lets nothing through; set it above 0, or switch it off."),
        (dict(vf_coef=-1.0), "vf_coef=-1.0 must be 0 or more."),
        (dict(max_steps=0), "max_steps=0 plays nothing; set it to 1 or more, or leave it out."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_learn_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        POADConfig(**settings)


def test_the_defaults_are_those_of_the_authors_code() -> None:
    found = POADConfig()
    assert (found.gamma_a, found.gae_lambda, found.clip_range, found.value_clip) == (0.95, 0.95, 0.2, 0.2)
    assert (found.vf_coef, found.ent_coef, found.max_grad_norm, found.target_kl) == (0.5, 0.01, 0.5, 0.02)
    assert (found.learning_rate, found.critic_learning_rate, found.adam_eps) == (1e-6, 5e-5, 1e-5)
    assert (found.num_groups, found.num_epochs, found.decay) == (4, 1, "linear")
    assert found.critic.layers == (1024, 512)


def test_a_critic_on_the_base_model_needs_an_adapter(table: Any) -> None:
    message = (
        "algorithm.critic.trunk='base' reads weights that do not train, and this model has none; add [model.lora], or "
        "set trunk to 'detached' or 'shared'."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Learner(table(), config(critic=HeadConfig(trunk="base")))


def test_greedy_and_truncated_sampling_are_refused(toys: SimpleNamespace, table: Any) -> None:
    check_trainable(toys.make_agent(table()))
    with pytest.raises(ConfigError, match=r"^agent\.temperature=0 always gives the same episode"):
        check_trainable(toys.make_agent(table(), temperature=0.0))


# ---- samples ---------------------------------------------------------------------------------------------------------


def test_units_are_tokens_or_whole_actions(toys: SimpleNamespace, table: Any) -> None:
    trajectory = toys.make_trajectory((0.0, (2, 2, 0)), (1.0, (0,)), logprob=-0.5)
    settings: dict[str, Any] = dict(gamma_a=0.9, gae_lambda=0.5, normalise_advantages=False)
    values = [0.1, 0.4, -0.3]
    ((first, second),) = make_samples(learner_of(table, values, **settings), [trajectory])
    wanted = token_advantages(
        [np.array(values), np.array(values[:1])], [0.0, 1.0], gamma_a=[0.9, 0.9], gamma_w=1.0, gae_lambda=0.5
    )
    np.testing.assert_allclose(first.advantages, wanted[0], rtol=0.0, atol=1e-6)
    np.testing.assert_allclose(first.values, values, rtol=0.0, atol=1e-6)
    np.testing.assert_allclose(first.returns, wanted[0] + values, rtol=0.0, atol=1e-6)
    assert first.old_logprobs.tolist() == [-0.5] * 3
    np.testing.assert_allclose(second.advantages, wanted[1], rtol=0.0, atol=1e-6)
    ((first, second),) = make_samples(learner_of(table, values, credit="twosome", **settings), [trajectory])
    # last: delta = 1 - 0.1 = 0.9; first: delta = 0 + 0.9 * 0.1 - 0.1 = -0.01, A = -0.01 + 0.9 * 0.5 * 0.9 = 0.395
    assert first.advantages == pytest.approx([0.395], abs=1e-6)
    assert second.advantages == pytest.approx([0.9], abs=1e-6)
    assert first.old_logprobs.tolist() == [-1.5]
    ((first, _),) = make_samples(learner_of(table, values, credit="ntpo", gamma_w=0.9, **settings), [trajectory])
    assert first.advantages[-1] == pytest.approx(wanted[0][-1], abs=1e-6)
    assert first.advantages[0] != pytest.approx(wanted[0][0], abs=1e-3)


def test_time_discounts_macro_actions_where_it_is_asked_for(toys: SimpleNamespace, table: Any) -> None:
    trajectory = toys.make_trajectory((0.0, (0,)), (1.0, (0,)))
    trajectory = replace(trajectory, steps=(replace(trajectory.steps[0], duration=3), trajectory.steps[1]))
    settings: dict[str, Any] = dict(gamma_a=0.5, gae_lambda=1.0, normalise_advantages=False)
    for macro, credit in ((False, 0.5), (True, 0.125)):
        ((first, _),) = make_samples(learner_of(table, macro_discount=macro, **settings), [trajectory])
        assert first.returns == pytest.approx([credit])


@pytest.mark.parametrize(
    ("reason", "kept", "after"),
    [
        (StopReason.TERMINATED, 2, None),
        (StopReason.INVALID_ACTION, 2, None),  # what the player did ended it
        (StopReason.MAX_STEPS, 1, "last"),
        (StopReason.CONTEXT, 1, "last"),
    ],
)
def test_only_a_limit_leaves_a_value_behind(
    toys: SimpleNamespace, table: Any, reason: StopReason, kept: int, after: str | None
) -> None:
    whole = toys.make_trajectory((0.25, (0,)), (1.0, (0,)))
    trajectory = replace(whole, stop_reason=reason, terminated=reason is StopReason.TERMINATED)
    steps, following = learnt_steps(trajectory, bootstrap_truncated=True)
    assert len(steps) == kept
    assert following == (None if after is None else trajectory.steps[-1])
    assert learnt_steps(trajectory, bootstrap_truncated=False) == (trajectory.steps, None)
    one = replace(trajectory, steps=trajectory.steps[:1])
    assert learnt_steps(one, bootstrap_truncated=True) == (one.steps, None)
    settings: dict[str, Any] = dict(gamma_a=0.5, gae_lambda=0.0, normalise_advantages=False)
    (samples,) = make_samples(learner_of(table, [0.6], **settings), [trajectory])
    # r + gamma V(next) - V = 0.25 + 0.5 * 0.6 - 0.6 either way; the second step is over: 1 - 0.6
    assert [s.advantages[0] for s in samples] == pytest.approx([-0.05, 0.4][:kept], abs=1e-6)


def test_advantages_are_normalised_over_all_units(toys: SimpleNamespace, table: Any) -> None:
    trajectories = [toys.make_trajectory((1.0, (2, 0)), (0.0, (0,))), toys.make_trajectory((0.0, (1,)))]
    plain = make_samples(learner_of(table, normalise_advantages=False), trajectories)
    episodes = make_samples(learner_of(table), trajectories)
    flat, raw = (np.concatenate([s.advantages for e in x for s in e]) for x in (episodes, plain))
    np.testing.assert_allclose(flat, (raw - raw.mean()) / raw.std(), rtol=0.0, atol=1e-12)
    # returns stay what they are
    for mine, other in zip(episodes, plain, strict=True):
        assert [s.returns.tolist() for s in mine] == [s.returns.tolist() for s in other]


# ---- steps -----------------------------------------------------------------------------------------------------------


def play(toys: SimpleNamespace, model: Any, count: int = 6, **settings: Any) -> Any:
    agent = toys.make_agent(model, **settings)
    groups, _ = ms_grpo.play_groups(toys.Bandit, [agent], num_groups=1, group_size=count, address=(0,))
    return agent, list(groups[0].trajectories)


@pytest.mark.parametrize("credit", ["poad", "twosome"])
def test_the_first_gradient_is_that_of_reinforce_with_the_advantages(
    toys: SimpleNamespace, table: Any, credit: Any
) -> None:
    learner = learner_of(table, credit=credit, max_grad_norm=1e9)
    agent, trajectories = play(toys, learner.model)
    samples = [s for e in make_samples(learner, trajectories) for s in e]
    assert len({len(s.completion_ids) for s in samples}) > 1
    parameter = learner.parameters["table"]
    loss = torch.zeros(())
    count = 0
    for sample in samples:
        log_p = torch.stack(
            [torch.log_softmax(parameter[sample.prompt_ids[0], k], -1)[t] for k, t in enumerate(sample.completion_ids)]
        )
        units = log_p if credit == "poad" else log_p.sum(0, keepdim=True)
        loss = loss - (units * torch.tensor(sample.advantages, dtype=torch.float32)).sum()
        count += len(units)
    (wanted,) = torch.autograd.grad(loss / count, parameter)
    before = parameter.detach().clone()
    metrics = learner.step(samples, agent)
    assert parameter.grad is not None
    torch.testing.assert_close(parameter.grad, wanted, rtol=0.0, atol=1e-6)
    assert not torch.equal(parameter, before)
    assert (metrics["ratio_gap"], metrics["clip_fraction"]) == (pytest.approx(0.0, abs=1e-6), 0.0)


def test_the_critics_gradient_is_that_of_the_mean_squared_error(toys: SimpleNamespace, table: Any) -> None:
    learner = learner_of(table, max_grad_norm=1e9, vf_coef=0.5)
    agent, trajectories = play(toys, learner.model)
    samples = [s for e in make_samples(learner, trajectories) for s in e]
    learner.step(samples, agent)
    returns = np.concatenate([s.returns for s in samples])
    places = np.concatenate([np.arange(len(s.completion_ids)) for s in samples])
    # values are 0, so each unit of place k pushes V_k by 0.5 * 2 * (0 - R) / U
    wanted = [-returns[places == k].sum() / len(returns) for k in range(3)]
    gradient = learner.heads.named_parameters()["value.0.weight"].grad
    assert gradient is not None
    assert gradient[0, :3].tolist() == pytest.approx(wanted, abs=1e-6)


def test_micro_batches_add_up_to_the_whole(toys: SimpleNamespace, table: Any) -> None:
    found = []
    for limit in (8192, 2):
        learner = learner_of(table, max_tokens_per_pass=limit, ent_coef=0.1)
        agent, trajectories = play(toys, learner.model)
        samples = [s for e in make_samples(learner, trajectories) for s in e]
        metrics = learner.step(samples, agent)
        found.append((learner.parameters["table"].grad, metrics))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0.0, atol=1e-7)
    for name, value in found[0][1].items():
        assert found[1][1][name] == pytest.approx(value, abs=1e-6)


def test_a_policy_that_has_gone_too_far_rests_and_the_critic_goes_on(toys: SimpleNamespace, table: Any) -> None:
    found = {}
    for target in (None, 1e-3):
        learner = learner_of(table, learning_rate=0.5, num_epochs=4, target_kl=target)
        agent, trajectories = play(toys, learner.model)
        samples = [s for e in make_samples(learner, trajectories) for s in e]
        tables, critics = [], []
        for _ in range(3):
            learner.step(samples, agent)
            tables.append(learner.parameters["table"].detach().clone())
            critics.append(learner.heads.named_parameters()["value.0.weight"].detach().clone())
        assert learner.policy_rests == (target is not None)
        assert not torch.equal(critics[1], critics[2])
        found[target] = [torch.equal(a, b) for a, b in itertools.pairwise(tables)]
    # the first step is always made, from KL = 0; what it did is seen at the second
    assert found == {None: [False, False], 1e-3: [True, True]}


def test_a_rest_ends_with_the_iteration(toys: SimpleNamespace, table: Any) -> None:
    learner = learner_of(table, learning_rate=0.5, num_epochs=3, target_kl=1e-3, num_iterations=4)
    for _ in range(2):
        agent, trajectories = play(toys, learner.model)
        learner.model.weights_changed()
        before = learner.parameters["table"].detach().clone()
        samples = [s for e in make_samples(learner, trajectories) for s in e]
        metrics = update(learner, samples, agent, seed=0)
        assert (metrics["policy_rests"], metrics["num_updates"]) == (1.0, 3.0)
        assert not torch.equal(learner.parameters["table"], before)


def test_the_critic_warms_up_alone(toys: SimpleNamespace, table: Any) -> None:
    learner = learner_of(table, critic_warmup=1, num_iterations=2, num_groups=8)
    run = train(learner, toys.make_agent(learner.model), toys.Bandit, seed=0)
    iteration = next(run)
    assert torch.equal(learner.parameters["table"], torch.zeros_like(learner.parameters["table"]))
    assert learner.heads.named_parameters()["value.0.weight"].abs().sum() > 0
    assert iteration.metrics["grad_norm"] == 0.0 < iteration.metrics["critic_grad_norm"]
    next(run)
    assert not torch.equal(learner.parameters["table"], torch.zeros_like(learner.parameters["table"]))


def test_rates_fall_together_and_minibatches_are_counted(toys: SimpleNamespace, table: Any) -> None:
    learner = learner_of(table, num_iterations=2, num_groups=6, num_epochs=2, num_minibatches=3, target_kl=None)
    iterations = list(train(learner, toys.make_agent(learner.model), toys.Bandit, seed=0))
    assert [i.metrics["num_updates"] for i in iterations] == [6.0, 6.0]
    assert [i.metrics["learning_rate"] for i in iterations] == pytest.approx([0.1, 0.05])
    assert [i.metrics["critic_learning_rate"] for i in iterations] == pytest.approx([0.1, 0.05])
    assert [len(i.groups) for i in iterations] == [6, 6]
    assert all(len(group.trajectories) == 1 for i in iterations for group in i.groups)
    assert any(value != 0.0 for of_group in iterations[0].advantages for value in of_group.values())


def test_probabilities_that_disagree_before_the_first_step_are_noticed(toys: SimpleNamespace, table: Any) -> None:
    learner = learner_of(table)
    agent, trajectories = play(toys, learner.model)
    samples = [replace(s, old_logprobs=s.old_logprobs - 0.5) for e in make_samples(learner, trajectories) for s in e]
    with pytest.raises(RuntimeError, match=r"^Before any update the importance ratio is off by 0\.649; expected 1\."):
        update(learner, samples, agent, seed=0)


def test_a_gradient_that_is_no_number_stops_with_its_name(toys: SimpleNamespace, table: Any) -> None:
    learner = learner_of(table)
    agent, trajectories = play(toys, learner.model)
    samples = [replace(s, advantages=s.advantages * np.nan) for e in make_samples(learner, trajectories) for s in e]
    message = (
        "The grad_norm is nan at iteration 1; expected a finite number. Lower the learning rates of the algorithm, or "
        'use model.dtype = "float32".'
    )
    with pytest.raises(FloatingPointError, match=f"^{re.escape(message)}$"):
        learner.step(samples, agent)


# ---- learning --------------------------------------------------------------------------------------------------------


def test_the_critic_learns_the_value_of_a_policy_that_stays(toys: SimpleNamespace, table: Any) -> None:
    settings: dict[str, Any] = dict(critic_warmup=10**6, num_groups=64, num_iterations=60, value_clip=None)
    learner = learner_of(table, critic_learning_rate=0.03, decay="constant", **settings)
    learner.model.table.data[..., 2:] = -20.0  # one token, a or b alike
    learner.model.weights_changed()
    list(train(learner, toys.make_agent(learner.model), toys.Bandit, seed=0))
    assert learner.heads.named_parameters()["value.0.weight"][0, 0].item() == pytest.approx(0.5, abs=0.08)


def length_parser(text: str, legal: Any) -> ParsedAction:
    """Three tokens, the first two "???", are arm a; one token is arm b; anything else is no action."""
    completion = text.removeprefix("<action>")
    if completion.startswith("??????"):
        return ParsedAction(legal[0])
    return ParsedAction(None, ParseError.EMPTY) if completion.startswith("???") else ParsedAction(legal[1])


@pytest.mark.parametrize(
    ("credit", "gamma_w", "favourite"), [("poad", 1.0, 2), ("twosome", 1.0, 2), ("ntpo", 0.5, None)]
)
def test_a_discount_inside_an_action_teaches_the_short_action(
    toys: SimpleNamespace, table: Any, credit: Any, gamma_w: float, favourite: int | None
) -> None:
    # The long action pays 1, the short one 0.6. At gamma_w = 0.5 the long one's first token is worth 0.25 at best.
    learner = learner_of(
        table,
        credit=credit,
        gamma_w=gamma_w,
        num_groups=64,
        num_iterations=60,
        decay="constant",
        target_kl=None,
        ent_coef=0.02,
    )
    agent = toys.make_agent(learner.model, parser=length_parser, invalid_penalty=0.0)
    learner.model.table.data[:, :2, 2] = 1.0  # the long action is found now and then
    list(train(learner, agent, lambda: toys.Bandit(rewards=(1.0, 0.6)), seed=0))
    first = torch.softmax(learner.parameters["table"].detach()[0, 0], -1)
    if favourite is not None:
        assert float(first[favourite]) > 0.8
    else:
        assert float(first[2]) < 0.2
