"""Loaded tasks: shared, kept while in use, least recently used first to go."""

from __future__ import annotations

import pytest

from vla_gym.adapters.mujoco.task_cache import TaskCache

events: list[str] = []


class Loaded:
    def __init__(self, name: str, size: int) -> None:
        self.name = f"{name} at {size}"
        if name == "broken":
            raise OSError("no such file")
        events.append(f"load {self.name}")

    def close(self) -> None:
        events.append(f"close {self.name}")


@pytest.fixture
def cache() -> TaskCache[Loaded]:
    events.clear()
    return TaskCache(Loaded, num_spare=1)


def test_slots_of_one_task_share_it(cache: TaskCache[Loaded]) -> None:
    assert cache.acquire("reach", 64) is cache.acquire("reach", 64)
    assert cache.acquire("reach", 96) is not cache.acquire("reach", 64)
    assert events == ["load reach at 64", "load reach at 96"]


def test_one_task_more_is_kept_and_then_the_least_recently_used_goes(cache: TaskCache[Loaded]) -> None:
    for name in ("a", "b"):
        cache.acquire(name, 1)
        cache.release(name, 1)
    assert events == ["load a at 1", "load b at 1", "close a at 1"]
    cache.acquire("b", 1)  # kept, so not loaded again
    cache.acquire("c", 1)
    cache.acquire("c", 1)
    cache.release("c", 1)
    cache.acquire("d", 1)  # b and c are in use
    cache.release("b", 1)
    cache.release("d", 1)
    assert events[3:] == ["load c at 1", "load d at 1", "close b at 1"]


def test_a_task_that_does_not_load_is_not_in_use(cache: TaskCache[Loaded]) -> None:
    for _ in range(2):
        with pytest.raises(OSError, match="no such file"):
            cache.acquire("broken", 1)
