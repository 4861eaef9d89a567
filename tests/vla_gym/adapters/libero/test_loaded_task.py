"""The start states that a loaded task keeps."""

from __future__ import annotations

import pytest

pytest.importorskip("mujoco", reason="needs the libero extra")
from vla_gym.adapters.libero.loaded_task import Start, StartCache

pytestmark = pytest.mark.sim


def test_the_start_states_used_last_are_kept_and_split_from_split() -> None:
    cache: StartCache[str] = StartCache(2)
    made: list[tuple[str, int]] = []

    def get(origin: str, trial: int) -> str:
        def make() -> str:
            made.append((origin, trial))
            return f"{origin} {trial}"

        return cache.get(Start(origin, trial, settle_steps=10, settle_gripper=-1.0), make)

    assert get("train", 0) == "train 0"
    assert get("test", 0) == "test 0"
    assert get("train", 0) == "train 0"  # now used last
    assert get("train", 1) == "train 1"  # in the place of test 0
    assert get("train", 0) == "train 0"
    assert made == [("train", 0), ("test", 0), ("train", 1)]
    get("test", 0)
    assert made[3:] == [("test", 0)]
