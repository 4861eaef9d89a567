"""Robosuite's OSC_POSE controller and Panda gripper on bare MuJoCo, bit for bit.

robosuite 1.4.0 (MIT) runs three full forward passes per 2 ms substep and reads the state through Python
objects; here one `mj_step1`/`mj_step2` pair does the same arithmetic. The numerical kernels are
robosuite's own compiled functions, called from compiled code on arrays of the same memory layout, so torques agree
exactly (`tests/vla_gym/adapters/libero/test_identity.py`). Source: robosuite/controllers/osc.py, base_controller.py,
robots/single_arm.py, models/grippers/panda_gripper.py.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import mujoco
import numba
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
Pair = tuple[np.ndarray, np.ndarray]
"""A position and an orientation, or low and high bounds."""


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


class ArmView(NamedTuple):
    """MuJoCo's float64 arrays of a model of V degrees of freedom and an arm of N joints (world frame; metres, radians,
    seconds)."""

    ee_pos_3: np.ndarray
    ee_ori_33: np.ndarray
    velocity_V: np.ndarray
    joint_pos_N: np.ndarray
    jac_pos_3V: np.ndarray
    jac_ori_3V: np.ndarray
    mass_VV: np.ndarray
    """Joint-space inertia."""
    first: int
    """The arm's first degree of freedom."""

    def copied(self) -> ArmView:
        """Return the present values, which later steps do not change."""
        arrays = {name: array.copy() for name, array in self._asdict().items() if name != "first"}
        return self._replace(**arrays)


class ControllerState(NamedTuple):
    """The part of the controller's state that outlives a policy step; arrays are never changed in place."""

    gripper: np.ndarray
    """Commanded finger positions `[2]` in [-1, 1]."""
    goal_pos: np.ndarray
    goal_ori: np.ndarray


class OscPose:
    """Operational-space pose control of one arm: `begin(action)` once per policy step, `apply()` per substep.

    Create it with the arm at its home pose and nothing else moved: robosuite reads the simulator here and, in the
    first substep of an episode, does *not* read it again. `at_home` is what it then reads, where that is known.
    """

    def __init__(
        self, model: mujoco.MjModel, data: mujoco.MjData, index: ArmIndex, at_home: ArmView | None = None
    ) -> None:
        self._model, self._data, self._site = model, data, index.site
        joints, arm, fingers = span(index.qvel), span(index.actuators), span(index.gripper_actuators)
        self._view = ArmView(
            ee_pos_3=data.site_xpos[index.site],
            ee_ori_33=data.site_xmat[index.site].reshape(3, 3),
            velocity_V=data.qvel,
            joint_pos_N=data.qpos[span(index.qpos)],
            jac_pos_3V=np.zeros((3, model.nv)),
            jac_ori_3V=np.zeros((3, model.nv)),
            mass_VV=np.zeros((model.nv, model.nv)),
            first=joints.start,
        )
        self._joint_bias = data.qfrc_bias[joints]
        self._torque_ctrl, self._finger_ctrl = data.ctrl[arm], data.ctrl[fingers]
        torque_low, torque_high = model.actuator_ctrlrange[arm].T.copy()
        self._torque_bounds = (torque_low, torque_high)
        low, high = model.actuator_ctrlrange[fingers].T
        self._finger_bias, self._finger_weight = 0.5 * (high + low), 0.5 * (high - low)
        if at_home is None:
            mujoco.mj_forward(model, data)
            at_home = self._read().copied()
        self.at_home = at_home
        self.reset()

    def reset(self) -> None:
        """Return to the moment of creation."""
        self._state = ControllerState(np.zeros(2), self.at_home.ee_pos_3, self.at_home.ee_ori_33)
        self._finger_step = np.zeros(2)
        self._unread = True

    def snapshot(self) -> ControllerState:
        """Return the state at a policy step's end."""
        return self._state

    def restore(self, state: ControllerState) -> None:
        """Continue from a policy step's end."""
        self._state, self._unread = state, False

    def solve_as_upstream(self) -> None:
        """Solve for accelerations as often as upstream does before the coming substep's own solve.

        Once for its step loop and once more when the controller reads the simulator. Each solve starts
        from the last one's answer, so leaving them out changes results by 1e-17.
        """
        for _ in range(1 if self._unread else 2):
            mujoco.mj_forwardSkip(self._model, self._data, mujoco.mjtStage.mjSTAGE_VEL, True)

    def begin(self, action_A: np.ndarray) -> None:
        """Set the goal of one policy step from a float64 action `[7]`; position stage must be up to date."""
        seen = self.at_home if self._unread else self._view
        delta = np.clip(action_A[:6], -1.0, 1.0) * np.array(ACTION_SCALE)
        goal_ori = self._state.goal_ori
        if delta[3:].any():  # robosuite keeps the old goal orientation when no rotation is asked for
            goal_ori = set_goal_orientation(delta[3:], seen.ee_ori_33)
        self._state = self._state._replace(goal_pos=seen.ee_pos_3 + delta[:3], goal_ori=goal_ori)
        self._finger_step = GRIPPER_SIGNS * GRIPPER_SPEED * np.sign(action_A[6:])

    def apply(self) -> None:
        """Write one substep's torques and finger targets into `data.ctrl`."""
        # As `np.clip`, in a third of its time for a few numbers.
        gripper = np.minimum(np.maximum(self._state.gripper + self._finger_step, -1.0), 1.0)
        self._state = self._state._replace(gripper=gripper)
        self._finger_ctrl[:] = self._finger_bias + self._finger_weight * gripper
        seen, goal = self.at_home if self._unread else self._read(), (self._state.goal_pos, self._state.goal_ori)
        write_torques(seen, goal, self.at_home.joint_pos_N, self._joint_bias, self._torque_bounds, self._torque_ctrl)
        self._unread = False

    def _read(self) -> ArmView:
        """Return the view with Jacobian and inertia up to date; its other arrays are MuJoCo's own."""
        view = self._view
        mujoco.mj_jacSite(self._model, self._data, view.jac_pos_3V, view.jac_ori_3V, self._site)
        mujoco.mj_fullM(self._model, view.mass_VV, self._data.qM)
        return view


@numba.njit(cache=True)
def write_torques(
    arm: ArmView, goal: Pair, home_N: np.ndarray, bias_N: np.ndarray, bounds: Pair, ctrl_N: np.ndarray
) -> None:
    """Write into `ctrl_N` the torques, within bounds, towards the goal's position and orientation and, in the null
    space, towards `home_N`; `bias_N` holds against gravity and Coriolis forces. Newton metres.

    One call, for each array that is returned to Python costs a microsecond. The matrices lie column by column, as
    robosuite's indexing leaves them: the layout decides which BLAS kernel runs.
    """
    joints = len(home_N)
    jac_pos_3N, jac_ori_3N = np.empty((joints, 3)).T, np.empty((joints, 3)).T
    jac_6N, mass_NN = np.empty((joints, 6)).T, np.empty((joints, joints)).T
    for joint in range(joints):
        for row in range(3):
            jac_pos_3N[row, joint] = arm.jac_pos_3V[row, arm.first + joint]
            jac_ori_3N[row, joint] = arm.jac_ori_3V[row, arm.first + joint]
        for row in range(joints):
            mass_NN[row, joint] = arm.mass_VV[arm.first + row, arm.first + joint]
    jac_6N[:3], jac_6N[3:] = jac_pos_3N, jac_ori_3N
    ee_vel_3, ee_omega_3 = np.dot(arm.jac_pos_3V, arm.velocity_V), np.dot(arm.jac_ori_3V, arm.velocity_V)
    joint_vel_N = arm.velocity_V[arm.first : arm.first + joints]

    force_3 = (goal[0] - arm.ee_pos_3) * KP[:3] + -ee_vel_3 * KD[:3]
    moment_3 = orientation_error(goal[1], arm.ee_ori_33) * KP[3:] + -ee_omega_3 * KD[3:]
    _, lambda_pos_33, lambda_ori_33, nullspace_NN = opspace_matrices(mass_NN, jac_6N, jac_pos_3N, jac_ori_3N)
    wrench_6 = np.concatenate((np.dot(lambda_pos_33, force_3), np.dot(lambda_ori_33, moment_3)))
    torques_N = np.dot(jac_6N.T, wrench_6) + bias_N
    torques_N += nullspace_torques(mass_NN, nullspace_NN, home_N, arm.joint_pos_N, joint_vel_N)
    ctrl_N[:] = np.minimum(np.maximum(torques_N, bounds[0]), bounds[1])


def span(numbers: tuple[int, ...]) -> slice:
    """Return consecutive numbers as a slice, by which arrays are views.

    Raises:
        ValueError: if they are not.
    """
    if list(numbers) != list(range(numbers[0], numbers[-1] + 1)):
        raise ValueError(f"{numbers} are not consecutive, as MuJoCo numbers the joints and motors of one arm")
    return slice(numbers[0], numbers[-1] + 1)
