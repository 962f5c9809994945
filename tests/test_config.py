from __future__ import annotations

import enum
import math
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.config import apply_overrides, dump_toml, load_dataclass
from stratagem.errors import ConfigError


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    size: int = 4
    rate: float = 0.5

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size={self.size!r} is too small; set it to 1 or more.")


@dataclass(frozen=True)
class Other:
    depth: int = 3


@dataclass(frozen=True)
class Named:
    name: str = "named"
    depth: int = 3


CHOICES: dict[str, type] = {"inner": Inner, "other": Other, "named": Named}


@dataclass(frozen=True)
class Outer:
    title: str
    flag: bool = False
    limit: int | None = None
    bound: float | None = 0.2
    mode: Literal["fast", "slow"] = "fast"
    words: tuple[str, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    params: dict[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=lambda: Inner(size=9))
    maybe: Inner | None = None
    parts: tuple[Inner, ...] = ()
    picked: Inner | Other | Named = field(default_factory=Inner, metadata={"choices": CHOICES})
    colour: Colour = Colour.RED
    number: int | float = 1
    place: Path = Path("a")


def check_message(message: str, table: dict[str, Any], path: str = "") -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        load_dataclass(Outer, {"title": "t", **table}, path)


def test_every_kind_of_field_is_read_from_toml() -> None:
    text = """
    title = "x"
    flag = true
    limit = 3
    bound = 1
    mode = "slow"
    words = ["a", "b"]
    pair = [2, 3]
    params = { size = 8, slippery = true, grid = ["SF", "FG"] }
    inner.rate = 2
    maybe = { size = 2 }
    parts = [{ size = 1 }, { size = 2 }]
    picked = { name = "other", depth = 7 }
    colour = "blue"
    number = 2.5
    place = "b/c"
    """
    assert load_dataclass(Outer, tomllib.loads(text)) == Outer(
        title="x",
        flag=True,
        limit=3,
        bound=1.0,
        mode="slow",
        words=("a", "b"),
        pair=(2, 3.0),
        params={"size": 8, "slippery": True, "grid": ["SF", "FG"]},
        inner=Inner(size=9, rate=2.0),
        maybe=Inner(size=2),
        parts=(Inner(size=1), Inner(size=2)),
        picked=Other(depth=7),
        colour=Colour.BLUE,
        number=2.5,
        place=Path("b/c"),
    )


def test_an_integer_in_a_float_field_becomes_a_float() -> None:
    assert type(load_dataclass(Outer, {"title": "t", "bound": 1}).bound) is float


def test_a_partial_table_keeps_the_other_values_of_the_fields_default() -> None:
    # Inner alone has size 4; the field's own default has size 9.
    assert load_dataclass(Outer, {"title": "t", "inner": {"rate": 1.0}}).inner == Inner(size=9, rate=1.0)
    assert load_dataclass(Outer, {"title": "t", "maybe": {"rate": 1.0}}).maybe == Inner(size=4, rate=1.0)


def test_false_switches_an_optional_setting_off() -> None:
    assert load_dataclass(Outer, {"title": "t", "bound": False, "maybe": False}).bound is None


def test_a_chosen_class_with_a_name_field_receives_the_name() -> None:
    assert load_dataclass(Outer, {"title": "t", "picked": {"name": "named"}}).picked == Named(name="named")


def test_without_a_name_the_default_class_is_chosen() -> None:
    assert load_dataclass(Outer, {"title": "t", "picked": {"size": 5}}).picked == Inner(size=5)


def test_params_are_copied_from_the_table() -> None:
    table: dict[str, Any] = {"title": "t", "params": {"grid": ["S"]}}
    config = load_dataclass(Outer, table)
    table["params"]["grid"].append("G")
    assert config.params == {"grid": ["S"]}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"inner": {"sise": 1}},
            "Unknown recipe key 'inner.sise'. Did you mean 'inner.size'? Keys of [inner]: rate, size.",
        ),
        ({"inner": {"zzz": 1}}, "Unknown recipe key 'inner.zzz'. Keys of [inner]: rate, size."),
        (
            {"parts": [{}, {"sise": 1}]},
            "Unknown recipe key 'parts[1].sise'. Did you mean 'parts[1].size'? Keys of [parts[1]]: rate, size.",
        ),
        ({"limit": "four"}, "limit='four' is a string; write an integer."),
        ({"inner": {"size": True}}, "inner.size=True is a boolean; write an integer."),
        ({"inner": {"size": 2.0}}, "inner.size=2.0 is a number; write an integer."),
        ({"inner": {"rate": True}}, "inner.rate=True is a boolean; write a number."),
        ({"inner": {"rate": math.nan}}, "inner.rate=nan is not a number; write a number."),
        ({"inner": 3}, "inner=3 is an integer; write a table."),
        ({"inner": False}, "inner=False is a boolean; write a table."),
        ({"flag": 1}, "flag=1 is an integer; write true or false."),
        ({"mode": "fats"}, "mode='fats' is not one of 'fast', 'slow'. Did you mean 'fast'?"),
        ({"colour": "green"}, "colour='green' is not one of 'red', 'blue'. Did you mean 'red'?"),
        ({"words": "a"}, "words='a' is a string; write a list of strings."),
        ({"words": ["a", 1]}, "words[1]=1 is an integer; write a string."),
        ({"pair": [1]}, "pair=[1] has 1 entries; write 2."),
        ({"number": "1"}, "number='1' is a string; write an integer or a number."),
        (
            {"picked": {"name": "outer"}},
            "Unknown picked 'outer'. Did you mean 'other'? Available: inner, named, other.",
        ),
        ({"inner": {"size": 0}}, "In [inner]: size=0 is too small; set it to 1 or more."),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_what_to_write(table: dict[str, Any], message: str) -> None:
    check_message(message, table)


def test_a_missing_key_is_named_with_its_type() -> None:
    message = "title is missing; add title = ... (a string) to the top of the recipe."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        load_dataclass(Outer, {})


def test_the_path_is_put_before_every_key() -> None:
    check_message("x.limit='a' is a string; write an integer.", {"limit": "a"}, path="x")


def test_a_literal_tells_true_from_one() -> None:
    @dataclass(frozen=True)
    class One:
        value: Literal[1] = 1

    globals()["One"] = One
    with pytest.raises(ConfigError, match=r"^value=True is not one of 1\.$"):
        load_dataclass(One, {"value": True})


def test_what_was_dumped_is_read_back_equal() -> None:
    config = Outer(
        title='quotes " and \\ and\nlines\n',
        bound=None,
        inner=Inner(rate=1e-07),
        maybe=Inner(),
        params={"a": [1, 2], "nested": {"b": False}},
        parts=(Inner(size=2),),
        picked=Other(depth=1),
        colour=Colour.BLUE,
    )
    assert load_dataclass(Outer, tomllib.loads(dump_toml(config))) == config


def test_none_is_left_out_where_it_is_the_default_and_false_elsewhere() -> None:
    table = tomllib.loads(dump_toml(Outer(title="t", bound=None, limit=None)))
    assert table["bound"] is False
    assert "limit" not in table


def test_a_dump_writes_defaults_out() -> None:
    assert tomllib.loads(dump_toml(Outer(title="t")))["inner"] == {"size": 9, "rate": 0.5}


@given(
    title=st.text(st.characters(exclude_categories=["Cs"])),
    bound=st.none() | st.floats(allow_nan=False),
    words=st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
)
def test_any_text_and_number_survives_the_round_trip(title: str, bound: float | None, words: list[str]) -> None:
    config = Outer(title=title, bound=bound, words=tuple(words))
    assert load_dataclass(Outer, tomllib.loads(dump_toml(config))) == config


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("a.b=1", {"a": {"b": 1, "c": 2}}),
        ("a.b = 1e-5", {"a": {"b": 1e-5, "c": 2}}),
        ("a.b=word", {"a": {"b": "word", "c": 2}}),
        ("a.b=two words=x", {"a": {"b": "two words=x", "c": 2}}),
        ("a.b=false", {"a": {"b": False, "c": 2}}),
        ("a.b=['x', 'y']", {"a": {"b": ["x", "y"], "c": 2}}),
        ("a.b={x = 1}", {"a": {"b": {"x": 1}, "c": 2}}),
        ("a.b='1'", {"a": {"b": "1", "c": 2}}),
        ("a.b=1\nc=5", {"a": {"b": "1\nc=5", "c": 2}}),
        ("new.deep.key=true", {"a": {"b": 0, "c": 2}, "new": {"deep": {"key": True}}}),
    ],
)
def test_an_override_is_one_toml_value_or_a_bare_word(item: str, expected: dict[str, Any]) -> None:
    assert apply_overrides({"a": {"b": 0, "c": 2}}, [item]) == expected


def test_the_last_override_wins_and_the_table_is_untouched() -> None:
    table = {"a": {"b": 0}}
    assert apply_overrides(table, ["a.b=1", "a.b=2"]) == {"a": {"b": 2}}
    assert table == {"a": {"b": 0}}


def test_setting_a_key_of_a_table_that_is_off_switches_it_on() -> None:
    assert apply_overrides({"a": False}, ["a.b=1"]) == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("seed", "--set 'seed' is not an assignment; write key=value, for example seed=1."),
        ("a.=1", "--set 'a.=1' is not an assignment; write key=value, for example seed=1."),
        ("seed=", "--set 'seed=' is not an assignment; write key=value, for example seed=1."),
        ("a.b.c=1", "--set 'a.b.c=1' goes through a.b=0, not a table; set a.b itself."),
    ],
)
def test_a_malformed_override_is_refused(item: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        apply_overrides({"a": {"b": 0}}, [item])


def test_an_override_with_an_open_bracket_is_refused_rather_than_read_as_text() -> None:
    message = r"^--set 'a=\[1, 2' is not TOML \(.*\); close what the value opens\.$"
    with pytest.raises(ConfigError, match=message):
        apply_overrides({}, ["a=[1, 2"])
