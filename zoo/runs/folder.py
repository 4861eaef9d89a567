"""The run folder `logs/<algo>/<env>_<k>/`: the names of its files, their places, and its making.

args.yml  config.yml  command.txt  protocol.json       flags, resolved settings, command lines, what is simulated
monitor.csv  evaluations.npz  metrics.jsonl            training episodes, evaluations, metrics (and TensorBoard events)
evaluation.json  results.json  report.html             training's last evaluation, a later one, all on one page
checkpoints/step_<n>/  best/  videos/
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import yaml

from vla_gym import __version__
from vla_gym.errors import BadValue, os_reason, shown
from vla_gym.system.limits import main_memory, num_cores
from zoo.config.run_config import RunConfig, from_plain, to_plain
from zoo.config.settings import Options
from zoo.files import lock, write_text
from zoo.yaml_text import read_yaml_mapping

ARGS_FILE, CONFIG_FILE, COMMAND_FILE, PROTOCOL_FILE = "args.yml", "config.yml", "command.txt", "protocol.json"
MONITOR_FILE, EVALUATIONS_FILE, METRICS_FILE = "monitor.csv", "evaluations.npz", "metrics.jsonl"
EVALUATION_FILE, RESULTS_FILE, REPORT_FILE = "evaluation.json", "results.json", "report.html"
ROBUSTNESS_FILE = "robustness.json"
TRACKER_ID_FILE = "tracker_id.txt"
POLICY_CONFIG_FILE, ADAPTER_CONFIG_FILE = "config.json", "adapter_config.json"
"""Configuration of a policy: of whole weights, of an adapter."""
NETWORKS_FILE = "networks.safetensors"
"""File of a checkpoint with the networks beside the policy."""
REPLAY_FOLDER = "replay"
"""Folder of a run with the decisions that it learns from."""
OPTIMIZER_FILE, ROLLOUT_FILE, REFERENCE_FILE = (
    *("optimizer.safetensors", "rollout.safetensors", "reference.safetensors"),
)
_OPTIMIZER_FILES = "optimizer*.safetensors"
STATE_FILE, SCORE_FILE = "training_state.json", "score.json"
"""Beside the policy in a checkpoint, and in `best/`."""
RECORDED_VIDEO, WATCHED_VIDEO, REPLAY_VIDEO = "recorded", "enjoy", "replay"
"""Videos of `vla-zoo record_video`, of `vla-zoo enjoy`, and of a run from the Hub."""
_STEP = re.compile(r"step_(\d{1,18})", re.ASCII)
_FOLDER_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")
_OWN_VIDEO = re.compile(rf"({RECORDED_VIDEO}|{WATCHED_VIDEO}|{REPLAY_VIDEO}|{_STEP.pattern})\.mp4")


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run folder."""

    path: Path

    @property
    def best(self) -> Path:
        """Policy of the best evaluation."""
        return self.path / "best"

    @property
    def videos(self) -> Path:
        """mp4 files."""
        return self.path / "videos"

    @property
    def checkpoints(self) -> Path:
        """Parent of the `step_<n>` folders."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint at `step` simulator steps."""
        return self.checkpoints / f"step_{step}"

    def saved_steps(self) -> list[int]:
        """Steps that have a checkpoint, ascending."""
        steps = (step_of(entry) for entry in self.checkpoints.glob("step_*") if entry.is_dir())
        return sorted(step for step in steps if step is not None)

    def own_videos(self) -> list[Path]:
        """Videos of the run's own policy by its own protocol, oldest first; others are named by their departures."""
        videos = [file for file in self.videos.glob("*.mp4") if _OWN_VIDEO.fullmatch(file.name)]
        return sorted(videos, key=lambda video: video.stat().st_mtime)

    def config(self) -> RunConfig:
        """Return the run's configuration; raises `BadValue` or `UnknownName` when its file is missing or wrong."""
        file = self.path / CONFIG_FILE
        return from_plain(read_yaml_mapping(file, "settings to values"), str(file))


def step_of(folder: Path) -> int | None:
    """n of a folder named `step_<n>`; None for another name."""
    match = _STEP.fullmatch(folder.name)
    return int(match[1]) if match else None


def run_number(folder: Path, env_id: str) -> int | None:
    """k of a run folder named `<env>_<k>`; None for another name."""
    match = re.fullmatch(re.escape(folder_name(env_id)) + r"_(\d+)", folder.name)
    return int(match[1]) if match else None


def folder_name(env_id: str) -> str:
    """`env_id` as part of a file name, the way rl_zoo3 writes it: "LIBERO-Spatial/3" -> "LIBERO-Spatial-3"."""
    return env_id.replace("/", "-")


def create_run_folder(log_folder: Path, algo: str, env_id: str) -> RunFolder:
    """Make `<log_folder>/<algo>/<env>_<k>` with the next free k; safe against runs that start together.

    Raises `BadValue` where a name is no name of one folder, as a downloaded configuration may have it, or the system
    refuses.
    """
    name = folder_name(env_id)
    for part in (algo, name):
        if not _FOLDER_NAME.fullmatch(part):
            raise BadValue(f"{shown(part)} cannot be part of a run folder's name; letters, digits, '_', '.', '-' can")
    parent = log_folder / algo
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadValue(f"cannot write run folders under '{parent}': {os_reason(error)}") from error
    index = 1 + max((run_number(entry, env_id) or 0 for entry in parent.iterdir()), default=0)
    while True:
        path = parent / f"{name}_{index}"
        try:
            path.mkdir()
        except FileExistsError:
            index += 1
            continue
        return RunFolder(path)


def describe_run(
    run: RunFolder,
    *,
    config: RunConfig,
    args: Options,
    command: Sequence[str],
    protocol: Options,
) -> None:
    """Write config.yml, protocol.json and, the first time, args.yml; append to command.txt (one line per start)."""
    if not (run.path / ARGS_FILE).exists():
        write_yaml(run.path / ARGS_FILE, args)
    write_yaml(run.path / CONFIG_FILE, to_plain(config))
    write_text(run.path / PROTOCOL_FILE, json.dumps(protocol, indent=2) + "\n")
    with (run.path / COMMAND_FILE).open("a", encoding="utf-8") as file:
        file.write(f"{shlex.join(command)}  # vla-zoo {__version__}{commit_note()}\n")


@contextmanager
def locked(run: RunFolder, instead: str = "") -> Iterator[bool]:
    """Context manager in which this process alone trains in the run; `BadValue` (`instead` at its end) if another does.

    Yields whether the file system has locks; where it has none, others may train in the run. The lock is the system's,
    on `command.txt`: it ends with the process and is not copied with the run.
    """
    # For appending: network file systems lock only what is open for writing.
    with (run.path / COMMAND_FILE).open("a", encoding="utf-8") as file:
        yield lock(file.fileno(), f"'{run.path}' is being trained by another process; wait until it ends{instead}")


def is_of_training(name: str) -> bool:
    """Whether a file of tensors in a checkpoint is no part of the policy."""
    return name in (ROLLOUT_FILE, REFERENCE_FILE, NETWORKS_FILE) or fnmatch(name, _OPTIMIZER_FILES)


def optimizer_files(checkpoint: Path) -> list[Path]:
    """The files of the optimiser's state: the one file, or each rank's of a sharded run."""
    return sorted(checkpoint.glob(_OPTIMIZER_FILES))


def longer(n_timesteps: int, done: int) -> int:
    """Return the -n to advise for training on: twice the steps asked for, or done where those are more."""
    return 2 * max(n_timesteps, done)


def holds_policy(folder: Path) -> bool:
    """Whether the folder has whole weights or an adapter, with the configuration to read them."""
    return (folder / POLICY_CONFIG_FILE).is_file() or (folder / ADAPTER_CONFIG_FILE).is_file()


def commit_note(package: Path = Path(__file__).parents[1]) -> str:
    """Return ", commit <hash>" when the package lies in a git checkout of its own, not in another project's."""
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


def write_yaml(path: Path, values: Options) -> None:
    """Write a YAML mapping, whole or not at all."""
    write_text(path, yaml.safe_dump(dict(values), sort_keys=False))


def describe_machine(device: str) -> str:
    """Return cores, processor, main memory and the GPU that `--device` means: "2 cores of AMD EPYC 9B14, 23.5 GiB"."""
    import torch  # which the run has brought

    from zoo.distributed.process_group import check_device

    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text(encoding="utf-8").splitlines() if cpu_info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    parts = [f"{num_cores()} cores of {processor}", f"{main_memory() / 2**30:.1f} GiB"]
    found = check_device(device)
    return ", ".join([*parts, torch.cuda.get_device_name(found)] if found.type == "cuda" else parts)
