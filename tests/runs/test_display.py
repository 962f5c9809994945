from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from stratagem.runs.display import Display, sparkline


def plain() -> tuple[Display, io.StringIO]:
    out = io.StringIO()
    return Display(Console(file=out, width=100)), out


def test_without_a_terminal_each_iteration_is_one_line() -> None:
    display, out = plain()
    with display:
        display.start(total=3, title="lake-0-1")
        display.update(1, {"kl": 0.00001, "return_mean": -0.5, "success_rate": 0.125, "count": 7})
        display.note("saved [000001]")
        display.update(2, {"panel_mean": math.nan})
    assert out.getvalue().splitlines() == [
        "lake-0-1: 3 iterations",
        "[1/3] return -0.500  success 12.5%  KL 1.00e-05  count 7",
        "saved [000001]",
        "[2/3] panel mean nan",
    ]


def test_without_a_terminal_a_minute_of_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("stratagem.runs.display.time.monotonic", lambda: now)
    display, out = plain()
    with display:
        display.start(total=50, title="panel", unit="episodes")
        display.status("evaluating: 3/50 episodes")
        now += 61
        display.status("evaluating: 9/50 episodes")
        display.status("evaluating: 10/50 episodes")
        now += 61
        display.advance(20)
    assert out.getvalue().splitlines() == ["panel: 50 episodes", "... evaluating: 9/50 episodes", "... 20 of 50"]


def test_a_long_line_is_not_broken() -> None:
    display, out = plain()
    display.start(total=1, title="x" * 300)
    assert out.getvalue().count("\n") == 1


def test_a_resumed_run_says_what_was_done() -> None:
    display, out = plain()
    display.start(total=30, title="lake", completed=10)
    assert out.getvalue() == "lake: 30 iterations, 10 done\n"


def test_a_terminal_shows_progress_numbers_and_the_curve() -> None:
    out = io.StringIO()
    with Display(Console(file=out, width=100, force_terminal=True)) as display:
        display.start(total=3, title="lake-0-1")
        display.update(1, {"return_mean": -0.5, "panel_mean": 0.1})
        display.update(2, {"return_mean": 0.25, "panel_mean": 0.9})
        display.note("a note")
    text = out.getvalue()
    for part in ("lake-0-1", "2/3", "return", "0.250", "panel mean", "\u2581\u2588", "0.100 -> 0.900", "a note"):
        assert part in text, part


def test_brackets_in_a_title_are_no_markup() -> None:
    out = io.StringIO()
    with Display(Console(file=out, width=100, force_terminal=True)) as display:
        display.start(total=3, title="model[/x]")
        display.status("playing [/y]")
    assert "model[/x]" in out.getvalue()


def test_the_terminal_is_restored_when_training_fails() -> None:
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Display(Console(file=out, force_terminal=True)) as display:
        display.start(total=3, title="lake")
        raise KeyboardInterrupt
    assert "\x1b[?25h" in out.getvalue()  # the cursor is visible again


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 8, ""),
        ([1.0, 1.0], 8, "\u2584\u2584"),
        # 0, 7, 14 of 14 are levels 0, 3.5 (rounds to even: 4) and 7.
        ([0.0, 7.0, 14.0], 8, "\u2581\u2585\u2588"),
        # Averages of the halves: 1 and 3.
        ([0.0, 2.0, 2.0, 4.0], 2, "\u2581\u2588"),
    ],
)
def test_a_sparkline_scales_from_lowest_to_highest(values: list[float], width: int, expected: str) -> None:
    assert sparkline(values, width) == expected


def test_a_sparkline_is_never_wider_than_asked() -> None:
    assert all(len(sparkline([float(i) for i in range(n)], 7)) == min(n, 7) for n in range(1, 40))


def test_the_status_is_the_last_line_of_the_block_and_silent_elsewhere() -> None:
    display, out = plain()
    with display:
        display.start(3, "a run", unit="episodes")
        display.status("evaluating")
        display.advance(2)
    assert out.getvalue() == "a run: 3 episodes\n"
    terminal = Console(file=io.StringIO(), width=100, force_terminal=True)
    with Display(terminal, live=True) as display:
        display.start(3, "a run")
        display.seed({"panel_mean": 0.25, "return_mean": None, "success_rate": math.nan})
        display.status("evaluating 2/3")
        display.advance(2)
        shown = Console(file=io.StringIO(), width=100)
        shown.print(display._render())
        lines = shown.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert "2/3" in lines[0]
        assert lines[-1].rstrip() == "evaluating 2/3"
        assert "0.250 -> 0.250" in lines[-2]


def test_phases_are_told_with_the_seconds_of_an_iteration() -> None:
    display, out = plain()
    with display:
        display.start(total=2, title="lake")
        phases = {"seconds_play": 1.5, "seconds_update": 2.25, "seconds_save": 0.0}
        display.update(1, {"return_mean": 0.5, "seconds": 3.75} | phases)
    assert out.getvalue().splitlines()[1] == "[1/2] return 0.500  3.8 s (play 1.5, update 2.2)"


def test_a_terminal_shows_curves_of_return_and_success_and_where_the_time_goes() -> None:
    with Display(Console(file=io.StringIO(), width=100, force_terminal=True)) as display:
        display.start(total=3, title="lake")
        display.seed({"return_mean": -1.0, "success_rate": 0.0})  # from before a resume
        numbers = {"return_mean": 1.0, "success_rate": 0.5, "entropy": 0.25}
        display.update(2, numbers | {"seconds": 2.0, "seconds_play": 2.0})
        shown = Console(file=io.StringIO(), width=100)
        shown.print(display._render())
        lines = [line.split() for line in shown.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines[1:] == [
        ["entropy", "0.250"],
        ["return", "\u2581\u2588", "-1.000", "->", "1.000"],
        ["success", "\u2581\u2588", "0.0%", "->", "50.0%"],
        ["an", "iteration", "2.0", "s", "(play", "2.0)"],
    ]
