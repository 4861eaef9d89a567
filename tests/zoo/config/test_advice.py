from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from zoo.config.advice import packages_flag, quoted


@pytest.mark.parametrize("path", ["logs/ppo/Toy-Reach_1", "out logs/it's 1", "$HOME/x"])
def test_a_path_is_one_word(path: str) -> None:
    assert shlex.split(f"zoo.evaluate -i {quoted(Path(path))} -P") == ["zoo.evaluate", "-i", path, "-P"]
    assert quoted("logs/ppo/Toy-Reach_1") == "logs/ppo/Toy-Reach_1"


def test_modules_are_a_flag_and_none_are_nothing() -> None:
    assert packages_flag(["one", "two"]) == " --gym-packages one two"
    assert packages_flag([]) == ""
