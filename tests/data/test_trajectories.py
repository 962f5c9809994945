from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratagem.data.trajectories import SCHEMA, read_trajectories, write_trajectories
from stratagem.errors import RunError
from stratagem.types import Finish, Step, StopReason, Trajectory, TrajectoryGroup

SPOKEN = Step(
    observation="You are at (0, 0).\n\u00e9",
    action="up",
    reward=1 / 3,
    shaping=-0.25,
    executed_action="up",
    completion="<answer>up</answer><|im_end|>",
    prompt_ids=(1, 2, 49151),
    completion_ids=(7, 2),
    logprobs=(-0.1, -1e-45),
    finish=Finish.STOP,
    state_key="(0, 0)",
)
INVALID = Step(
    observation="o", action=None, reward=0.0, invalid_penalty=-0.5, parse_error="no tag", finish=Finish.LENGTH
)
FIRST = Trajectory(
    game="frozen_lake",
    seed=2**62 + 1,
    course=5,
    player=0,
    steps=(SPOKEN, INVALID),
    terminated=False,
    truncated=True,
    stop_reason=StopReason.MAX_STEPS,
    success=False,
    info={"map": ["SF", "FG"], "distance": 2.5},
)
SECOND = replace(FIRST, steps=(SPOKEN,), success=None, terminated=True, truncated=False, info={})
FAILED = replace(FIRST, steps=(), stop_reason=StopReason.GAME_FAILED)


def test_groups_come_back_equal(tmp_path: Path) -> None:
    groups = [TrajectoryGroup((FIRST, SECOND)), TrajectoryGroup((replace(SECOND, seed=9),))]
    path = write_trajectories(tmp_path, 12, groups, [[0.1, None], [-1.5]])
    assert path == tmp_path / "000012.parquet"
    stored = read_trajectories(path)
    assert [item.group for item in stored] == groups
    assert [item.advantages for item in stored] == [(0.1, None), (-1.5,)]
    assert [(item.iteration, item.index) for item in stored] == [(12, 0), (12, 1)]


def test_choices_and_time_come_back_in_columns_that_other_files_lack(tmp_path: Path) -> None:
    chosen = replace(SPOKEN, candidates=((5, 6), (7,)), candidate_logprobs=(-0.7, -0.6931471805599453), duration=3)
    group = TrajectoryGroup((replace(FIRST, steps=(SPOKEN, chosen)),))
    path = write_trajectories(tmp_path, 1, [group])
    assert [stored.group for stored in read_trajectories(path)] == [group]
    assert pq.read_schema(path).names == [*SCHEMA.names, "duration", "candidates", "candidate_logprobs"]
    assert pq.read_schema(write_trajectories(tmp_path, 2, [TrajectoryGroup((FIRST,))])).names == SCHEMA.names


def test_a_trajectory_without_steps_is_kept(tmp_path: Path) -> None:
    groups = [TrajectoryGroup((FAILED,)), TrajectoryGroup((FIRST, replace(FIRST, course=6)))]
    write_trajectories(tmp_path, 1, groups)
    assert [item.group for item in read_trajectories(tmp_path)] == groups


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"])),
    logprobs=st.lists(st.floats(max_value=0, allow_nan=False)),
    reward=st.floats(allow_nan=False),
)
def test_any_text_and_number_survives(tmp_path: Path, text: str, logprobs: list[float], reward: float) -> None:
    step = replace(SPOKEN, observation=text, action=text, completion=text, logprobs=tuple(logprobs), reward=reward)
    group = TrajectoryGroup((replace(FIRST, steps=(step,)),))
    assert read_trajectories(write_trajectories(tmp_path, 0, [group]))[0].group == group


def test_half_a_surrogate_pair_does_not_end_a_run(tmp_path: Path) -> None:
    group = TrajectoryGroup((replace(FIRST, steps=(replace(SPOKEN, completion="x\ud800"),)),))
    stored = read_trajectories(write_trajectories(tmp_path, 0, [group]))[0].group
    assert stored.trajectories[0].steps[0].completion == "x\\ud800"


def test_the_file_has_one_row_per_step_and_the_documented_columns(tmp_path: Path) -> None:
    table = pq.read_table(write_trajectories(tmp_path, 3, [TrajectoryGroup((FIRST, SECOND))], [[0.5, -0.5]]))
    assert table.schema.equals(SCHEMA)
    assert table.select(["iteration", "group", "episode", "step", "action", "advantage"]).to_pylist() == [
        {"iteration": 3, "group": 0, "episode": 0, "step": 0, "action": "up", "advantage": 0.5},
        {"iteration": 3, "group": 0, "episode": 0, "step": 1, "action": None, "advantage": 0.5},
        {"iteration": 3, "group": 0, "episode": 1, "step": 0, "action": "up", "advantage": -0.5},
    ]


def test_a_folder_is_read_in_the_order_of_iterations(tmp_path: Path) -> None:
    for iteration in (2, 10, 1):
        write_trajectories(tmp_path, iteration, [TrajectoryGroup((FIRST,))])
    assert [item.iteration for item in read_trajectories(tmp_path)] == [1, 2, 10]


def test_repeated_prompts_cost_little(tmp_path: Path) -> None:
    prompt = tuple(range(1000, 1200))
    # 200 steps with the same prompt of 200 ids: 160 kB as plain int32.
    steps = tuple(replace(SPOKEN, prompt_ids=prompt) for _ in range(200))
    path = write_trajectories(tmp_path, 0, [TrajectoryGroup((replace(FIRST, steps=steps),))])
    assert path.stat().st_size < 16_000


def test_advantages_must_match_the_trajectories(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zip"):
        write_trajectories(tmp_path, 0, [TrajectoryGroup((FIRST,))], [[0.1, 0.2]])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "000004.parquet"
    message = (
        f"Trajectories of iteration 4 could not be written to {str(path)!r} (No such file or directory); "
        "free some space, or set run.save_trajectories = false."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        write_trajectories(tmp_path / "gone", 4, [TrajectoryGroup((FIRST,))])


def test_a_torn_file_is_reported(tmp_path: Path) -> None:
    path = write_trajectories(tmp_path, 0, [TrajectoryGroup((FIRST,))])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RunError, match=rf"^Trajectory file '{re.escape(str(path))}' cannot be read \("):
        read_trajectories(path)


def test_another_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "000000.parquet"
    pq.write_table(pa.table({name: pa.array([], SCHEMA.field(name).type) for name in SCHEMA.names[:-2]}), path)
    message = (
        f"{str(path)!r} is no trajectory file of this version (missing columns: finish, logprobs); "
        "read it with the version that its run's provenance.json names."
    )
    with pytest.raises(RunError, match=f"^{re.escape(message)}$"):
        read_trajectories(path)
