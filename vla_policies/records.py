"""Frozen dataclasses <-> JSON objects; a key that is unknown or absent raises and is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any, TypeVar

from vla_gym.errors import BadValue, unknown_name

Record = TypeVar("Record")


def to_json(record: Any) -> dict[str, Any]:
    """The record's fields as plain JSON values (tuples become lists)."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(record).items()}


def from_json(cls: type[Record], values: Mapping[str, Any], where: str) -> Record:
    """Build `cls` from `values`; lists become tuples. `where` names the source in errors."""
    assert is_dataclass(cls)
    known = {field.name: field for field in fields(cls)}
    for key in values:
        if key not in known:
            raise unknown_name(f"setting in {where}", key, known)
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise BadValue(f"{where} lacks '{name}'; it must have: {', '.join(sorted(known))}")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})
