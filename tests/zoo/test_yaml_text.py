"""YAML that others wrote: plain values, and one error for everything else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from zoo.yaml_text import parse_yaml, read_yaml_mapping

BOMB = "a0: &a0 x\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3.0e-4", 3e-4),
        ("{a: [1, true, null, x]}", {"a": [1, True, None, "x"]}),
        ("2020-01-01", "2020-01-01"),
        ("2020-13-45", "2020-13-45"),
        ("", None),
        ("base: &b {a: 1, b: 2}\nmine: {<<: *b, b: 3}", {"base": {"a": 1, "b": 2}, "mine": {"a": 1, "b": 3}}),
    ],
)
def test_plain_values_are_read(text: str, value: object) -> None:
    assert parse_yaml(text, "x") == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("!!int abc", "invalid literal"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("!!set {a}", "could not determine a constructor"),
        ("0x_", "invalid literal"),
        ("9" * 5000, "too large for an integer"),
        ("[" * 3000, "nested more than 50 deep"),
        (BOMB, "aliases stand for more than"),
        ("&a [*a]", "holds the alias itself"),
        ("{5: a}", "a key must be text, got 5; quote it"),
        ("{[a]: b}", "unhashable key"),
        ("{a: 1, a: 2}", "the key 'a' stands there twice"),
        ("a: b: c", "mapping values are not allowed"),
        ("\x00", "special characters are not allowed"),
        ("a\n---\nb", "expected a single document"),
        ("<<: 3", "expected a mapping"),
        ("x" * (4 * 2**20 + 1), "characters are too many"),
    ],
)
def test_everything_else_is_one_error(text: str, says: str) -> None:
    with pytest.raises(BadValue, match=says) as caught:
        parse_yaml(text, "a.yml")
    assert str(caught.value).startswith("a.yml")
    assert len(str(caught.value)) < 600


def test_deep_nesting_is_refused_at_once() -> None:
    for text in ("[" * 20_000, "{a: " * 20_000, "- " * 20_000, "? " * 20_000):
        began = time.process_time()
        with pytest.raises(BadValue):
            parse_yaml(text, "x")
        assert time.process_time() - began < 2.0


def test_a_file_must_hold_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "x.yml"
    file.write_text("[1]")
    with pytest.raises(BadValue, match=r"x\.yml must map settings to values, got list"):
        read_yaml_mapping(file, "settings to values")
    with pytest.raises(BadValue, match="--space must map a to b, got list"):
        read_yaml_mapping(file, "a to b", "--space")
    file.write_text("a: 1")
    assert read_yaml_mapping(file, "a to b") == {"a": 1}
