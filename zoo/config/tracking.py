"""Which experiment trackers follow a run, and the names it has there; checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from vla_gym.errors import BadValue, MissingDependency, unknown_name

PROJECT = "vla-zoo"
"""Project of a tracker, unless a flag or its environment variable names another."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """A tracker as Accelerate starts it."""

    project_variable: str
    """Its environment variable for the project."""
    keywords: Mapping[str, str]
    """`Tracking` field -> argument of its `init`."""
    offline: str
    """Variable to set where there is no network."""


SERVICES: Mapping[str, Service] = {
    "wandb": Service(
        project_variable="WANDB_PROJECT",
        keywords={"run_name": "name", "entity": "entity", "group": "group", "tags": "tags"},
        offline="set WANDB_MODE=offline and send the run later with `wandb sync`",
    ),
    "swanlab": Service(
        project_variable="SWANLAB_PROJ_NAME",
        keywords={"run_name": "experiment_name", "entity": "workspace", "tags": "tags"},
        offline="set SWANLAB_MODE=offline and send the run later with `swanlab sync`",
    ),
    "trackio": Service(
        project_variable="TRACKIO_PROJECT",
        keywords={"run_name": "name", "group": "group"},
        offline="unset TRACKIO_SPACE_ID and TRACKIO_SERVER_URL: trackio then keeps the run on this machine",
    ),
}
"""Name -> tracker."""
FLAGS = {
    "project": "--project-name",
    "run_name": "--run-name",
    "entity": "--wandb-entity",
    "group": "--wandb-group",
    "tags": "--wandb-tags",
}
"""`Tracking` field -> its flag, rl_zoo3's."""


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Trackers of a run and its names there."""

    trackers: Sequence[str] = ()
    """Send the run's numbers to these, too: wandb, swanlab, trackio."""
    project: str | None = None
    """Project at the trackers; none: their environment variables', else vla-zoo."""
    run_name: str | None = None
    """The run's name there; none: <algo>/<run folder>."""
    entity: str | None = None
    """Team of wandb's project, workspace of swanlab's."""
    group: str | None = None
    """Group of runs, of wandb and trackio."""
    tags: Sequence[str] = ()
    """Tags of the run, of wandb and swanlab."""

    def keywords(self, tracker: str) -> dict[str, object]:
        """Return the arguments of a tracker's `init` that were asked for."""
        known = SERVICES[tracker].keywords
        return {known[name]: value for name in known if (value := getattr(self, name))}

    def project_of(self, tracker: str) -> str:
        """Return the project of the run at a tracker."""
        return self.project or os.environ.get(SERVICES[tracker].project_variable) or PROJECT

    def check(self) -> None:
        """Raise `UnknownName` for another tracker, `MissingDependency` for one that is not installed, and `BadValue`
        for a name that no tracker takes."""
        for name in self.trackers:
            if name not in SERVICES:
                raise unknown_name("tracker", name, SERVICES)
            if find_spec(name) is None:
                raise MissingDependency(f"--track {name} needs {name}, not installed here. Install: pip install {name}")
        for name, flag in FLAGS.items():
            takers = [one for one, service in SERVICES.items() if name in service.keywords or name == "project"]
            if getattr(self, name) and not set(takers) & set(self.trackers):
                raise BadValue(f"{flag} is for {' and '.join(takers)}; add --track {takers[0]}, or leave it out")
