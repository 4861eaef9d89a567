"""Commands that messages advise, as a shell takes them back."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path


def quoted(path: str | Path) -> str:
    """`path` as one word of a command line."""
    return shlex.quote(str(path))


def packages_flag(modules: Sequence[str]) -> str:
    """ " --gym-packages MODULE ..." for a command about an environment that these modules register; "" for none."""
    return " ".join(["", "--gym-packages", *map(quoted, modules)]) if modules else ""
