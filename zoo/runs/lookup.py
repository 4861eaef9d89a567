"""Find a run, its policy, or the checkpoint to resume from: what `-i` selects; and the trained agents.

The agents are a distribution of their own, `vla-zoo-agents` (the extra `agents`), and in a checkout its folder
`agents/`: `agents/<algo>/<env>/`, each a policy with its run's files. `-i agents/ppo/MetaWorld-window-close` and
`--policy agents/sft/MetaWorld-window-close` work anywhere: a path that begins with `agents/` and is not here means
theirs. `benchmarks/agents.py` trains them all.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from vla_gym.errors import BadValue, MissingDependency, VLAZooError, unknown_name
from vla_gym.reading import user_path
from vla_gym.registry import find_benchmark
from vla_gym.system.extras import install_command
from zoo.config.gym_packages import import_packages_of
from zoo.files import quoted, recover_folders
from zoo.runs.folder import (
    ARGS_FILE,
    CONFIG_FILE,
    POLICY_CONFIG_FILE,
    RunFolder,
    holds_policy,
    run_number,
    step_of,
)
from zoo.yaml_text import read_yaml

TRAINING, FINETUNING = "vla-zoo train", "vla-zoo sft"
"""The commands that make runs."""
PREFIX = "agents"
STAGES = ("grpo", "ppo", "sft")
"""Folders of agents, the further trained first."""
_DISTRIBUTION = "vla_zoo_agents"
_CHECKOUT = Path(__file__).parents[2] / PREFIX


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """The checkpoint that `-i` selects for training."""

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


def find_run(path: str) -> RunFolder:
    """The run folder that `path` is or lies in; raises `BadValue` with the nearest name when there is none."""
    wanted = local_or_shipped(path)
    _must_exist(wanted)
    for folder in (wanted, *wanted.resolve().parents[:2]):
        if (folder / CONFIG_FILE).is_file() and (folder / ARGS_FILE).is_file():
            run = RunFolder(folder)
            for parent in (run.path, run.checkpoints):
                recover_folders(parent)
            return run
    raise BadValue(
        f"'{path}' is no run folder: a run folder, such as logs/ppo/Toy-Reach_1, has {CONFIG_FILE} and {ARGS_FILE}"
    )


def newest_run(log_folder: Path, algos: Sequence[str], env_id: str) -> RunFolder | None:
    """The run of `env_id` that was begun last, of those that hold a policy; None when there is none."""
    runs = _runs_of(log_folder, algos, env_id)
    return next((run for run in runs if _newest_policy(run) is not None), None)


def interrupted_run(log_folder: Path, algo: str, env_id: str) -> RunFolder | None:
    """The run of `env_id` that was begun last, where it has a checkpoint; None otherwise."""
    run = next(iter(_runs_of(log_folder, [algo], env_id)), None)
    return run if run is not None and run.saved_steps() else None


def _runs_of(log_folder: Path, algos: Sequence[str], env_id: str) -> list[RunFolder]:
    found = [
        (config.stat().st_mtime, number, config.parent)
        for algo in algos
        for config in (log_folder / algo).glob(f"*/{CONFIG_FILE}")
        if (number := run_number(config.parent, env_id)) is not None
    ]
    return [RunFolder(folder) for _, _, folder in sorted(found, reverse=True)]


def check_command(run: RunFolder, command: str) -> None:
    """Raise `BadValue` unless `command` (`TRAINING` or `FINETUNING`) is the one that made the run."""
    made_by = FINETUNING if run.config().algo == "sft" else TRAINING
    if made_by != command:
        path = quoted(run.path)
        raise BadValue(
            f"'{run.path}' is a run of {made_by}: go on with {made_by} -i {path}, or start a new run from "
            f"its policy with --policy {path}"
        )


def find_resume_point(path: str, command: str = TRAINING) -> ResumePoint:
    """Return the checkpoint to resume for `-i path`: the newest of a run folder, or the one named.

    Imports the run's `--gym-packages`. Raises `BadValue` for a run of another command.
    """
    run = find_run(path)
    check_command(run, command)
    import_packages_of(run.path / ARGS_FILE)
    wanted, steps = local_or_shipped(path).resolve(), run.saved_steps()
    in_place = wanted == run.path.resolve()
    step = step_of(wanted) if not in_place else steps[-1] if steps else None
    if step is None:
        raise BadValue(
            f"'{path}' has no checkpoint to resume from (checkpoints/step_<n>/ of {quoted(run.path)}); start a new run "
            f"from the policy in it with --policy {quoted(path)}"
        )
    return ResumePoint(run=run, step=step, in_place=in_place)


def policy_folder(path: str) -> Path:
    """Return the folder of the policy that `-i path` selects: itself if it holds one; of a run best/, else the newest
    checkpoint.

    Raises `BadValue` for a folder of a run that should hold one and does not: no other takes its place.
    """
    wanted = local_or_shipped(path)
    _must_exist(wanted)
    if holds_policy(wanted):
        return wanted
    run = find_run(path)
    folder = _newest_policy(run) if wanted.resolve() == run.path.resolve() else None
    if folder is None:
        raise BadValue(f"'{path}' holds no policy: neither config.json nor best/ nor checkpoints/step_<n>/ with one")
    return folder


def policy_path(name: str) -> str:
    """Return the folder of the policy that a name means: of a run its best one, of a trained agent's name its folder.

    A name that means no folder here comes back as it is.
    """
    folder = local_or_shipped(name)
    if not folder.is_dir():
        return name
    if holds_policy(folder):
        return str(folder)
    if (folder / CONFIG_FILE).is_file():
        return str(policy_folder(name))
    return str(folder)


def trained_image_size(folder: Path) -> dict[str, int]:
    """Return the `image_size` at which the run that the folder lies in rendered; {} where it says none.

    An image rendered larger and made smaller is not the one that the policy has learned to read.
    """
    with suppress(VLAZooError):  # a folder of no run
        options = find_run(str(folder)).config().env_options
        return {name: options[name] for name in ("image_size",) if name in options}
    return {}


def _newest_policy(run: RunFolder) -> Path | None:
    """best/, else the newest checkpoint that holds a policy, else the run's own folder where that is one; else None."""
    folders = (run.best, *(run.checkpoint(step) for step in reversed(run.saved_steps())), run.path)
    return next((folder for folder in folders if holds_policy(folder)), None)


def _must_exist(path: Path) -> None:
    if not path.is_dir():
        siblings = sorted(entry.name for entry in path.parent.glob("*") if entry.is_dir())
        near = difflib.get_close_matches(path.name, siblings, n=1)
        hint = f" Did you mean '{path.parent / near[0]}'?" if near else ""
        there = ", ".join(siblings[:12]) or "no folders"
        raise BadValue(f"no folder '{path}'. In '{path.parent}' there are: {there}.{hint}")


# Trained agents -------------------------------------------------------------------------------------------


def agents_folder() -> Path | None:
    """Return the folder of the agents: of this checkout, else of the installed distribution; None without either."""
    # Another project's package may be called `agents`, too.
    if (_CHECKOUT / "pyproject.toml").is_file():
        return _CHECKOUT
    found = find_spec(_DISTRIBUTION)
    return None if found is None or found.origin is None else Path(found.origin).parent


def local_or_shipped(name: str) -> Path:
    """`name` as a path here; where nothing is there and it begins with `agents/`, that of a trained agent.

    Raises `UnknownName` for an agent that does not exist and `MissingDependency` where none are installed.
    """
    here = user_path(name)
    if here.exists() or here.parts[:1] != (PREFIX,):
        return here
    root = agents_folder()
    if root is None:
        raise MissingDependency(
            f"no folder '{name}' here, and the trained agents are not installed. Install them with: "
            f"{install_command('agents')}"
        )
    shipped = root.joinpath(*here.parts[1:])
    if not shipped.exists():
        raise unknown_name("agent", name, find_agents())
    return shipped


def is_shipped(path: Path) -> bool:
    """Whether the path lies among the trained agents, in a checkout too; nothing is written there."""
    root = agents_folder()
    return root is not None and root.resolve() in path.expanduser().resolve().parents


def find_agents() -> list[str]:
    """Names of the trained agents (`agents/<algo>/<env>`), the further trained first; none where none are installed."""
    root = agents_folder()
    if root is None:
        return []
    return [
        f"{PREFIX}/{stage}/{folder.name}"
        for stage in STAGES
        for folder in sorted((root / stage).glob("*"))
        if (folder / POLICY_CONFIG_FILE).is_file()
    ]


def agents_for(env_id: str) -> list[str]:
    """Shipped agents that were trained on every task of `env_id`.

    Those of that very environment come first, then those of a suite it is a part of (`MetaWorld/reach` is a task
    of `MetaWorld-MT10`); among either the further trained. Agents of benchmarks that are not installed are left out.
    """
    wanted, trained_on = _tasks(env_id), {}
    for agent in find_agents():
        with suppress(MissingDependency):
            trained_on[agent] = _tasks(str(read_yaml(local_or_shipped(agent) / CONFIG_FILE)["env"]))
    able = [agent for agent, tasks in trained_on.items() if wanted <= tasks]
    return sorted(able, key=lambda agent: len(trained_on[agent]))


def _tasks(env_id: str) -> frozenset[tuple[str, str]]:
    return frozenset((task.suite, task.name) for task in find_benchmark(env_id).tasks)
