import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.agents.parsing import ParsedAction, ParseError, parse_action

LEGAL = ("up", "down", "left", "right")

VALID = {
    "plain": ("<action>up</action>", "up"),
    "white_space_and_case": ("<action>\n LeFt\t</action>", "left"),
    "paper_structure": ("<think>a</think><plan>b</plan><action>right</action>", "right"),
    "text_after": ("<action>up</action> because of the hole", "up"),
    "same_word_twice": ("<action>up</action><action> UP </action>", "up"),
    "stray_closing_before": ("</action><action>up</action>", "up"),
    "stray_closing_after": ("<action>up</action></action>", "up"),
    "second_block_left_open": ("<action>up</action><action>do", "up"),
    # The completion ends at the first closing tag, so a block that is closed inside <think> is the answer.
    "inside_think": ("<think>I take <action>left</action>", "left"),
    "tag_of_another_kind_inside_think": ("<think>the <b>goal</b></think><action>down</action>", "down"),
}

INVALID = {
    "empty_text": ("", ParseError.MISSING),
    "prose": ("I go up.", ParseError.MISSING),
    "closing_only": ("up</action>", ParseError.MISSING),
    "other_tag": ("<answer>up</answer>", ParseError.MISSING),
    "upper_case_tag": ("<ACTION>up</ACTION>", ParseError.MISSING),
    "tag_with_attribute": ('<action name="x">up</action>', ParseError.MISSING),
    "unclosed": ("<action>left", ParseError.UNCLOSED),
    "half_closed": ("<action>up</action", ParseError.UNCLOSED),
    "eos_first_after_the_prefix": ("<action>", ParseError.UNCLOSED),
    "opened_twice_and_unclosed": ("<action>up<action>", ParseError.UNCLOSED),
    "reversed": ("</action>left<action>", ParseError.REVERSED),
    "nested": ("<action><action>up</action>", ParseError.NESTED),
    "nested_and_balanced": ("<action><action>up</action></action>", ParseError.NESTED),
    "tag_mentioned_in_think": ("<think>in <action> tags</think><action>up</action>", ParseError.NESTED),
    "empty_block": ("<action></action>", ParseError.EMPTY),
    "blank_block": ("<action> \n\t</action>", ParseError.EMPTY),
    "two_words": ("<action>up</action><action>down</action>", ParseError.AMBIGUOUS),
    "legal_then_illegal": ("<action>up</action><action>jump</action>", ParseError.AMBIGUOUS),
    "empty_then_legal": ("<action></action><action>up</action>", ParseError.AMBIGUOUS),
    "think_contradicts_answer": ("<think><action>left</action></think><action>up</action>", ParseError.AMBIGUOUS),
    "not_up_go_left": ("<think>x</think><action>not up, go left</action>", ParseError.UNKNOWN),
    "word_that_holds_a_legal_one": ("<action>supports</action>", ParseError.UNKNOWN),
    "two_actions_in_a_block": ("<action>up, up</action>", ParseError.UNKNOWN),
    "quoted": ('<action>"up"</action>', ParseError.UNKNOWN),
    "inner_tag": ("<action><b>up</b></action>", ParseError.UNKNOWN),
    "full_stop": ("<action>up.</action>", ParseError.UNKNOWN),
    "zero_width_space": ("<action>\u200bup</action>", ParseError.UNKNOWN),
    "nul": ("<action>up\x00</action>", ParseError.UNKNOWN),
}


@pytest.mark.parametrize("name", VALID)
def test_one_legal_word_between_the_tags_is_the_action(name: str) -> None:
    text, action = VALID[name]
    parsed = parse_action(text, LEGAL)
    assert (parsed.action, parsed.error) == (action, None)


@pytest.mark.parametrize("name", INVALID)
def test_anything_else_is_invalid_with_a_reason(name: str) -> None:
    text, error = INVALID[name]
    parsed = parse_action(text, LEGAL)
    assert (parsed.action, parsed.error) == (None, error)


def test_what_stood_between_the_tags_is_reported() -> None:
    assert parse_action("<action> not up </action>", LEGAL) == ParsedAction(None, ParseError.UNKNOWN, "not up")


def test_the_action_is_spelled_as_the_game_spells_it() -> None:
    assert parse_action("<action>go to SHELF 1</action>", ("Go to shelf 1", "look")).action == "Go to shelf 1"


def test_words_that_differ_by_case_alone_must_be_spelled_exactly() -> None:
    assert parse_action("<action>Up</action>", ("up", "Up")).action == "Up"
    assert parse_action("<action>UP</action>", ("up", "Up")).error is ParseError.AMBIGUOUS


def test_an_action_that_is_not_legal_now_is_unknown() -> None:
    assert parse_action("<action>up</action>", ("down",)).error is ParseError.UNKNOWN
    assert parse_action("<action>up</action>", ()).error is ParseError.UNKNOWN


def test_another_tag_can_hold_the_action() -> None:
    assert parse_action("<move>up</move>", LEGAL, tag="move").action == "up"
    assert parse_action("<move>up</move>", LEGAL).error is ParseError.MISSING


def test_a_tag_is_not_read_as_a_pattern() -> None:
    assert parse_action("<axb>up</axb>", LEGAL, tag="a.b").error is ParseError.MISSING


PIECES = ["<action>", "</action>", "<think>", "</think>", *LEGAL, "UP", " ", "\n", ", ", "<", ">", "/", "not "]


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)))
def test_no_text_raises_and_no_illegal_action_comes_out(text: str) -> None:
    parsed = parse_action(text, LEGAL)
    assert parsed.action is None or parsed.action in LEGAL
    assert (parsed.action is None) == (parsed.error is not None)
    if parsed.action is not None:
        # The word stands alone in the first closed block, so no other word was turned into an action.
        first = text[text.index("<action>") + len("<action>") :].split("</action>")[0]
        assert first.strip().lower() == parsed.action
