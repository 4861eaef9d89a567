"""Limits of the sizes that a settings file may give a network, looked at before anything is built of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, shown

_PICTURES = (
    r"(image|input|crop|patch|resize).*(size|sizes|padding|resolution)$|^(size|height|longest_edge|shortest_edge)$"
)
_WIDTHS = r"(size|dim|dims|width|heads|features|horizon|(?<!model_max_)length|shape|rank|bins|points|cameras)$"
_STEPS = r"^(?!scheduler_|optimizer_).*steps$"
MOST = tuple(
    (re.compile(pattern), most)
    for pattern, most in (
        (r"(layers|depth|blocks)$", 1024),
        (r"vocab_size$", 2**22),
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
