"""`zoo.train` whose first rank is killed when its second sharded checkpoint is written, all but the name, and training
has gone on meanwhile; `-m tests.zoo.killed_save` for a launcher."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from zoo import train
from zoo.cli.main import guarded
from zoo.training import sharded_checkpoint

put_folder, checkpoints = sharded_checkpoint.put_folder, 0


def die_at_the_second(partial: Path, folder: Path) -> None:
    """`put_folder`, once."""
    global checkpoints
    checkpoints += 1
    if checkpoints == 1:
        put_folder(partial, folder)
        return
    metrics = folder.parents[1] / "metrics.jsonl"
    before, deadline = metrics.read_text().count("\n"), time.monotonic() + 60
    while metrics.read_text().count("\n") == before and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sharded_checkpoint.put_folder = die_at_the_second
    raise SystemExit(guarded(train.run))
