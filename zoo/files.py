"""Files that are written whole or not at all: a kill or a full disk leaves the former one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Another name to write to, which becomes `path` in the end; where writing fails nothing is left of it."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a text file; the ends of its lines stay as they are."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def quoted(path: str | Path) -> str:
    """Return `path` as one word of a command line."""
    return shlex.quote(str(path))
