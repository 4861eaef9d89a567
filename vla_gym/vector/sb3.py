"""`SB3VecEnv`: a `VLAVectorEnv` as a Stable-Baselines3 `VecEnv`.

The only module of this package that imports Stable-Baselines3 (and with it torch); `as_sb3` loads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvStepReturn

from vla_gym.errors import BadValue
from vla_gym.observation import encode_instruction
from vla_gym.vector.infos import single_info
from vla_gym.vector.inputs import join_options
from vla_gym.vector.vector_env import Observation, VLAVectorEnv


class SB3VecEnv(VecEnv):
    """Same-step resets, observations as arrays only (`instruction` uint8 `[N, MAX_INSTRUCTION_BYTES]`, UTF-8).

    Each `infos[i]` is `VLAVectorEnv`'s, of the episode that was just stepped, with additions: always
    `TimeLimit.truncated`; on the last decision `is_success`, `terminal_observation` and, in `episode`, SB3's keys
    `r`, `l` (simulator steps) and `t` (seconds since the view was made). The next episode's first info is in
    `reset_infos[i]`. Idle environments are never done; where all are idle, a step raises.
    """

    def __init__(self, envs: VLAVectorEnv) -> None:
        self.envs = envs
        self._action: np.ndarray | None = None
        self._began = time.perf_counter()
        super().__init__(envs.num_envs, envs.layout.bytes_space(), envs.single_action_space)

    def set_options(self, options: list[dict] | dict | None = None) -> None:
        """Set options of the next reset: one dict for `VLAVectorEnv.reset`, or a list of one per environment.

        Each dict of a list names `task_id` and `trial_id`, or all are empty. Raises `BadValue` for a list of
        another length or in which only some name a start state, `UnknownName` for another key.
        """
        if isinstance(options, list):
            options = join_options(options, self.num_envs)
        super().set_options(options)

    def reset(self) -> dict[str, np.ndarray]:
        """Begin an episode in every environment; seed and options set before are used once."""
        obs, infos = self.envs.reset(seed=self._seeds[0], options=self._options[0])
        self.reset_infos = [single_info(infos, env) for env in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return encode_instructions(obs)

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for `step_wait`."""
        self._action = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Run one decision in every environment and begin new episodes where one ended."""
        assert self._action is not None, "step_wait without step_async"
        action, self._action = self._action, None
        raw, reward_N, terminated_N, truncated_N, batched = self.envs.step(action)
        if self.envs.idle.all():
            raise BadValue(
                "every start state of the grid has been played: ask for no more episodes than there are, or reset()"
            )
        done_N = terminated_N | truncated_N
        obs = encode_instructions(raw)
        infos = self.env_infos(batched, obs, terminated_N, truncated_N, range(self.num_envs))
        if done_N.any():
            raw, batched = self.envs.reset(options={"reset_mask": done_N})
            obs = encode_instructions(raw)
            for env in np.flatnonzero(done_N).tolist():
                self.reset_infos[env] = single_info(batched, env)
        return obs, reward_N.astype(np.float32), done_N, infos

    def env_infos(
        self,
        batched: Mapping[str, Any],
        obs: Mapping[str, np.ndarray],
        terminated_n: np.ndarray,
        truncated_n: np.ndarray,
        rows: Iterable[int],
    ) -> list[dict[str, Any]]:
        """Infos (see the class) of the given rows of a step's results."""
        infos = []
        for row in rows:
            info = single_info(batched, row)
            info["TimeLimit.truncated"] = bool(truncated_n[row] and not terminated_n[row])
            if terminated_n[row] or truncated_n[row]:
                self._finish(info, {key: value[row].copy() for key, value in obs.items()})
            infos.append(info)
        return infos

    def close(self) -> None:
        """Close the environment beneath."""
        self.envs.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Last main-camera frame of each environment."""
        return self.envs.render()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of the environment beneath, once per index."""
        return [getattr(self.envs, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the environment beneath."""
        setattr(self.envs, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the environment beneath once; its result once per index."""
        result = getattr(self.envs, method_name)(*method_args, **method_kwargs)
        return [result for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """True for `Monitor`: `info["episode"]` counts whole episodes, as its record does."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def _finish(self, info: dict[str, Any], last_obs: dict[str, Any]) -> None:
        info["terminal_observation"] = last_obs
        stats = info.get("episode")
        if stats is not None:
            info["is_success"] = stats["success_once"]
            stats["r"], stats["l"] = stats["return"], stats["length"]
            stats["t"] = round(time.perf_counter() - self._began, 6)


def encode_instructions(obs: Observation) -> dict[str, np.ndarray]:
    """The observation with its instructions as uint8 `[N, MAX_INSTRUCTION_BYTES]`."""
    rows = [_encoded(instruction) for instruction in obs["instruction"]]
    return {**obs, "instruction": np.stack(rows)}


_cache: dict[str, np.ndarray] = {}


def _encoded(instruction: str) -> np.ndarray:
    if instruction not in _cache:
        _cache[instruction] = encode_instruction(instruction)
    return _cache[instruction]
