"""Compiled LIBERO tasks in this process, shared by the slots that play them: models, GL resources, start states.

Tasks of one scene differ in goals and start states alone: LIBERO-Goal's ten have one model, LIBERO-90's have twenty.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from vla_gym.adapters.libero.compile import CompiledTask, StoredModel, compiled_task, start_regions, start_states
from vla_gym.adapters.libero.osc import ControllerState
from vla_gym.adapters.libero.placements import StartRegions, draw_start, start_generator
from vla_gym.adapters.libero.tasks import PUBLISHED, TRIALS
from vla_gym.adapters.mujoco.camera import Camera, NoCamera, forget_textures
from vla_gym.adapters.mujoco.simple_meshes import Corners
from vla_gym.adapters.mujoco.simple_store import simple_meshes
from vla_gym.adapters.mujoco.task_cache import TaskCache
from vla_gym.specs import RenderQuality
from vla_gym.system.cache import cache_dir

CAMERA_NAMES = {"image": "agentview", "wrist_image": "robot0_eye_in_hand"}
COLLISION_GROUP = 0
"""Geom group robosuite hides from pictures."""
NUM_SPARE_TASKS = 1
"""Compiled tasks kept in memory beyond those in use by a slot (about 0.6 GB for a model with its GL resources)."""
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


class LoadedScene:
    """A model and its GL resources, for pictures of one size and quality by some cameras."""

    def __init__(self, stored: StoredModel, image_size: int, cameras: tuple[str, ...], quality: RenderQuality) -> None:
        self.model, textures = stored.load()
        self.camera: Camera | NoCamera = NoCamera()
        if cameras:
            self.camera = Camera(
                self.model,
                [CAMERA_NAMES[camera] for camera in cameras],
                image_size,
                hidden_groups=(COLLISION_GROUP,),
                textures=textures,
                meshes=self._simple_meshes() if quality == "fast" else None,
                sift=True,
                exact=quality == "full",
            )
        forget_textures(self.model)
        self.lamps = [(lamp, float(self.model.site_rgba[lamp.site, 3])) for lamp in stored.lamps]
        """Each with its opacity when it does not glow."""

    def _simple_meshes(self) -> dict[int, Corners]:
        return simple_meshes(self.model, cache_dir() / "libero" / "simple", hidden_groups=(COLLISION_GROUP,))

    def close(self) -> None:
        """Free the GL resources."""
        self.camera.close()


class LoadedTask:
    """Scene and start states of one task, for pictures of one size and quality by some cameras."""

    def __init__(
        self, suite: str, name: str, image_size: int, cameras: tuple[str, ...], quality: RenderQuality = "full"
    ) -> None:
        self._task = suite, name
        self.snapshots: StartCache[Snapshot] = StartCache(NUM_STARTS)
        self.first_pictures: StartCache[list[np.ndarray]] = StartCache(NUM_STARTS)

        def load(compiled: CompiledTask) -> tuple[CompiledTask, LoadedScene]:
            return compiled, SCENES.acquire(compiled.model, image_size, cameras, quality)

        self.compiled, self.scene = compiled_task(suite, name, load)
        self._scene_key = self.compiled.model, image_size, cameras, quality
        model = self.scene.model
        self.fingerprint = self.compiled.key.encode() + model.body_pos.tobytes() + model.body_quat.tobytes()

    def row(self, start: Start) -> np.ndarray:
        """Return a start state before it settles, float64 `[1 + nq + nv]`: time, positions, velocities."""
        if start.origin == PUBLISHED:
            published: np.ndarray = self._published[start.trial]
            return published
        return draw_start(self._regions, start_generator(*self._task, start.origin, start.trial))

    def close(self) -> None:
        """End the use of the scene."""
        SCENES.release(*self._scene_key)

    @cached_property
    def _published(self) -> np.ndarray:
        return start_states(*self._task)

    @cached_property
    def _regions(self) -> StartRegions:
        return start_regions(*self._task)


SCENES: TaskCache[LoadedScene] = TaskCache(LoadedScene, num_spare=0)
TASKS: TaskCache[LoadedTask] = TaskCache(LoadedTask, NUM_SPARE_TASKS)
