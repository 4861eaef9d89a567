"""Experts of Meta-World: its own scripted policies, and controllers of ours where those miss start states or nearly do.

The controllers keep no memory, so they go on from wherever noise, or another policy, has brought the scene. They read
the 39 numbers of `LeanEnv.full_observation`. Metres, radians; z is up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_gym.adapters.metaworld.tasks import expert_name
from vla_gym.specs import Task
from zoo.experts.motion import funnel

GAIN = 16.0  # action per metre of remaining way: the target runs 4 cm ahead of the hand at full speed; more overshoots
OPEN, REST, CLOSE = -1.0, 0.0, 1.0  # efforts of the gripper

TIPS = np.array([0.0, 0.0, -0.045])  # from the hand to the middle of its half-open fingers; reach's success is 5 cm

# Door. Its leaf's frame has its origin in the hinge, x along the closed leaf, and y into the cupboard.
HINGE = np.array([0.115, 0.35, 0.0])  # from a door's goal to its hinge
HANDLE_ANGLE = float(np.arctan2(-0.107, 0.376))  # direction from the hinge to the handle's centre
SLOT = np.array([0.365, -0.075])  # where the hand comes down: behind the bar, next to its stem, wrist off the leaf
SLOT_X, SLOT_FRONT = (0.345, 0.47), -0.085  # range along the bar, and least y, in which the hand is behind it
HOOKED = 0.06  # height between hand and handle at which fingers reach behind the bar
PULL_X, PULL_AHEAD = 0.345, 0.2  # target while pulling: against the stem, for the shortest arc, so far ahead

# Peg.
GRIP = np.array([-0.03, 0.0, 0.02])  # from the peg's position to the hand that holds it about its middle
HEAD = np.array([-0.13, 0.0, -0.01])  # from the peg's position to its head, which must arrive at the goal
OVER_PEG = np.array([0.06, 0.025])  # distances in x and y from the grip within which open fingers can come down
LOW, COMING_DOWN = 0.03, 0.1  # heights above the grip: fingers reach beside the peg; they may begin to close
NARROW, HELD = 0.5, 0.4  # opening that the peg fits into with `STRAIGHT` to spare, and above which it is not held
STRAIGHT = 0.01
ALIGNED, BEFORE_HOLE = 0.012, 0.11  # the head may be so far beside the hole to go in; else it waits so far before it


@dataclass(frozen=True, kw_only=True)
class GripAim:
    """Target of the hand, and effort of the gripper."""

    position_3: np.ndarray
    effort: float  # from -1, opens, to 1, closes


def reach_ball(privileged_P: np.ndarray) -> GripAim:
    """Take the fingers' middle into the ball. Upstream's policy takes the hand there, and has 5 of the 50 mm left."""
    return GripAim(position_3=privileged_P[-3:] - TIPS, effort=REST)


def open_door(privileged_P: np.ndarray) -> GripAim:
    """Take closed fingers down behind the handle's bar, then along its arc."""
    hand_3, handle_3 = privileged_P[:3], privileged_P[4:7]
    hinge_3 = privileged_P[-3:] + HINGE
    across, along = (handle_3 - hinge_3)[1::-1]
    angle = float(np.arctan2(across, along)) - HANDLE_ANGLE
    x, y = _turned((hand_3 - hinge_3)[:2], -angle)
    behind = SLOT_X[0] < x < SLOT_X[1] and y > SLOT_FRONT
    hooked = behind and abs(hand_3[2] - handle_3[2]) < HOOKED
    target = np.array([PULL_X, y - PULL_AHEAD]) if hooked else SLOT
    target_3 = np.append(hinge_3[:2] + _turned(target, angle), handle_3[2])
    if not hooked:
        target_3 = funnel(hand_3, target_3, mouth=0.05, slope=4.0, height=0.08)
    return GripAim(position_3=target_3, effort=CLOSE)


def insert_peg(privileged_P: np.ndarray) -> GripAim:
    """Take the peg from above, its head in front of the hole, then in. It never turns."""
    hand_3, opening, peg_3 = privileged_P[:3], privileged_P[3], privileged_P[4:7]
    off_3 = hand_3 - peg_3 - GRIP
    if (np.abs(off_3[:2]) > OVER_PEG).any():
        return GripAim(position_3=funnel(hand_3, peg_3 + GRIP, mouth=0.03, slope=4.0, height=0.1), effort=OPEN)
    low = off_3[2] < LOW
    if opening > HELD or not low:
        narrows = opening > NARROW and off_3[2] < COMING_DOWN and abs(off_3[1]) < STRAIGHT
        return GripAim(position_3=peg_3 + GRIP, effort=CLOSE if low or narrows else OPEN)
    way_3 = privileged_P[-3:] - peg_3 - HEAD
    if np.abs(way_3[1:]).max() > ALIGNED:
        way_3[0] += BEFORE_HOLE
    return GripAim(position_3=hand_3 + way_3, effort=CLOSE)


def _turned(vector_2: np.ndarray, angle: float) -> np.ndarray:
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([[cosine, -sine], [sine, cosine]]) @ vector_2


AIMS: dict[str, Callable[[np.ndarray], GripAim]] = {
    "reach": reach_ball,
    "door-open": open_door,
    "peg-insert-side": insert_peg,
}
"""Task -> its controller."""


def arm_action(privileged_P: np.ndarray, aim: GripAim) -> np.ndarray:
    """Return float32 `[4]` in [-1, 1] towards the aim."""
    way_3 = GAIN * (aim.position_3 - privileged_P[:3])
    return np.clip(np.append(way_3, aim.effort), -1.0, 1.0).astype(np.float32)


class MetaWorldExpert:
    """The controller of `AIMS`, else the task's class of `metaworld.policies`; see `zoo.experts.Expert`."""

    def __init__(self, task: Task) -> None:
        aim = AIMS.get(task.name)
        self._act = _scripted(task.name) if aim is None else lambda seen_P: arm_action(seen_P, aim(seen_P))

    def action(self, privileged_P: np.ndarray) -> np.ndarray:
        return self._act(privileged_P)


def _scripted(name: str) -> Callable[[np.ndarray], np.ndarray]:
    # Loads MuJoCo and every task's class, which takes seconds.
    from metaworld import policies

    scripted: Any = getattr(policies, expert_name(name))()

    def act(privileged_P: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings():
            # Some of them say at every step that their gain is too high for the range of an action.
            warnings.simplefilter("ignore", UserWarning)
            raw_A = scripted.get_action(privileged_P)
        return np.clip(raw_A, -1.0, 1.0).astype(np.float32)

    return act
