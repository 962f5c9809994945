import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stratagem.errors import ConfigError
from stratagem.evaluation.figures import (
    PALETTE,
    Bar,
    Curve,
    CurvePanel,
    Reference,
    bar_grid,
    bars,
    curve_grid,
    learning_curve,
    sparkline,
)

CURVE = Curve.from_seeds("ours", [0, 1, 2], [[0.0, 0.5, 1.0], [0.0, 0.7, 1.0]])


def test_a_seed_band_is_one_standard_deviation_around_the_mean() -> None:
    # At x = 1: mean 0.6, sample standard deviation sqrt(2 * 0.1^2 / 1) = 0.141421
    assert CURVE.low is not None
    assert CURVE.high is not None
    assert CURVE.y == pytest.approx([0.0, 0.6, 1.0], rel=0.0, abs=1e-12)
    assert CURVE.low[1] == pytest.approx(0.458579, rel=0.0, abs=1e-6)
    assert CURVE.high[1] == pytest.approx(0.741421, rel=0.0, abs=1e-6)


def test_one_seed_has_no_band() -> None:
    assert Curve.from_seeds("one", [0, 1], [[0.0, 1.0]]) == Curve("one", [0, 1], [0.0, 1.0])


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_learning_curves_are_written_in_the_format_of_the_suffix(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = learning_curve(tmp_path / "new" / f"curve.{suffix}", [CURVE], references=[Reference("optimum", 1.0)])
    assert path.read_bytes().startswith(magic)


def test_the_same_data_give_the_same_svg(tmp_path: Path) -> None:
    first, second = (learning_curve(tmp_path / f"{name}.svg", [CURVE], title="t") for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    other = learning_curve(tmp_path / "c.svg", [Curve("ours", [0, 1, 2], [0.0, 0.6, 0.9])], title="t")
    assert other.read_bytes() != first.read_bytes()


def test_gaps_in_a_curve_are_drawn(tmp_path: Path) -> None:
    assert learning_curve(tmp_path / "gap.png", [Curve("a", [0, 1, 2], [0.0, math.nan, 1.0])]).is_file()


def test_bars_take_intervals_beside_the_mean_and_none(tmp_path: Path) -> None:
    path = bars(
        tmp_path / "bars.svg",
        ["lake", "snake"],
        [("before", [0.1, -2.6], [(0.0, 0.2), None]), ("after", [1.0, -1.5], [(1.0, 1.0), (-1.4, -1.2)])],
        references=[Reference("optimum", 1.0)],
        title="Before and after",
    )
    assert path.read_bytes().startswith(b"<?xml")


def test_drawing_does_not_load_pyplot(tmp_path: Path) -> None:
    code = (
        "import sys; from stratagem.evaluation.figures import Curve, learning_curve; assert 'matplotlib' not in "
        f"sys.modules; learning_curve({str(tmp_path / 'a.png')!r}, [Curve('a', [0], [1.0])]); "
        "assert 'matplotlib.pyplot' not in sys.modules; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_path_without_a_known_format_is_refused() -> None:
    message = "path='curve.txt' does not say a format; end it with one of .png, .svg, .pdf."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        learning_curve("curve.txt", [CURVE])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Curve("a", [0, 1], [1.0]), "y has 1 values and x has 2; give one for each x."),
        (lambda: Curve("a", [0], [1.0], low=[0.0]), "low and high make a band together; give both or neither."),
        (
            lambda: bars("a.png", ["g"], [("s", [1.0, 2.0], [None])]),
            "series 's' has 2 values and 1 intervals for 1 groups.",
        ),
    ],
)
def test_lines_of_unequal_length_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()  # type: ignore[operator]


def blocks(*levels: int | None) -> str:
    return "".join(" " if level is None else chr(0x2580 + level) for level in levels)


def test_sparkline_goes_from_the_lowest_to_the_highest_block() -> None:
    # (0.5 - 0) / 1 * 7 = 3.5, which rounds to the even 4: block 5
    assert sparkline([0.0, 1.0, 0.5]) == blocks(1, 8, 5)


def test_sparkline_of_a_flat_line_is_half_high() -> None:
    assert sparkline([2.0, 2.0]) == blocks(4, 4)


def test_sparkline_leaves_gaps_blank() -> None:
    assert sparkline([0.0, math.nan, 1.0, math.inf]) == blocks(1, None, 8, None)
    assert sparkline([math.nan]) == " "
    assert sparkline([]) == ""


def test_sparkline_averages_neighbours_to_fit() -> None:
    # (0 + 2) / 2 = 1 and (7 + 9) / 2 = 8
    assert sparkline([0.0, 2.0, 7.0, 9.0], width=2) == blocks(1, 8)
    assert sparkline([0.0, 1.0], width=10) == blocks(1, 8)


def test_a_level_far_away_is_named_and_does_not_flatten_the_curve(tmp_path: Path) -> None:
    near = learning_curve(tmp_path / "near.svg", [Curve("a", [0, 1], [0.0, 1.0])], references=[Reference("start", 0.5)])
    far = learning_curve(tmp_path / "far.svg", [Curve("a", [0, 1], [0.0, 1.0])], references=[Reference("start", -10.0)])
    kept = learning_curve(
        tmp_path / "kept.svg", [Curve("a", [0, 1], [0.0, 1.0])], references=[Reference("start", -2.0)]
    )
    curve = re.compile(r'id="line2d_\d+">\s*<path d="([^"]+)"[^>]*clip-path')
    assert curve.search(near.read_text()).group(1) == curve.search(far.read_text()).group(1)  # type: ignore[union-attr]
    assert curve.search(near.read_text()).group(1) != curve.search(kept.read_text()).group(1)  # type: ignore[union-attr]


def test_no_line_runs_through_the_legend(tmp_path: Path) -> None:
    references = [Reference("Optimum", 1.0), Reference("Untrained model", 0.0)]
    text = learning_curve(tmp_path / "a.svg", [CURVE, Curve("b", [0], [0.5])], references=references).read_text()
    # In an SVG y grows downwards: the legend's box begins under the name of the axis.
    name = re.search(r"<!-- Iteration -->.*?translate\([\d.]+ ([\d.]+)\)", text, re.DOTALL)
    first = re.search(r"<!-- ours -->.*?translate\([\d.]+ ([\d.]+)\)", text, re.DOTALL)
    assert name is not None
    assert first is not None
    assert float(first[1]) > float(name[1])


# ---- several panels --------------------------------------------------------------------------------------------------


def colours(text: str) -> list[str]:
    """Return the colours of the solid lines of an SVG, in order, without the axes' black."""
    return [
        match[1]
        for match in re.finditer(r'style="fill: none; stroke: (#[0-9a-f]{6}); stroke-width: 2;[^"]*"', text)
        if match[1] != "#000000"
    ]


def test_a_label_has_one_colour_in_all_panels_of_curves(tmp_path: Path) -> None:
    first, second, third = (Curve(name, [0, 1], [0.0, 1.0]) for name in ("first", "second", "third"))
    panels = [
        CurvePanel("top", [first, second], [None, Curve("best", [0, 1], [1.0, 2.0])]),
        CurvePanel("bottom", [first, third]),
    ]
    text = curve_grid(tmp_path / "new" / "grid.svg", panels, columns=1).read_text()
    blue, orange, green = (colour.lower() for colour in PALETTE[:3])
    # Drawn in panels, then in the legend, which names each label once.
    assert colours(text) == [blue, orange, blue, green, blue, orange, green]
    assert text.count("stroke-dasharray") == 2  # the single run and its sign in the legend
    for word in ("top", "bottom", "first", "second", "third", "best"):
        assert f"<!-- {word} -->" in text
    again = curve_grid(tmp_path / "again.svg", panels, columns=1).read_text()
    assert again == text


def test_bars_of_several_panels_have_scales_and_intervals_of_their_own(tmp_path: Path) -> None:
    panels = [
        ("big", [Bar("a", 100.0, (90.0, 120.0)), Bar("b", -50.0)]),
        ("small", [Bar("b", 0.5, (0.6, 0.7))]),  # an interval to one side of the value
        ("empty", []),
    ]
    text = bar_grid(tmp_path / "bars.svg", panels).read_text()
    for word in ("big", "small", "empty"):
        assert f"<!-- {word} -->" in text
    assert text.count("<!-- b -->") == 2


@pytest.mark.parametrize("draw", [curve_grid, bar_grid])
def test_panels_without_a_format_are_refused(tmp_path: Path, draw: Callable[..., Path]) -> None:
    path = tmp_path / "figure.jpeg"
    message = f"path={str(path)!r} does not say a format; end it with one of .png, .svg, .pdf."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        draw(path, [])
