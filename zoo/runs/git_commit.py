"""Which commit of this project runs, for the records of what it made."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit_note(package: Path = Path(__file__).parents[1]) -> str:
    """ ", commit <hash>" when the package lies in a git checkout of its own, not in some other project's."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--show-toplevel", "--short=12", "HEAD"],  # noqa: S607
            cwd=package,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    checkout, commit = done.stdout.splitlines()
    return f", commit {commit}" if Path(checkout).resolve() == package.resolve().parent else ""
