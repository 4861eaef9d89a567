"""The run folder `logs/<algo>/<env>_<k>/`: where it is, what describes it, where to resume from.

args.yml  config.yml  command.txt  protocol.json      what was asked, resolved, typed, simulated
monitor.csv  evaluations.npz  metrics.jsonl            what came of it (and TensorBoard events)
report.html                                            all of it on one page
checkpoints/step_<n>/  best/  videos/
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from vla_gym.errors import BadValue
from zoo.config.gym_packages import import_packages_of
from zoo.config.run_config import RunConfig, from_plain, to_plain
from zoo.files import quoted, write_whole
from zoo.runs.git_commit import commit_note
from zoo.runs.shipped_agents import local_or_shipped

ARGS_FILE = "args.yml"
CONFIG_FILE = "config.yml"
COMMAND_FILE = "command.txt"
EVALUATION_FILE = "evaluation.json"
REPORT_FILE = "report.html"
TRAINING, FINETUNING = "zoo.train", "zoo.sft"
"""The commands that make runs."""
_STEP = re.compile(r"step_(\d+)")


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run folder."""

    path: Path
    """The folder itself."""

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
        found = (_STEP.fullmatch(entry.name) for entry in self.checkpoints.glob("step_*") if entry.is_dir())
        return sorted(int(match[1]) for match in found if match)

    def config(self) -> RunConfig:
        """The run's configuration; raises `BadValue` or `UnknownName` when its file is missing or wrong."""
        file = self.path / CONFIG_FILE
        try:
            values = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise BadValue(f"cannot read {file}: {error}") from error
        if not isinstance(values, dict):
            raise BadValue(f"{file} must hold a mapping, got {type(values).__name__}")
        return from_plain(values, str(file))


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """What `-i` means for training."""

    run: RunFolder
    """The run that wrote the checkpoint."""
    step: int
    """Simulator steps done at the checkpoint."""
    in_place: bool
    """True for a run folder: its own files go on. False for one checkpoint: a new run folder begins there."""

    @property
    def checkpoint(self) -> Path:
        """Folder to load."""
        return self.run.checkpoint(self.step)


def folder_name(env_id: str) -> str:
    """`env_id` as part of a file name, the way rl_zoo3 writes it: "LIBERO-Spatial/3" -> "LIBERO-Spatial-3"."""
    return env_id.replace("/", "-")


def create_run_folder(log_folder: Path, algo: str, env_id: str) -> RunFolder:
    """Make `<log_folder>/<algo>/<env>_<k>` with the next free k; safe against runs that start together."""
    parent = log_folder / algo
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadValue(f"cannot write run folders under '{parent}': {error.strerror}") from error
    name = folder_name(env_id)
    pattern = re.compile(re.escape(name) + r"_(\d+)")
    taken = [int(match[1]) for entry in parent.iterdir() if (match := pattern.fullmatch(entry.name))]
    index = max(taken, default=0) + 1
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
    args: Mapping[str, Any],
    command: Sequence[str],
    protocol: Mapping[str, Any],
) -> None:
    """Write config.yml, protocol.json and, the first time, args.yml; append to command.txt (one line per start)."""
    if not (run.path / ARGS_FILE).exists():
        _write_yaml(run.path / ARGS_FILE, args)
    _write_yaml(run.path / CONFIG_FILE, to_plain(config))
    write_whole(run.path / "protocol.json", json.dumps(protocol, indent=2) + "\n")
    with (run.path / COMMAND_FILE).open("a", encoding="utf-8") as file:
        file.write(f"{shlex.join(command)}  # vla-zoo {metadata_version()}{commit_note()}\n")


def find_run(path: str) -> RunFolder:
    """The run folder that `path` is or lies in; raises `BadValue` with the nearest name when there is none."""
    wanted = local_or_shipped(path)
    _must_exist(wanted)
    incomplete = None
    for folder in (wanted, *wanted.resolve().parents[:2]):
        missing = [name for name in (CONFIG_FILE, ARGS_FILE) if not (folder / name).is_file()]
        if not missing:
            return RunFolder(folder)
        if len(missing) == 1 and incomplete is None:
            incomplete = f"run folder '{folder}' is incomplete: it has no {missing[0]}"
    raise BadValue(
        incomplete
        or f"'{path}' is no run folder: it has neither {CONFIG_FILE} nor {ARGS_FILE}. A run folder looks like "
        "logs/ppo/Toy-Reach_1"
    )


def newest_run(log_folder: Path, algos: Sequence[str], env_id: str) -> RunFolder | None:
    """The run of `env_id` that was begun last, of those that hold a policy; None when there is none."""
    pattern = re.compile(re.escape(folder_name(env_id)) + r"_(\d+)")
    found = [
        (config.stat().st_mtime, int(match[1]), config.parent)
        for algo in algos
        for config in (log_folder / algo).glob(f"*/{CONFIG_FILE}")
        if (match := pattern.fullmatch(config.parent.name))
    ]
    for _, _, folder in sorted(found, reverse=True):
        run = RunFolder(folder)
        if _newest_policy(run) is not None:
            return run
    return None


def check_command(run: RunFolder, command: str) -> None:
    """Raise `BadValue` unless `command` (`TRAINING` or `FINETUNING`) is the one that made the run."""
    made_by = FINETUNING if run.config().algo == "sft" else TRAINING
    if made_by != command:
        policy = _newest_policy(run)
        ways = [f"start a new run from its policy with --policy {quoted(policy)}"] if policy else []
        if run.saved_steps() or not policy:
            ways.insert(0, f"go on with python -m {made_by} -i {quoted(run.path)}")
        raise BadValue(f"'{run.path}' is a run of {made_by}: {', or '.join(ways)}")


def find_resume_point(path: str, command: str = TRAINING) -> ResumePoint:
    """What to resume for `-i path`: the newest checkpoint of a run folder, or the one checkpoint named.

    Imports the run's `--gym-packages`. Raises `BadValue` for a run of another command.
    """
    run = find_run(path)
    check_command(run, command)
    import_packages_of(run.path / ARGS_FILE)
    wanted, steps = local_or_shipped(path).resolve(), run.saved_steps()
    if wanted != run.path.resolve():
        match = _STEP.fullmatch(wanted.name)
        if not match:
            if not holds_policy(wanted):
                newest = quoted(run.checkpoint(steps[-1])) if steps else run.checkpoints / "step_<n>"
                raise BadValue(
                    f"'{path}' is no checkpoint. Resume the run with -i {quoted(run.path)}, or from one of its "
                    f"checkpoints with -i {newest}"
                )
            raise BadValue(
                f"'{path}' holds weights only and cannot be resumed. Resume the run with -i {quoted(run.path)}, or "
                f"start a new one from these weights with --policy {quoted(path)}"
            )
        return ResumePoint(run=run, step=int(match[1]), in_place=False)
    if not steps:
        policy = _newest_policy(run)
        instead = f", start a new one from its policy with --policy {quoted(policy)}" if policy else ""
        raise BadValue(f"run '{run.path}' has no checkpoint to resume from (checkpoints/step_<n>/){instead}")
    return ResumePoint(run=run, step=steps[-1], in_place=True)


def damaged(file: Path, reason: object) -> BadValue:
    """The error for a run's file that cannot be read, or does not hold what this project writes there."""
    if isinstance(reason, OSError):
        return BadValue(f"'{file}' cannot be read: {reason.strerror or reason}")
    said = " ".join(str(reason).split()).rstrip(".")
    return BadValue(f"'{file}' is damaged: {said}. Restore it, or move it away to do without what it holds")


def read_json(path: Path) -> dict[str, Any]:
    """The mapping that a run's file holds; raises `BadValue` when there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    if not isinstance(values, dict):
        raise damaged(path, f"it must hold a JSON object, got {type(values).__name__}")
    return values


def longer(n_timesteps: int, done: int) -> int:
    """What to give as -n to train on: twice of what was asked for or, where the last rollout went past it, done."""
    return 2 * max(n_timesteps, done)


def policy_folder(path: str) -> Path:
    """Where the policy of `-i path` is: the folder itself if it holds one; of a run best/, else the newest checkpoint.

    Raises `BadValue` for a folder of a run that should hold one and does not: no other takes its place.
    """
    wanted = local_or_shipped(path)
    _must_exist(wanted)
    if holds_policy(wanted):
        return wanted
    run = find_run(path)
    folder = _newest_policy(run)
    if wanted.resolve() != run.path.resolve():
        instead = f". Give the whole run, -i {quoted(run.path)}, for the policy in {folder}" if folder else ""
        raise BadValue(f"'{path}' holds no policy: it lacks config.json{instead}")
    if folder is None:
        raise BadValue(f"run '{run.path}' holds no policy yet (neither best/ nor checkpoints/step_<n>/)")
    return folder


def _newest_policy(run: RunFolder) -> Path | None:
    """best/, else the newest checkpoint that holds a policy, else the run's own folder where that is one; else None."""
    folders = (run.best, *(run.checkpoint(step) for step in reversed(run.saved_steps())), run.path)
    return next((folder for folder in folders if holds_policy(folder)), None)


def holds_policy(folder: Path) -> bool:
    """Are there weights, whole or an adapter's, with what says how to read them?"""
    return (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()


def metadata_version() -> str:
    """Version of this project, "unknown" when it runs from an uninstalled checkout."""
    try:
        return metadata.version("vla-zoo")
    except metadata.PackageNotFoundError:
        return "unknown"


def _must_exist(path: Path) -> None:
    if path.is_dir():
        return
    parent = path.parent
    if not parent.is_dir():
        raise BadValue(f"no folder '{path}': not even '{parent}' exists")
    siblings = sorted(entry.name for entry in parent.iterdir() if entry.is_dir())
    near = difflib.get_close_matches(path.name, siblings, n=1)
    hint = f" Did you mean '{parent / near[0]}'?" if near else ""
    raise BadValue(
        f"no folder '{path}'. In '{parent}' there are: {', '.join(siblings[:12]) or 'no folders'}.{hint}"
    )


def _write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    write_whole(path, yaml.safe_dump(dict(values), sort_keys=False))
