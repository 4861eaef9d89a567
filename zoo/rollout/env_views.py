"""Environments of `vla_gym` in any form as Stable-Baselines3's `VecEnv`; others unchanged."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from vla_gym import make_vec
from vla_gym.errors import BadValue
from vla_gym.single_env import VLAEnv
from vla_gym.vector.sb3 import SB3VecEnv
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.distributed.process_group import ProcessGroup


def chunk_view(env: Any) -> Any:
    """The view for chunk policies; a name that Gymnasium has not registered is an id of `vla_gym`."""
    if isinstance(env, str) and env not in gym.registry:
        env = make_vec(env)
    return vector_view(env)


def plain_view(env: Any) -> Any:
    """The view for policies with SB3's own networks: images channels-first."""
    env = vector_view(env)
    return env if vla_envs(env) is None else BaseAlgorithm._wrap_env(env)


def vector_view(env: Any) -> Any:
    """A `VLAVectorEnv`, a result of `gym.make("vla_gym/...")`, or that name, as `as_sb3()`; anything else unchanged.

    Raises `BadValue` for a single environment in wrappers, which would be lost, and for Stable-Baselines3's wrappers
    around a `VLAVectorEnv`, which they do not understand.
    """
    if isinstance(env, str) and env.startswith("vla_gym/") and env in gym.registry:
        env = gym.make(env)
    if isinstance(env, gym.Env) and isinstance(env.unwrapped, VLAEnv):
        env = _vector_env_of(env)
    if isinstance(env, VecEnv) and isinstance(env.unwrapped, VLAVectorEnv):
        raise BadValue(f"{type(env).__name__} is Stable-Baselines3's and takes its view of the environment: as_sb3()")
    return env.as_sb3() if isinstance(env, VLAVectorEnv) else env


def _vector_env_of(env: gym.Env[Any, Any]) -> VLAVectorEnv:
    """The vector environment, of one sub-environment, beneath a result of `gym.make`."""
    while isinstance(env, OrderEnforcing | PassiveEnvChecker):
        env = env.env
    if not isinstance(env, VLAEnv):
        raise BadValue(
            f"{type(env).__name__} around a single environment of vla_gym would be lost: give "
            f"vla_gym.make_vec('{env.unwrapped.envs.benchmark.id}', num_envs=...) instead"  # type: ignore[attr-defined]
        )
    return env.envs


def vla_envs(env: object) -> VLAVectorEnv | None:
    """The environment of `vla_gym` beneath all wrappers; None when there is none."""
    base = env.unwrapped if isinstance(env, VecEnv) else None
    return base.envs if isinstance(base, SB3VecEnv) else None


def check_share(envs: VLAVectorEnv, process_group: ProcessGroup) -> None:
    """Raise `BadValue` unless these are this rank's groups of all: ranks with the same ones would begin in the same
    states, draw the same decisions and collect the same rollout."""
    groups = envs.num_envs // envs.config.group_size
    first = process_group.rank * groups
    if process_group.size > 1 and envs.config.group_offset != first:
        raise BadValue(
            f"rank {process_group.rank} of {process_group.size} has the environments from group "
            f"{envs.config.group_offset} on, which are another rank's; make them with vla_gym.make_vec(..., "
            f"group_offset={first}, num_groups={process_group.size * groups})"
        )
