"""ManiSkill environments as our adapters use them: made lean, restored exactly, drawn on demand.

Upstream's environment is kept whole: scenes, controllers, rewards and success are its own. Only the times differ: no
image and no observation inside a step, and physics that begin afresh with every episode.
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
from mani_skill.render.shaders import PREBUILT_SHADER_CONFIGS
from sapien import physx

from vla_gym.adapters.maniskill.tasks import CONTROL_MODE
from vla_gym.system.vulkan import DEVICE_VARIABLE, light_shaders, use_light_shaders

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


def reset_to_seed(env: Any, seed: int, *, reconfigure: bool) -> None:
    """Reset to upstream's start state of `seed`, whatever was played before; `reconfigure` builds the scene anew."""
    if not reconfigure:
        fresh_physics(env)
    env.reset(seed=[seed], options={"reconfigure": reconfigure})
    rest_drives(env)


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
