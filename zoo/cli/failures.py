"""How a command ends badly: one line, and for a launcher the file from which it tells which process failed first."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

LAST_WORD_SECONDS = 5.0
"""How long a rank that lost another one waits, so that the launcher finds the dead one first and names it."""


def tell(message: str, *, everywhere: bool) -> None:
    """Print `message` as one line, on rank 0 or `everywhere`, and leave it for the launcher's summary."""
    one_line = " ".join(message.split())
    rank = int(os.environ.get("RANK", "0"))
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if everywhere or rank == 0:
        sys.stderr.write(f"error: rank {rank}: {one_line}\n" if several else f"error: {one_line}\n")
        sys.stderr.flush()
    leave_for_launcher(one_line)


def leave_for_launcher(message: str) -> None:
    """Write torch's error file, where a launcher asks for one: its summary, printed last, then has `message`."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and not Path(path).exists():
        record = {"message": message, "timestamp": int(time.time())}
        Path(path).write_text(json.dumps(record), encoding="utf-8")


def wait_for_the_launcher() -> None:
    """Let the launcher find the process that ended first; it ends this one too."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        time.sleep(LAST_WORD_SECONDS)
