"""The skill of dragging, of LIBERO's expert: a flat dish is pushed by its rim, from within, along the table.

World frame, metres and radians.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from vla_gym.adapters.libero.scene import Hand, Placing
from zoo.experts.libero_placing import ABOVE, CLOSING, POINTING, WIDEST
from zoo.experts.motion import Command, downward, limited, yaw_of

FLAT = 0.02
"""Half height of what is dragged instead of lifted: a rim so low that the fingers cannot reach below it."""
WITHIN = 0.2
"""Where the fingers come down, from the dish's middle towards its rim (1); nearer to it they tip the dish."""
FINGERTIPS = 0.006
"""Height of the grip site's target over the table: on the dish's floor, which stops it a little higher."""
DOWN = 0.017
"""Height of the grip site over the table below which it has come down."""
LEAD = 0.08
"""Metres by which the hand's target leads the dish."""
ARRIVED = 0.012
PATIENCE = 80
"""Steps after which a way is given up."""
BACK = 8


class Stage(IntEnum):
    """Stages in their order."""

    APPROACH = 0
    DESCEND = 1
    DRAG = 2
    RETREAT = 3


def is_dragged(part: Placing) -> bool:
    """Whether a thing is a flat dish that goes to a place on the table it stands on."""
    flat = float(part.thing.half_3[2]) < FLAT and float(min(part.thing.half_3[:2])) > WIDEST
    return flat and part.target.bottom < part.thing.top


class DraggingSkill:
    """Goes through `Stage` once; see `zoo.experts.libero.Skill`."""

    def __init__(self) -> None:
        self.stage, self._steps = Stage.APPROACH, 0
        self._yaw: float | None = None
        self._table = 0.0

    def command(self, hand: Hand, part: Placing) -> Command | None:
        """Return where the hand should be; None when the last stage is over."""
        if self._yaw is None:
            self._yaw = yaw_of(hand.quat_4, CLOSING)
            # Of a dish that tips the lowest corner goes down, and fingers that followed it would press on its rim.
            self._table = part.thing.bottom
        way_3 = part.target.origin_3 - part.thing.centre_3
        way_3[2] = 0.0
        radius = float(min(part.thing.half_3[:2]))
        inside_3 = part.thing.centre_3 + limited(way_3, 1e-9) / 1e-9 * WITHIN * radius
        inside_3[2] = self._table + FINGERTIPS
        dragged_3 = inside_3 + limited(way_3, LEAD)
        point_3 = {
            Stage.APPROACH: inside_3 + ABOVE,
            Stage.DESCEND: inside_3,
            Stage.DRAG: dragged_3,
            Stage.RETREAT: hand.point_3 + ABOVE,
        }[self.stage]
        arrived = float(np.linalg.norm(point_3 - hand.point_3)) < ARRIVED
        over = {
            Stage.APPROACH: arrived,
            Stage.DESCEND: arrived or float(hand.point_3[2]) < self._table + DOWN,
            Stage.DRAG: part.met or float(np.linalg.norm((hand.point_3 - part.thing.centre_3)[:2])) > radius,
            Stage.RETREAT: self._steps >= BACK,
        }[self.stage]
        if over or self._steps >= PATIENCE:
            if self.stage is Stage.RETREAT:
                return None
            self.stage, self._steps = Stage(self.stage + 1), 0
            return self.command(hand, part)
        self._steps += 1
        return Command(point_3=point_3, quat_4=downward(self._yaw, POINTING), closed=True)
