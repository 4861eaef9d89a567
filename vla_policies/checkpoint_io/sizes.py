"""Limits of the sizes that a settings file may give a network, looked at before anything is built of them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, shown

_PICTURES = (
    r"(image|input|crop|patch|resize).*(size|sizes|padding|resolution)$|^(size|height|longest_edge|shortest_edge)$"
)
_WIDTHS = r"(size|dim|dims|width|heads|features|(?<!model_max_)length|shape|rank|bins|points|cameras)$"
_STEPS = r"^(?!scheduler_|optimizer_).*steps$"
MOST = tuple(
    (re.compile(pattern), most)
    for pattern, most in (
        (r"(layers|depth|blocks)$", 1024),
        (r"vocab_size$", 2**22),
        (r"horizon$|^chunk(_size)?$|^n_action_steps$", 4096),
        (r"^max_tokens$|^m(in|ax)_period$", 2**16),
        (_PICTURES, 4096),
        (rf"{_WIDTHS}|{_STEPS}", 2**16),
    )
)
"""What a key's name holds -> the largest number that it may give, the first that fits; far beyond every published
network: the largest of 2025 have 126 layers, widths of 18,432 and 262,144 words."""


def check_sizes(values: object, where: Path) -> None:
    """Raise `BadValue` for a number in a settings file, at any depth, that is beyond `MOST`, naming its key."""
    for key, number in _numbers(values):
        most = next((most for pattern, most in MOST if pattern.search(key)), None)
        if most is not None and not -most <= number <= most:
            raise BadValue(f"'{where}' gives {shown(key)} as {shown(number)}; a network may have at most {most}")


def check_positive(record: object, *, but: Container[str] = ()) -> None:
    """Raise `BadValue` for a number of a dataclass, nested ones included, that is not above 0; `but` may be 0."""
    assert is_dataclass(record)
    for field in fields(record):
        value = getattr(record, field.name)
        if is_dataclass(value):
            check_positive(value)
        elif isinstance(value, int | float) and not (value > 0 or (value == 0 and field.name in but)):
            raise BadValue(f"{field.name} must be above 0, got {shown(value)}")


def _numbers(values: object) -> Iterator[tuple[str, float]]:
    """Every number with the nearest key above it; not recursive, for what others wrote may be deep."""
    left: list[tuple[str, Any]] = [("", values)]
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
        elif isinstance(value, list):
            left += ((key, item) for item in value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key, value
