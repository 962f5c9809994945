"""Frozen dataclasses from TOML tables and back, strictly.

A table is a plain ``dict`` as :mod:`tomllib` returns it. :func:`load_dataclass` checks every key and every type and
says what to write instead; :func:`dump_toml` writes every value, defaults included, so that what was resolved can be
read again. TOML has no null: ``None`` is left out where it is the default and written as ``false`` ("off") elsewhere.

A field with ``metadata={"choices": {name: class}}`` holds one of several dataclasses; the table's key ``name`` picks.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import enum
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from stratagem.errors import ConfigError, UnknownNameError

__all__ = ["apply_overrides", "dump_toml", "load_dataclass", "to_table"]

T = TypeVar("T")
Table = dict[str, Any]

_MISSING = dataclasses.MISSING
_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    Path: "a string (a path)",
    dict: "a table",
    list: "a list",
    tuple: "a list",
}


def load_dataclass(cls: type[T], table: Mapping[str, Any], path: str = "") -> T:
    """Build ``cls`` from a table, refusing unknown keys, missing keys and wrong types.

    Args:
        cls: a dataclass; its fields may be scalars, ``Literal``, ``X | None``, tuples, lists, dicts and dataclasses.
        table: the values; what is left out keeps its default.
        path: dotted place of the table in the recipe, used in messages only.

    Raises:
        ConfigError: a key or value is wrong; the message holds the full dotted key.
    """
    return typing.cast(T, _build(cls, table, path, base=None))


def _build(cls: Any, table: Any, path: str, base: Any) -> Any:
    """Build ``cls``; ``base`` is the default instance of the field, whose values stand where the table says nothing."""
    if not isinstance(table, Mapping):
        raise _wrong_type(path, table, "a table")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key in table:
        if key not in fields:
            raise _unknown_key(key, path, fields)
    hints = typing.get_type_hints(cls)
    values: Table = {}
    for name, field in fields.items():
        place = _join(path, name)
        default = _default(field, base)
        if name in table:
            values[name] = _convert_field(field, hints[name], table[name], place, default)
        elif default is not _MISSING:
            values[name] = default
        elif dataclasses.is_dataclass(hints[name]):
            values[name] = _build(hints[name], {}, place, base=None)
        else:
            where = f"[{path}]" if path else "the top of the recipe"
            raise ConfigError(f"{place} is missing; add {name} = ... ({_expected(hints[name])}) to {where}.")
    try:
        return cls(**values)
    except UnknownNameError:
        raise
    except ConfigError as error:
        if not path or str(error).startswith(("In [", path)):
            raise
        raise ConfigError(f"In [{path}]: {error}") from error


def _default(field: dataclasses.Field[Any], base: Any) -> Any:
    if base is not None:
        return getattr(base, field.name)
    if field.default_factory is not _MISSING:
        return field.default_factory()
    return field.default


def _convert_field(field: dataclasses.Field[Any], hint: Any, value: Any, path: str, default: Any) -> Any:
    choices: Mapping[str, type] | None = field.metadata.get("choices")
    if choices is None or not isinstance(value, Mapping):
        return _convert(hint, value, path, default)
    return _choose(choices, value, path, default)


def _choose(choices: Mapping[str, type], table: Mapping[str, Any], path: str, default: Any) -> Any:
    """Build the dataclass that ``table["name"]`` picks; without a name, that of the default."""
    rest = dict(table)
    if "name" in rest:
        name = rest["name"]
        if not isinstance(name, str):
            raise _wrong_type(f"{path}.name", name, "a string")
        if name not in choices:
            raise UnknownNameError(path, name, choices)
        cls = choices[name]
    elif dataclasses.is_dataclass(default) and type(default) in choices.values():
        cls = type(default)
    else:
        raise ConfigError(f"{path}.name is missing; add name = ... (one of {_list(choices)}) to [{path}].")
    if not any(field.name == "name" for field in dataclasses.fields(cls)):
        rest.pop("name", None)
    return _build(cls, rest, path, base=default if type(default) is cls else None)


def _convert(hint: Any, value: Any, path: str, default: Any = None) -> Any:
    """Return ``value`` as the annotated type ``hint``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return copy.deepcopy(value)
    if origin is typing.Annotated:
        return _convert(arguments[0], value, path, default)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(hint, arguments, value, path, default)
    if origin is typing.Literal:
        # 1 == True in Python, so the type is compared too.
        if any(type(value) is type(option) and value == option for option in arguments):
            return value
        raise _not_one_of(path, value, arguments)
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, path, base=default if type(default) is hint else None)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value in [member.value for member in hint]:
            return hint(value)
        raise _not_one_of(path, value, [member.value for member in hint])
    return _convert_plain(hint, origin or hint, arguments, value, path)


def _convert_plain(hint: Any, kind: Any, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    """Convert scalars and containers."""
    if kind in (dict, Mapping) or getattr(kind, "__name__", "") == "Mapping":
        if not isinstance(value, Mapping):
            raise _wrong_type(path, value, "a table")
        inner = arguments[1] if arguments else Any
        return {key: _convert(inner, item, _join(path, key)) for key, item in value.items()}
    if kind in (tuple, list):
        if not isinstance(value, (list, tuple)):
            raise _wrong_type(path, value, _expected(hint))
        fixed = kind is tuple and bool(arguments) and arguments[-1] is not Ellipsis
        if fixed and len(value) != len(arguments):
            raise ConfigError(f"{path}={list(value)!r} has {len(value)} entries; write {len(arguments)}.")
        inners = arguments if fixed else [arguments[0] if arguments else Any] * len(value)
        items = [
            _convert(inner, item, f"{path}[{index}]")
            for index, (inner, item) in enumerate(zip(inners, value, strict=True))
        ]
        return kind(items)
    if kind is Path and isinstance(value, (str, Path)):
        return Path(value)
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if math.isnan(value):
            raise ConfigError(f"{path}=nan is not a number; write a number.")
        return float(value)
    if kind in (bool, int, str) and type(value) is kind:
        return value
    if kind not in _WORDS:
        raise AssertionError(f"the loader does not know how to read {hint!r} at {path}")
    raise _wrong_type(path, value, _expected(hint))


def _convert_union(hint: Any, arguments: tuple[Any, ...], value: Any, path: str, default: Any) -> Any:
    members = [member for member in arguments if member is not type(None)]
    if len(members) < len(arguments) and (value is None or (value is False and bool not in members)):
        return None
    if len(members) == 1:
        return _convert(members[0], value, path, default)
    if type(value) in members:  # 1 stays an int in int | float
        return _convert(type(value), value, path, default)
    for member in members:
        try:
            return _convert(member, value, path, default)
        except ConfigError:
            continue
    raise _wrong_type(path, value, _expected(hint))


def apply_overrides(table: Mapping[str, Any], overrides: Iterable[str]) -> Table:
    """Return a copy of ``table`` with ``a.b=value`` assignments applied in order.

    Values are TOML; a bare word is a string. ``false`` switches an optional setting off.

    >>> apply_overrides({"seed": 0}, ["seed=3", "game.name=snake", "run.trackers=['wandb']"])
    {'seed': 3, 'game': {'name': 'snake'}, 'run': {'trackers': ['wandb']}}

    Raises:
        ConfigError: an item is no assignment, or a dotted key leads through something that is not a table.
    """
    result: Table = copy.deepcopy(dict(table))
    for item in overrides:
        key, equals, text = item.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts) or not text.strip():
            raise ConfigError(f"--set {item!r} is not an assignment; write key=value, for example seed=1.")
        node = result
        for depth, part in enumerate(parts[:-1]):
            # false means "off" for an optional table, so setting a key below it switches it on again.
            if node.get(part) is False:
                node[part] = {}
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                place = ".".join(parts[: depth + 1])
                raise ConfigError(f"--set {item!r} goes through {place}={node!r}, not a table; set {place} itself.")
        node[parts[-1]] = _parse_value(item, text.strip())
    return result


def _parse_value(item: str, text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if text[0] in "\"'[{":
            raise ConfigError(f"--set {item!r} is not TOML ({error}); close what the value opens.") from None
        return text
    # A line break in the text could have opened another key; then it is no single value but plain text.
    return parsed["value"] if len(parsed) == 1 else text


def to_table(config: Any) -> Table:
    """Return a dataclass as a table that :func:`load_dataclass` reads back to an equal object."""
    return _table(config, base=None)


def _table(config: Any, base: Any) -> Table:
    table: Table = {}
    for field in dataclasses.fields(config):
        if not field.init:
            continue
        value = getattr(config, field.name)
        default = _default(field, base)
        if value is None:
            if default is not None and default is not _MISSING:
                table[field.name] = False
            continue
        choices: Mapping[str, type] | None = field.metadata.get("choices")
        if dataclasses.is_dataclass(value):
            inner = _table(value, base=default if type(default) is type(value) else None)
            if choices is not None:
                inner = {"name": next(name for name, cls in choices.items() if cls is type(value)), **inner}
            table[field.name] = inner
        else:
            table[field.name] = _plain(value)
    return table


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _table(value, base=None)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def dump_toml(config: Any) -> str:
    """Return a dataclass as TOML text with every value written out; see :func:`load_dataclass` for the way back."""
    table = to_table(config)
    # tomli-w turns CR LF into LF inside multi-line strings; escape such text on one line instead.
    return tomli_w.dumps(table, multiline_strings=not _holds_carriage_return(table))


def _holds_carriage_return(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_carriage_return(item) for item in value.values())
    if isinstance(value, list):
        return any(_holds_carriage_return(item) for item in value)
    return isinstance(value, str) and "\r" in value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _list(names: Iterable[Any]) -> str:
    return ", ".join(repr(name) for name in names)


def _nearest(name: object, options: Iterable[object]) -> str:
    close = difflib.get_close_matches(str(name), [str(option) for option in options], n=1, cutoff=0.5)
    return close[0] if close else ""


def _unknown_key(key: str, path: str, known: Iterable[str]) -> ConfigError:
    names = sorted(known)
    close = _nearest(key, names)
    hint = f" Did you mean {_join(path, close)!r}?" if close else ""
    where = f"[{path}]" if path else "the top of a recipe"
    return ConfigError(f"Unknown recipe key {_join(path, key)!r}.{hint} Keys of {where}: {', '.join(names)}.")


def _wrong_type(path: str, value: object, expected: str) -> ConfigError:
    found = _WORDS.get(type(value), f"a {type(value).__name__}").replace("true or false", "a boolean")
    return ConfigError(f"{path or 'recipe'}={value!r} is {found}; write {expected}.")


def _not_one_of(path: str, value: object, options: Sequence[Any]) -> ConfigError:
    close = _nearest(value, options)
    hint = f" Did you mean {close!r}?" if close else ""
    return ConfigError(f"{path}={value!r} is not one of {_list(options)}.{hint}")


def _expected(hint: Any) -> str:
    """Say in words what an annotation accepts."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("false (off)" if member is type(None) else _expected(member) for member in arguments)
    if origin is typing.Literal:
        return f"one of {_list(arguments)}"
    if origin in (tuple, list) and arguments:
        plural = {str: "strings", int: "integers", float: "numbers"}.get(arguments[0])
        return f"a list of {plural}" if plural else "a list"
    if dataclasses.is_dataclass(hint):
        return "a table"
    return _WORDS.get(origin or hint, "a table")
