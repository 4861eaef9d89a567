"""Which experiment trackers follow a run, and the names it has there; checked before anything starts."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from vla_gym.errors import BadValue, MissingDependency, unknown_name

PROJECT = "vla-zoo"
"""Project of a tracker, unless a flag or its environment variable names another."""
_TIMEOUT = 5.0
"""Seconds that a tracker's server may take to answer."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """What this project knows of a tracker."""

    project_variable: str
    """Its environment variable for the project."""
    local_modes: Mapping[str, tuple[str, ...]]
    """Environment variable -> values with which nothing is sent; empty where nothing is sent by itself."""
    remote_variables: tuple[str, ...] = ()
    """Environment variables that make it send, where it does not by itself."""
    address: tuple[str, str]
    """Environment variable of its server, and the server without it."""
    keywords: Mapping[str, str]
    """`Tracking` field -> argument of its `init`."""
    offline: str
    """What to set where there is no network."""

    def sends(self, environ: Mapping[str, str]) -> bool:
        """Whether it talks to its server."""
        if self.remote_variables:
            return any(environ.get(name) for name in self.remote_variables)
        return not any(environ.get(name, "").lower() in values for name, values in self.local_modes.items())


SERVICES: Mapping[str, Service] = {
    "wandb": Service(
        project_variable="WANDB_PROJECT",
        local_modes={"WANDB_MODE": ("offline", "dryrun", "disabled"), "WANDB_DISABLED": ("true", "1")},
        address=("WANDB_BASE_URL", "https://api.wandb.ai"),
        keywords={"run_name": "name", "entity": "entity", "group": "group", "tags": "tags"},
        offline="set WANDB_MODE=offline and send the run later with `wandb sync`",
    ),
    "swanlab": Service(
        project_variable="SWANLAB_PROJ_NAME",
        local_modes={"SWANLAB_MODE": ("offline", "local", "disabled")},
        address=("SWANLAB_API_HOST", "https://api.swanlab.cn"),
        keywords={"run_name": "experiment_name", "entity": "workspace", "tags": "tags"},
        offline="set SWANLAB_MODE=offline and send the run later with `swanlab sync`",
    ),
    "trackio": Service(
        project_variable="TRACKIO_PROJECT",
        local_modes={},
        remote_variables=("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"),
        address=("TRACKIO_SERVER_URL", "https://huggingface.co"),
        keywords={"run_name": "name", "group": "group"},
        offline="unset TRACKIO_SPACE_ID and TRACKIO_SERVER_URL: trackio then keeps the run on this machine",
    ),
}
"""Tracker -> what is known of it."""
FLAGS = {"entity": "--wandb-entity", "group": "--wandb-group", "tags": "--wandb-tags"}
"""`Tracking` field that not every tracker has -> its flag, rl_zoo3's."""


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


def check_tracking(tracking: Tracking) -> None:
    """Raise where a tracker cannot follow a run from this machine.

    `UnknownName` for another tracker, `MissingDependency` for one that is not installed, `BadValue` for TensorBoard,
    which is none, for names without a tracker that takes them and for a server that does not answer.
    """
    for name in tracking.trackers:
        if name == "tensorboard":
            raise BadValue("--track tensorboard: every run has TensorBoard's log in its folder; leave the flag out")
        if name not in SERVICES:
            raise unknown_name("tracker", name, SERVICES)
        if find_spec(name) is None:
            raise MissingDependency(
                f"--track {name} needs {name}, not installed here. Install with: pip install {name}"
            )
    for name, flag in FLAGS.items():
        takers = [tracker for tracker, service in SERVICES.items() if name in service.keywords]
        if getattr(tracking, name) and not set(takers) & set(tracking.trackers):
            raise BadValue(f"{flag} is for {' and '.join(takers)}; add --track {takers[0]}, or leave it out")
    if (tracking.project or tracking.run_name) and not tracking.trackers:
        flag = "--project-name" if tracking.project else "--run-name"
        raise BadValue(f"{flag} names a run at its trackers; add --track {' or --track '.join(SERVICES)}")
    for name in tracking.trackers:
        _check_reachable(name, SERVICES[name])


def _check_reachable(name: str, service: Service) -> None:
    """Raise `BadValue` where the tracker would send and its server does not answer."""
    if not service.sends(os.environ):
        return
    variable, default = service.address
    url = os.environ.get(variable) or default
    try:
        # Through the proxies of the environment, as the trackers go.
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_TIMEOUT).close()  # noqa: S310
    except urllib.error.HTTPError:
        return  # it answers
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise BadValue(
            f"--track {name}: {url} does not answer ({reason}). Without a network, {service.offline}"
        ) from error
