"""Progress of an episode: object grasped, held, on the plate, and the reward of that. Pure NumPy, one environment.

Source: `evaluate` of PutOnPlateInScene25 and `is_grasping` of ManiSkill's WidowX250S; the reward is RLinf's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
class Progress:
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


def task_progress(before: Progress, *, grasping: bool, on_plate: bool) -> Progress:
    """Return the progress after a step that ends with the object (or not) in the gripper and on the plate."""
    in_hand = before.steps_in_hand + 1 if grasping else 0
    return Progress(
        success=on_plate,
        grasped=before.grasped or grasping,
        held=before.held or in_hand >= LONG_GRASP,
        steps_in_hand=in_hand,
    )


def world_box(size: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """Return the axis-parallel sides `[3]` of a box of sides `size` turned by the matrix `rotation`."""
    return np.abs(rotation) @ size


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
