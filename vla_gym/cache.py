"""Where this project keeps what it can make again: compiled scenes, other libraries' configs and caches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """`$VLA_ZOO_CACHE`, else `$XDG_CACHE_HOME/vla-zoo`, else `~/.cache/vla-zoo`; not created here."""
    environ = os.environ if environ is None else environ
    own = environ.get("VLA_ZOO_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser().absolute() if base else Path.home() / ".cache") / "vla-zoo"


def library_caches(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that keep LIBERO's config and Numba's cache out of HOME; the folders are created.

    The user's own NUMBA_CACHE_DIR stays. LIBERO_CONFIG_PATH is always ours: LIBERO asks questions on the
    terminal when its config is missing, and a config shared between installations points elsewhere.
    """
    environ = os.environ if environ is None else environ
    root = cache_dir(environ)
    folders = {
        "LIBERO_CONFIG_PATH": str(root / "libero-config"),
        "NUMBA_CACHE_DIR": environ.get("NUMBA_CACHE_DIR") or str(root / "numba"),
    }
    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    return folders
