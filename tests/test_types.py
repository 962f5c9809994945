from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from stratagem.types import Step, StopReason, Trajectory, TrajectoryGroup


def trajectory(*steps: Step, **changes: Any) -> Trajectory:
    values: dict[str, Any] = dict(
        game="toy",
        seed=1,
        course=0,
        player=0,
        steps=steps,
        terminated=True,
        truncated=False,
        stop_reason=StopReason.TERMINATED,
    )
    return Trajectory(**(values | changes))


STEPS = (
    Step("s0", "left", reward=0.25, shaping=-0.5, completion_ids=(1, 2), logprobs=(-0.1, -0.2)),
    Step("s1", None, reward=1.0, invalid_penalty=-0.5, shaping=-0.25, completion_ids=(3,), logprobs=(-0.3,)),
)


def test_returns_keep_reward_penalty_and_shaping_apart() -> None:
    played = trajectory(*STEPS)
    assert played.game_return == 1.25  # 0.25 + 1
    assert played.environment_return == 0.75  # 0.25 + (1 - 0.5)
    assert played.composite_return == 0.0  # (0.25 - 0.5) + (1 - 0.5 - 0.25)


def test_tokens_and_invalid_steps_are_counted() -> None:
    played = trajectory(*STEPS)
    assert played.num_tokens == 3
    assert played.num_invalid == 1


def test_an_episode_without_steps_counts_zero() -> None:
    empty = trajectory()
    assert (empty.game_return, empty.composite_return, empty.num_tokens, empty.num_invalid) == (0, 0, 0, 0)


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        STEPS[0].reward = 1.0  # type: ignore[misc]


def test_a_group_from_one_start_is_accepted() -> None:
    assert len(TrajectoryGroup((trajectory(STEPS[0], course=1), trajectory(STEPS[0], course=2))).trajectories) == 2


@pytest.mark.parametrize(
    "other",
    [
        trajectory(STEPS[0], seed=2),
        trajectory(STEPS[0], player=1),
        trajectory(STEPS[0], game="chess"),
        trajectory(STEPS[1]),
    ],
    ids=["seed", "player", "game", "first_observation"],
)
def test_a_group_of_different_starts_is_refused(other: Trajectory) -> None:
    message = (
        "A group holds trajectories from 2 different starts; all must share game, seed, player and first observation. "
        "Reset each episode of a group with the same seed."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TrajectoryGroup((trajectory(STEPS[0]), other))
