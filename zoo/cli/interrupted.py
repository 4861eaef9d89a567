"""Ctrl-C while a command is still importing what it needs: before `zoo.cli.main.guarded` can catch it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType


def say_interrupted(argv: Sequence[str] | None = None) -> None:
    """Make Ctrl-C end this process with the line and the exit code of `guarded`, where it runs one of our commands.

    Nothing changes in other programs that import this package. `argv` is the interpreter's own command line.
    """
    if _is_command(sys.orig_argv if argv is None else argv):
        sys.excepthook = _hook


def _is_command(argv: Sequence[str]) -> bool:
    """Whether the interpreter runs `python -m zoo...` or the console script."""
    for place, word in enumerate(argv[1:], start=1):
        if word == "-m":
            return len(argv) > place + 1 and argv[place + 1].partition(".")[0] == "zoo"
        if not word.startswith("-"):
            return Path(word).name == "vla-zoo"
    return False


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(130)
