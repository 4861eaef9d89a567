"""Robosuite's OSC_POSE controller and Panda gripper on bare MuJoCo, bit for bit.

robosuite 1.4.0 (MIT) runs three full forward passes per 2 ms substep and reads the state through Python
objects; here one `mj_step1`/`mj_step2` pair does the same arithmetic. The numerical kernels are
robosuite's own compiled functions, called on arrays of the same memory layout, so torques agree exactly
(`tests/vla_gym/adapters/test_libero_identity.py`). Source: robosuite/controllers/osc.py, base_controller.py,
robots/single_arm.py, models/grippers/panda_gripper.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from robosuite.utils.control_utils import (
    nullspace_torques,
    opspace_matrices,
    orientation_error,
    set_goal_orientation,
)

SUBSTEPS = 25
"""Physics substeps per policy step: int(0.05 s / 0.002 s), robosuite environments/base.py:step."""
ACTION_SCALE = np.array([0.05, 0.05, 0.05, 0.5, 0.5, 0.5])
"""Metres and radians per unit of action, robosuite controllers/config/osc_pose.json output_max."""
KP = 150.0 * np.ones(6)
"""Stiffness, osc_pose.json kp; damping ratio 1."""
KD = 2 * np.sqrt(KP)
GRIPPER_SPEED = 0.01
"""Share of the finger range per substep, panda_gripper.py:speed."""
GRIPPER_SIGNS = np.array([-1.0, 1.0])


@dataclass(frozen=True)
class ArmIndex:
    """Where the Panda sits in a compiled model; plain integers, stored beside the model."""

    site: int
    """Grip site the controller tracks."""
    hand_body: int
    """Body whose quaternion is `robot0_eef_quat`."""
    qpos: tuple[int, ...]
    qvel: tuple[int, ...]
    actuators: tuple[int, ...]
    gripper_qpos: tuple[int, ...]
    gripper_actuators: tuple[int, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ArmIndex:
        """Rebuild from the output of `dataclasses.asdict` after a trip through JSON."""
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})


class OscPose:
    """Operational-space pose control of one arm: `begin(action)` once per policy step, `apply()` per substep."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, index: ArmIndex) -> None:
        self._model, self._data, self._index = model, data, index
        self._qpos, self._qvel = list(index.qpos), list(index.qvel)
        self._actuators, self._fingers = list(index.actuators), list(index.gripper_actuators)
        self._torque_low, self._torque_high = model.actuator_ctrlrange[self._actuators].T.copy()
        finger_low, finger_high = model.actuator_ctrlrange[self._fingers].T
        self._finger_bias, self._finger_weight = 0.5 * (finger_high + finger_low), 0.5 * (finger_high - finger_low)
        self._jac_pos, self._jac_rot = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        self._mass = np.zeros((model.nv, model.nv))
        self.gripper = np.zeros(2)
        """Commanded finger positions in [-1, 1]; integrates the sign of the gripper action."""
        self.goal_pos = np.zeros(3)
        self.goal_ori = np.eye(3)
        self._stale = False

    def attach(self) -> None:
        """Take the present pose as home: what robosuite does when a reset loads the controller.

        Call right after the arm was put at its home pose and before anything else moved: robosuite reads
        the state here and does *not* read it again for the first substep of an episode.
        """
        mujoco.mj_forward(self._model, self._data)
        self._read()
        self._home = self._joint_pos
        self.goal_pos, self.goal_ori = self._ee_pos.copy(), self._ee_ori.copy()
        self.gripper = np.zeros(2)
        self._stale = True
        self._first = (self._ee_pos, self._ee_ori, self._ee_vel, self._ee_omega)
        self._first_joint = (self._joint_pos, self._joint_vel, self._j_pos, self._j_ori, self._mass_arm.copy())

    def rewind(self) -> None:
        """Return to the moment after `attach`, whatever was controlled since."""
        self._ee_pos, self._ee_ori, self._ee_vel, self._ee_omega = self._first
        self._joint_pos, self._joint_vel, self._j_pos, self._j_ori, self._mass_arm = self._first_joint
        self.goal_pos, self.goal_ori = self._ee_pos.copy(), self._ee_ori.copy()
        self.gripper = np.zeros(2)
        self._stale = True

    def memory(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What outlives a policy step besides MuJoCo's state: (gripper [2], goal_pos [3], goal_ori [3, 3])."""
        return self.gripper.copy(), self.goal_pos.copy(), self.goal_ori.copy()

    def recall(self, memory: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        """Set what `memory` gave; the next substep reads the simulator afresh."""
        self.gripper, self.goal_pos, self.goal_ori = (part.copy() for part in memory)
        self._stale = False

    def extra_solves(self) -> int:
        """How often upstream solves for accelerations before the coming substep's own solve.

        Once for its step loop and once more when the controller reads the simulator. Each solve starts
        from the last one's answer, so leaving them out changes results by 1e-17.
        """
        return 1 if self._stale else 2

    def begin(self, action_A: np.ndarray) -> None:
        """Set the goal of one policy step from a float64 action `[7]`; position stage must be up to date."""
        self._update()
        delta = np.clip(action_A[:6], -1.0, 1.0) * ACTION_SCALE
        # robosuite keeps the old goal orientation when no rotation is asked for.
        if delta[3:].any():
            self.goal_ori = set_goal_orientation(delta[3:], self._ee_ori)
        self.goal_pos = self._ee_pos + delta[:3]
        self._finger_step = GRIPPER_SIGNS * GRIPPER_SPEED * np.sign(action_A[6:])
        self._fresh = True

    def apply(self) -> None:
        """Write one substep's torques and finger targets into `data.ctrl`."""
        if not self._fresh:
            self._read()
        self._fresh = False
        torques = self._torques()
        self._data.ctrl[self._fingers] = self._finger_command()
        self._data.ctrl[self._actuators] = np.clip(torques, self._torque_low, self._torque_high)

    def _update(self) -> None:
        if self._stale:
            self._stale = False
        else:
            self._read()

    def _read(self) -> None:
        model, data, index = self._model, self._data, self._index
        self._ee_pos = data.site_xpos[index.site].copy()
        self._ee_ori = data.site_xmat[index.site].reshape(3, 3).copy()
        mujoco.mj_jacSite(model, data, self._jac_pos, self._jac_rot, index.site)
        self._ee_vel = np.dot(self._jac_pos, data.qvel)
        self._ee_omega = np.dot(self._jac_rot, data.qvel)
        self._joint_pos, self._joint_vel = data.qpos[self._qpos], data.qvel[self._qvel]
        # Indexed exactly as robosuite does: the memory layout decides which BLAS kernel runs.
        self._j_pos = np.array(self._jac_pos[:, self._qvel])
        self._j_ori = np.array(self._jac_rot[:, self._qvel])
        mujoco.mj_fullM(model, self._mass, data.qM)
        self._mass_arm = self._mass[self._qvel, :][:, self._qvel]

    def _torques(self) -> np.ndarray:
        ori_error = orientation_error(self.goal_ori, self._ee_ori)
        force = (self.goal_pos - self._ee_pos) * KP[:3] + -self._ee_vel * KD[:3]
        moment = ori_error * KP[3:] + -self._ee_omega * KD[3:]
        j_full = np.vstack([self._j_pos, self._j_ori])
        _, lambda_pos, lambda_ori, nullspace = opspace_matrices(self._mass_arm, j_full, self._j_pos, self._j_ori)
        wrench = np.concatenate([np.dot(lambda_pos, force), np.dot(lambda_ori, moment)])
        torques = np.dot(j_full.T, wrench) + self._data.qfrc_bias[self._qvel]
        torques += nullspace_torques(self._mass_arm, nullspace, self._home, self._joint_pos, self._joint_vel)
        return torques

    def _finger_command(self) -> np.ndarray:
        self.gripper = np.clip(self.gripper + self._finger_step, -1.0, 1.0)
        return self._finger_bias + self._finger_weight * self.gripper
