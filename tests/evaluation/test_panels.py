import dataclasses
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from stratagem.errors import ConfigError, GameError, UnknownNameError
from stratagem.evaluation.panels import (
    EvaluationResult,
    Panel,
    check_panel,
    fixed_panel,
    panel_optima,
    panel_state_keys,
)
from stratagem.types import Step, StopReason, Trajectory

LAKE = "FrozenLake-NotSlippery"


def episode(seed: int, *steps: Step, reason: StopReason = StopReason.TERMINATED, **changes: Any) -> Trajectory:
    return Trajectory("frozen_lake", seed, 0, 0, steps, True, False, reason, **changes)


def good(reward: float = 0.0, tokens: int = 4) -> Step:
    return Step("o", "up", reward, completion_ids=(7,) * tokens)


BAD = Step("o", None, 0.0, invalid_penalty=-0.5, shaping=-9.0, parse_error="missing", completion_ids=(7, 7))
PANEL = Panel("lake", "frozen_lake", {"size": 4}, (11, 12, 13, 14), "0123456789ab", 4)


def test_a_panel_is_the_same_each_time() -> None:
    panel = fixed_panel(LAKE, num_episodes=10)
    assert panel == fixed_panel(LAKE, num_episodes=10)
    assert len(panel.seeds) == panel.num_starts == 10
    assert re.fullmatch("[0-9a-f]{12}", panel.hash)


def test_a_panel_is_the_same_in_another_process() -> None:
    code = (
        "from stratagem.evaluation.panels import fixed_panel\n"
        f"panel = fixed_panel({LAKE!r}, num_episodes=5)\n"
        "print(panel.seeds, panel.hash)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    panel = fixed_panel(LAKE, num_episodes=5)
    assert found.strip() == f"{panel.seeds} {panel.hash}"


def test_a_longer_panel_begins_with_the_shorter_one() -> None:
    assert fixed_panel(LAKE, num_episodes=20).seeds[:5] == fixed_panel(LAKE, num_episodes=5).seeds


def test_starts_of_a_panel_are_distinct_boards() -> None:
    # A 3x3 board has 7 tiles that may be holes and, with a path, 64 boards or so: seeds repeat boards, panels do not.
    panel = fixed_panel("frozen_lake", {"size": 3}, num_episodes=30)
    assert panel.num_starts == len(panel_state_keys(panel)) == 30


def test_variants_are_evaluated_on_the_same_boards() -> None:
    still, slippery = (fixed_panel(f"FrozenLake-{kind}", num_episodes=6) for kind in ("NotSlippery", "Slippery"))
    assert still.seeds == slippery.seeds
    assert panel_state_keys(still) == panel_state_keys(slippery)
    assert still.hash != slippery.hash  # the rules that are shown differ


def test_a_game_with_one_start_fills_its_panel_with_seeds() -> None:
    panel = fixed_panel("frozen_lake", {"board": ("SF", "FG"), "slippery": True}, num_episodes=7, name="tiny")
    assert (panel.name, panel.num_starts, len(set(panel.seeds))) == ("tiny", 1, 7)
    assert len(panel_state_keys(panel)) == 1


def test_a_few_starts_are_all_taken_before_any_repeats() -> None:
    # A 2x2 board has two free tiles; of their four settings only "both are holes" has no path.
    panel = fixed_panel("frozen_lake", {"size": 2}, num_episodes=8)
    assert panel.num_starts == len(panel_state_keys(panel)) == 3
    assert len(set(panel.seeds)) == 8


def test_settings_change_the_hash() -> None:
    assert fixed_panel(LAKE, num_episodes=3).hash != fixed_panel(LAKE, {"size": 5}, num_episodes=3).hash


def test_a_panel_whose_game_changed_is_noticed() -> None:
    panel = fixed_panel(LAKE, num_episodes=3)
    check_panel(panel)
    changed = dataclasses.replace(panel, hash="0" * 12)
    message = (
        f"panel='{LAKE}' has hash 000000000000 but its seeds now start with hash {panel.hash}; the game changed. "
        "Make the panel again and do not compare with older results."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_panel(changed)


def test_the_optimum_of_ice_without_slips_is_the_goal() -> None:
    assert panel_optima(fixed_panel(LAKE, num_episodes=4)) == (1.0, 1.0, 1.0, 1.0)


def test_a_game_without_an_optimum_has_none() -> None:
    assert panel_optima(fixed_panel("Snake-Standard", num_episodes=2)) is None


def test_an_empty_panel_is_refused() -> None:
    message = "num_episodes=0 leaves nothing to evaluate; set it to 1 or more."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        fixed_panel(LAKE, num_episodes=0)


def test_an_unknown_game_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        fixed_panel("frozenlake")


def test_a_result_sums_up_its_episodes() -> None:
    result = EvaluationResult.from_trajectories(
        PANEL,
        [
            episode(11, good(), good(1.0), success=True),
            episode(12, BAD, good(), BAD, success=False),
            episode(13, good(1.0), success=True),
            episode(14, good(), good(), reason=StopReason.MAX_STEPS, success=None),
        ],
        optima=(1.0, 1.0, 1.0, 0.2),
    )
    # Returns 1, -0.5 - 0.5 = -1 (shaping does not count), 1, 0: mean 1/4.
    assert result.returns == (1.0, -1.0, 1.0, 0.0)
    assert result.mean == 0.25
    # Squared deviations .5625 + 1.5625 + .5625 + .0625 = 2.75, over 3.
    assert result.std == pytest.approx((2.75 / 3) ** 0.5, rel=1e-12, abs=0.0)
    assert result.interval[0] < 0.25 < result.interval[1]
    assert result.success_rate == 0.5
    # 8 steps, 2 invalid; tokens 8 + 2 + 4 + 2 + 4 + 8 = 28
    assert result.invalid_action_rate == 0.25
    assert result.mean_episode_length == 2.0
    assert result.tokens_per_step == 3.5
    assert result.stop_reasons == {"max_steps": 1, "terminated": 3}
    assert result.optimum_mean == pytest.approx(0.8, rel=1e-12, abs=0.0)
    assert result.share_of_optimum == pytest.approx(0.25 / 0.8, rel=1e-12, abs=0.0)


def test_episodes_whose_game_failed_are_counted_but_not_averaged() -> None:
    failed = episode(12, BAD, reason=StopReason.GAME_FAILED)
    rest = [episode(13, good(1.0)), episode(14, good(1.0))]
    result = EvaluationResult.from_trajectories(PANEL, [episode(11, good(1.0)), failed, *rest], optima=(1, 9, 1, 1))
    assert (result.num_episodes, result.seeds, result.mean) == (3, (11, 13, 14), 1.0)
    assert result.invalid_action_rate == 0.0
    assert result.share_of_optimum == 1.0
    assert result.stop_reasons == {"game_failed": 1, "terminated": 3}


def test_no_result_without_a_single_episode() -> None:
    failed = [episode(seed, reason=StopReason.GAME_FAILED) for seed in PANEL.seeds]
    message = (
        "All 4 episodes of panel 'lake' failed in the game, so there is no result; see info of the trajectories for "
        "the reason."
    )
    with pytest.raises(GameError, match=f"^{re.escape(message)}$"):
        EvaluationResult.from_trajectories(PANEL, failed)


def test_without_a_verdict_or_optimum_there_is_no_rate_and_no_share() -> None:
    result = EvaluationResult.from_trajectories(PANEL, [episode(seed, good(-1.0)) for seed in PANEL.seeds])
    assert (result.success_rate, result.success_interval, result.share_of_optimum) == (None, None, None)


def test_a_share_of_an_optimum_that_is_not_positive_says_nothing() -> None:
    episodes = [episode(seed, good(-1.0)) for seed in PANEL.seeds]
    assert EvaluationResult.from_trajectories(PANEL, episodes, optima=(0.0,) * 4).share_of_optimum is None


def test_a_negative_mean_is_no_share_of_the_optimum() -> None:
    lost, drawn = ([episode(seed, good(value)) for seed in PANEL.seeds] for value in (-10.0, 0.0))
    assert EvaluationResult.from_trajectories(PANEL, lost, optima=(1.0,) * 4).share_of_optimum is None
    assert EvaluationResult.from_trajectories(PANEL, drawn, optima=(1.0,) * 4).share_of_optimum == 0.0


def test_episodes_of_another_panel_are_refused() -> None:
    message = "trajectories of panel 'lake' do not follow its seeds; play each once, in order."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        EvaluationResult.from_trajectories(PANEL, [episode(11, good())])


def test_episodes_without_a_step_do_not_divide_by_zero() -> None:
    result = EvaluationResult.from_trajectories(
        PANEL, [episode(seed, reason=StopReason.CONTEXT) for seed in PANEL.seeds]
    )
    assert (result.mean, result.invalid_action_rate, result.tokens_per_step) == (0.0, 0.0, 0.0)


def test_a_result_survives_json() -> None:
    result = EvaluationResult.from_trajectories(
        PANEL, [episode(seed, good(seed / 7), success=True) for seed in PANEL.seeds]
    )
    assert EvaluationResult.from_json(result.to_json()) == result
    assert json.loads(result.to_json())["panel_hash"] == PANEL.hash


def test_a_file_with_a_negative_share_is_read_as_one_without() -> None:
    result = EvaluationResult.from_trajectories(PANEL, [episode(seed, good(-1.0)) for seed in PANEL.seeds])
    older = dataclasses.replace(result, share_of_optimum=-10.0)
    assert EvaluationResult.from_json(older.to_json()) == result
