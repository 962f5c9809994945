"""The adaptive sampling temperature: the rule, its state, and training with it."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stratagem.algorithms.ms_grpo import Learner, MSGRPOConfig, train
from stratagem.algorithms.temperature import (
    AdaptiveTemperatureConfig,
    Thermostat,
    next_temperature,
    sampled_entropy,
)
from stratagem.errors import ConfigError

WIDE = AdaptiveTemperatureConfig(entropy_share=0.5, gain=1.0, lowest=0.5, highest=3.0)


def config(**settings: Any) -> MSGRPOConfig:
    whole: dict[str, Any] = dict(group_size=4, learning_rate=0.1, sampled_group_size=None, episode_temperature=None)
    return MSGRPOConfig(**(whole | settings))


# ---- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("temperature", "entropy", "gain", "expected"),
    [
        # target 0.4 throughout
        (1.0, 0.2, 1.0, 2.0),  # half the target: twice the temperature
        (1.5, 0.2, 0.5, 1.5 * 2**0.5),
        (1.0, 0.8, 0.5, 0.5**0.5),  # twice the target: down
        (1.2, 0.4, 1.0, 1.2),  # on target
        (1.0, 0.01, 1.0, 3.0),  # 40 is cut to the upper bound
        (1.0, 40.0, 1.0, 0.5),  # 0.01 is cut to the lower one
        (1.0, 0.0, 1.0, 3.0),  # certain answers are no division by zero
    ],
)
def test_golden_temperatures(temperature: float, entropy: float, gain: float, expected: float) -> None:
    found = next_temperature(temperature, entropy, 0.4, gain=gain, lowest=0.5, highest=3.0)
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_policy_that_was_certain_from_the_start_changes_nothing() -> None:
    assert next_temperature(1.1, 0.0, 0.0, gain=1.0, lowest=0.5, highest=3.0) == 1.1


def test_near_the_target_the_rule_is_that_of_its_source() -> None:
    # T (1 + T ln(H* / H) / (ln V + ln ln V)) with V = 49152: ln V = 10.8027, ln ln V = 2.3798, in all 13.1825.
    # T = 1, H* / H = 1.1: 1 + 0.0953102 / 13.1825 = 1.0072301; exp(x) differs from 1 + x by x^2 / 2 = 2.6e-5.
    gain = 1 / (math.log(49152) + math.log(math.log(49152)))
    found = next_temperature(1.0, 1.0, 1.1, gain=gain, lowest=0.5, highest=3.0)
    assert found == pytest.approx(1.0072301, abs=3e-5)
    assert found != pytest.approx(1.0072301, abs=1e-5)


def test_entropy_is_the_mean_over_all_tokens(toys: SimpleNamespace) -> None:
    # Tokens at -1, -1, -1 (two episodes of one group) and one at -3 in another: (3 + 3) / 4.
    first = toys.make_group([(0.0, (0, 1))], [(0.0, (1,))], logprob=-1.0)
    second = toys.make_group([(0.0, (0,))], logprob=-3.0)
    assert sampled_entropy([first, second]) == 1.5
    assert sampled_entropy([]) is None


# ---- the state -------------------------------------------------------------------------------------------------------


def test_the_target_is_a_share_of_the_first_entropy() -> None:
    thermostat = Thermostat(WIDE)
    found = []
    for temperature, entropy in ((1.0, 0.8), (0.5, 0.1), (2.0, None), (2.0, 0.2)):
        thermostat.observe(temperature, entropy)
        found.append(thermostat.temperature)
    # Target 0.5 * 0.8 = 0.4. 1 * 0.4 / 0.8; 0.5 * 0.4 / 0.1; nothing was said; 2 * 0.4 / 0.2 = 4, bounded.
    assert found == [0.5, 2.0, 2.0, 3.0]
    assert thermostat.first_entropy == 0.8


def test_the_state_is_kept_to_the_last_bit() -> None:
    first, second = Thermostat(WIDE), Thermostat(WIDE)
    second.load_state(first.state())
    assert (second.temperature, second.first_entropy) == (None, None)
    first.observe(1.0, 0.7)
    first.observe(first.temperature or 0.0, 1 / 3)
    second.load_state(first.state())
    assert (second.temperature, second.first_entropy) == (first.temperature, first.first_entropy)
    assert second.temperature == pytest.approx(0.5 * 0.35 * 3, rel=1e-12)  # target 0.35: first 0.5, then at 1/3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entropy_share": 0.0}, "entropy_share=0.0 must be above 0 and finite."),
        ({"gain": -0.1}, "gain=-0.1 must be above 0 and finite."),
        ({"gain": math.inf}, "gain=inf must be above 0 and finite."),
        ({"lowest": 2.0}, "lowest=2.0 and highest=1.3 leave no room; set 0 < lowest < highest."),
        ({"lowest": 0.0}, "lowest=0.0 and highest=1.3 leave no room; set 0 < lowest < highest."),
        ({"highest": math.inf}, "lowest=1.0 and highest=inf leave no room; set 0 < lowest < highest."),
    ],
)
def test_settings_that_control_nothing_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        AdaptiveTemperatureConfig(**settings)


# ---- training --------------------------------------------------------------------------------------------------------


def test_a_first_temperature_outside_the_bounds_is_refused(toys: SimpleNamespace) -> None:
    model = toys.TableModel()
    learner = Learner(model, config(adaptive_temperature=AdaptiveTemperatureConfig()))
    message = (
        "agent.temperature=0.7 is not in algorithm.adaptive_temperature's lowest=1.0..highest=1.3, between which it "
        "moves; change one of them."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        next(train(learner, toys.make_agent(model, temperature=0.7), toys.Bandit, seed=0))


def test_sampler_and_learner_use_the_temperature_of_the_iteration(toys: SimpleNamespace) -> None:
    # The table is uniform at first: every token has -log p = ln 4. The target is twice that, so the temperature becomes
    # sqrt(2). From then on the table is not uniform, and a learner at another temperature than the sampler's would
    # find ratios that are off by about 0.03 (the first step of Adam moves a logit by 0.1).
    model = toys.TableModel()
    adaptive = AdaptiveTemperatureConfig(entropy_share=2.0, gain=0.5, lowest=1.0, highest=3.0)
    learner = Learner(model, config(num_iterations=5, group_size=16, adaptive_temperature=adaptive))
    rows = [iteration.metrics for iteration in train(learner, toys.make_agent(model), toys.Bandit, seed=0)]
    assert rows[0]["sampled_entropy"] == pytest.approx(math.log(4), abs=1e-6)
    assert [row["temperature"] for row in rows[:2]] == pytest.approx([1.0, 2**0.5], abs=1e-6)
    assert rows[-1]["temperature"] > 1.5
    assert all(row["num_updates"] == 1 and row["ratio_gap"] < 1e-5 for row in rows)
    assert float(model.table.detach().abs().max()) > 0.1


def test_without_the_option_nothing_is_kept_or_told(toys: SimpleNamespace) -> None:
    model = toys.TableModel()
    learner = Learner(model, config(num_iterations=1))
    (iteration,) = train(learner, toys.make_agent(model), toys.Bandit, seed=0)
    assert learner.heads is None
    assert not {"temperature", "sampled_entropy", "extra_groups"} & iteration.metrics.keys()


@pytest.mark.parametrize("kept", [True, False], ids=["state_kept", "state_lost"])
def test_two_iterations_resume_and_two_are_four(toys: SimpleNamespace, kept: bool) -> None:
    adaptive = AdaptiveTemperatureConfig(entropy_share=1.5, gain=0.5, lowest=1.0, highest=3.0)
    settings = config(num_iterations=4, group_size=8, adaptive_temperature=adaptive)
    straight = toys.TableModel()
    list(train(Learner(straight, settings), toys.make_agent(straight), toys.Bandit, seed=5))

    first = toys.TableModel()
    learner = Learner(first, settings)
    run = train(learner, toys.make_agent(first), toys.Bandit, seed=5)
    next(run)
    next(run)
    second = toys.TableModel()
    second.table.data.copy_(first.table.detach())
    resumed = Learner(second, settings)
    resumed.optimizer.load_state_dict(learner.optimizer.state_dict())
    resumed.iteration = learner.iteration
    if kept:
        assert learner.heads is not None and resumed.heads is not None
        resumed.heads.load_state(learner.heads.state())
    list(train(resumed, toys.make_agent(second), toys.Bandit, seed=5))
    assert torch.equal(second.table, straight.table) == kept
