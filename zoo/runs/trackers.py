"""Which experiment trackers `--track` knows. Imports nothing heavy; `zoo.runs.tracking` does the rest."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from vla_gym.errors import MissingDependency, unknown_name

TRACKERS: Mapping[str, str] = {"wandb": "WANDB_PROJECT", "swanlab": "SWANLAB_PROJ_NAME"}
"""Tracker -> environment variable that names the project."""


def check_tracker(name: str) -> None:
    """Raise `UnknownName` for another tracker, `MissingDependency` for one that is not installed."""
    if name not in TRACKERS:
        raise unknown_name("tracker", name, TRACKERS)
    if find_spec(name) is None:
        raise MissingDependency(
            f"--track {name} needs {name}, not installed here. Install with: pip install {name}"
        )
