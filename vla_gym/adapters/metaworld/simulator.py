"""Meta-World on bare MuJoCo: upstream's physics, success and pictures, but a picture only when asked.

`metaworld_env` steps the tasks, `mujoco_camera` draws. A process keeps the GL resources of a task as long as
one of its slots plays it, and those of a few tasks more.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import mujoco
import numpy as np

from vla_gym.adapters.metaworld.task_env import LeanEnv, make_env, start_vectors
from vla_gym.adapters.metaworld.tasks import CAMERA, RenderQuality, TaskReward
from vla_gym.adapters.mujoco.camera import Camera, forget_textures
from vla_gym.simulator import SimStep
from vla_gym.specs import StartState, Task

SPARE_TASKS = 1
"""Tasks kept loaded beyond those in use by a slot (90 MB each, 160 MB with shadows)."""
SETTLE_ACTION = np.zeros(4, dtype=np.float32)
EFFECTS = (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION)
"""What `render_quality="fast"` leaves out."""


class Studio:
    """A task ready to be played and photographed in this process: idle environments and one camera."""

    def __init__(self, task: str, image_size: int, quality: RenderQuality) -> None:
        self._task, self._image_size, self._quality = task, image_size, quality
        self._idle: list[LeanEnv] = []
        self._camera: Camera | None = None

    def borrow(self) -> LeanEnv:
        """An environment that no other slot uses; its state is whatever the last slot left."""
        return self._idle.pop() if self._idle else make_env(self._task)

    def give_back(self, env: LeanEnv) -> None:
        """Take back a borrowed environment."""
        self._idle.append(env)

    def picture(self, env: LeanEnv) -> np.ndarray:
        """What upstream's `render()` gives, both axes reversed: u8 `[size, size, 3]`."""
        if self._camera is None:
            self._camera = self._set_up(env.model)
        film = self._film
        self._camera.snap(env.data, film)
        (bottom_up,) = self._camera.develop(film)
        # Upstream turns OpenGL's bottom-up rows over; policies were trained on that picture rotated 180 degrees.
        return np.ascontiguousarray(bottom_up[:, ::-1])

    def close(self) -> None:
        """Free the GL resources."""
        if self._camera is not None:
            self._camera.close()
            self._camera = None

    def _set_up(self, model: mujoco.MjModel) -> Camera:
        if self._quality == "fast":
            model.vis.quality.shadowsize = 0  # no shadow map: 64 MB less
        camera = Camera(model, (CAMERA,), self._image_size)
        forget_textures(model)
        self._film = camera.blank()
        if self._quality == "fast":
            for scene in self._film.values():
                for effect in EFFECTS:
                    scene.flags[effect] = 0
        return camera


class Shelf:
    """Studios of this process, least recently used first; those in use by a slot are never dropped."""

    def __init__(self, spare: int) -> None:
        self._spare = spare
        self._studios: OrderedDict[tuple[str, int, RenderQuality], Studio] = OrderedDict()
        self._users: dict[tuple[str, int, RenderQuality], int] = {}

    def take(self, key: tuple[str, int, RenderQuality]) -> Studio:
        """The studio of (task, image size, quality); pair with `give_back`."""
        self._users[key] = self._users.get(key, 0) + 1
        if key not in self._studios:
            self._drop_unused()
            self._studios[key] = Studio(*key)
        self._studios.move_to_end(key)
        return self._studios[key]

    def give_back(self, key: tuple[str, int, RenderQuality]) -> None:
        """Say that a slot is done with it; it stays while there is room."""
        self._users[key] -= 1
        self._drop_unused()

    def _drop_unused(self) -> None:
        unused = [key for key in self._studios if not self._users.get(key)]
        for key in unused[: max(0, len(unused) - self._spare)]:
            self._studios.pop(key).close()


SHELF = Shelf(SPARE_TASKS)
START_VECTORS: dict[tuple[str, int, int], np.ndarray] = {}
"""(task, seed, number) -> its start states, drawn once per process."""


class MetaWorldSimulator:
    """One Meta-World slot; see `vla_gym.simulator.Simulator`.

    Args:
        tasks: the benchmark's tasks.
        image_size: side of the picture, pixels.
        cameras: ("image",).
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
        self._env.reset()  # type: ignore[attr-defined]
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
            observation["image"] = self._studio.picture(self._env)
        return observation

    def privileged(self) -> np.ndarray:
        """What the scripted experts of `metaworld.policies` read; see `LeanEnv.full_observation`."""
        return self._env.full_observation()

    def close(self) -> None:
        """Let go of the task."""
        if self._task is not None:
            self._studio.give_back(self._env)
            SHELF.give_back((self._task, self._image_size, self._quality))
            self._task = None

    def _switch_to(self, task: str) -> None:
        if self._task == task:
            return
        self.close()
        self._studio = SHELF.take((task, self._image_size, self._quality))
        self._task, self._env = task, self._studio.borrow()
