"""ManiSkill's `pd_ee_delta_pose` on CPU physics with plain numbers: upstream's drive targets, bit for bit.

Upstream computes for batches on a GPU. For one robot on a CPU, tensors of seven numbers cost ten times the physics
they command. Here the same operations run in the same order on float32 scalars; only the small rotation goes
through upstream's own functions, whose cosines round differently from NumPy's. Tests of `simulator` compare states.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sapien
import torch
from mani_skill.agents.controllers import PDEEPoseController, PDJointPosMimicController
from mani_skill.utils.geometry.rotation_conversions import euler_angles_to_matrix, matrix_to_quaternion

from vla_gym.adapters.maniskill.scene import joint_positions, make_env, render, reset_to_seed, state_hash
from vla_gym.adapters.maniskill.tasks import CAMERAS, TASKS, TaskReward
from vla_gym.simulator import SimStep
from vla_gym.specs import StartState, Task

Quaternion = tuple[np.float32, np.float32, np.float32, np.float32]
"""(w, x, y, z)."""
IK_ITERATIONS = 100
"""Upstream's number for the solver."""


class EndEffectorControl:
    """The controller of one robot; make it anew when the scene was rebuilt."""

    def __init__(self, env: Any) -> None:
        self.agent = env.agent
        self._substeps = env._sim_steps_per_control
        parts = env.agent.controller.controllers
        arm, gripper = parts["arm"], parts["gripper"]
        assert isinstance(arm, PDEEPoseController)
        assert isinstance(gripper, PDJointPosMimicController)
        config = arm.config
        assert config.use_delta
        assert not config.use_target
        assert not config.interpolate
        assert config.frame == "root_translation:root_aligned_body_rotation"
        self._arm = arm
        self._robot = env.agent.robot._objs[0]
        self._hand, self._root = arm.ee_link._objs[0], arm.root_link._objs[0]
        self._arm_joints = [joint._objs[0] for joint in arm.joints]
        self._arm_indices = arm.active_joint_indices.numpy()
        self._fingers = [joint._objs[0] for joint in gripper.joints]
        kinematics = arm.kinematics
        self._solver, self._link = kinematics.pmodel, kinematics.end_link_idx
        self._solver_inputs = kinematics.pmodel_active_joint_indices.numpy()
        self._solver_outputs = kinematics.pmodel_controlled_joint_indices.numpy()
        self._solver_mask = kinematics.qmask.numpy()
        self._reach = _scaling(arm, slice(0, 3))
        self._grip = _scaling(gripper, slice(0, 1))

    def advance(self, env: Any, action_A: np.ndarray) -> None:
        """One control step (1/20 s) with float32 `[7]`, as upstream's `_step_action` does it."""
        self._aim_arm(action_A[:6])
        centre, half = self._grip
        opening = (centre + half * np.clip(action_A[6:], -1, 1)).reshape(1, 1)
        for finger in self._fingers:
            finger.set_drive_target(opening)
        physics = env.scene.px
        for _ in range(self._substeps):
            physics.step()

    def _aim_arm(self, action_6: np.ndarray) -> None:
        start = self._robot.qpos
        result, found, _ = self._solver.compute_inverse_kinematics(
            self._link,
            self._target(action_6),
            initial_qpos=start[self._solver_inputs],
            active_qmask=self._solver_mask,
            max_iterations=IK_ITERATIONS,
        )
        if found:
            targets = np.asarray(result)[self._solver_outputs].astype(np.float32)
        else:
            targets = start[self._arm_indices]
        for joint, target in zip(self._arm_joints, targets, strict=True):
            joint.set_drive_target(target.reshape(1, 1))

    def _target(self, action_6: np.ndarray) -> sapien.Pose:
        """The hand's pose in the root's frame, moved and turned by the action."""
        centre, half = self._reach
        root, hand = self._root.entity_pose, self._hand.entity_pose
        w, x, y, z = root.q
        to_root = (w, -x, -y, -z)
        position = _rotate(to_root, -root.p) + _rotate(to_root, hand.p)
        position += centre + half * np.clip(action_6[:3], -1, 1)
        return sapien.Pose(position, _upright(_product(self._turn(action_6), _upright(_product(to_root, hand.q)))))

    def _turn(self, action_6: np.ndarray) -> np.ndarray:
        scaled_16 = self._arm._clip_and_scale_action(torch.from_numpy(action_6[None]))
        return matrix_to_quaternion(euler_angles_to_matrix(scaled_16[:, 3:], "XYZ"))[0].numpy()


def _scaling(controller: Any, dims: slice) -> tuple[np.ndarray, np.ndarray]:
    """Centre and half width of the range that [-1, 1] stands for, float32."""
    low, high = controller.action_space_low[dims].numpy(), controller.action_space_high[dims].numpy()
    half = np.float32(0.5)
    return half * (high + low), half * (high - low)


def _product(a: Any, b: Any) -> Quaternion:
    aw, ax, ay, az = a
    bw, bx, by, bz = b
    return (
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    )


def _upright(q: Quaternion) -> Quaternion:
    """The same rotation with w >= 0."""
    return (-q[0], -q[1], -q[2], -q[3]) if q[0] < 0 else q


def _rotate(q: Any, point: np.ndarray) -> np.ndarray:
    w, x, y, z = q
    turned = _product(_product(q, (np.float32(0), *point)), (w, -x, -y, -z))
    return np.array(turned[1:], dtype=np.float32)


class ManiSkillSimulator:
    """One sub-environment; see `vla_gym.simulator.Simulator`.

    Args:
        tasks, image_size, cameras: as of `Simulator`, with one task; without cameras no Vulkan driver is touched.
        first_seed: upstream's seed of trial 0; trial k has `first_seed + k`.
        task_reward: "success" (0 or 1) or "dense" (upstream's normalised one, 0 .. 1).
    """

    def __init__(
        self,
        tasks: tuple[Task, ...],
        image_size: int,
        cameras: tuple[str, ...],
        *,
        first_seed: int,
        task_reward: TaskReward = "success",
    ) -> None:
        (self._task,) = tasks
        self._cameras = {key: CAMERAS[key] for key in cameras}
        self._first_seed, self._dense = first_seed, task_reward == "dense"
        self._env: Any = make_env(self._task.name, image_size, drawn=bool(cameras))
        # Upstream builds a new scene at every reset of a task whose shapes are random; here only for another trial.
        self._random_shapes = self._env.reconfiguration_freq != 0
        self._env.reconfiguration_freq = 0
        self._shapes_of: int | None = None
        self._control = EndEffectorControl(self._env)

    def reset(self, start: StartState) -> str:
        seed = self._first_seed + start.trial_id
        rebuild = self._random_shapes and self._shapes_of != seed
        reset_to_seed(self._env, seed, reconfigure=rebuild)
        self._shapes_of = seed
        if rebuild:
            self._control = EndEffectorControl(self._env)
        return state_hash(self._env, self._task.name)

    def step(self, action_A: np.ndarray) -> SimStep:
        """Advance 1/20 s; success ends the episode."""
        self._control.advance(self._env, action_A)
        info = self._env.evaluate()
        success = bool(info["success"][0])
        reward = float(success)
        if self._dense:
            dense = self._env.compute_normalized_dense_reward(
                obs=None, action=torch.from_numpy(action_A[None]), info=info
            )
            reward = float(dense[0])
        return SimStep(reward=reward, success=success, terminated=success)

    def observe(self) -> dict[str, np.ndarray]:
        """Draw now; `state` is the joints' positions."""
        observation = {"state": joint_positions(self._env)}
        for key, camera in self._cameras.items():
            observation[key] = render(self._env, camera)
        return observation

    def privileged(self) -> np.ndarray:
        """Return the state for a scripted expert, float64; poses are position and quaternion (w, x, y, z) in the world.

        Pose of the point between the fingertips (7), metres between the fingers, 1 while they hold the first thing
        else 0, then the pose of each of the task's `things` (7 each). The robot's root has the world's axes.
        """
        env = self._env
        things = [getattr(env, name) for name in TASKS[self._task.name].things]
        return np.concatenate(
            [
                _pose(env.agent.tcp),
                [joint_positions(env)[-2:].sum(), bool(env.agent.is_grasping(things[0])[0])],
                *(_pose(thing) for thing in things),
            ]
        )

    def close(self) -> None:
        self._env.close()


def _pose(body: Any) -> np.ndarray:
    return np.asarray(body.pose.raw_pose[0].numpy(), dtype=np.float64)
