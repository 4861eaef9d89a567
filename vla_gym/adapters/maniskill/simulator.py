"""A ManiSkill task on CPU physics, one scene per slot: upstream's physics, success and pictures, drawn on demand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vla_gym.adapters.maniskill.control import EndEffectorControl
from vla_gym.adapters.maniskill.scene import fingerprint, joint_positions, make_env, render, reset_to_seed
from vla_gym.adapters.maniskill.tasks import CAMERAS, TASKS, TaskReward
from vla_gym.simulator import SimStep
from vla_gym.specs import StartState, Task


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
        """Restore a start state; nothing is drawn."""
        seed = self._first_seed + start.trial_id
        rebuild = self._random_shapes and self._shapes_of != seed
        reset_to_seed(self._env, seed, reconfigure=rebuild)
        self._shapes_of = seed
        if rebuild:
            self._control = EndEffectorControl(self._env)
        return fingerprint(self._env, self._task.name)

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
        """Free the scene."""
        self._env.close()


def _pose(body: Any) -> np.ndarray:
    return np.asarray(body.pose.raw_pose[0].numpy(), dtype=np.float64)
