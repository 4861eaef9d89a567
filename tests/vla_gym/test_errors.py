from __future__ import annotations

import pytest

from vla_gym.errors import (
    BadValue,
    LostRank,
    MissingDependency,
    UnknownName,
    VLAZooError,
    WorkerFailed,
    unknown_name,
)


def test_the_tree() -> None:
    for error, builtin in [
        (UnknownName, ValueError),
        (BadValue, ValueError),
        (MissingDependency, ImportError),
        (WorkerFailed, RuntimeError),
        (LostRank, RuntimeError),
    ]:
        assert issubclass(error, VLAZooError)
        assert issubclass(error, builtin)


def test_the_nearest_name_is_offered() -> None:
    message = str(unknown_name("colour", "REDD", ["blue", "red"]))
    assert message == "no colour 'REDD'. Known: blue, red. Did you mean 'red'?"


def test_nothing_near_nothing_offered() -> None:
    assert str(unknown_name("colour", "xyz", ["red"])) == "no colour 'xyz'. Known: red."


@pytest.mark.parametrize("count", [12, 13])
def test_long_lists_are_cut(count: int) -> None:
    message = str(unknown_name("number", "?", [f"{index:02}" for index in range(count)]))
    assert ("in all" in message) == (count > 12)
