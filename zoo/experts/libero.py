"""Expert for LIBERO: does the parts of a goal one after the other, each by the skill for its kind.

It acts through the seven numbers that policies have: way and turn over the controller's range, and the gripper's sign.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from vla_gym.adapters.libero.scene import Hand, Moving, Placing, Scene
from vla_gym.adapters.libero.tasks import ACTION_SCALE
from vla_gym.rotations import turn_between
from vla_gym.specs import Task
from zoo.experts.libero_dragging import DraggingSkill, is_dragged
from zoo.experts.libero_moving import DrawerSkill, TurningSkill
from zoo.experts.libero_placing import RIM_AZIMUTH, PlacingSkill, own_place
from zoo.experts.motion import Command

DRAWER_AZIMUTH = math.radians(117.0)
"""Side on which the rim of a bowl in the drawer is taken: towards a corner, where the outer finger has room."""
OPEN, CLOSE = -1.0, 1.0


class Skill(Protocol):
    """Does one part of a goal, a step at a time."""

    def command(self, hand: Hand, part: Any) -> Command | None:
        """Return where the hand should be; None when there is nothing more to do."""


class LiberoExpert:
    """See `zoo.experts.base.Expert`; it reads a `Scene`."""

    def __init__(self, task: Task) -> None:
        # A bowl that begins in a drawer.
        self._rim_azimuth = DRAWER_AZIMUTH if "bowl_in_the_top_drawer_" in task.name else RIM_AZIMUTH
        self._part = 0
        self._skill: Skill | None = None

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        """Return the whole way to where the hand should be, of which the arm goes about a third: float32 `[7]`."""
        scene = Scene.from_vector(privileged_P)
        command = self._skill.command(scene.hand, scene.parts[self._part]) if self._skill else None
        if command is None:
            self._part = next_part(scene)
            self._skill = self._skill_for(scene, self._part)
            command = self._skill.command(scene.hand, scene.parts[self._part])
            assert command is not None
        way_3 = command.point_3 - scene.hand.point_3
        twist_6 = np.concatenate([way_3, turn_between(scene.hand.quat_4, command.quat_4)]) / ACTION_SCALE
        return np.append(np.clip(twist_6, -1.0, 1.0), CLOSE if command.closed else OPEN).astype(np.float32)

    def _skill_for(self, scene: Scene, index: int) -> Skill:
        part = scene.parts[index]
        if isinstance(part, Moving):
            return TurningSkill() if part.turns else DrawerSkill()
        if is_dragged(part):
            return DraggingSkill()
        others = [other for other in scene.parts if isinstance(other, Placing) and other is not part]
        return PlacingSkill(self._rim_azimuth, own_place(part, others))


def next_part(scene: Scene) -> int:
    """Return the index of the first part that does not hold yet; of the last where all do."""
    unmet = [index for index, part in enumerate(scene.parts) if not part.met]
    return unmet[0] if unmet else len(scene.parts) - 1
