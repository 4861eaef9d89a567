from dataclasses import dataclass

import pytest

from vla_gym.errors import BadValue, UnknownName
from vla_policies.records import from_json, to_json


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
