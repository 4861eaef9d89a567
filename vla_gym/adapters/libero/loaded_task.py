"""A compiled LIBERO task in this process, shared by the slots that play it: model, GL resources, start states."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from vla_gym.adapters.libero.compile import CompiledTask, compiled_task, start_regions, start_states
from vla_gym.adapters.libero.osc import ControllerState
from vla_gym.adapters.libero.placements import StartRegions, draw_start, start_generator
from vla_gym.adapters.libero.tasks import PUBLISHED, TRIALS
from vla_gym.adapters.mujoco.camera import Camera, NoCamera, forget_textures
from vla_gym.adapters.mujoco.simple_meshes import Corners
from vla_gym.adapters.mujoco.simple_store import simple_meshes
from vla_gym.adapters.mujoco.task_cache import TaskCache
from vla_gym.specs import RenderQuality
from vla_gym.system.cache import cache_dir

logger = logging.getLogger(__name__)
CAMERA_NAMES = {"image": "agentview", "wrist_image": "robot0_eye_in_hand"}
COLLISION_GROUP = 0
"""Geom group robosuite hides from pictures."""
NUM_SPARE_TASKS = 1
"""Compiled tasks kept in memory beyond those in use by a slot (about 0.6 GB each with their GL resources)."""
NUM_STARTS = TRIALS
"""Start states of a task that are kept, settled and with their first pictures (0.2 MB each at 256 px)."""
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


class StartCache(Generic[Value]):
    """Values of the start states used last.

    Args:
        num_starts: how many are kept.
    """

    def __init__(self, num_starts: int) -> None:
        self._num_starts = num_starts
        self._values: OrderedDict[Start, Value] = OrderedDict()

    def get(self, start: Start, make: Callable[[], Value]) -> Value:
        """Return the value of `start`, made now where none is kept."""
        if start not in self._values:
            self._values[start] = make()
            if len(self._values) > self._num_starts:
                self._values.popitem(last=False)
        self._values.move_to_end(start)
        return self._values[start]


class LoadedTask:
    """Model, GL resources and start states of one task, for pictures of one size and quality by some cameras."""

    def __init__(
        self, suite: str, name: str, image_size: int, cameras: tuple[str, ...], quality: RenderQuality = "full"
    ) -> None:
        self._task, self._quality = (suite, name), quality
        self.snapshots: StartCache[Snapshot] = StartCache(NUM_STARTS)
        self.first_pictures: StartCache[list[np.ndarray]] = StartCache(NUM_STARTS)
        try:
            self._open(image_size, cameras)
        except FileNotFoundError as error:  # pixels that are damaged; without their file the task is compiled anew
            logger.info("%s/%s: %s", suite, name, error)
            self._open(image_size, cameras)
        forget_textures(self.model)
        self.unlit = [float(self.model.site_rgba[lamp.site, 3]) for lamp in self.compiled.lamps]
        fixed = self.model.body_pos.tobytes() + self.model.body_quat.tobytes()
        self.fingerprint = self.compiled.key.encode() + fixed

    def _open(self, image_size: int, cameras: tuple[str, ...]) -> None:
        self.compiled: CompiledTask = compiled_task(*self._task)
        self.model = self.compiled.model
        self.camera: Camera | NoCamera = NoCamera()
        if cameras:
            self.camera = Camera(
                self.model,
                [CAMERA_NAMES[camera] for camera in cameras],
                image_size,
                hidden_groups=(COLLISION_GROUP,),
                textures=self.compiled.textures,
                meshes=self._simple_meshes() if self._quality == "fast" else None,
                sift=True,
            )

    def _simple_meshes(self) -> dict[int, Corners]:
        return simple_meshes(self.model, cache_dir() / "libero" / "simple", hidden_groups=(COLLISION_GROUP,))

    def row(self, start: Start) -> np.ndarray:
        """Return a start state before it settles, float64 `[1 + nq + nv]`: time, positions, velocities."""
        if start.origin == PUBLISHED:
            published: np.ndarray = self._published[start.trial]
            return published
        return draw_start(self._regions, start_generator(*self._task, start.origin, start.trial))

    def close(self) -> None:
        """Free the GL resources."""
        self.camera.close()

    @cached_property
    def _published(self) -> np.ndarray:
        return start_states(*self._task)

    @cached_property
    def _regions(self) -> StartRegions:
        return start_regions(*self._task)


TASKS: TaskCache[LoadedTask] = TaskCache(LoadedTask, NUM_SPARE_TASKS)
