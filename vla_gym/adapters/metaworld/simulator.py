"""Meta-World on bare MuJoCo: upstream's physics, success and pictures, but a picture only when asked.

`task_env` steps the tasks, `mujoco.camera` draws. A process keeps the GL resources of a task as long as one of its
slots plays it, and those of `NUM_SPARE_TASKS` more.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec

import mujoco
import numpy as np

from vla_gym.adapters.metaworld.task_env import LeanEnv, make_env, start_vectors
from vla_gym.adapters.metaworld.tasks import CAMERA, TaskReward
from vla_gym.adapters.mujoco.camera import Camera, Poses, forget_textures
from vla_gym.adapters.mujoco.messages import log_warnings
from vla_gym.adapters.mujoco.task_cache import TaskCache
from vla_gym.simulator import SimStep
from vla_gym.specs import RenderQuality, StartState, Task

NUM_SPARE_TASKS = 1
"""Tasks kept loaded beyond those in use by a slot (90 MB each, 160 MB with shadows)."""
NUMBA = find_spec("numba") is not None
"""Whether triangles that nobody sees can be left out of fast pictures, which stay the same bit for bit. Full ones have
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
        """Return the picture of upstream's `render()`, both axes reversed: u8 `[size, size, 3]`."""
        if self._camera is None:
            self._camera = self._set_up(env.model)
        (bottom_up,) = self._camera.render(Poses.of(env.data))
        # Upstream turns OpenGL's bottom-up rows over; policies were trained on that picture rotated 180 degrees.
        return np.ascontiguousarray(bottom_up[:, ::-1])

    def close(self) -> None:
        """Free the GL resources."""
        if self._camera is not None:
            self._camera.close()
            self._camera = None

    def _set_up(self, model: mujoco.MjModel) -> Camera:
        full = self._quality == "full"
        camera = Camera(model, (CAMERA,), self._image_size, effects=full, sift=not full and NUMBA)
        forget_textures(model)
        return camera


POOLS: TaskCache[RendererPool] = TaskCache(RendererPool, NUM_SPARE_TASKS)
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
        """Return `LeanEnv.full_observation`, for scripted experts."""
        return self._env.full_observation()

    def close(self) -> None:
        """Release the task."""
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
