import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.errors import ConfigError
from stratagem.rewards.format import (
    FormatPenalty,
    FormatPenaltyConfig,
    extra_text_penalty,
    length_penalty,
    structure_faults,
    structure_penalty,
)

TPA = ("think", "plan", "action")
GOOD = "<think>a</think><plan>b</plan><action>up</action>"


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    # (190 - 180) / (200 - 180) = 1/2 of -0.5; (181 - 180) / 20 = 0.05 of -0.5; clamped on both sides.
    [(0, 0.0), (180, 0.0), (181, -0.025), (190, -0.25), (200, -0.5), (4096, -0.5)],
)
def test_length_penalty_is_linear_between_start_and_limit(num_tokens: int, expected: float) -> None:
    assert length_penalty(num_tokens) == pytest.approx(expected, rel=1e-12, abs=0.0)


def test_length_penalty_has_its_own_start_limit_and_size() -> None:
    # (30 - 20) / (40 - 20) = 1/2 of -1.0
    assert length_penalty(30, start=20, limit=40, max_penalty=-1.0) == -0.5


# Each count is |E| + |F| - D - L with |E| = 6; the parts are written as missing + unnecessary + badly nested.
STRUCTURES = {
    "right": (GOOD, 0),  # 6 + 6 - 6 - 6
    "white_space_and_text_between": ("  <think>a < b</think>\nso <plan></plan>\n<action>up</action>\n", 0),
    "empty": ("", 6),  # 6 + 0 + 0
    "prose": ("I go up.", 6),  # 6 + 0 + 0
    "action_alone": ("<action>up</action>", 4),  # 4 + 0 + 0
    "think_not_closed": ("<think>a<plan>b</plan><action>up</action>", 1),  # 1 + 0 + 0
    "cut_at_the_end": ("<think>a</think><plan>b</plan><action>up", 1),  # 1 + 0 + 0
    "cut_inside_a_tag": ("<think>a</think><plan>b</plan><action>up</action", 1),  # 1 + 0 + 0
    "repeated_block": (GOOD + "<action>up</action>", 2),  # 0 + 2 + 0
    "repeated_tag": ("<think>a</think><plan>b</plan><action><action>up</action>", 1),  # 0 + 1 + 0
    "foreign_block": ("<answer>x</answer>" + GOOD, 2),  # 0 + 2 + 0
    "foreign_instead": ("<thought>a</thought><plan>b</plan><action>up</action>", 4),  # 2 + 2 + 0
    "self_closed": ("<think/>" + GOOD, 1),  # 0 + 1 + 0
    "crossed": ("<think>a<plan>b</think></plan><action>up</action>", 1),  # 0 + 0 + 1
    "inside": ("<think>a<plan>b</plan></think><action>up</action>", 1),  # 0 + 0 + 1: </think> would move
    "reversed_pair": ("<think>a</think><plan>b</plan></action>up<action>", 1),  # 0 + 0 + 1
    "blocks_swapped": ("<plan>b</plan><think>a</think><action>up</action>", 2),  # 0 + 0 + 2: one block would move
    "stray_first": ("</action>" + GOOD, 1),  # 0 + 1 + 0: the copy in place is the one that counts
    "upper_case": ("<Think>a</Think><plan>b</plan><action>up</action>", 4),  # 2 + 2 + 0
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structure_faults_are_counted_once_each(name: str) -> None:
    text, faults = STRUCTURES[name]
    assert structure_faults(text, TPA) == faults
    assert structure_penalty(text, TPA) == -0.5 * faults


def test_structure_penalty_of_the_short_template_counts_the_prefix() -> None:
    assert structure_faults("<action>" + "up</action>", ("action",)) == 0
    assert structure_faults("</action>left<action>", ("action",)) == 1
    assert structure_faults("<action>up", ("action",)) == 1


@given(st.lists(st.sampled_from([f"<{s}{t}>" for t in (*TPA, "b") for s in ("", "/")] + ["x", " "]), max_size=12))
def test_structure_faults_vanish_only_for_the_expected_sequence(parts: list[str]) -> None:
    text = "".join(parts)
    right = re.findall(r"<[^>]*>", text) == [f"<{s}{t}>" for t in TPA for s in ("", "/")]
    assert (structure_faults(text, TPA) == 0) is right


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD, 0.0),
        (GOOD + " \n", 0.0),
        (GOOD + "Done.", -0.5),
        (GOOD + "Done. " * 50, -0.5),
        ("<action>up</action> then <action>down</action>", 0.0),
        ("<action>up</action></plan>", 0.0),
        ("<action>up</action></plan>x", -0.5),
        ("no tag at all", 0.0),
        ("<action>up", 0.0),
        ("", 0.0),
    ],
)
def test_extra_text_is_text_after_the_last_closing_tag(text: str, expected: float) -> None:
    assert extra_text_penalty(text) == expected


def test_format_penalty_is_the_sum_of_its_parts() -> None:
    penalty = FormatPenalty(TPA)
    # length -0.25 (190 tokens), structure 2 * -0.5 (no <think></think>), extra text -0.5
    text = "<plan>b</plan><action>up</action> bye"
    assert penalty.parts(text, 190) == {"length": -0.25, "structure": -1.0, "extra_text": -0.5}
    assert penalty(text, 190) == -1.75
    assert penalty(GOOD, 20) == 0.0


def test_surplus_actions_and_trailing_text_earn_no_format_reward() -> None:
    text = GOOD + "<action>down</action>" * 4 + " and so on"
    assert FormatPenalty(TPA)(text, 60) == -0.5 * 8 - 0.5


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (FormatPenaltyConfig(length=0), -1.5),
        (FormatPenaltyConfig(structure=0), -0.75),
        (FormatPenaltyConfig(extra_text=0), -1.25),
        (FormatPenaltyConfig(length=0, structure=0, extra_text=0), 0.0),
    ],
    ids=["length", "structure", "extra_text", "all"],
)
def test_each_penalty_can_be_switched_off(config: FormatPenaltyConfig, expected: float) -> None:
    assert FormatPenalty(TPA, config)("<plan>b</plan><action>up</action> bye", 190) == expected


@given(st.text(), st.integers(0, 500))
def test_format_penalty_is_never_a_reward(text: str, num_tokens: int) -> None:
    assert FormatPenalty(TPA)(text, num_tokens) <= 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0.5}, "length=0.5 would reward bad format; use a number of 0 or less."),
        ({"structure": float("nan")}, "structure=nan would reward bad format; use a number of 0 or less."),
        (
            {"length_start": 200},
            "length_start=200 and length_limit=200 leave no slope; set 0 <= length_start < length_limit.",
        ),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        FormatPenaltyConfig(**settings)  # type: ignore[arg-type]


def test_a_structure_penalty_without_tags_is_refused() -> None:
    message = "structure=-0.5 has no tags to look for; add a line 'tags: ...' to the template or set structure to 0."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        FormatPenalty(())
    assert FormatPenalty((), FormatPenaltyConfig(structure=0))("anything", 10) == 0.0


def test_a_tag_named_twice_is_refused() -> None:
    message = "tags=('think', 'think') names a tag twice; an answer holds each tag once."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        FormatPenalty(("think", "think"))
