from __future__ import annotations

from collections.abc import Collection

import pytest

from vla_gym.errors import (
    BadValue,
    LostRank,
    MissingDependency,
    UnknownName,
    VLAZooError,
    WorkerFailed,
    check_integer,
    check_known,
    one_line,
    os_reason,
    shown,
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


@pytest.mark.parametrize("known", [{"blue": 1}, {"blue"}, ("blue",)])
def test_a_list_where_a_name_belongs_is_an_unknown_name(known: Collection[str]) -> None:
    with pytest.raises(UnknownName, match=r"no colour '\['blue'\]'. Known: blue"):
        check_known("colour", ["blue"], known)


def test_nothing_near_nothing_offered() -> None:
    assert str(unknown_name("colour", "xyz", ["red"])) == "no colour 'xyz'. Known: red."


def test_of_many_names_the_nearest_come_first() -> None:
    names = [f"other{index:02}" for index in range(20)] + ["red", "reed"]
    message = str(unknown_name("colour", "redd", names, show=3))
    assert message == "no colour 'redd'. Did you mean 'red'? Known: red, reed, other00, ... (22 in all)."


def test_what_is_known_to_be_meant_is_offered_before_the_nearest() -> None:
    message = str(unknown_name("setting", "lr", ["learning_rate", "lra"], meant="learning_rate"))
    assert message.endswith("Did you mean 'learning_rate'?")


def test_a_name_that_is_not_near_is_not_offered() -> None:
    assert "Did you mean" not in str(unknown_name("policy", "llama", ["nano", "openvla", "pi0"]))


@pytest.mark.parametrize("count", [12, 13])
def test_long_lists_are_cut(count: int) -> None:
    message = str(unknown_name("number", "?", [f"{index:02}" for index in range(count)]))
    assert ("in all" in message) == (count > 12)


@pytest.mark.parametrize(("value", "low", "high"), [(0, 0, None), (9, 0, None), (2, 2, 4), (4, 2, 4)])
def test_a_whole_number_within_its_ends_is_given_back(value: int, low: int, high: int | None) -> None:
    assert check_integer("n", value, low, high) == value


@pytest.mark.parametrize("value", [1, 5, 3.0, True, "3", None])
def test_other_numbers_are_refused_with_what_is_allowed(value: object) -> None:
    with pytest.raises(BadValue) as refused:
        check_integer("n", value, 2, 4, note="pixels")
    assert str(refused.value) == f"n must be an integer in 2 .. 4 (pixels), got {value!r}"


def test_a_number_without_an_upper_end_is_refused_below_the_lower_one() -> None:
    with pytest.raises(BadValue, match=r"^n must be an integer >= 0, got -1$"):
        check_integer("n", -1, 0)


@pytest.mark.parametrize(
    "value", ["x" * 5000, ["x" * 5000] * 50, {"a": {"b": {"c": {"d": {}}}}}, 10**5000, object()], ids=[*"abcde"]
)
def test_a_value_is_shown_in_bounds(value: object) -> None:
    assert len(shown(value)) < 200


def test_short_values_are_shown_whole() -> None:
    assert [shown(value) for value in ("a", 3, 2.5, None, [1, "b"])] == ["'a'", "3", "2.5", "None", "[1, 'b']"]


def test_a_message_is_one_bounded_line_that_steers_no_terminal() -> None:
    line = one_line("a\x1b[31mred\x07\n  b \u202egnp " + "x" * 5000 + " y" * 5000)
    assert line.startswith(r"a\x1b[31mred\x07 b \u202egnp xxx")
    assert len(line) < 1600
    assert line.isprintable()
    assert one_line("'naïve' 3 °C") == "'naïve' 3 °C"


def test_what_the_system_refuses_says_what_helps() -> None:
    assert os_reason(OSError(28, "No space left on device")).endswith("free some space or write elsewhere")
    assert os_reason(OSError("odd")) == "odd"


def test_a_long_name_is_compared_and_shown_in_bounds() -> None:
    assert len(str(unknown_name("task", "x" * 10**6, ["reach"]))) < 300
