from __future__ import annotations

import pytest

from vla_gym.errors import BadValue, check_integer, one_line, shown, unknown_name


def test_the_nearest_name_is_offered() -> None:
    message = str(unknown_name("colour", "REDD", ["blue", "red"]))
    assert message == "no colour 'REDD'. Known: blue, red. Did you mean 'red'?"


def test_of_many_names_the_nearest_come_first() -> None:
    names = [f"other{index:02}" for index in range(20)] + ["red", "reed"]
    message = str(unknown_name("colour", "redd", names, show=3))
    assert message == "no colour 'redd'. Did you mean 'red'? Known: red, reed, other00, ... (22 in all)."


def test_what_is_known_to_be_meant_is_offered_before_the_nearest() -> None:
    message = str(unknown_name("setting", "lr", ["learning_rate", "lra"], meant="learning_rate"))
    assert message.endswith("Did you mean 'learning_rate'?")


@pytest.mark.parametrize("value", [1, 5, 3.0, True, "3", None])
def test_other_numbers_are_refused_with_what_is_allowed(value: object) -> None:
    with pytest.raises(BadValue) as refused:
        check_integer("n", value, 2, 4, note="pixels")
    assert str(refused.value) == f"n must be an integer in 2 .. 4 (pixels), got {value!r}"


@pytest.mark.parametrize(
    "value", ["x" * 5000, ["x" * 5000] * 50, {"a": {"b": {"c": {"d": {}}}}}, 10**5000, object()], ids=[*"abcde"]
)
def test_a_value_is_shown_in_bounds(value: object) -> None:
    assert len(shown(value)) < 200


def test_a_message_is_one_bounded_line_that_steers_no_terminal() -> None:
    line = one_line("a\x1b[31mred\x07\n  b \u202egnp " + "x" * 5000 + " y" * 5000)
    assert line.startswith(r"a\x1b[31mred\x07 b \u202egnp xxx")
    assert len(line) < 1600
    assert line.isprintable()
    assert one_line("'naïve' 3 °C") == "'naïve' 3 °C"
