"""The map in CONTRIBUTING.md: every room and command is on it, in order; `test_pages` looks for the files it names."""

from __future__ import annotations

import re

import pytest
from import_graph import PACKAGES
from rooms import COMMANDS, ROOMS, ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def drawing(page: str) -> dict[str, list[tuple[str, str]]]:
    """Return package -> its lines of the first block: (folder or file, sentence)."""
    block = re.search(r"^```\n(.*?)^```$", page, flags=re.M | re.S)
    assert block is not None
    found: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, block.group(1).splitlines()):
        names, _, sentence = line.strip().partition("  ")
        if line.startswith(" "):
            package = list(found)[-1]
            found[package].append((names, sentence.strip()))
        else:
            found[names] = []
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_on_the_map_in_order_with_a_sentence(package: str) -> None:
    lines = [(names, sentence) for names, sentence in drawing(PAGE)[package] if " " not in names]
    places = [names for names, _ in lines if f"zoo.{names.removesuffix('.py')}" not in COMMANDS]
    folders = {name for name in ROOMS[package] if (ROOT / package / name).is_dir()}
    assert places == [f"{name}/" if name in folders else f"{name}.py" for name in ROOMS[package]]
    assert all(len(sentence) > 10 for _, sentence in lines)


def test_every_command_is_on_the_map() -> None:
    words = {word for names, _ in drawing(PAGE)["zoo"] for word in names.split()}
    assert {f"{name.removeprefix('zoo.')}.py" for name in COMMANDS} <= words


def test_every_room_of_zoo_that_does_not_only_serve_others_is_in_the_table() -> None:
    table = PAGE.split("## Where to change what")[1].split("\n## ")[0]
    assert {name for name in ROOMS["zoo"] if f"zoo/{name}" not in table} <= {"files", "diagnostics"}


def test_the_drawing_is_read_line_by_line() -> None:
    assert drawing("```\nzoo  training\n  runs/   the run folder\n```") == {"zoo": [("runs/", "the run folder")]}
