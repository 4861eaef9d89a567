"""A run's films: what they are called, and which of them show its own policy by its own protocol."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.runs.folder import RunFolder

if TYPE_CHECKING:
    from zoo.cli.agent import RolloutPlan

RECORDED, WATCHED = "recorded", "enjoy"
"""Names of the films of `zoo.record_video` and `zoo.enjoy`."""
_OWN = re.compile(rf"({RECORDED}|{WATCHED}|replay|step_\d+)\.mp4")
"""Those two, the film of a run from the Hub, and those of evaluations during training."""


def film_file(plan: RolloutPlan, stem: str, *, elsewhere: str) -> Path:
    """Where a film goes: videos/ in the run folder, named by what is other than the run's own; `elsewhere` without."""
    if plan.output_folder is None:
        return Path(f"{elsewhere}.mp4")
    return plan.output_folder / "videos" / f"{plan.named(stem)}.mp4"


def own_films(run: RunFolder) -> list[Path]:
    """The films of the run's own policy by its own protocol, oldest first; others have names of their own."""
    films = [file for file in run.videos.glob("*.mp4") if _OWN.fullmatch(file.name)]
    return sorted(films, key=lambda film: film.stat().st_mtime)
