"""Gymnasium's registry: every id as `vla_gym/<id>-v0`, entry points as strings (nothing is imported)."""

from __future__ import annotations

import gymnasium as gym

from vla_gym.registry import list_envs, num_tasks


def gymnasium_id(env_id: str) -> str:
    """Gymnasium's name of one of our ids. Its names hold no second slash, so `LIBERO-Spatial/3` is
    `vla_gym/LIBERO-Spatial.3-v0`."""
    return f"vla_gym/{env_id.replace('/', '.')}-v0"


def register_all() -> None:
    """Register every listed id and every single task; done once, when `vla_gym` is imported."""
    for env_id in list_envs():
        count = num_tasks(env_id)
        for name in (env_id, *(f"{env_id}/{task}" for task in range(count) if count > 1)):
            if gymnasium_id(name) not in gym.registry:
                gym.register(
                    id=gymnasium_id(name),
                    entry_point="vla_gym.single_env:VLAEnv",
                    vector_entry_point="vla_gym.make:make_vec",
                    kwargs={"env_id": name},
                )
