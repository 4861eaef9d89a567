"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(text: object) -> str:
    """Return a text that stands in a cell: one line, bars and Markdown's own signs quoted."""
    words = " ".join(str(text).split())
    for sign in "\\|<>*_[]":
        words = words.replace(sign, f"\\{sign}")
    return words


def code(text: object) -> str:
    """Return a text as code in a cell."""
    return f"`{' '.join(str(text).split())}`".replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
