"""Compiled LIBERO tasks in this process, shared by the slots that play them: model, GL resources, start states."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from vla_gym.adapters.libero.compile import CompiledTask, compiled_task, start_regions, start_states
from vla_gym.adapters.libero.osc import Memory
from vla_gym.adapters.libero.placements import StartRegions, draw_start, start_generator
from vla_gym.adapters.libero.tasks import PUBLISHED, TRIALS
from vla_gym.adapters.mujoco.camera import Camera, NoCamera, forget_textures
from vla_gym.specs import Task

CAMERA_NAMES = {"image": "agentview", "wrist_image": "robot0_eye_in_hand"}
COLLISION_GROUP = 0
"""Geom group robosuite hides from pictures."""
SPARE_MODELS = 1
"""Compiled tasks kept in memory beyond those in use by a slot (about 0.6 GB each with their GL resources)."""
KEPT_STARTS = TRIALS
"""Start states of a task that are remembered, settled and with their first pictures (0.2 MB each at 256 px)."""
Made = TypeVar("Made")


class Start(NamedTuple):
    """A start state and how it settles: all that decides what a slot of the task begins with."""

    origin: str
    """PUBLISHED, or the split it is drawn for."""
    trial: int
    settle_steps: int
    """Policy steps between `set_init_state` and the first observation."""
    settle_gripper: float
    """Gripper command of those steps."""


@dataclass(frozen=True)
class Settled:
    """A start state one settle step before the policy takes over; restoring it replays that step."""

    state: np.ndarray
    memory: Memory
    clock: tuple[float, bool]
    lit: tuple[bool, ...]


class LastUsed(Generic[Made]):
    """What was made of the start states used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Start, Made] = OrderedDict()

    def get(self, start: Start, make: Callable[[], Made]) -> Made:
        """What is kept of `start`, else made now."""
        if start not in self._kept:
            self._kept[start] = make()
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(start)
        return self._kept[start]


class LoadedTask:
    """A compiled task in this process: model, GL resources, start states. Shared by the slots that play it."""

    def __init__(self, task: Task, image_size: int, cameras: tuple[str, ...]) -> None:
        self._task = task
        self.compiled: CompiledTask = compiled_task(task.suite, task.name)
        self.model = self.compiled.model
        self.settled: LastUsed[Settled] = LastUsed(KEPT_STARTS)
        names = [CAMERA_NAMES[camera] for camera in cameras]
        self.camera: Camera | NoCamera = NoCamera()
        if cameras:
            self.camera = Camera(
                self.model,
                names,
                image_size,
                hidden_groups=(COLLISION_GROUP,),
                textures=self.compiled.textures,
            )
        self.first_pictures: LastUsed[list[np.ndarray]] = LastUsed(KEPT_STARTS)
        forget_textures(self.model)
        self.unlit = [float(self.model.site_rgba[lamp.site, 3]) for lamp in self.compiled.lamps]
        fixed = self.model.body_pos.tobytes() + self.model.body_quat.tobytes()
        self.fingerprint = self.compiled.key.encode() + fixed

    def row(self, start: Start) -> np.ndarray:
        """A start state before it settles, float64 `[1 + nq + nv]`: time, positions, velocities."""
        if start.origin == PUBLISHED:
            published: np.ndarray = self._published[start.trial]
            return published
        suite, name = self._task.suite, self._task.name
        return draw_start(self._regions, start_generator(suite, name, start.origin, start.trial))

    @cached_property
    def _published(self) -> np.ndarray:
        return start_states(self._task.suite, self._task.name)

    @cached_property
    def _regions(self) -> StartRegions:
        return start_regions(self._task.suite, self._task.name)


class TaskShelf:
    """Loaded tasks of this process, least recently used first; those in use by a slot are never dropped."""

    def __init__(self, spare: int) -> None:
        self._spare = spare
        self._loaded: OrderedDict[tuple[object, ...], LoadedTask] = OrderedDict()
        self._users: dict[tuple[object, ...], int] = {}

    def take(self, task: Task, image_size: int, cameras: tuple[str, ...]) -> LoadedTask:
        """Load a task, or hand out the one loaded; pair with `give_back`."""
        key = (task.suite, task.name, image_size, cameras)
        self._users[key] = self._users.get(key, 0) + 1
        if key not in self._loaded:
            self._drop_unused(self._spare)
            self._loaded[key] = LoadedTask(task, image_size, cameras)
        self._loaded.move_to_end(key)
        return self._loaded[key]

    def give_back(self, task: Task, image_size: int, cameras: tuple[str, ...]) -> None:
        """Say that a slot is done with a task; it stays loaded while there is room."""
        key = (task.suite, task.name, image_size, cameras)
        self._users[key] -= 1
        self._drop_unused(self._spare)

    def _drop_unused(self, spare: int) -> None:
        unused = [key for key in self._loaded if not self._users.get(key)]
        for key in unused[: max(0, len(unused) - spare)]:
            self._loaded.pop(key).camera.close()


SHELF = TaskShelf(SPARE_MODELS)
