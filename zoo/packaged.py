"""Folders that lie at the top of the repository and travel inside the wheel: `hyperparams/`, `agents/`."""

from __future__ import annotations

from pathlib import Path


def packaged_folder(name: str) -> Path:
    """The folder inside an installed wheel (`zoo/_<name>`), or the repository's own beside the packages."""
    package = Path(__file__).parent
    inside = package / f"_{name}"
    return inside if inside.is_dir() else package.parent / name
