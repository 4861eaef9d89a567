"""ManiSkill on CPU physics, one scene per sub-environment; environments are made, restored and drawn here.

Upstream's environment is kept whole: scenes, rewards and success are its own. Only the times differ: no image and no
observation inside a step, and physics that begin afresh with every episode. `EndEffectorControl` is upstream's
`pd_ee_delta_pose` with plain numbers, whose drive targets are the same bit for bit: its tests compare states.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import mani_skill.envs  # noqa: F401  registers its ids
import numpy as np
import sapien
import torch
from mani_skill.render.shaders import PREBUILT_SHADER_CONFIGS
from mani_skill.utils.geometry.rotation_conversions import euler_angles_to_matrix, matrix_to_quaternion
from sapien import physx

from vla_gym.adapters.maniskill.tasks import CAMERAS, CONTROL_MODE, TASKS, TaskReward
from vla_gym.simulator import SimStep
from vla_gym.specs import StartState, Task
from vla_gym.system.vulkan import DEVICE_VARIABLE, light_shaders, use_light_shaders

Quaternion = tuple[np.float32, np.float32, np.float32, np.float32]
"""(w, x, y, z)."""
IK_ITERATIONS = 100
"""Upstream's number for the solver."""
UNUSED_CAMERA = {"width": 8, "height": 8}
"""Of upstream's own videos, which are not made here; its default is 512 pixels."""


def make_env(
    task: str, image_size: int, *, num_envs: int = 1, sim_backend: str = "physx_cpu", drawn: bool = True
) -> Any:
    """Return an environment drawn on the device that `VLA_ZOO_SAPIEN_DEVICE` names (default: software).

    Args:
        task: ManiSkill's id without "-v1", e.g. "PickCube".
        image_size: side of the images, pixels.
        num_envs: scenes that move together; CPU physics hold exactly one.
        sim_backend: "physx_cpu" or "physx_cuda"; the latter runs where it draws.
        drawn: whether there will be images; without, no Vulkan driver is touched.

    It is upstream's environment without wrappers. Nothing is hidden from its cameras: goal markers that upstream
    leaves out of images (its policies read the coordinates) are the only way to show a goal to ours.
    """
    logging.getLogger("mani_skill").setLevel(logging.ERROR)  # upstream warns about its own scenes
    use_light_shaders()
    shaders = dataclasses.replace(PREBUILT_SHADER_CONFIGS["minimal"], shader_pack=light_shaders())
    sim_backend, render_backend = backends(sim_backend, os.environ.get(DEVICE_VARIABLE, "cpu"))
    made = gym.make(
        f"{task}-v1",
        num_envs=num_envs,
        obs_mode="none",
        reward_mode="none",
        control_mode=CONTROL_MODE,
        sim_backend=sim_backend,
        render_backend=render_backend if drawn else "none",
        sensor_configs={"shader_config": shaders, "width": image_size, "height": image_size},
        human_render_camera_configs={"shader_config": shaders, **UNUSED_CAMERA},
        viewer_camera_configs={"shader_config": shaders},
        disable_env_checker=True,
    )
    return made.unwrapped


def backends(sim_backend: str, device: str) -> tuple[str, str]:
    """ManiSkill's names of the physics and the drawing, both on GPU N where `device` is "cuda:N".

    Without a number SAPIEN takes the first GPU but PyTorch its current one, and a rank on another ends there.
    """
    _, colon, number = device.partition(":")
    physics = f"{sim_backend}{colon}{number}" if sim_backend == "physx_cuda" else sim_backend
    return physics, f"sapien_{device}"


def fresh_physics(env: Any) -> None:
    """Move all bodies into a new PhysX scene, in their order; call it before a reset.

    A PhysX scene remembers: contacts, and the numbers it has given to bodies, decide the order in which contacts are
    solved. So a reset in place is not exact for all tasks. In a new scene it is, bit for bit as after building
    everything anew, which takes 60 times as long (4 ms against 250 ms).
    """
    scene = env.scene
    old = scene.sub_scenes[0]
    env._set_scene_config()  # process-wide settings, which another environment may have changed
    system = physx.PhysxCpuSystem()
    system.timestep = scene.px.timestep
    entities = list(old.entities)
    for entity in entities:
        old.remove_entity(entity)
    new = sapien.Scene([system, old.render_system] if scene.can_render() else [system])
    for entity in entities:
        new.add_entity(entity)
    scene.sub_scenes[0] = new
    scene.px = system


def rest_drives(env: Any) -> None:
    """Aim every joint's drive at where the joint is; upstream leaves the last episode's aim until the next action."""
    robot = env.agent.robot._objs[0]
    for joint, position in zip(robot.active_joints, robot.qpos, strict=True):
        joint.set_drive_target(np.full((1, 1), position))
        joint.set_drive_velocity_target(np.zeros((1, 1)))


def render(env: Any, camera: str) -> np.ndarray:
    """Draw the present state of CPU physics through one camera, u8 `[H, W, 3]`.

    It comes straight from SAPIEN: upstream fetches what a GPU has drawn through PyTorch, whose CUDA context costs each
    worker hundreds of megabytes there.
    """
    env.scene.sub_scenes[0].update_render()
    sensor = env._sensors[camera]
    sensor.capture()
    (view,) = sensor.camera._render_cameras
    return np.ascontiguousarray(view.get_picture("Color")[..., :3])


def joint_positions(env: Any) -> np.ndarray:
    """Return positions of the robot's joints, float32 `[num_joints]`, fresh."""
    return np.array(env.agent.robot._objs[0].qpos, dtype=np.float32)


def state_hash(env: Any, name: str) -> str:
    """Return a hex string, equal exactly when two episodes of task `name` begin in the same state.

    It covers poses and velocities of all bodies, the joints' drive targets, the controllers' state, and the shapes.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=8)
    for array in (*_flatten(env.get_state_dict()), *_drive_targets(env)):
        digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    digest.update(_shapes(env))
    return digest.hexdigest()


def _flatten(state: Mapping[str, Any]) -> list[np.ndarray]:
    arrays: list[np.ndarray] = []
    for key in sorted(state):
        value = state[key]
        arrays += _flatten(value) if isinstance(value, Mapping) else [value.cpu().numpy()]
    return arrays


def _drive_targets(env: Any) -> list[np.ndarray]:
    return [
        np.concatenate([np.ravel(joint.drive_target), np.ravel(joint.drive_velocity_target)])
        for joint in env.agent.robot._objs[0].active_joints
    ]


def _shapes(env: Any) -> bytes:
    """Sizes and masses of the movable and kinematic bodies that are not the robot's."""
    parts: list[np.ndarray] = []
    for name in sorted(env.scene.actors):
        for body in env.scene.actors[name]._bodies:
            if isinstance(body, physx.PhysxRigidDynamicComponent):
                parts.append(np.array([body.mass]))
            for shape in body.collision_shapes:
                parts += [shape.local_pose.p, shape.local_pose.q]
                sizes = (getattr(shape, size, 0.0) for size in ("half_size", "radius", "half_length"))
                parts += [np.ravel(size) for size in sizes]
    return b"".join(np.ascontiguousarray(part, dtype=np.float64).tobytes() for part in parts)


class EndEffectorControl:
    """The controller of one robot in `CONTROL_MODE`; make it anew when the scene was rebuilt.

    Actions are relative to the measured pose: they move the hand along the root's axes and turn it about them.

    Upstream computes for batches on a GPU. For one robot on a CPU, tensors of seven numbers cost ten times the physics
    they command. Here the same operations run in the same order on float32 scalars; only the small rotation goes
    through upstream's own functions, whose cosines round differently from NumPy's.
    """

    def __init__(self, env: Any) -> None:
        self._substeps = env._sim_steps_per_control
        parts = env.agent.controller.controllers
        arm, gripper = parts["arm"], parts["gripper"]
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
        if not rebuild:
            fresh_physics(self._env)
        self._env.reset(seed=[seed], options={"reconfigure": rebuild})
        rest_drives(self._env)
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
