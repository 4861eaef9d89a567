"""Docstrings are prose with code between single backticks; signs that reStructuredText reads otherwise are quoted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sphinx.ext.napoleon import Config, GoogleDocstring

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CODE = re.compile(r"(``.+?``|`[^`]+`)", flags=re.S)
LIST = re.compile(r"^([-*]|\d+\.) ")
SECTION = re.compile(r"^([A-Z]\w+:|:param\b.*)$")


def quoted(text: str) -> str:
    """Return a docstring with `*`, `|` and a word's last `_` quoted outside code, and code set off from letters."""
    parts = CODE.split(text)
    for place in range(0, len(parts), 2):
        prose = re.sub(r"(?<!\\)([|]|(?<!\n)(?<!^)\*|(?<=\w)_(?!\w))", r"\\\1", parts[place]).replace("`", r"\`")
        parts[place] = re.sub(r"^(?=\w)", r"\\ ", prose) if place else prose
    return "".join(parts)


def spaced(lines: list[str]) -> list[str]:
    """Return the lines with an empty one around each list, and an indented block of its own as literal text."""
    found: list[str] = []
    for line in lines:
        before = found[-1] if found else ""
        starts, follows = bool(LIST.match(line)), bool(LIST.match(before) or before.startswith("  "))
        if starts and before.strip() and not follows:
            found.append("")
        if line.startswith("    ") and not before.strip():
            last = next((earlier for earlier in reversed(found) if earlier.strip()), "")
            if last and not last.startswith((" ", "- ", ":")) and not SECTION.match(last):
                found += ["::", ""]
        found.append(line)
    return found


def setup(app: Sphinx) -> dict[str, bool]:
    """Work on every docstring; "Args:" and the like are napoleon's, but not in the one sentence about a field."""

    def process(_: Sphinx, what: str, name: str, member: object, options: object, lines: list[str]) -> None:
        if ":py:" in "".join(lines):  # written by autodoc itself
            return
        lines[:] = spaced(quoted("\n".join(lines)).split("\n"))
        if what in ("class", "exception", "function", "method"):
            lines[:] = GoogleDocstring(list(lines), Config(), app, what, name, member, options).lines()

    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
