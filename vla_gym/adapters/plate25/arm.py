"""The WidowX 250 S as the suite drives it: gripper poses relative to the last target, solved by inverse kinematics.

Numbers and formulas: ManiSkill 3.0.1, `WidowX250SBridgeDatasetFlatTable`, control mode
`arm_pd_ee_target_delta_pose_align2_gripper_pd_joint_pos` on CPU physics, and the same solver.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import sapien
from sapien.wrapper.pinocchio_model import PinocchioModel

from vla_gym.rotations import multiply

ARM_JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate")
FINGER_JOINTS = ("left_finger", "right_finger")
JOINTS = (*ARM_JOINTS, *FINGER_JOINTS)
STIFFNESS = (
    *(1169.7891719504198, 730.0, 808.4601346394447),
    *(1229.1299089624076, 1272.2760456418862, 1056.3326605132252),
    *(1000.0, 1000.0),
)
DAMPING = (
    *(330.0, 180.0, 152.12036565582588, 309.6215302722146, 201.04998711007383, 269.51458932695414),
    *(200.0, 200.0),
)
FORCE_LIMIT = (200.0, 200.0, 100.0, 100.0, 100.0, 100.0, 60.0, 60.0)
CLOSED, OPEN = 0.014, 0.038
"""Finger targets for gripper actions -1 and +1, metres: 1 mm beyond the joints' limits, so that they press."""
HAND = "ee_gripper_link"
SOLVER_STEPS = 100

START_QPOS = np.array([-0.01840777, 0.0398835, 0.22242722, -0.00460194, 1.36524296, 0.00153398, 0.037, 0.037])
"""Trained start pose, radians and metres."""
BASE = sapien.Pose([0.147, 0.028, 0.870], [0, 0, 0, 1])
BASE_AWAY = sapien.Pose([0.147, 0.028, 1.870], [0, 0, 0, 1])
"""Where the robot waits while objects come to rest."""


class Arm:
    """The robot of one scene.

    Args:
        scene: gets the robot as its first body.
        urdf: robot description; beside it, an `.srdf` of the same name.
    """

    def __init__(self, scene: sapien.Scene, urdf: Path) -> None:
        loader = scene.create_urdf_loader()
        loader.fix_root_link = True
        self.body = loader.load(str(urdf))
        self.links = {link.name: link for link in self.body.links}
        joints = {joint.name: joint for joint in self.body.active_joints}
        if tuple(joints) != JOINTS:
            raise RuntimeError(f"{urdf} has joints {list(joints)}, expected {list(JOINTS)}")
        self._joints = [joints[name] for name in JOINTS]
        for joint, stiffness, damping, force in zip(self._joints, STIFFNESS, DAMPING, FORCE_LIMIT, strict=True):
            joint.set_drive_properties(stiffness, damping, force_limit=force, mode="force")
            joint.set_friction(0.0)
        for link in self.body.links:
            link.disable_gravity = True
        self._solver = _solver(urdf)
        self._target = (np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))

    def reset(self, qpos: np.ndarray) -> None:
        """Stand still at joint positions `[8]`, which become the target."""
        self.body.set_root_pose(BASE)
        self.body.set_qpos(qpos)
        self.body.set_qvel(np.zeros(len(JOINTS)))
        self.body.set_qf(np.zeros(len(JOINTS)))
        self._drive_to(qpos)
        self._solver.compute_forward_kinematics(qpos)
        pose = self._solver.get_link_pose(0)
        self._target = (np.array(pose.p, dtype=np.float64), np.array(pose.q, dtype=np.float64))

    def wait_away(self) -> None:
        """Stand a metre above the table, out of the way of what falls."""
        self.body.set_root_pose(BASE_AWAY)

    def set_action(self, action_A: np.ndarray) -> None:
        """Set the target from dx, dy, dz (metres), Euler XYZ angles (radians), gripper (-1 closed .. +1 open).

        Both are along the axes of the base and relative to the previous target. A target that the solver cannot
        reach stays the target, and the arm holds where it is.
        """
        place, turn = self._target
        place = place + action_A[:3]
        turn = multiply(euler_quaternion(action_A[3:6]), turn)
        turn /= np.linalg.norm(turn)
        self._target = (place, turn)
        now = np.array(self.body.qpos, dtype=np.float64)
        found, reached, _ = self._solver.compute_inverse_kinematics(
            0,
            sapien.Pose(place, turn),
            initial_qpos=now,
            active_qmask=np.array([1] * len(ARM_JOINTS) + [0] * len(FINGER_JOINTS)),
            max_iterations=SOLVER_STEPS,
        )
        goal = np.array(found if reached else now, dtype=np.float64)
        opening = float(np.clip(action_A[6], -1.0, 1.0))
        goal[len(ARM_JOINTS) :] = CLOSED + (OPEN - CLOSED) * (opening + 1.0) / 2.0
        self._drive_to(goal)

    def qpos(self) -> np.ndarray:
        """Return joint positions, float32 `[8]`, fresh."""
        return np.array(self.body.qpos, dtype=np.float32)

    @property
    def target(self) -> tuple[np.ndarray, np.ndarray]:
        """Commanded pose of the hand, in the base's frame: position `[3]` and quaternion (w, x, y, z)."""
        return self._target

    def controller_state(self) -> np.ndarray:
        """Return the controller's target pose and the drive targets, float64."""
        targets = [np.ravel(joint.drive_target) for joint in self._joints]
        return np.concatenate([*self._target, *targets])

    def finger_openings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return unit vectors along which the left and the right finger open, world frame."""
        left, right = (self.links[f"{side}_finger_link"].entity for side in ("left", "right"))
        return rotation(left)[:, 1], -rotation(right)[:, 1]

    def _drive_to(self, goal: np.ndarray) -> None:
        for joint, value in zip(self._joints, goal, strict=True):
            joint.set_drive_target(float(value))


def rotation(body: sapien.Entity) -> np.ndarray:
    """Return the rotation matrix of a body, float64 `[3, 3]`."""
    matrix: np.ndarray = np.asarray(body.pose.to_transformation_matrix(), dtype=np.float64)[:3, :3]
    return matrix


def euler_quaternion(angles: np.ndarray) -> np.ndarray:
    """Return a rotation by angles about x, then the turned y, then the turned z, as (w, x, y, z), float64."""
    turn = np.array([1.0, 0.0, 0.0, 0.0])
    for axis, angle in enumerate(np.asarray(angles, dtype=np.float64)):
        about = np.zeros(4)
        about[0], about[axis + 1] = np.cos(angle / 2), np.sin(angle / 2)
        turn = multiply(turn, about)
    return turn


@functools.cache
def _solver(urdf: Path) -> PinocchioModel:
    model = PinocchioModel(urdf.read_text(encoding="utf-8"), [0, 0, -9.81])
    model.set_joint_order(list(JOINTS))
    model.set_link_order([HAND])
    return model
