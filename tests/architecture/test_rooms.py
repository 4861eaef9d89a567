"""The rooms of each package in order: every import goes downwards, at the top, in a function or for types alone."""

from __future__ import annotations

import pytest
from import_graph import PACKAGES, Arrow, arrows, circles, package_of
from rooms import ARROWS, COMMANDS, FAMILIES, MODULES, ROOMS

MOST_ENTRIES_OF_ZOO = 18
"""Folders and files beside the command modules, so that the folder is read at a glance."""


def upward(found: list[Arrow], rooms: dict[str, tuple[str, ...]]) -> set[tuple[str, str]]:
    """Return the arrows between rooms of one package that go up, or between families: (room, room)."""
    places = {f"{package}.{name}": place for package, names in rooms.items() for place, name in enumerate(names)}
    wrong = set()
    for arrow in found:
        source, target = package_of(arrow.source), package_of(arrow.target)
        package, _, family = source.partition(".")
        if source == target or target.split(".")[0] != package:
            continue
        between = package == "vla_policies" and {family, target.partition(".")[2]} <= set(FAMILIES)
        above = places.get(target, len(places)) >= places.get(source, len(places) + 1)
        if above or between:
            wrong.add((source, target))
    return wrong


def test_every_import_goes_downwards() -> None:
    assert upward(ARROWS, ROOMS) == set()


def test_no_module_of_a_room_imports_a_command() -> None:
    commands_of_commands = {
        ("zoo.plan", "zoo.train"),
        ("zoo.optimize", "zoo.train"),
        ("zoo.evaluate", "zoo.published"),
        ("zoo.record_video", "zoo.enjoy"),
    }
    found = {(arrow.source, arrow.target) for arrow in ARROWS if arrow.target in COMMANDS}
    assert found <= commands_of_commands


def test_no_module_reaches_itself() -> None:
    assert circles((arrow.source, arrow.target) for arrow in ARROWS) == []


def test_no_room_reaches_itself() -> None:
    pairs = {(package_of(arrow.source), package_of(arrow.target)) for arrow in ARROWS}
    assert circles(pair for pair in pairs if pair[0] != pair[1]) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_table_has_every_room(package: str) -> None:
    inside = {package_of(name) for name in MODULES if name.startswith(f"{package}.")}
    assert {f"{package}.{name}" for name in ROOMS[package]} == inside - COMMANDS


def test_zoo_is_read_at_a_glance() -> None:
    assert len(ROOMS["zoo"]) <= MOST_ENTRIES_OF_ZOO


def test_the_guards_can_fail() -> None:
    rooms = {"zoo": ("files", "runs", "cli"), "vla_policies": ("types", *FAMILIES, "policy")}

    def wrong(source: str, text: str, *others: str) -> set[tuple[str, str]]:
        return upward(arrows({source: text, **dict.fromkeys(others, "")}), rooms)

    up = {("zoo.runs", "zoo.cli")}
    for text in (
        "from zoo.cli import agent",
        "def f():\n    from zoo.cli.agent import Agent",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import zoo.cli.agent",
    ):
        assert wrong("zoo.runs.folder", text, "zoo.cli.agent") == up
    assert not wrong("zoo.cli.agent", "from zoo.runs import folder", "zoo.runs.folder")
    assert not wrong("zoo.train", "from zoo.cli import agent", "zoo.cli.agent")
    assert wrong("zoo.cli.agent", "from zoo.train import run", "zoo.train") == {("zoo.cli", "zoo.train")}
    families = ("vla_policies.pi0", "vla_policies.nano")
    assert wrong("vla_policies.pi0.a", "import vla_policies.nano.b", "vla_policies.nano.b") == {families}

    both = {"a": "import b", "b": "def f():\n    import c", "c": "from a import x", "d": "import a"}
    assert circles((arrow.source, arrow.target) for arrow in arrows(both)) == [["a", "b", "c"]]
    assert circles([("a", "b"), ("b", "c")]) == []
