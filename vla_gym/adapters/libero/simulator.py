"""LIBERO on bare MuJoCo: the same bytes as upstream's OffScreenRenderEnv, without its costs.

Upstream renders every camera at every step, runs three forward passes a substep and rebuilds the scene
from XML at every reset. Here a task is compiled once per machine (`compile`), a reset restores a snapshot and
replays one settle step, and an image is drawn only when the policy will see it.
`tests/vla_gym/adapters/libero/test_identity.py` holds positions, velocities, rewards, state and images to
upstream's bit for bit.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import mujoco
import numpy as np

from vla_gym.adapters.libero.compile import CompiledTask, StoredModel, compiled_task, start_regions, start_states
from vla_gym.adapters.libero.goals import goal_satisfied, read_scene
from vla_gym.adapters.libero.osc import SUBSTEPS, ArmView, ControllerState, OscPose
from vla_gym.adapters.libero.placements import draw_start, start_generator
from vla_gym.adapters.libero.tasks import PUBLISHED, TRIALS
from vla_gym.adapters.mujoco.camera import Camera, Poses, forget_drawn
from vla_gym.adapters.mujoco.model_store import TaskCache, log_warnings
from vla_gym.rotations import axis_angle_from_quat_xyzw
from vla_gym.simulator import SimStep
from vla_gym.specs import Physics, RenderQuality, StartState, Task
from vla_gym.system.paths import cache_dir

INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
SceneKey = tuple[str, str, int, tuple[str, ...], RenderQuality]
"""Suite and task, side of the images, cameras, quality."""


class SampleClock:
    """The substeps of a policy step at which robosuite's observables take their value.

    They sample at the first substep after a 0.05 s timer wraps, and two forced samples at the reset set the
    timer's phase, so an observation is two substeps older than the state. The float arithmetic is kept as it
    is upstream (robosuite utils/observables.py:Observable.update), for it decides when the phase slips.
    """

    PERIOD = 0.05
    TICK = 0.002

    def __init__(self) -> None:
        self.elapsed, self.sampled = 0.0, False

    def tick(self, *, force: bool = False) -> bool:
        """Advance one substep and return whether the observables sample now."""
        self.elapsed += self.TICK
        sample = force or (not self.sampled and self.elapsed <= self.PERIOD)
        self.sampled = self.sampled or sample
        if self.elapsed >= self.PERIOD:
            sample = sample or not self.sampled
            self.elapsed %= self.PERIOD
            self.sampled = False
        return sample


class LiberoSimulator:
    """One sub-environment of LIBERO; see `vla_gym.simulator.Simulator`.

    Args:
        tasks, image_size, cameras: as of `Simulator`; "image" is agentview, "wrist_image" robot0_eye_in_hand.
        settle_steps: policy steps between `set_init_state` and the first observation, at least 2.
        settle_gripper: gripper command while settling; the arm is commanded zeros.
        starts: PUBLISHED, or the split that start states are drawn for.
        render_quality: "full" is upstream's image, "fast" that of simplified meshes.
        physics: "exact" is upstream's, "fast" solves once a substep after the start state.
    """

    def __init__(
        self,
        tasks: tuple[Task, ...],
        image_size: int,
        cameras: tuple[str, ...],
        *,
        settle_steps: int,
        settle_gripper: float,
        starts: str = PUBLISHED,
        render_quality: RenderQuality = "full",
        physics: Physics = "exact",
    ) -> None:
        log_warnings()
        self._tasks, self._image_size, self._cameras = tasks, image_size, cameras
        self._settle_steps, self._settle_gripper, self._starts = settle_steps, settle_gripper, starts
        self._quality: RenderQuality = render_quality
        self._exact = physics == "exact"
        self._settle_action = np.array([0.0] * 6 + [settle_gripper])
        self._task: Task | None = None

    def reset(self, start: StartState) -> str:
        """Restore a start state and let it settle without drawing anything."""
        self._switch_to(self._tasks[start.task_id])
        begin = Start(self._starts, start.trial_id, self._settle_steps, self._settle_gripper, self._change())
        self._restore(kept(self._loaded.snapshots, begin, lambda: self._settle(begin), NUM_STARTS))
        self._advance(self._settle_action)
        self._untouched: Start | None = begin
        return self._state_hash()

    def step(self, action_A: np.ndarray) -> SimStep:
        """Advance 0.05 s; the reward is 1.0 when the goal holds afterwards."""
        self._untouched = None
        self._advance(np.asarray(action_A, dtype=np.float64), exact=self._exact)
        success = goal_satisfied(self._compiled.goal, self._model, self._data)
        return SimStep(reward=float(success), success=success, terminated=success)

    def observe(self) -> dict[str, np.ndarray]:
        """Draw the view of the last observable sample, rotated 180 degrees as every VLA expects."""
        # A start state looks the same every time.
        first = self._loaded, self._untouched
        images = kept(FIRST_IMAGES, first, self._draw, NUM_IMAGES) if self._untouched else self._draw()
        observation = {
            camera: np.ascontiguousarray(image[::-1, ::-1]) for camera, image in zip(self._cameras, images, strict=True)
        }
        position, quat_wxyz, fingers = self._hand
        rotation = axis_angle_from_quat_xyzw(np.roll(quat_wxyz, -1))
        observation["state"] = np.concatenate([position, rotation, fingers]).astype(np.float32)
        return observation

    def privileged(self) -> np.ndarray:
        """Return the present `Scene` as a vector, for `zoo.experts.libero`; only for goals that are one placing."""
        return read_scene(self._model, self._data, self._compiled.arm, self._compiled.goal).to_vector()

    def _draw(self) -> list[np.ndarray]:
        for (lamp, unlit), lit in zip(self._lamps, self._seen_lit, strict=True):
            self._model.site_rgba[lamp.site, 3] = 1.0 - unlit if lit else unlit
        return self._camera.render(self._seen) if self._camera else []

    def close(self) -> None:
        if self._task is not None:
            TASKS.release(*self._key(self._task))
            self._task = None

    def _key(self, task: Task) -> SceneKey:
        return task.suite, task.name, self._image_size, self._cameras, self._quality

    def _switch_to(self, task: Task) -> None:
        if self._task == task:
            return
        if self._task is None or self._key(task) != self._key(self._task):
            self.close()
            self._loaded = TASKS.acquire(*self._key(task))
        self._task = task
        self._compiled, self._lamps = self._loaded.compiled, self._loaded.scene.lamps
        self._model, self._camera = self._loaded.scene.model, self._loaded.scene.camera
        self._data = mujoco.MjData(self._model)
        home_N = self._home()
        self._data.qpos[list(self._compiled.arm.qpos)] = home_N
        at_home = self._loaded.at_home
        self._arm = OscPose(self._model, self._data, self._compiled.arm, at_home.get(home_N.tobytes()))
        at_home[home_N.tobytes()] = self._arm.at_home

    def _change(self) -> str:
        """Name of what tells the task from others of its scene and start states; none in LIBERO itself."""
        return ""

    def _home(self) -> np.ndarray:
        return self._compiled.home

    def _settle(self, start: Start) -> Snapshot:
        mujoco.mj_resetData(self._model, self._data)
        mujoco.mj_setState(self._model, self._data, self._compiled.reset_state, INTEGRATION)
        self._arm.reset()
        row, nq = self._loaded.row(start), self._model.nq
        self._data.time, self._data.qpos[:], self._data.qvel[:] = row[0], row[1 : 1 + nq], row[1 + nq :]
        mujoco.mj_forward(self._model, self._data)
        self._clock = SampleClock()
        self._lit = self._glowing()
        for _ in range(2):  # upstream forces a sample at reset and another at set_init_state
            self._clock.tick(force=True)
        for _ in range(start.settle_steps - 1):
            self._advance(self._settle_action)
        return self._snapshot()

    def _snapshot(self) -> Snapshot:
        state = np.zeros(mujoco.mj_stateSize(self._model, INTEGRATION))
        mujoco.mj_getState(self._model, self._data, state, INTEGRATION)
        return Snapshot(state, self._arm.snapshot(), (self._clock.elapsed, self._clock.sampled), self._lit)

    def _restore(self, snapshot: Snapshot) -> None:
        mujoco.mj_resetData(self._model, self._data)
        mujoco.mj_setState(self._model, self._data, snapshot.state, INTEGRATION)
        self._arm.restore(snapshot.controller)
        self._clock = SampleClock()
        self._clock.elapsed, self._clock.sampled = snapshot.clock
        self._lit = snapshot.lit

    def _advance(self, action_A: np.ndarray, *, exact: bool = True) -> None:
        """One policy step of 25 substeps; the observation is sampled, and if `exact` all solved, as upstream does."""
        model, data = self._model, self._data
        for substep in range(SUBSTEPS):
            mujoco.mj_step1(model, data)
            if exact:
                self._arm.solve_as_upstream()
            if substep == 0:
                self._arm.begin(action_A)
            self._arm.apply()
            mujoco.mj_step2(model, data)
            if self._clock.tick():
                self._sample()
        self._lit = self._glowing()

    def _sample(self) -> None:
        data, arm = self._data, self._compiled.arm
        self._seen, self._seen_lit = Poses.of(data), self._lit
        self._hand = (
            data.site_xpos[arm.site].copy(),
            data.xquat[arm.hand_body].copy(),
            data.qpos[list(arm.gripper_qpos)],
        )

    def _glowing(self) -> tuple[bool, ...]:
        return tuple(bool(self._data.qpos[lamp.qpos] >= lamp.threshold) for lamp, _ in self._lamps)

    def _state_hash(self) -> str:
        snapshot = self._snapshot()
        digest = hashlib.blake2b(self._loaded.model_key, digest_size=8)
        for part in (snapshot.state, *snapshot.controller):
            digest.update(part.tobytes())
        return digest.hexdigest()


CAMERA_NAMES = {"image": "agentview", "wrist_image": "robot0_eye_in_hand"}
HIDDEN_GROUPS = (0,)
"""Geom groups robosuite hides from images: collision shapes."""
NUM_STARTS = TRIALS
"""Start states of a task that are kept, settled."""
NUM_IMAGES = 256
"""Start states whose first images a process keeps (0.4 MB each for two cameras at 256 px)."""
Key = TypeVar("Key")
Value = TypeVar("Value")


class Start(NamedTuple):
    """A start state and how it settles: all that decides the state in which an episode of the task begins."""

    origin: str
    """PUBLISHED, or the split it is drawn for."""
    trial: int
    settle_steps: int
    """Policy steps between `set_init_state` and the first observation."""
    settle_gripper: float
    """Gripper command of those steps."""
    change: str
    """Name of a changed task (LIBERO-Plus); "" otherwise."""


@dataclass(frozen=True)
class Snapshot:
    """A start state one settle step before the policy takes over; restoring it replays that step."""

    state: np.ndarray
    """mjSTATE_INTEGRATION."""
    controller: ControllerState
    clock: tuple[float, bool]
    """`SampleClock.elapsed` and `sampled`."""
    lit: tuple[bool, ...]
    """Per lamp."""


def kept(values: OrderedDict[Key, Value], key: Key, make: Callable[[], Value], number: int) -> Value:
    """Return the value of `key`, made now where it is not among the `number` used last."""
    if key not in values:
        values[key] = make()
        if len(values) > number:
            values.popitem(last=False)
    values.move_to_end(key)
    return values[key]


class LoadedScene:
    """A model and its GL resources, for images of one size and quality by some cameras."""

    def __init__(self, stored: StoredModel, image_size: int, cameras: tuple[str, ...], quality: RenderQuality) -> None:
        self.model, textures = stored.load()
        self.camera: Camera | None = None
        if cameras:
            self.camera = Camera(
                self.model,
                [CAMERA_NAMES[camera] for camera in cameras],
                image_size,
                hidden_groups=HIDDEN_GROUPS,
                textures=textures,
                simple=cache_dir() / "libero" / "simple" if quality == "fast" else None,
                sift=True,
                exact=quality == "full",
            )
        forget_drawn(self.model)
        self.lamps = [(lamp, float(self.model.site_rgba[lamp.site, 3])) for lamp in stored.lamps]
        """Each with its opacity when it does not glow."""

    def close(self) -> None:
        if self.camera is not None:
            self.camera.close()


class LoadedTask:
    """Scene and start states of one task, for images of one size and quality by some cameras."""

    def __init__(
        self, suite: str, name: str, image_size: int, cameras: tuple[str, ...], quality: RenderQuality = "full"
    ) -> None:
        self._task = suite, name
        self.snapshots: OrderedDict[Start, Snapshot] = OrderedDict()
        self.at_home: dict[bytes, ArmView] = {}
        """Home of the arm -> what its controller reads there."""

        def load(compiled: CompiledTask) -> tuple[CompiledTask, LoadedScene]:
            return compiled, SCENES.acquire(compiled.model, image_size, cameras, quality)

        self.compiled, self.scene = compiled_task(suite, name, load)
        self._scene_key = self.compiled.model, image_size, cameras, quality
        model = self.scene.model
        self.model_key = self.compiled.key.encode() + model.body_pos.tobytes() + model.body_quat.tobytes()

    def row(self, start: Start) -> np.ndarray:
        """Return a start state before it settles, float64 `[1 + nq + nv]`: time, positions, velocities."""
        if start.origin == PUBLISHED:
            return start_states(*self._task)[start.trial]
        return draw_start(start_regions(*self._task), start_generator(*self._task, start.origin, start.trial))

    def close(self) -> None:
        SCENES.release(*self._scene_key)


SCENES: TaskCache[LoadedScene] = TaskCache(LoadedScene)
TASKS: TaskCache[LoadedTask] = TaskCache(LoadedTask)
FIRST_IMAGES: OrderedDict[tuple[LoadedTask, Start | None], list[np.ndarray]] = OrderedDict()
