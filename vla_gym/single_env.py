"""`VLAEnv`: a plain `gymnasium.Env`, for tools that do not take vector environments."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from vla_gym.errors import BadValue, check_known
from vla_gym.make import make_vec
from vla_gym.observation import encode_instructions
from vla_gym.specs import Benchmark
from vla_gym.vector.step import EnvStep

ENCODINGS = ("bytes", "text")
"""Encodings of the instruction in an observation."""
_OF_SEVERAL = ("num_envs", "group_size", "autoreset_mode")
"""Options of `make_vec` that one environment does not take."""


class VLAEnv(gym.Env[dict[str, Any], np.ndarray]):
    """A `VLAVectorEnv` of one (autoreset DISABLED) without its leading axis.

    Takes `make_vec`'s keyword arguments except `num_envs`, `group_size` and `autoreset_mode`. Without `seed` it draws
    one, so that several made alike (`make_vec_env(id, n_envs=4)` of Stable-Baselines3) begin different episodes.

    `instruction` of an observation is uint8 `[MAX_INSTRUCTION_BYTES]`, UTF-8, as Stable-Baselines3 and rl_zoo3 hold
    arrays only; with `encoding="text"` it is a `str`. `info["instruction"]` is always the text, and
    `info["is_success"]` says at an episode's end whether it was solved. `info["episode"]` is left to wrappers
    (Gymnasium's `RecordEpisodeStatistics`, Stable-Baselines3's `Monitor`).
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  copied per instance

    def __init__(
        self, env_id: str | Benchmark, *, encoding: str = "bytes", seed: int | None = None, **options: Any
    ) -> None:
        check_known("encoding", encoding, ENCODINGS)
        for name in _OF_SEVERAL:
            if name in options:
                raise BadValue(f"this is one environment, which takes no {name}; vla_gym.make_vec makes several")
        seed = secrets.randbits(31) if seed is None else seed
        self.envs = make_vec(env_id, 1, autoreset_mode="disabled", seed=seed, **options)
        self._encoded = encoding == "bytes"
        space = self.envs.layout.bytes_space() if self._encoded else self.envs.single_observation_space
        self.observation_space = space
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
        step = self.envs.run_reset(seed=seed, options={**(options or {}), "reset_mask": np.array([True])})
        if step.idle_n[0]:
            step = self.envs.run_reset()
        return self._observation(step), self._info(step)

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Run one decision, float `[K, A]`, or `[A]` where K is 1."""
        if self.envs.finished[0]:
            raise gym.error.ResetNeeded("the episode has ended; call reset()")
        step = self.envs.run_step(np.asarray(action)[None])
        return (
            self._observation(step),
            float(step.reward_n[0]),
            bool(step.terminated_n[0]),
            bool(step.truncated_n[0]),
            self._info(step),
        )

    def render(self) -> np.ndarray | None:
        """Main-camera frame of the last observation, uint8 `[H, W, 3]`."""
        return self.envs.render()[0] if self.render_mode else None

    def close(self) -> None:
        self.envs.close()

    def _observation(self, step: EnvStep) -> dict[str, Any]:
        obs = encode_instructions(step.obs) if self._encoded else step.obs
        return {key: value[0] for key, value in obs.items()}

    def _info(self, step: EnvStep) -> dict[str, Any]:
        info = step.info(0) | {"instruction": step.obs["instruction"][0]}
        stats = info.pop("episode", None)
        if stats is not None:
            info["is_success"] = stats["success_once"]
        return info
