"""`zoo.sft` whose last rank gets a SIGTERM in its second update; `-m tests.zoo.stopped_sft` for a launcher."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from zoo import sft
from zoo.cli.main import guarded
from zoo.imitation.sft import SFT


def during_update(number: int, act: Callable[[], None]) -> Callable[..., None]:
    """`SFT._update` that lets `act` happen in the update of that number, from 1."""
    update, made = SFT._update, 0

    def counted(self: SFT, *args: Any) -> float:
        nonlocal made
        made += 1
        if made == number:
            act()
        return update(self, *args)

    return counted


def send(which: signal.Signals) -> Callable[[], None]:
    """Send this process a signal."""
    return lambda: os.kill(os.getpid(), which)


if __name__ == "__main__":
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        SFT._update = during_update(2, send(signal.SIGTERM))  # type: ignore[method-assign]
    raise SystemExit(guarded(sft.run))
