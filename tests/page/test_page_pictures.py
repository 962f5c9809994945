"""Charts and boards: what is drawn where."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from stratagem.games import make
from stratagem.page.boards import draw_board, grid_of
from stratagem.page.charts import Bar, Series, interval_chart, line_chart, smooth, stack_chart


def hover(chart: str) -> dict[str, object]:
    found = re.search(r'data-chart="([^"]*)"', chart)
    assert found is not None
    return dict(json.loads(unescape(found[1])))


def test_a_line_goes_through_its_points() -> None:
    chart = line_chart([Series("a", [0, 10], [0.0, 4.0])], label="A", width=100, height=100)
    # The plane is x 48..92 and y 8..78 from the top; 0..10 and 0..4 fill it.
    assert 'class="line c0 d0" d="M48 78L92 8"' in chart
    assert 'aria-label="A, last: a 4"' in chart


def test_a_gap_is_left_open() -> None:
    chart = line_chart([Series("a", [0, 1, 2], [0.0, None, 4.0])], label="A", width=100, height=100)
    assert 'class="line c0 d0" d="M48 78M92 8"' in chart


def test_a_long_line_keeps_its_extremes_and_its_end() -> None:
    values: list[float | None] = [0.0] * 10_000
    values[1234], values[8000] = 7.0, -3.0
    chart = line_chart([Series("a", list(range(10_000)), values)], label="A")
    ((_, _, x, y),) = hover(chart)["s"]  # type: ignore[misc]
    assert len(x) <= 302
    assert (y[x.index(1234)], y[x.index(8000)], x[-1]) == (7.0, -3.0, 9999)


def test_numbers_that_are_all_equal_and_no_numbers_are_drawn() -> None:
    assert "no numbers yet" in line_chart([Series("a", [1], [None])], label="A")
    for level in (0.0, 3.0, -3.0):
        assert "<svg" in line_chart([Series("a", [1, 2], [level, level])], label="A")


def test_shares_are_stacked() -> None:
    chart = stack_chart(["x", "y"], [1, 2], [[0.25, 1.0], [0.75, 0.0]], label="A", percent=True, height=130)
    # One is 100 high: the first part of column 1 is a quarter, the second the other three.
    tops = re.findall(r"M[\d.]+ ([\d.]+)H[\d.]+V([\d.]+)H", chart)
    assert tops == [("108.0", "83.0"), ("108.0", "8.0"), ("83.0", "8.0")]


def test_an_interval_is_drawn_around_its_value_and_names_are_escaped() -> None:
    chart = interval_chart([Bar("<b>", 0.5, 0.25, 0.75), Bar("b", 1.0, None, None)], label="P")
    # Values 0..1 lie at x 150..420.
    assert re.search(r'class="whisker c0 d0" d="M217\.5 17H352\.5"', chart)
    assert chart.count("whisker") == 1
    assert "&lt;b&gt;" in chart and "<b>" not in chart


def test_smoothing_leaves_out_gaps() -> None:
    assert smooth([None, 2.0, 4.0], 2) == [None, 2.0, 3.0]  # 2 alone, then (2 + 4) / 2


def test_a_lake_shows_every_cell_the_way_and_the_next_move() -> None:
    game = make("FrozenLake-NotSlippery", size=4)
    game.reset(seed=3)
    keys = [game.state_key()]
    game.step(["down"])
    board = draw_board("frozen_lake", game.state_key(), action="right", trail=keys)
    assert board is not None
    assert 'aria-label="Frozen Lake: player at column 0, row 2, goes right"' in board
    assert board.count('class="hole"') == 1 and 'class="hole" cx="100" cy="20"' in board  # column 2, top row
    assert 'class="player" cx="20" cy="60"' in board
    assert 'class="trail" points="20,20 20,60"' in board
    assert 'class="tip"' in board


def test_snakes_apples_and_a_dead_snake_are_drawn() -> None:
    board = draw_board("snake", "10x10 (7, 0)(7, 1) | dead apples (4, 0)(2, 1)")
    assert board is not None
    assert 'aria-label="Snake: snake 1 has 2 cells, 2 is dead"' in board
    assert 'class="head own" cx="300" cy="380"' in board  # column 7, lowest of ten rows
    assert board.count('class="apple"') == 2


def test_a_kitchen_is_drawn_with_what_is_held() -> None:
    game = make("overcooked")
    game.reset(seed=0)
    board = draw_board("overcooked", game.state_key())
    assert board is not None and 'class="food tomato"' in board and 'class="bowl"' in board
    held = draw_board("overcooked", "tomato@cook1/3 bowl@bowl/0 cook1@11 - remembers 5,47")
    assert held is not None and "1T</text>" in held


@pytest.mark.parametrize("game", ["frozen_lake", "snake", "overcooked"])
@pytest.mark.parametrize("state", ["", "nonsense", "SFFF/SF (9, 9)", "99x99 x apples y", "tomato@1/0 cook1@4000 "])
def test_a_state_that_does_not_read_is_left_to_the_text(game: str, state: str) -> None:
    assert draw_board(game, state) is None
    assert draw_board("another", "x") is None


def test_the_grid_of_an_observation_is_found() -> None:
    assert grid_of("Rules\nState:\nP _\n_ G") == "P _\n_ G"
    assert grid_of("You are in a room.") == "You are in a room."
