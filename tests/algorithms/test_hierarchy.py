"""Transitions of the three roles, from annotations and from play."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stratagem.agents.hierarchical import HierarchicalAgent, HierarchicalConfig
from stratagem.algorithms.hierarchy import Sample, annotated_samples, pack_samples, played_samples, unpack_samples
from stratagem.data.annotations import AnnotatedEpisode, AnnotatedStep
from stratagem.types import Finish, Generation, Step, StopReason, Trajectory


class Letters:
    """A tokenizer whose tokens are whole texts."""

    name = "letters"
    context_length = 1000
    end_id = 0

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        return (self.known.setdefault(text, len(self.known) + 1),)

    def encode_chat(self, messages: Sequence[tuple[str, str]], assistant_prefix: str = "") -> tuple[int, ...]:
        return self.encode(messages[-1][1])

    def text(self, ids: Sequence[int]) -> str:
        return next((text for text, number in self.known.items() if ids and number == ids[0]), "")


EPISODE = AnnotatedEpisode(
    "alfworld",
    0,
    0,
    "task",
    "scene",
    True,
    (
        AnnotatedStep(0, "g0", "None", "o0", "a0", False, "p1", "o1", 0.0),
        AnnotatedStep(0, "g0", "p1", "o1", "a1", True, "p2", "o2", 0.25),
        AnnotatedStep(1, "g1", "None", "o2", "a2", True, "p3", "o3", 1.0),
    ),
)


def agent_of(model: Any, **settings: Any) -> HierarchicalAgent:
    return HierarchicalAgent.from_config(model, HierarchicalConfig(**settings))


def test_an_expert_episode_gives_every_role_its_inputs_answers_rewards_and_next_states() -> None:
    model = Letters()
    samples = annotated_samples(agent_of(model), EPISODE)
    high = [
        "scene\nTask: task\nCompleted subtasks: None\nLast progress: None\nObservation: o0",
        "scene\nTask: task\nCompleted subtasks: g0\nLast progress: p2\nObservation: o2",
    ]
    low = [
        "scene\nSubtask: g0\nLocal progress: None\nObservation: o0",
        "scene\nSubtask: g0\nLocal progress: p1\nObservation: o1",
        "scene\nSubtask: g1\nLocal progress: None\nObservation: o2",
    ]
    progress = [
        "Subtask: g0\nPrevious progress: None\nAction: a0\nObservation: o1",
        "Subtask: g0\nPrevious progress: p1\nAction: a1\nObservation: o2",
        "Subtask: g1\nPrevious progress: None\nAction: a2\nObservation: o3",
    ]
    found = [
        (s.role, model.text(s.prompt_ids), model.text(s.completion_ids), s.reward, model.text(s.next_prompt_ids))
        for s in samples
    ]
    assert found == [
        ("high", high[0], "g0", 0.25, high[1]),
        ("low", low[0], "a0; False", 0.0, low[1]),
        ("progress", progress[0], "p1", 0.0, progress[1]),
        ("low", low[1], "a1; True", 1.0, ""),
        ("progress", progress[1], "p2", 1.0, ""),
        ("high", high[1], "g1", 1.0, ""),
        ("low", low[2], "a2; True", 1.0, ""),
        ("progress", progress[2], "p3", 1.0, ""),
    ]
    assert all(sample.completion_ids[-1] == model.end_id for sample in samples)


def test_without_progress_there_is_nothing_of_it() -> None:
    model = Letters()
    samples = annotated_samples(agent_of(model, use_progress=False), EPISODE)
    assert {sample.role for sample in samples} == {"high", "low"}
    assert all("p1" not in model.text(s.prompt_ids) and "p2" not in model.text(s.prompt_ids) for s in samples)


def test_with_histories_the_high_level_is_shown_the_episode_and_the_low_level_its_subtask() -> None:
    model = Letters()
    samples = annotated_samples(agent_of(model, use_progress=False, use_history=True), EPISODE)
    past = ["Observation: o0\nAction: a0\n", "Observation: o1\nAction: a1\n"]
    high = [
        "scene\nTask: task\nCompleted subtasks: None\nObservation: o0",
        f"scene\nTask: task\nCompleted subtasks: g0\n{past[0]}{past[1]}Observation: o2",
    ]
    low = [
        "scene\nSubtask: g0\nObservation: o0",
        f"scene\nSubtask: g0\n{past[0]}Observation: o1",
        "scene\nSubtask: g1\nObservation: o2",
    ]
    found = [(s.role, model.text(s.prompt_ids), model.text(s.next_prompt_ids)) for s in samples]
    assert found == [
        ("high", high[0], high[1]), ("low", low[0], low[1]), ("low", low[1], ""), ("high", high[1], ""),
        ("low", low[2], ""),
    ]  # fmt: skip


def step(number: int, said: str, action: str | None, reward: float = 0.0, *parts: tuple[str, int]) -> Step:
    generations = tuple(Generation(role, "x", (ids,), (ids, 0), (), None, Finish.STOP) for role, ids in parts)
    return Step(
        "o", action, reward, completion=said, prompt_ids=(number,), completion_ids=(number, 0), generations=generations
    )


def played(*steps: Step, success: bool = True) -> Trajectory:
    reason = StopReason.TERMINATED if success else StopReason.MAX_STEPS
    return Trajectory("g", 0, 0, 0, steps, success, not success, reason, success)


def test_a_played_episode_gives_what_was_sampled() -> None:
    trajectory = played(
        step(10, "a; False", "a", 0.0, ("high", 20)),
        step(11, "b; True", "b", 0.5, ("progress", 30)),
        step(12, "c; False", "c", 0.0, ("progress", 31), ("high", 21)),
        step(13, "oops", None, 0.0, ("progress", 32)),
        step(14, "d; True", "d", 1.0, ("progress", 33)),
    )
    assert played_samples(trajectory) == [
        Sample("high", (20,), (20, 0), 0.5, (21,)),
        Sample("low", (10,), (10, 0), 0.0, (11,)),
        Sample("progress", (30,), (30, 0), 0.0, (31,)),  # sums up a
        Sample("low", (11,), (11, 0), 1.0),
        Sample("progress", (31,), (31, 0), 1.0),  # sums up b, which ended the subtask
        Sample("high", (21,), (21, 0), 1.0),
        Sample("low", (12,), (12, 0), 0.0, (13,)),
        Sample("progress", (32,), (32, 0), 0.0, (33,)),  # sums up c
        Sample("low", (13,), (13, 0), -1.0, (14,)),  # invalid
        Sample("progress", (33,), (33, 0), 1.0),  # the last one stands for the last action
        Sample("low", (14,), (14, 0), 1.0),
    ]


def test_without_subtasks_the_task_is_the_only_one_and_the_progress_goes_through_all_of_it() -> None:
    model = Letters()
    samples = annotated_samples(agent_of(model, use_subtasks=False), EPISODE)
    low = [
        "scene\nSubtask: task\nLocal progress: None\nObservation: o0",
        "scene\nSubtask: task\nLocal progress: p1\nObservation: o1",
        "scene\nSubtask: task\nLocal progress: p2\nObservation: o2",
    ]
    progress = [
        "Subtask: task\nPrevious progress: None\nAction: a0\nObservation: o1",
        "Subtask: task\nPrevious progress: p1\nAction: a1\nObservation: o2",
        "Subtask: task\nPrevious progress: p2\nAction: a2\nObservation: o3",
    ]
    found = [
        (s.role, model.text(s.prompt_ids), model.text(s.completion_ids), s.reward, model.text(s.next_prompt_ids))
        for s in samples
    ]
    assert found == [  # rewards are those of the game
        ("low", low[0], "a0; False", 0.0, low[1]),
        ("progress", progress[0], "p1", 0.0, progress[1]),
        ("low", low[1], "a1; False", 0.25, low[2]),
        ("progress", progress[1], "p2", 0.25, progress[2]),
        ("low", low[2], "a2; True", 1.0, ""),
        ("progress", progress[2], "p2 p3", 1.0, ""),
    ]


def test_without_subtasks_a_played_episode_earns_what_the_game_pays() -> None:
    trajectory = played(
        step(10, "a; True", "a", 0.0),
        step(11, "b; False", "b", 0.5, ("progress", 30)),
        step(12, "oops", None, 0.0, ("progress", 31)),
        step(13, "d; False", "d", 1.0, ("progress", 32)),
    )
    assert played_samples(trajectory) == [
        Sample("low", (10,), (10, 0), 0.0, (11,)),  # said True, which is not believed
        Sample("progress", (30,), (30, 0), 0.0, (31,)),
        Sample("low", (11,), (11, 0), 0.5, (12,)),
        Sample("progress", (31,), (31, 0), 0.5, (32,)),
        Sample("low", (12,), (12, 0), -1.0, (13,)),
        Sample("progress", (32,), (32, 0), 1.0),  # the last one stands for the last action
        Sample("low", (13,), (13, 0), 1.0),
    ]


def test_an_episode_that_was_cut_off_ends_without_reward() -> None:
    trajectory = played(step(10, "a; False", "a", 0.0, ("high", 20)), step(11, "b; False", "b"), success=False)
    assert played_samples(trajectory) == [
        Sample("high", (20,), (20, 0), 0.0),
        Sample("low", (10,), (10, 0), 0.0, (11,)),
        Sample("low", (11,), (11, 0), 0.0),
    ]


def test_a_subtask_that_a_limit_ended_earns_nothing() -> None:
    # Nobody said True, and yet the next subtask begins.
    trajectory = played(step(10, "a; False", "a", 0.0, ("high", 20)), step(11, "b; True", "b", 1.0, ("high", 21)))
    low = [sample for sample in played_samples(trajectory) if sample.role == "low"]
    assert low == [Sample("low", (10,), (10, 0), 0.0), Sample("low", (11,), (11, 0), 1.0)]


@pytest.mark.parametrize(
    "episodes",
    [
        [],
        [[]],
        [[Sample("high", (1, 2), (3,), 0.1, (4, 5, 6))], [], [Sample("low", (7,), (8, 9), -1.0)] * 2],
    ],
    ids=["none", "an empty one", "several"],
)
def test_packed_samples_come_back(episodes: list[list[Sample]]) -> None:
    assert unpack_samples(pack_samples(episodes)) == episodes
