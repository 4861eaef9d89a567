"""Shared by all checks of the contract: `require`, and the promises of a single observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vla_gym.vector.vector_env import Observation, VLAVectorEnv

INFO_DTYPES: dict[str, type] = {
    "success": np.bool_,
    "task_id": np.int64,
    "trial_id": np.int64,
    "executed": np.int64,
    "start_state": np.object_,
    "step_rewards": np.float32,
    "idle": np.bool_,
    "lost": np.bool_,
}
"""Keys that `infos` always has; each comes with its `_key` mask."""


def require(condition: bool | np.bool_ | np.ndarray, promise: str) -> None:
    """Raise `AssertionError` unless the condition, a bool or an array of bools, holds everywhere."""
    if not np.all(condition):
        raise AssertionError(f"promise broken: {promise}")


def check_observation(envs: VLAVectorEnv, obs: Observation, infos: Mapping[str, Any]) -> None:
    """The observation lies in its space, its texts are the tasks', `infos` is complete."""
    require(obs in envs.observation_space, "the observation is in observation_space")
    for env, task_id in enumerate(infos["task_id"].tolist()):
        text = envs.benchmark.tasks[task_id].instruction
        require(obs["instruction"][env] == text, f"slot {env} has its task's instruction: {text!r}")
    require(all(image.std() > 0 for image in obs["image"]), "pictures show something")
    for key, dtype in INFO_DTYPES.items():
        value, mask_N = infos.get(key), infos.get(f"_{key}")
        require(isinstance(value, np.ndarray) and value.dtype == dtype, f"infos['{key}'] is {dtype.__name__}")
        require(isinstance(mask_N, np.ndarray) and mask_N.dtype == np.bool_, f"infos['_{key}'] is a mask")


def has_episode(infos: Mapping[str, Any]) -> np.ndarray:
    """Bool `[N]`: `infos` has statistics of an episode."""
    mask_N = infos.get("_episode")
    return np.zeros(len(infos["_success"]), dtype=np.bool_) if mask_N is None else np.asarray(mask_N)


def as_bytes(obs: Observation) -> dict[str, object]:
    """Arrays as bytes, so that observations can be compared with ==."""
    return {key: value.tobytes() if isinstance(value, np.ndarray) else value for key, value in obs.items()}


def fresh(old: Observation, new: Observation) -> bool:
    """Whether no array of `new` shares memory with one of `old`."""
    return not any(np.shares_memory(old[key], new[key]) for key in old if isinstance(old[key], np.ndarray))


def idle_actions(envs: VLAVectorEnv) -> np.ndarray:
    """Zeros, float32 `[N, K, A]`."""
    return np.zeros((envs.num_envs, *envs.single_action_space.shape), dtype=np.float32)
