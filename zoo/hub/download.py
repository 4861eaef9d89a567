"""Fetch a run from a Hub repository that `zoo.hub.upload` made."""

from __future__ import annotations

import shutil
from pathlib import Path

from vla_gym.errors import BadValue
from vla_gym.reading import inside
from vla_policies.checkpoint_io.hub import POLICY_FILES, RUN_FILES, fetch, parse_hub_id
from zoo.config.gym_packages import unarmed
from zoo.runs.folder import (
    ARGS_FILE,
    COMMAND_FILE,
    CONFIG_FILE,
    EVALUATION_FILE,
    EVALUATIONS_FILE,
    METRICS_FILE,
    MONITOR_FILE,
    PROTOCOL_FILE,
    REPLAY_VIDEO,
    RESULTS_FILE,
    ROBUSTNESS_FILE,
    RunFolder,
    create_run_folder,
    write_yaml,
)
from zoo.runs.lookup import TRAINING, ResumePoint, check_command, find_run
from zoo.yaml_text import read_yaml_mapping

CARD, REPLAY = "README.md", f"{REPLAY_VIDEO}.mp4"
RUN_RECORDS = (
    *(CONFIG_FILE, ARGS_FILE, COMMAND_FILE, PROTOCOL_FILE, RESULTS_FILE, ROBUSTNESS_FILE),
    *(EVALUATION_FILE, EVALUATIONS_FILE, MONITOR_FILE, METRICS_FILE),
)
"""Files of a run folder's root that a repository has at its own."""


def download_run(name: str) -> RunFolder:
    """Return the run of a Hub repository in the Hub's cache: to read, not to write into."""
    hub = parse_hub_id(name)
    assert hub is not None, "only Hub ids come here"
    folder = fetch(hub, allow=(*POLICY_FILES, *RUN_FILES))
    if not (folder / CONFIG_FILE).is_file():
        raise BadValue(
            f"'{name}' holds no run (it has no {CONFIG_FILE}); as a policy it goes with: "
            f"vla-zoo evaluate --env ID --policy {name}"
        )
    return find_run(str(folder))


def remote_resume_point(name: str) -> ResumePoint:
    """Return the checkpoint of a run on the Hub, to go on from in a new run folder."""
    run = download_run(name)
    check_command(run, TRAINING)
    steps = run.saved_steps()
    if not steps:
        raise BadValue(
            f"'{name}' holds weights only and cannot be resumed; start a new run from them with --policy {name}"
        )
    return ResumePoint(run=run, step=steps[-1], in_place=False)


def install_run(name: str, log_folder: Path) -> RunFolder:
    """Download a run into a new run folder under `log_folder`; opening that imports no module of the publisher's
    unasked."""
    source = download_run(name)
    config = source.config()
    run = create_run_folder(log_folder, config.algo, config.env)
    try:
        for file in files_of(source.path):
            of_run = file.name in RUN_RECORDS or file.name == CARD
            _copy(file, run.path if of_run else run.videos if file.name == REPLAY else run.best)
        args = run.path / ARGS_FILE
        write_yaml(args, unarmed(read_yaml_mapping(args, "flags to values"), args))
        for step in source.saved_steps():
            for file in files_of(source.checkpoint(step)):
                _copy(file, run.checkpoint(step))
    except BaseException:
        shutil.rmtree(run.path)
        raise
    return run


def is_remote(path: str) -> bool:
    """Whether `-i path` means a Hub repository."""
    return parse_hub_id(path) is not None


def files_of(folder: Path) -> list[Path]:
    """The folder's files, hidden ones left out, sorted; raises `BadValue` for a link that leads out of it."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    return [inside(folder, file.name, folder) for file in files]


def _copy(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, folder / source.name)
