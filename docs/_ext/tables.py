"""Tables of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def cell(text: object) -> str:
    """Return a text that stands in a cell: one line, Markdown's own signs quoted outside code, bars everywhere."""
    parts = re.split(r"(`[^`]*`)", " ".join(str(text).split()))
    parts[::2] = [re.sub(r"([\\<>*_\[\]])", r"\\\1", prose) for prose in parts[::2]]
    return "".join(parts).replace("|", "\\|")


def code(text: object) -> str:
    """Return a text as code in a cell."""
    return f"`{' '.join(str(text).split())}`".replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
