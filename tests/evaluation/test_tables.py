import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from stratagem.cli_view import show_results
from stratagem.errors import ConfigError
from stratagem.evaluation.panels import EvaluationResult
from stratagem.evaluation.tables import Table, comparison_table, difference, results_table, share_note

BEFORE = EvaluationResult(
    panel="lake",
    panel_hash="aaaaaaaaaaaa",
    game="frozen_lake",
    params={},
    num_episodes=4,
    returns=(0.0, 0.0, -0.5, 1.0),
    seeds=(1, 2, 3, 4),
    mean=0.125,
    std=0.63,
    stop_reasons={"max_steps": 1, "terminated": 3},
    interval=(-0.25, 0.625),
    success_rate=0.25,
    success_interval=(0.05, 0.7),
    invalid_action_rate=0.125,
    mean_episode_length=2.5,
    tokens_per_step=3.25,
    optimum_mean=1.0,
    share_of_optimum=0.125,
)
AFTER = replace(
    BEFORE, returns=(1.0, 1.0, 0.5, 2.0), mean=1.125, interval=(0.75, 1.625), success_rate=1.0, share_of_optimum=None
)


def test_markdown_is_padded_and_aligned() -> None:
    table = Table(("Panel", "Return"), (("a", "1.000"), ("longer", "-0.25")))
    assert table.markdown() == (
        "| Panel  | Return |\n"
        "| ------ | -----: |\n"
        "| a      |  1.000 |\n"
        "| longer |  -0.25 |\n"
    )  # fmt: skip


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert "a\\|b c" in Table(("x", "y"), (("a|b\nc", "1"),)).markdown()


def test_rich_shows_the_same_cells_and_reads_no_markup() -> None:
    buffer = io.StringIO()
    table = Table(("Panel", "Return [95%]"), (("lake", "0.125 [bold]"),))
    Console(file=buffer, width=80).print(table.rich("Evaluation"))
    assert "Return [95%]" in buffer.getvalue()
    assert "0.125 [bold]" in buffer.getvalue()
    assert "Evaluation" in buffer.getvalue()


def test_results_have_one_row_for_each_panel_and_agent() -> None:
    assert results_table({"model": [BEFORE]}).rows == (
        (
            *("lake", "0.125 [-0.250, 0.625]", "0.630", "25.0%", "12.5%", "12.5%", "2.5", "3.2", "4"),
            "terminated 3, max_steps 1",
        ),
    )
    labels = [row[0] for row in results_table({"base": [BEFORE], "trained": [AFTER]}).rows]
    assert labels == ["lake (base)", "lake (trained)"]


def test_a_comparison_shows_both_and_the_paired_difference() -> None:
    table = comparison_table([BEFORE], [AFTER])
    # Each episode gained exactly 1, so the paired interval has no width although the returns spread.
    assert table.rows == (
        (
            "lake",
            "0.125 [-0.250, 0.625]",
            "1.125 [0.750, 1.625]",
            "+1.000 [+1.000, +1.000]",
            "25.0% / 100.0%",
            "12.5% / -",
            "12.5% / 12.5%",
            "4",
        ),
    )
    assert len(table.headers) == len(table.rows[0])
    assert comparison_table([BEFORE], [AFTER], ("base", "tuned")).headers[1] == "Return base [95%]"


def test_only_episodes_that_both_played_are_paired() -> None:
    after = replace(AFTER, seeds=(4, 9), returns=(3.0, 50.0))
    # Seed 4 alone is shared: 3 - 1.
    assert (difference(BEFORE, after).count, difference(BEFORE, after).mean) == (1, 2.0)


def test_results_of_different_panels_are_not_compared() -> None:
    message = (
        "panel='lake' (hash aaaaaaaaaaaa) cannot be compared with panel='lake' (hash bbbbbbbbbbbb); evaluate both "
        "agents on the same panel."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        comparison_table([BEFORE], [replace(AFTER, panel_hash="bbbbbbbbbbbb")])


def test_results_without_a_shared_episode_are_not_compared() -> None:
    message = "panel='lake' has no episode that counts in both results, since a game failed in each; evaluate again."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        difference(replace(BEFORE, seeds=(1,), returns=(0.0,)), replace(AFTER, seeds=(2,), returns=(0.0,)))


def test_unequal_lists_are_not_compared() -> None:
    message = "before has 1 results and after 0; evaluate both agents on the same panels."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        comparison_table([BEFORE], [])


def test_a_terminal_of_100_columns_shows_the_spread_and_how_episodes_ended() -> None:
    console = Console(file=io.StringIO(), width=100)
    longest = replace(AFTER, mean=-10.125, interval=(-10.625, -9.625), std=10.25, share_of_optimum=1.0)
    show_results(console, {"start": [BEFORE], "smollm2-135m-instruct": [longest]})
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[1] == "lake, 4 episodes"
    assert lines[2].split() == ["Return", "[95%]", "Std", "Success", "Of", "optimum", "Invalid", "Steps"]
    assert lines[3].split() == ["start", "0.125", "[-0.250,", "0.625]", "0.630", "25.0%", "12.5%", "12.5%", "2.5"]
    assert lines[4].split()[4:] == ["10.250", "100.0%", "100.0%", "12.5%", "2.5"]
    assert lines[5:] == [
        "start ended by: terminated 3, max_steps 1", "smollm2-135m-instruct ended by: terminated 3, max_steps 1"
    ]  # fmt: skip


def test_a_share_above_one_is_explained_once() -> None:
    note = "Above 100% of the optimum: that is what perfect play gets on average, and here chance was kinder."
    console = Console(file=io.StringIO(), width=100)
    show_results(console, {"start": [BEFORE], "final": [replace(AFTER, share_of_optimum=1.17)]})
    assert console.file.getvalue().splitlines().count(note) == 1  # type: ignore[attr-defined]
    assert share_note([0.5, None, 1.17]) == note
    assert share_note([None, 1.0, 1.0 + 1e-12]) is None  # rounding is no luck
