"""Frozen dataclasses <-> JSON objects. A key that is unknown or absent, or a value that its field's annotation does
not allow, raises and is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vla_gym.errors import BadValue, shown, unknown_name

Record = TypeVar("Record")

_ACCEPTED: dict[Any, tuple[type, ...]] = {float: (int, float), tuple: (list, tuple), Literal: (str,)}
"""Types accepted for an annotation, where those are not the annotation's own."""
_TYPE_NAMES: dict[Any, tuple[str, str]] = {
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "booleans"),
    str: ("a string", "strings"),
    NoneType: ("null", "nulls"),
}
"""Singular and plural for messages."""


def to_json(record: Any) -> dict[str, Any]:
    """Return the record's fields as plain JSON values: nested records become objects, tuples lists."""
    return json.loads(json.dumps(asdict(record)))


def from_json(cls: type[Record], values: Mapping[str, Any], where: str, *, others: bool = False) -> Record:
    """Build `cls` from `values`, each of them checked by `as_annotated`. `where` names the source in errors.

    With `others`, keys that are no fields are left out instead of refused.
    """
    assert is_dataclass(cls)
    if not isinstance(values, Mapping):
        raise BadValue(f"{where} must be a mapping, got {shown(values)}")
    known = {field.name: field for field in fields(cls)}
    if others:
        values = {key: value for key, value in values.items() if key in known}
    for key in values:
        if key not in known:
            raise unknown_name(f"setting in {where}", str(key), known)
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise BadValue(f"{where} lacks '{name}'; it must have: {', '.join(sorted(known))}")
    hints = _hints(cls)
    return cls(**{key: as_annotated(hints[key], value, f"{key} of {where}") for key, value in values.items()})


def changed(record: Record, changes: Mapping[str, Any], where: str) -> Record:
    """Return `record` with single fields replaced, checked as in `from_json`."""
    assert is_dataclass(record)
    now = {field.name: getattr(record, field.name) for field in fields(record)}
    return from_json(type(record), {**now, **changes}, where)


def as_annotated(hint: Any, value: Any, name: str) -> Any:
    """Return `value` if the annotation `hint` allows it, else raise an error that begins with `name`.

    Lists become tuples and mappings records where `hint` says so. An integer is allowed for a float.
    """
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        if _is_kind(option, value):
            return _parts_as_annotated(option, value, name)
    raise BadValue(f"{name} must be {' or '.join(map(_describe, options))}, got {shown(value)}")


def _is_kind(hint: Any, value: Any) -> bool:
    if hint is Any:
        return True
    kind = get_origin(hint) or hint
    if is_dataclass(kind):
        return isinstance(value, (kind, Mapping))  # type: ignore[arg-type]
    # To Python a bool is an int.
    return isinstance(value, _ACCEPTED.get(kind, (kind,))) and (kind is bool or not isinstance(value, bool))


def _parts_as_annotated(hint: Any, value: Any, name: str) -> Any:
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Literal and value not in parts:
        raise unknown_name(name, value, parts)
    if kind is tuple:
        return _items(parts, value, name)
    if kind is Mapping and parts[1] is not Any:
        return {key: as_annotated(parts[1], item, f"{key} of {name}") for key, item in value.items()}
    if is_dataclass(kind) and isinstance(value, Mapping):
        return from_json(kind, value, name)  # type: ignore[arg-type]
    return value


def _items(parts: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
    hints = parts[:1] * len(value) if parts[-1] is ... else parts
    if len(hints) != len(value):
        raise BadValue(f"{name} must be {_describe(tuple[parts])}, got {shown(value)}")  # type: ignore[valid-type]
    return tuple(
        as_annotated(hint, item, f"item {index} of {name}")
        for index, (hint, item) in enumerate(zip(hints, value, strict=True))
    )


def _describe(hint: Any) -> str:
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if kind is tuple:
        count = "" if parts[-1] is ... else f"{len(parts)} "
        return f"a list of {count}{_TYPE_NAMES.get(parts[0], ('', 'items'))[1]}"
    return _TYPE_NAMES.get(kind, ("a mapping", ""))[0]


_hints = cache(get_type_hints)
