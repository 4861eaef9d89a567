"""`VLAEnv`: a plain `gymnasium.Env`, for tools that do not take vector environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from vla_gym.make import make_vec
from vla_gym.vector.infos import single_info


class VLAEnv(gym.Env[dict[str, Any], np.ndarray]):
    """A `VLAVectorEnv` of one (autoreset DISABLED) without its leading axis.

    Takes `make_vec`'s keyword arguments except `num_envs`, `group_size` and `autoreset_mode`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  copied per instance

    def __init__(self, env_id: str, **options: Any) -> None:
        self.envs = make_vec(env_id, 1, autoreset_mode="disabled", **options)
        self.observation_space = self.envs.single_observation_space
        self.action_space = self.envs.single_action_space
        self.metadata = {**self.metadata, "render_fps": self.envs.metadata["render_fps"]}
        self.render_mode = options.get("render_mode")

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin the schedule's next episode; `options` may hold `task_id` and `trial_id`.

        After a grid's last episode the first comes again.
        """
        super().reset(seed=seed)
        # With a mask a grid goes on where it was.
        obs, infos = self.envs.reset(seed=seed, options={**(options or {}), "reset_mask": np.array([True])})
        if self.envs.idle[0]:
            obs, infos = self.envs.reset()
        return _first(obs), single_info(infos, 0)

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Run one decision, float `[K, A]`."""
        if self.envs.finished[0]:
            raise gym.error.ResetNeeded("the episode has ended; call reset()")
        obs, reward_N, terminated_N, truncated_N, infos = self.envs.step(np.asarray(action)[None])
        return (
            _first(obs),
            float(reward_N[0]),
            bool(terminated_N[0]),
            bool(truncated_N[0]),
            single_info(infos, 0),
        )

    def render(self) -> np.ndarray | None:
        """Main-camera frame of the last observation, uint8 `[H, W, 3]`."""
        return self.envs.render()[0] if self.render_mode else None

    def close(self) -> None:
        """End the worker."""
        self.envs.close()


def _first(obs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value[0] for key, value in obs.items()}
