"""Loaded tasks of a process, shared by the slots that play them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """Anything that holds resources, such as those of GL."""

    def close(self) -> None:
        """Free them."""


Loaded = TypeVar("Loaded", bound=Closable)


class TaskCache(Generic[Loaded]):
    """Tasks loaded last; those in use by a slot are never dropped.

    Args:
        load: loads a task; its arguments are the task's key.
        num_spare: tasks kept beyond those in use, least recently used first to go.
    """

    def __init__(self, load: Callable[..., Loaded], num_spare: int) -> None:
        self._load, self._num_spare = load, num_spare
        self._loaded: OrderedDict[tuple[Hashable, ...], Loaded] = OrderedDict()
        self._num_users: Counter[tuple[Hashable, ...]] = Counter()

    def acquire(self, *key: Hashable) -> Loaded:
        """Return the task, loaded now if need be; pair with `release`."""
        if key not in self._loaded:
            self._close_unused()
            self._loaded[key] = self._load(*key)
        self._loaded.move_to_end(key)
        self._num_users[key] += 1
        return self._loaded[key]

    def release(self, *key: Hashable) -> None:
        """End one slot's use of a task, which stays loaded while there is room."""
        self._num_users[key] -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        unused = [key for key in self._loaded if not self._num_users[key]]
        for key in unused[: max(0, len(unused) - self._num_spare)]:
            self._loaded.pop(key).close()
