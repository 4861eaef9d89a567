"""Robosuite's OSC_POSE controller and Panda gripper on bare MuJoCo, bit for bit.

robosuite 1.4.0 (MIT) runs three full forward passes per 2 ms substep and reads the state through Python
objects; here one `mj_step1`/`mj_step2` pair does the same arithmetic. The numerical kernels are
robosuite's own compiled functions, called on arrays of the same memory layout, so torques agree exactly
(`tests/vla_gym/adapters/libero/test_identity.py`). Source: robosuite/controllers/osc.py, base_controller.py,
robots/single_arm.py, models/grippers/panda_gripper.py.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import mujoco
import numpy as np

from vla_gym.adapters.libero.tasks import ACTION_SCALE
from vla_gym.system.rendering import cuda_hidden

# robosuite reads this module as a user's own settings. Without it, it logs to /tmp/robosuite.log and cannot be imported
# where that is another user's file.
_settings = ModuleType("robosuite.macros_private")
vars(_settings)["FILE_LOGGING_LEVEL"] = None
sys.modules.setdefault(_settings.__name__, _settings)

with cuda_hidden():
    from robosuite.utils.control_utils import (
        nullspace_torques,
        opspace_matrices,
        orientation_error,
        set_goal_orientation,
    )

SUBSTEPS = 25
"""Physics substeps per policy step: int(0.05 s / 0.002 s), robosuite environments/base.py:step."""
KP = 150.0 * np.ones(6)
"""Stiffness, osc_pose.json kp; damping ratio 1."""
KD = 2 * np.sqrt(KP)
GRIPPER_SPEED = 0.01
"""Share of the finger range per substep, panda_gripper.py:speed."""
GRIPPER_SIGNS = np.array([-1.0, 1.0])


@dataclass(frozen=True)
class ArmIndex:
    """Where the Panda sits in a compiled model; plain integers, stored beside the model under these names."""

    site: int
    """Grip site the controller tracks."""
    hand_body: int
    """Body whose quaternion is `robot0_eef_quat`."""
    qpos: tuple[int, ...]
    qvel: tuple[int, ...]
    actuators: tuple[int, ...]
    gripper_qpos: tuple[int, ...]
    gripper_actuators: tuple[int, ...]


class ArmState(NamedTuple):
    """The arm at one instant (world frame; n = 7 joints)."""

    ee_pos: np.ndarray
    ee_ori: np.ndarray
    ee_vel: np.ndarray
    ee_omega: np.ndarray
    joint_pos: np.ndarray
    joint_vel: np.ndarray
    jac_pos: np.ndarray
    """`[3, n]`."""
    jac_ori: np.ndarray
    mass: np.ndarray
    """`[n, n]` joint-space inertia."""


class ControllerState(NamedTuple):
    """The part of the controller's state that outlives a policy step; arrays are never changed in place."""

    gripper: np.ndarray
    """Commanded finger positions `[2]` in [-1, 1]."""
    goal_pos: np.ndarray
    goal_ori: np.ndarray


class OscPose:
    """Operational-space pose control of one arm: `begin(action)` once per policy step, `apply()` per substep.

    Create it with the arm at its home pose and nothing else moved: robosuite reads the simulator here and, in the
    first substep of an episode, does *not* read it again.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, index: ArmIndex) -> None:
        self._model, self._data, self._site = model, data, index.site
        self._joints = span(index.qvel)
        self._joint_pos, self._joint_vel = data.qpos[span(index.qpos)], data.qvel[self._joints]
        self._joint_bias, self._velocity = data.qfrc_bias[self._joints], data.qvel
        self._site_pos, self._site_ori = data.site_xpos[index.site], data.site_xmat[index.site].reshape(3, 3)
        arm, fingers = span(index.actuators), span(index.gripper_actuators)
        self._torque_ctrl, self._finger_ctrl = data.ctrl[arm], data.ctrl[fingers]
        self._torque_low, self._torque_high = model.actuator_ctrlrange[arm].T.copy()
        low, high = model.actuator_ctrlrange[fingers].T
        self._finger_bias, self._finger_weight = 0.5 * (high + low), 0.5 * (high - low)
        self._jac_pos, self._jac_rot = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        self._mass = np.zeros((model.nv, model.nv))
        mujoco.mj_forward(model, data)
        self._at_home = self._read()
        self.reset()

    def reset(self) -> None:
        """Return to the moment of creation."""
        self._now = self._at_home
        self._state = ControllerState(np.zeros(2), self._at_home.ee_pos, self._at_home.ee_ori)
        self._finger_step = np.zeros(2)
        self._stale = self._fresh = True

    def snapshot(self) -> ControllerState:
        """Return the state at a policy step's end."""
        return self._state

    def restore(self, state: ControllerState) -> None:
        """Continue from a policy step's end; the next substep reads the simulator."""
        self._state, self._stale = state, False

    def extra_solves(self) -> int:
        """Return how often upstream solves for accelerations before the coming substep's own solve.

        Once for its step loop and once more when the controller reads the simulator. Each solve starts
        from the last one's answer, so leaving them out changes results by 1e-17.
        """
        return 1 if self._stale else 2

    def begin(self, action_A: np.ndarray) -> None:
        """Set the goal of one policy step from a float64 action `[7]`; position stage must be up to date."""
        if not self._stale:
            self._now = self._read()
        self._stale, self._fresh = False, True
        delta = np.clip(action_A[:6], -1.0, 1.0) * np.array(ACTION_SCALE)
        goal_ori = self._state.goal_ori
        if delta[3:].any():  # robosuite keeps the old goal orientation when no rotation is asked for
            goal_ori = set_goal_orientation(delta[3:], self._now.ee_ori)
        self._state = self._state._replace(goal_pos=self._now.ee_pos + delta[:3], goal_ori=goal_ori)
        self._finger_step = GRIPPER_SIGNS * GRIPPER_SPEED * np.sign(action_A[6:])

    def apply(self) -> None:
        """Write one substep's torques and finger targets into `data.ctrl`."""
        if not self._fresh:
            self._now = self._read()
        self._fresh = False
        gripper = clipped(self._state.gripper + self._finger_step, -1.0, 1.0)
        self._state = self._state._replace(gripper=gripper)
        self._finger_ctrl[:] = self._finger_bias + self._finger_weight * gripper
        self._torque_ctrl[:] = clipped(self._torques(), self._torque_low, self._torque_high)

    def _read(self) -> ArmState:
        mujoco.mj_jacSite(self._model, self._data, self._jac_pos, self._jac_rot, self._site)
        mujoco.mj_fullM(self._model, self._mass, self._data.qM)
        joints = self._joints
        return ArmState(
            ee_pos=self._site_pos.copy(),
            ee_ori=self._site_ori.copy(),
            ee_vel=np.dot(self._jac_pos, self._velocity),
            ee_omega=np.dot(self._jac_rot, self._velocity),
            joint_pos=self._joint_pos.copy(),
            joint_vel=self._joint_vel.copy(),
            # Column by column, as robosuite's indexing leaves them: the memory layout decides which BLAS kernel runs.
            jac_pos=self._jac_pos[:, joints].copy(order="F"),
            jac_ori=self._jac_rot[:, joints].copy(order="F"),
            mass=self._mass[joints, joints].copy(order="F"),
        )

    def _torques(self) -> np.ndarray:
        now, goal = self._now, self._state
        ori_error = orientation_error(goal.goal_ori, now.ee_ori)
        force = (goal.goal_pos - now.ee_pos) * KP[:3] + -now.ee_vel * KD[:3]
        moment = ori_error * KP[3:] + -now.ee_omega * KD[3:]
        jac = np.concatenate([now.jac_pos, now.jac_ori])
        _, lambda_pos, lambda_ori, nullspace = opspace_matrices(now.mass, jac, now.jac_pos, now.jac_ori)
        wrench = np.concatenate([np.dot(lambda_pos, force), np.dot(lambda_ori, moment)])
        torques = np.dot(jac.T, wrench) + self._joint_bias
        home = self._at_home.joint_pos
        torques += nullspace_torques(now.mass, nullspace, home, now.joint_pos, now.joint_vel)
        return torques


def clipped(values: np.ndarray, low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
    """Return what `np.clip` does, in a third of its time for a few numbers."""
    bounded: np.ndarray = np.minimum(np.maximum(values, low), high)
    return bounded


def span(numbers: tuple[int, ...]) -> slice:
    """Return consecutive numbers as a slice, by which arrays are views.

    Raises:
        ValueError: if they are not.
    """
    if list(numbers) != list(range(numbers[0], numbers[-1] + 1)):
        raise ValueError(f"{numbers} are not consecutive, as MuJoCo numbers the joints and motors of one arm")
    return slice(numbers[0], numbers[-1] + 1)
