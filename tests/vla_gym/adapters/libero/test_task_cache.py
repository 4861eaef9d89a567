"""What a process remembers of start states."""

from __future__ import annotations

import pytest

pytest.importorskip("mujoco", reason="needs the libero extra")
from vla_gym.adapters.libero.task_cache import LastUsed

pytestmark = pytest.mark.sim


def test_the_start_states_used_last_are_kept_and_split_from_split() -> None:
    made: list[tuple[str, int]] = []

    def ask(origin: str, trial: int) -> str:
        start = origin, trial

        def make() -> str:
            made.append(start)
            return f"{origin} {trial}"

        return kept.get(start, make)

    kept: LastUsed[str] = LastUsed(2)
    assert ask("train", 0) == "train 0"
    assert ask("test", 0) == "test 0"
    assert ask("train", 0) == "train 0"  # now used last
    assert ask("train", 1) == "train 1"  # in the place of test 0
    assert ask("train", 0) == "train 0"
    assert made == [("train", 0), ("test", 0), ("train", 1)]
    ask("test", 0)
    assert made[3:] == [("test", 0)]
