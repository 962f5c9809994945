"""Dynamic sampling of groups with a signal: which groups are drawn, which are learnt from, and that draws stay put."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stratagem.algorithms.dynamic import collect, places_to_learn_from
from stratagem.algorithms.ms_grpo import Learner, MSGRPOConfig, train
from stratagem.algorithms.samples import GroupSamples
from stratagem.rollout import play_groups


def config(**settings: Any) -> MSGRPOConfig:
    whole: dict[str, Any] = dict(group_size=2, learning_rate=0.1, sampled_group_size=None, episode_temperature=None)
    return MSGRPOConfig(**(whole | settings))


class Fake:
    """Groups are their numbers; some have a signal, some lose all their episodes."""

    def __init__(self, signals: set[int], lost: set[int] | None = None) -> None:
        self.signals, self.lost = signals, lost or set()
        self.calls: list[tuple[int, int]] = []

    def play(self, first: int, count: int) -> Any:
        self.calls.append((first, count))
        numbers = range(first, first + count)
        return [n for n in numbers if n not in self.lost], [f"episode of {n}" for n in numbers if n in self.lost]

    def learn(self, place: int, group: Any) -> GroupSamples:
        return GroupSamples((), {place: float(group)}, group in self.signals)


def run(fake: Fake, num_groups: int, max_extra: int) -> Any:
    return collect(fake.play, fake.learn, num_groups=num_groups, max_extra=max_extra)


def test_a_round_draws_as_many_groups_as_lack_a_signal() -> None:
    # Of 0 and 1 only 1 has a signal; 2 and 3 have none, 4 has one.
    fake = Fake({1, 4, 5})
    found = run(fake, 2, 5)
    assert fake.calls == [(0, 2), (2, 1), (3, 1), (4, 1)]
    assert found.groups == [0, 1, 2, 3, 4] and found.num_drawn == 5
    # The place among the groups is that of the draws of their samples.
    assert [samples.advantages for samples in found.samples] == [{n: float(n)} for n in range(5)]
    assert found.learnt_from(2) == [found.samples[1], found.samples[4]]


@pytest.mark.parametrize(
    ("max_extra", "calls", "learnt"),
    [(0, [(0, 2)], [0, 1]), (1, [(0, 2), (2, 1)], [0, 1]), (2, [(0, 2), (2, 1), (3, 1)], [0, 1])],
)
def test_no_more_groups_are_drawn_than_allowed(max_extra: int, calls: list[Any], learnt: list[int]) -> None:
    fake = Fake({1, 4})
    found = run(fake, 2, max_extra)
    assert fake.calls == calls
    # What still lacks a signal stays, up to the number of groups.
    assert found.learnt_from(2) == [found.samples[place] for place in learnt]


def test_rounds_shrink_to_what_is_left_of_the_limit() -> None:
    fake = Fake(set())
    run(fake, 2, 3)
    assert fake.calls == [(0, 2), (2, 2), (4, 1)]


def test_groups_with_a_signal_draw_no_others() -> None:
    fake = Fake({0, 1, 2})
    run(fake, 3, 10)
    assert fake.calls == [(0, 3)]


def test_a_group_that_lost_its_episodes_is_replaced_too() -> None:
    fake = Fake({0, 2}, lost={1})
    found = run(fake, 2, 4)
    assert fake.calls == [(0, 2), (2, 1)]
    assert found.groups == [0, 2] and found.failed == ["episode of 1"]
    assert [samples.advantages for samples in found.samples] == [{0: 0.0}, {1: 2.0}]


def test_silent_groups_fill_up_in_their_order() -> None:
    assert places_to_learn_from([False, False, True, False], 3) == [0, 1, 2]
    assert places_to_learn_from([True, True], 2) == [0, 1]
    assert places_to_learn_from([False, False, False], 2) == [0, 1]  # KL and entropy hold on them
    assert places_to_learn_from([], 2) == []


# ---- training --------------------------------------------------------------------------------------------------------


def test_groups_by_their_number_are_those_of_one_larger_call(toys: SimpleNamespace) -> None:
    agent = toys.make_agent(toys.TableModel())

    def played(first: int, count: int) -> Any:
        groups, _ = play_groups(
            toys.Bandit, [agent], num_groups=count, group_size=3, address=(0, "train", 1), first_group=first
        )
        return groups

    whole = played(0, 5)
    assert played(3, 2) == whole[3:]
    assert len({group.trajectories[0].seed for group in whole}) == 5


def test_extra_groups_are_counted_recorded_and_take_the_place_of_silent_ones(toys: SimpleNamespace) -> None:
    found = []
    for extra in (0, 4):
        model = toys.TableModel()
        learner = Learner(model, config(num_iterations=1, num_groups=3, dynamic_groups=extra))
        (iteration,) = train(learner, toys.make_agent(model), toys.Bandit, seed=1)
        found.append(iteration)
    plain, dynamic = found
    count = int(dynamic.metrics["extra_groups"])
    assert 0 < count <= 4
    assert dynamic.groups[:3] == plain.groups and len(dynamic.groups) == 3 + count == len(dynamic.advantages)
    assert dynamic.metrics["num_episodes"] == 2 * (3 + count) and plain.metrics["num_episodes"] == 6
    silent = [not any(values.values()) for values in dynamic.advantages]
    assert dynamic.metrics["groups_without_signal"] == pytest.approx(sum(silent) / len(silent))
    assert sum(not quiet for quiet in silent) == 3  # enough were drawn
    assert any(silent)


def test_what_is_drawn_does_not_depend_on_how_many_play_at_once(toys: SimpleNamespace) -> None:
    tables, played = [], []
    for concurrent in (1, 1024):
        model = toys.TableModel()
        learner = Learner(model, config(num_iterations=4, num_groups=2, dynamic_groups=3))
        run = train(learner, toys.make_agent(model), toys.Bandit, seed=2, max_concurrent=concurrent)
        played.append([iteration.groups for iteration in run])
        tables.append(model.table.detach())
    assert played[0] == played[1]
    assert torch.equal(*tables)
    assert any(len(groups) > 2 for groups in played[0])


def test_a_game_where_nothing_has_a_signal_ends_at_the_limit(toys: SimpleNamespace) -> None:
    model = toys.TableModel()
    learner = Learner(model, config(num_iterations=2, num_groups=2, dynamic_groups=3))

    def flat() -> Any:
        return toys.Bandit(rewards=(0.0, 0.0))

    agent = toys.make_agent(model, invalid_penalty=0.0)
    for iteration in train(learner, agent, flat, seed=0):
        assert iteration.metrics["extra_groups"] == 3.0
        assert iteration.metrics["groups_without_signal"] == 1.0
        assert iteration.metrics["num_updates"] == 0.0
