"""`zoo.sft` whose last rank gets a SIGTERM in its second update; `-m tests.zoo.stopped_sft` for a launcher."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from zoo import sft
from zoo.cli.main import guarded
from zoo.distributed.learner import Learner


def during_update(number: int, act: Callable[[], None]) -> Callable[[Learner], Any]:
    """`Learner.apply` that calls `act` in the update of that number, from 1."""
    apply, updates = Learner.apply, 0

    def counted(self: Learner) -> Any:
        nonlocal updates
        updates += 1
        if updates == number:
            act()
        return apply(self)

    return counted


def send(which: signal.Signals) -> Callable[[], None]:
    """A function that sends this process a signal."""
    return lambda: os.kill(os.getpid(), which)


if __name__ == "__main__":
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        Learner.apply = during_update(2, send(signal.SIGTERM))  # type: ignore[method-assign]
    raise SystemExit(guarded(sft.run))
