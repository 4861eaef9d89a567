"""One sub-environment with LeRobot's names of observations, attributes and infos; imports no lerobot."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from vla_gym.observation import ObservationLayout
from vla_gym.registry import find_benchmark
from vla_gym.single_env import VLAEnv

CAMERAS = {"image": "image", "wrist_image": "image2"}
"""Our camera -> its name under `pixels`; LeRobot's policies read `observation.images.<name>`."""
IMAGE_SIZES = {"LIBERO": 360, "MetaWorld": 480}
"""Family -> side of the images of LeRobot's own environment, pixels (`envs/configs.py` of lerobot 0.4.4 and 0.6.1); our
protocol `lerobot` of these families has its horizons."""
ONE_IMAGE = {"MetaWorld"}
"""Families of which `pixels` is the image itself, `observation.image` of a policy."""


def lerobot_observation(obs: Mapping[str, Any], *, one_image: bool) -> dict[str, Any]:
    """Return an observation of ours as `pixels` (arrays uint8 `[H, W, 3]`) and `agent_pos` (float32 `[S]`)."""
    images = {name: obs[camera] for camera, name in CAMERAS.items() if camera in obs}
    state = {"agent_pos": obs["state"]} if "state" in obs else {}
    return {"pixels": images["image"] if one_image else images, **state}


class LeRobotEnv(gym.Env[dict[str, Any], np.ndarray]):
    """An environment of an id as `lerobot-eval` plays it: one simulator step a `step`, `is_success` in every info.

    `reset(seed=n)` begins start state n of the benchmark's, counted through its tasks first: consecutive seeds, which
    LeRobot gives consecutive episodes, play all of them in turn. Without a seed the start state is drawn.

    The simulator starts with the first episode, as LeRobot makes the environments of all tasks before it plays one.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  copied per instance
    render_mode = "rgb_array"
    _env: VLAEnv | None = None

    def __init__(self, env_id: str, *, image_size: int | None = None, **options: Any) -> None:
        family = re.split("[-/]", find_benchmark(env_id).id)[0]
        protocol = {"protocol": "lerobot"} if family in IMAGE_SIZES else {}
        self.benchmark = find_benchmark(env_id, **{**protocol, **options})
        self._one_image = family in ONE_IMAGE
        layout = ObservationLayout(
            cameras=self.benchmark.cameras[:1] if self._one_image else self.benchmark.cameras,
            image_size=image_size or IMAGE_SIZES.get(family, self.benchmark.default_image_size),
            state_dim=self.benchmark.state_dim,
        )
        self._kwargs: dict[str, Any] = {
            "image_size": layout.image_size,
            "wrist_camera": "wrist_image" in layout.cameras,
        }
        named = lerobot_observation(dict(layout.space()), one_image=self._one_image)
        self.observation_space: spaces.Dict = spaces.Dict(
            {key: spaces.Dict(part) if isinstance(part, dict) else part for key, part in named.items()}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (self.benchmark.action_dim,), np.float32)
        self.metadata = {**self.metadata, "render_fps": round(self.benchmark.control_hz)}
        self._max_episode_steps = max(task.horizon for task in self.benchmark.tasks)
        self.task, self.task_description = self.benchmark.tasks[0].name, self.benchmark.tasks[0].instruction

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin the episode of a seed; `options` are LeRobot's own, of its wrappers."""
        super().reset(seed=seed)
        self._env = self._env or VLAEnv(
            self.benchmark, encoding="text", num_workers=0, render_mode="rgb_array", **self._kwargs
        )
        turn, task_id = divmod(int(self.np_random.integers(2**31)) if seed is None else seed, len(self.benchmark.tasks))
        task = self.benchmark.tasks[task_id]
        self.task, self.task_description = task.name, task.instruction
        obs, info = self._env.reset(options={"task_id": task_id, "trial_id": turn % task.num_trials})
        return lerobot_observation(obs, one_image=self._one_image), self._info(info)

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Run one simulator step, float `[A]`."""
        assert self._env is not None, "reset() comes first"
        obs, reward, terminated, truncated, info = self._env.step(action)
        named = lerobot_observation(obs, one_image=self._one_image)
        return named, reward, terminated, truncated, self._info(info)

    def render(self) -> np.ndarray | None:
        """Main-camera frame of the last observation, uint8 `[H, W, 3]`."""
        return self._env.render() if self._env else None

    def close(self) -> None:
        if self._env:
            self._env.close()
        self._env = None

    def _info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        return {"is_success": bool(info.get("is_success", False)), "task": self.task}
