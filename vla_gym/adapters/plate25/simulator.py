"""Progress of an episode: object grasped, held, on the plate, and the reward of that. Pure NumPy, one environment.

Source: `evaluate` of PutOnPlateInScene25 and `is_grasping` of ManiSkill's WidowX250S; the reward is RLinf's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import sapien

from vla_gym.adapters.plate25 import images, layouts
from vla_gym.adapters.plate25.assets import STAND_IN_ARM, Assets
from vla_gym.adapters.plate25.catalogue import TABLES
from vla_gym.adapters.plate25.runs import find_run
from vla_gym.adapters.plate25.scene import HAND, SETTLE, START_QPOS, SUBSTEPS, Scene, rotation
from vla_gym.adapters.plate25.tasks import ACTION_UNITS, PROTOCOLS
from vla_gym.simulator import SimStep
from vla_gym.specs import RenderQuality, StartState, Task

SLACK_XY = 0.01
"""Metres that the object's centre may lie beyond the plate's longest half side."""
SLACK_Z = 0.05
"""Metres between the boxes, above each other, that still count as on."""
MIN_CONTACT = 0.03
"""Newtons between object and plate."""
MIN_GRIP = 0.5
"""Newtons on each finger."""
MAX_GRIP_ANGLE = np.deg2rad(85.0)
"""Between a finger's opening direction and the force on it."""
LONG_GRASP = 5
"""Steps in a row that make a lasting grasp."""


@dataclass(frozen=True, kw_only=True)
class TaskProgress:
    """State of the task after one step."""

    success: bool = False
    """Whether the object is on the plate now."""
    grasped: bool = False
    """Whether it has ever been grasped."""
    held: bool = False
    """Whether it has ever been grasped for `LONG_GRASP` steps in a row."""
    steps_in_hand: int = 0
    """Steps in a row that it is grasped now."""

    @property
    def level(self) -> float:
        """0.1 once grasped, 0.1 once held, 1 while it lies on the plate after having been grasped: 0 .. 1.2."""
        return 0.1 * self.grasped + 0.1 * self.held + 1.0 * (self.success and self.grasped)


def task_progress(before: TaskProgress, *, grasping: bool, on_plate: bool) -> TaskProgress:
    """Return the progress after a step that ends with the object (or not) in the gripper and on the plate."""
    in_hand = before.steps_in_hand + 1 if grasping else 0
    return TaskProgress(
        success=on_plate,
        grasped=before.grasped or grasping,
        held=before.held or in_hand >= LONG_GRASP,
        steps_in_hand=in_hand,
    )


def lies_on(offset: np.ndarray, object_box: np.ndarray, plate_box: np.ndarray, force: float) -> bool:
    """Whether the object lies on the plate.

    Args:
        offset: from plate to object, metres `[3]`.
        object_box: axis-parallel sides of the object when the episode began `[3]`.
        plate_box: the same of the plate.
        force: between the two, newtons.
    """
    near = float(np.hypot(offset[0], offset[1])) <= float(plate_box.max()) / 2 + SLACK_XY
    gap = float(offset[2] - plate_box[2] / 2 - object_box[2] / 2)
    return bool(near and offset[2] > 0 and gap <= SLACK_Z and force > MIN_CONTACT)


def grips(force: np.ndarray, opening: np.ndarray) -> bool:
    """Whether one finger presses: `force` on it in newtons `[3]`, `opening` the unit vector it opens along `[3]`."""
    strength = float(np.linalg.norm(force))
    if strength < MIN_GRIP:
        return False
    return bool(np.arccos(np.clip(force @ opening / strength, -1.0, 1.0)) <= MAX_GRIP_ANGLE)


MOVE_AT = 5
"""Steps after which PositionChangeTo moves the object."""


class Plate25Simulator:
    """See `vla_gym.simulator.Simulator`.

    Args:
        tasks, image_size, cameras: as of `Simulator`; tasks are known by name.
        run: a key of `RUNS`; "" is the training set.
        split: part of the training set.
        protocol: a key of `PROTOCOLS`.
        action_units: a key of `ACTION_UNITS`.
        picture: `render_quality` ("full" draws 640 x 480 and shrinks that; "fast" draws at `image_size`) and a key of
            `ASPECTS`.
        success_ends: whether the first success ends the episode.
        assets: fields of `Assets`.
    """

    def __init__(
        self,
        tasks: tuple[Task, ...],
        image_size: int,
        cameras: tuple[str, ...],
        *,
        run: str,
        split: str,
        protocol: str,
        action_units: str,
        picture: tuple[RenderQuality, str],
        success_ends: bool,
        assets: Mapping[str, str | None],
    ) -> None:
        self._run = find_run(run, split)
        numbers = {name: number for number, name in enumerate(self._run.task_names)}
        self._tasks = [numbers[task.name] for task in tasks]
        self._rules, self._success_ends = PROTOCOLS[protocol], success_ends
        self._units_A = np.array(ACTION_UNITS[action_units])
        self._size, self._cameras = (image_size, image_size), cameras
        render_quality, aspect = picture
        self._kept = aspect == "kept"
        small = images.inner_frame(image_size) if self._kept else self._size
        self._frame = images.FRAME if render_quality == "full" else small
        self._assets = Assets(**assets)
        self._robot = Path(self._assets.robot) if self._assets.robot else STAND_IN_ARM

    def reset(self, start: StartState) -> str:
        """Build the start state, let it come to rest if the protocol says so; nothing is drawn."""
        self._episode = self._run.episode(self._run.start(self._tasks[start.task_id], start.trial_id))
        self._layout = layouts.initial_layout(self._run, self._episode, self._rules)
        self._scene = Scene(self._assets, self._robot, self._layout.placed, self._frame)
        if self._rules.settle:
            self._scene.settle()
        self._scene.arm.reset(START_QPOS + layouts.arm_poses()[self._episode.arm])
        self._object = self._scene.bodies[self._layout.target]
        self._plate = self._scene.bodies[self._layout.plate]
        target, plate = self._layout.placed[self._layout.target], self._layout.placed[self._layout.plate]
        self._object_box = np.abs(rotation(self._object)) @ target.thing.size
        self._plate_box = np.abs(rotation(self._plate)) @ plate.thing.size
        self._progress, self._steps = TaskProgress(), 0
        return self._state_hash()

    def step(self, action_A: np.ndarray) -> SimStep:
        """Advance 1/5 s. The reward is the change of `TaskProgress.level`; success ends an episode only on demand."""
        self._scene.arm.set_action(np.asarray(action_A, dtype=np.float64) * self._units_A)
        self._scene.run(SUBSTEPS)
        self._steps += 1
        if self._layout.moved_to is not None and self._steps == MOVE_AT:
            self._scene.move(self._object, self._layout.moved_to, stop=self._rules.move_stops)
            if self._rules.move_settles:
                self._scene.run(SETTLE)
        before = self._progress
        self._progress = task_progress(before, grasping=self._grasping(), on_plate=self._on_plate())
        success, reward = self._progress.success, self._progress.level - before.level
        return SimStep(reward=reward, success=success, terminated=success and self._success_ends)

    def observe(self) -> dict[str, np.ndarray]:
        """Draw now; `state` is the joint positions."""
        observation = {"state": self._scene.arm.qpos()}
        if "image" in self._cameras:
            frame = self.frame()
            if self._kept:
                frame = images.letterbox(frame, self._size[0])
            elif self._frame != self._size:
                frame = images.shrink(frame, self._size)
            observation["image"] = frame
        return observation

    def privileged(self) -> np.ndarray:
        """Return the state for a scripted expert, float64 `[PRIVILEGED_DIM]`, in the frame of the robot's base.

        Poses are position and quaternion (w, x, y, z): of the hand (7), its target (7), 1 while the object is gripped
        else 0, then for the object and for the plate the pose of the middle of its box (7) and the box's sides (3),
        at last the metres and the radians that an action of 1 stands for.
        """
        arm, placed = self._scene.arm, self._layout.placed
        base = arm.body.root_pose.inv()
        boxes = [
            part
            for entity, number in ((self._object, self._layout.target), (self._plate, self._layout.plate))
            for thing in (placed[number].thing,)
            for part in (_pose(base * entity.pose * sapien.Pose(thing.middle)), thing.size)
        ]
        hand = _pose(base * arm.links[HAND].entity.pose)
        return np.concatenate(
            [hand, *arm.target, [float(self._grasping())], *boxes, self._units_A[[0, 3]]], dtype=np.float64
        )

    def frame(self) -> np.ndarray:
        """Draw the image before it is shrunk, uint8 `[H, W, 3]`."""
        drawn, foreground = self._scene.draw()
        run, table = self._run, self._episode.table
        index = table if self._rules.texture_of_table else self._episode.texture
        alpha = run.alpha * TABLES[index].mix
        return images.green_screen(
            drawn,
            foreground,
            images.photo(self._assets, table, self._frame),
            blend=run.blend,
            texture=images.texture(self._assets, index) if alpha else None,
            alpha=alpha,
        )

    def close(self) -> None:
        self.__dict__.pop("_scene", None)

    def _grasping(self) -> bool:
        # The left finger opens along its y axis, the right one against it.
        fingers = ((self._scene.arm.links[f"{side}_finger_link"].entity, y) for side, y in (("left", 1), ("right", -1)))
        return all(grips(self._scene.force(finger, self._object), y * rotation(finger)[:, 1]) for finger, y in fingers)

    def _on_plate(self) -> bool:
        offset = np.subtract(self._object.pose.p, self._plate.pose.p, dtype=np.float64)
        force = float(np.linalg.norm(self._scene.force(self._object, self._plate)))
        return lies_on(offset, self._object_box, self._plate_box, force)

    def _state_hash(self) -> str:
        digest = hashlib.blake2b(repr(astuple(self._layout)).encode(), digest_size=8)
        digest.update(repr((self._run.name, self._episode.table, self._episode.texture)).encode())
        digest.update(self._scene.moving_state().tobytes())
        return digest.hexdigest()


def _pose(pose: sapien.Pose) -> np.ndarray:
    return np.concatenate([pose.p, pose.q])
