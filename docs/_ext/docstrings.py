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


def restructured(text: str) -> str:
    """Return a docstring as reStructuredText: prose quoted, tables and drawings literal, an empty line before lists."""
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        last = next((line for line in reversed("\n".join(found).split("\n")) if line.strip()), "")
        apart = paragraph.startswith("    ") and bool(last) and not last.startswith((" ", "- ", ":"))
        if apart and not SECTION.match(last):
            found += ["::", paragraph]
        elif re.search("[├└│]", paragraph):
            found += ["::", "    " + paragraph.replace("\n", "\n    ")]
        else:
            found.append(spaced(quoted(paragraph)))
    return "\n\n".join(found)


def spaced(paragraph: str) -> str:
    """Return a paragraph with an empty line before a list that follows a sentence."""
    found: list[str] = []
    for line in paragraph.split("\n"):
        before = found[-1] if found else ""
        if LIST.match(line) and before.strip() and not LIST.match(before) and not before.startswith("  "):
            found.append("")
        found.append(line)
    return "\n".join(found)


def setup(app: Sphinx) -> dict[str, bool]:
    """Work on every docstring; "Args:" and the like are napoleon's, but not in the one sentence about a field."""

    def process(_: Sphinx, what: str, name: str, member: object, options: object, lines: list[str]) -> None:
        if ":py:" in "".join(lines):  # written by autodoc itself
            return
        lines[:] = restructured("\n".join(lines)).split("\n")
        if what in ("class", "exception", "function", "method"):
            lines[:] = GoogleDocstring(list(lines), Config(), app, what, name, member, options).lines()

    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
