"""Where files live that can be made again: compiled scenes, compiled kernels, benchmark configs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$VLA_ZOO_CACHE`, else `$XDG_CACHE_HOME/vla-zoo`, else `~/.cache/vla-zoo`; may not exist yet."""
    chosen = os.environ.get("VLA_ZOO_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "vla-zoo"
