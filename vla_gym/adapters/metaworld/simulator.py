"""Meta-World's own task classes, stepped without unread numbers: bit for bit the same physics and rewards.

Upstream's `step` spends four fifths of its time in Python: quaternions that no reward reads, contact lists
searched object by object, named lookups. `LeanEnv` goes in front of a task class and replaces those; resets,
success and rewards stay upstream's code. `tests/vla_gym/adapters/metaworld/test_identity.py` compares all
50 tasks with `env.step`.
"""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.sawyer_xyz_env import SawyerXYZEnv

from vla_gym.adapters.metaworld.tasks import CAMERA, TaskReward
from vla_gym.adapters.mujoco import model_store
from vla_gym.adapters.mujoco.camera import Camera, Poses, forget_drawn
from vla_gym.adapters.mujoco.model_store import TaskCache, log_warnings
from vla_gym.simulator import SimStep
from vla_gym.specs import RenderQuality, StartState, Task
from vla_gym.system.paths import cache_dir, check_writable

READS_QUATERNIONS = ("assembly", "box-close", "disassemble", "hammer")
"""Tasks whose reward reads the objects' orientation; for the others it is left zero."""
FRAME = 18
"""Length of one observation frame: hand 3, gripper 1, objects 14."""
OBJECT = 7
"""Position and quaternion of one object in a frame."""
FRAME_SKIP = 5
INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION


class LeanEnv(SawyerXYZEnv):
    """Comes before the class of a task, a `SawyerXYZEnv` as well; made by `make_env`."""

    lean_task: str
    """Name in `tasks.TASKS`."""
    textures: dict[int, Path]
    """Texture id -> file of its pixels."""
    whole = True
    """Whether the model still has what only GL needs."""

    def freeze(self, goal: np.ndarray) -> None:
        """Let every reset from now on begin with the start state of `goal`; `set_task` without its pickle."""
        self._set_task_called = True
        self._freeze_rand_vec = True
        self._last_rand_vec = goal
        self._partially_observable = False

    def advance(self, action_A: np.ndarray) -> tuple[float, bool]:
        """Advance one policy step with float32 `[4]`; return Meta-World's dense reward and success.

        Left out of upstream's `step` without effect: contact forces on bodies (nothing reads them) and
        moving the target's site, which the forward pass overwrites.
        """
        model, data = self.model, self.data
        delta = np.minimum(np.maximum(action_A[:3], -1), 1) * self.action_scale
        target = np.minimum(np.maximum(data.mocap_pos[0] + delta, self.mocap_low), self.mocap_high)
        data.mocap_pos[:] = target
        data.mocap_quat[:] = (1.0, 0.0, 1.0, 0.0)
        data.ctrl[0], data.ctrl[1] = action_A[3], -action_A[3]
        mujoco.mj_step(model, data, nstep=FRAME_SKIP)
        mujoco.mj_forward(model, data)
        reward, info = self.evaluate_state(self._frame(), action_A)
        return float(reward), bool(info["success"])

    def proprio(self) -> np.ndarray:
        """Return float64 `[4]`: hand position and gripper opening, the head of upstream's observation."""
        right, left = self._claws
        state = np.empty(4)
        state[:3] = self._hand.xpos
        state[3] = min(max(float(np.linalg.norm(right - left)) / 0.1, 0.0), 1.0)
        return np.clip(state, *self._hand_bounds)

    def full_observation(self) -> np.ndarray:
        """Return float64 `[39]` as upstream's scripted experts read it, the goal included.

        The 18 numbers of the previous step, which they do not read, repeat the present ones.
        """
        frame = self._get_curr_obs_combined_no_goal()
        frame[:4] = self.proprio()
        return np.concatenate([frame, frame, self._get_pos_goal()])

    def moving_state(self) -> bytes:
        """Return everything that a reset sets: the simulation state, the bodies and sites it moves, and the goal."""
        state = np.empty(mujoco.mj_stateSize(self.model, INTEGRATION))
        mujoco.mj_getState(self.model, self.data, state, INTEGRATION)
        moved = (state, self.model.body_pos, self.model.body_quat, self.model.site_pos, self._target_pos)
        return b"".join(np.ascontiguousarray(part, dtype=np.float64).tobytes() for part in moved)

    def touching_object(self, object_geom_id: int) -> bool:
        """Whether both pads press on the object: upstream's method with the contacts read in one go."""
        contact, force = self.data.contact, self.data.efc_force
        pairs = contact.geom
        on_object = (pairs == object_geom_id).any(axis=1)
        for pad in self._pads:
            rows = np.flatnonzero(on_object & (pairs == pad).any(axis=1))
            if not sum(force[row] for row in contact.efc_address[rows]) > 0:
                return False
        return True

    def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        model, self.textures = compiled_model(self.lean_task, self.fullpath)
        return model, mujoco.MjData(model)

    @functools.cached_property
    def _pads(self) -> tuple[int, int]:
        return self.model.geom("leftpad_geom").id, self.model.geom("rightpad_geom").id

    @functools.cached_property
    def _hand(self) -> Any:
        return self.data.body("hand")

    @functools.cached_property
    def _claws(self) -> tuple[np.ndarray, np.ndarray]:
        return self.data.body("rightclaw").xpos, self.data.body("leftclaw").xpos

    @functools.cached_property
    def _hand_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.append(self._HAND_SPACE.low, -1.0), np.append(self._HAND_SPACE.high, 1.0)

    def _frame(self) -> np.ndarray:
        """The present frame `[18]` as `evaluate_state` reads it; see `READS_QUATERNIONS`."""
        frame = np.zeros(FRAME)
        frame[:4] = self.proprio()
        objects = np.reshape(self._get_pos_objects(), (-1, 3))
        quats = None
        if self.lean_task in READS_QUATERNIONS:
            quats = np.reshape(self._get_quat_objects(), (-1, 4))
        for index, position in enumerate(objects):
            start = 4 + OBJECT * index
            frame[start : start + 3] = position
            if quats is not None:
                frame[start + 3 : start + OBJECT] = quats[index]
        return frame


def make_env(task: str) -> LeanEnv:
    """Return a Meta-World environment of `task`, not reset yet; the scene comes from our cache."""
    upstream = ALL_V3_ENVIRONMENTS[f"{task}-v3"]
    return type(f"Lean{upstream.__name__}", (LeanEnv, upstream), {"lean_task": task})()


def start_vectors(env: LeanEnv, seed: int, number: int) -> np.ndarray:
    """Return the vectors of the first `number` start states of `env`'s task, float64 `[number, 3 or 6]`.

    The first 50 are those of `metaworld.MT1(task, seed).train_tasks`; more are drawn on from the same stream.

    A vector is drawn inside a reset, twice per reset, after rejection rules that read nothing but it. So the
    resets are run as upstream runs them, but without simulating: 60 ms instead of 0.6 s. `env` must be reset
    afterwards. NumPy's global generator, which upstream draws from, is put back.
    """
    env._set_task_called = True
    env._freeze_rand_vec = False
    env.do_simulation = lambda ctrl, n_frames: mujoco.mj_kinematics(env.model, env.data)
    before = np.random.get_state()
    np.random.seed(seed)
    vectors = []
    try:
        for _ in range(number):
            env.reset()
            vectors.append(np.array(env._last_rand_vec))
    finally:
        np.random.set_state(before)
        del env.do_simulation
    return np.stack(vectors)


def compiled_model(task: str, xml: str) -> tuple[mujoco.MjModel, dict[int, Path]]:
    """Return the scene of `task` and the files of its textures, compiled from upstream's `xml` once per machine."""
    root = cache_dir() / "metaworld"
    folder = root / f"{version('metaworld')}-mujoco{version('mujoco')}" / task
    try:
        return model_store.load(folder, root / "pieces")
    except FileNotFoundError:  # also of what is damaged
        check_writable(root)
        model_store.save(mujoco.MjModel.from_xml_path(xml), folder, root / "pieces")
        return model_store.load(folder, root / "pieces")


NUMBA = find_spec("numba") is not None
"""Whether triangles that nobody sees can be left out of fast images, which stay the same bit for bit. Full ones have
shadows, which also what is not seen may throw."""
SETTLE_ACTION = np.zeros(4, dtype=np.float32)


class RendererPool:
    """Idle environments of a task, and the one renderer that all of them share."""

    def __init__(self, task: str, image_size: int, quality: RenderQuality) -> None:
        self._task, self._image_size, self._quality = task, image_size, quality
        self._idle: list[LeanEnv] = []
        self._camera: Camera | None = None

    def acquire(self) -> LeanEnv:
        """Return an environment that no other slot uses; its state is that of its last episode."""
        return self._idle.pop() if self._idle else make_env(self._task)

    def release(self, env: LeanEnv) -> None:
        """Take an environment back."""
        self._idle.append(env)

    def render(self, env: LeanEnv) -> np.ndarray:
        """Return the image of upstream's `render()`, both axes reversed: u8 `[size, size, 3]`."""
        if self._camera is None:
            full = self._quality == "full"
            self._camera = Camera(
                env.model,
                (CAMERA,),
                self._image_size,
                textures=env.textures,
                effects=full,
                sift=not full and NUMBA,
            )
        if env.whole:
            forget_drawn(env.model)
            env.whole = False
        (bottom_up,) = self._camera.render(Poses.of(env.data))
        # Upstream turns OpenGL's bottom-up rows over; policies were trained on that image rotated 180 degrees.
        return np.ascontiguousarray(bottom_up[:, ::-1])

    def close(self) -> None:
        """Free the GL resources."""
        if self._camera is not None:
            self._camera.close()
            self._camera = None


POOLS: TaskCache[RendererPool] = TaskCache(RendererPool)
START_VECTORS: dict[tuple[str, int, int], np.ndarray] = {}
"""(task, seed, number) -> its start states, drawn once per process."""


class MetaWorldSimulator:
    """One sub-environment of Meta-World; see `vla_gym.simulator.Simulator`.

    Args:
        tasks, image_size, cameras: as of `Simulator`.
        task_seed: seed of the frozen start states; trial k is `MT1(task, task_seed).train_tasks[k]`.
        settle_steps: zero actions between the reset and the first observation.
        render_quality: "full", or "fast" without shadows and reflections.
        task_reward: "success" (0 or 1) or "dense" (Meta-World's own, 0 .. 10).
    """

    def __init__(
        self,
        tasks: tuple[Task, ...],
        image_size: int,
        cameras: tuple[str, ...],
        *,
        task_seed: int,
        settle_steps: int,
        render_quality: RenderQuality = "full",
        task_reward: TaskReward = "success",
    ) -> None:
        log_warnings()
        self._tasks, self._image_size, self._cameras = tasks, image_size, cameras
        self._task_seed, self._settle_steps = task_seed, settle_steps
        self._quality, self._task_reward = render_quality, task_reward
        self._task: str | None = None

    def reset(self, start: StartState) -> str:
        """Restore a start state as upstream's `set_task` and `reset` do, then settle; nothing is drawn."""
        task, trials = self._tasks[start.task_id].name, self._tasks[start.task_id].num_trials
        self._switch_to(task)
        key = (task, self._task_seed, trials)
        if key not in START_VECTORS:
            START_VECTORS[key] = start_vectors(self._env, self._task_seed, trials)
        self._env.freeze(START_VECTORS[key][start.trial_id])
        self._env.reset()
        for _ in range(self._settle_steps):
            self._env.advance(SETTLE_ACTION)
        digest = hashlib.blake2b(task.encode(), digest_size=8)
        digest.update(self._env.moving_state())
        return digest.hexdigest()

    def step(self, action_A: np.ndarray) -> SimStep:
        """Advance 1/80 s; success ends the episode."""
        dense, success = self._env.advance(action_A)
        reward = dense if self._task_reward == "dense" else float(success)
        return SimStep(reward=reward, success=success, terminated=success)

    def observe(self) -> dict[str, np.ndarray]:
        """Draw now; `state` is hand position and gripper opening."""
        observation = {"state": self._env.proprio().astype(np.float32)}
        if "image" in self._cameras:
            observation["image"] = self._pool.render(self._env)
        return observation

    def privileged(self) -> np.ndarray:
        return self._env.full_observation()

    def close(self) -> None:
        if self._task is not None:
            self._pool.release(self._env)
            POOLS.release(self._task, self._image_size, self._quality)
            self._task = None

    def _switch_to(self, task: str) -> None:
        if self._task == task:
            return
        self.close()
        self._pool = POOLS.acquire(task, self._image_size, self._quality)
        self._task, self._env = task, self._pool.acquire()
