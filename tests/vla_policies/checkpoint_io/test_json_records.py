from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from vla_gym.errors import BadValue, UnknownName
from vla_policies.checkpoint_io.json_records import changed, from_json, to_json


@dataclass(frozen=True)
class Point:
    place: tuple[int, ...]
    name: str = "p"


def test_tuples_become_lists_and_come_back() -> None:
    assert to_json(Point((1, 2))) == {"place": [1, 2], "name": "p"}
    assert from_json(Point, {"place": [1, 2]}, "a file") == Point((1, 2))


def test_an_unknown_key_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"no setting in a file 'nam'.*Did you mean 'name'"):
        from_json(Point, {"place": [1], "nam": "q"}, "a file")


def test_an_absent_key_without_default_is_named() -> None:
    with pytest.raises(BadValue, match="a file lacks 'place'"):
        from_json(Point, {"name": "q"}, "a file")


@dataclass(frozen=True)
class Settings:
    size: int = 1
    rate: float = 0.5
    fast: bool = False
    way: Literal["up", "down"] = "up"
    label: str | None = None
    span: tuple[float, float] = (0.0, 1.0)
    names: tuple[str, ...] | str = ()
    files: Mapping[str, str] | None = None
    extra: Mapping[str, Any] | None = None
    point: Point | None = None


def test_what_the_annotations_allow_is_taken() -> None:
    values = {
        "size": 3,
        "rate": 2,
        "fast": True,
        "way": "down",
        "label": None,
        "span": [0, 0.5],
        "names": ["a", "b"],
        "files": {"a": "b"},
        "extra": {"list": [1, "x"]},
        "point": {"place": [1, 2]},
    }
    want = Settings(3, 2, True, "down", None, (0, 0.5), ("a", "b"), {"a": "b"}, {"list": [1, "x"]}, Point((1, 2)))
    assert from_json(Settings, values, "a file") == want
    assert from_json(Settings, {"names": "a|b", "point": Point((3,))}, "a file").point == Point((3,))
    assert from_json(Settings, to_json(want), "a file") == want


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("size", True, "size of a file must be an integer, got True"),
        ("fast", "false", "fast of a file must be true or false, got 'false'"),
        ("way", "Up", "no way of a file 'Up'. Known: down, up. Did you mean 'up'?"),
        ("label", 5, "label of a file must be a string or null, got 5"),
        ("span", [0.1], "span of a file must be a list of 2 numbers, got [0.1]"),
        ("span", [0.1, "1"], "item 1 of span of a file must be a number, got '1'"),
        ("files", {"a": 1}, "a of files of a file must be a string, got 1"),
        ("extra", True, "extra of a file must be a mapping or null, got True"),
        ("point", {"place": "12"}, "place of point of a file must be a list of integers, got '12'"),
    ],
)
def test_what_the_annotations_do_not_allow_is_named(name: str, value: object, message: str) -> None:
    with pytest.raises((BadValue, UnknownName)) as caught:
        from_json(Settings, {name: value}, "a file")
    assert str(caught.value) == message


def test_what_is_no_mapping_is_named() -> None:
    with pytest.raises(BadValue, match=r"^a file must be a mapping, got None$"):
        from_json(Settings, None, "a file")  # type: ignore[arg-type]


def test_single_fields_are_changed_and_checked() -> None:
    assert changed(Settings(size=3), {"span": [2, 3]}, "options") == Settings(size=3, span=(2, 3))
    with pytest.raises(BadValue, match="size of options must be an integer, got '4'"):
        changed(Settings(), {"size": "4"}, "options")
