"""What must be remembered at an update boundary, so that whatever interrupts the next rollout can be undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from vla_gym.errors import BadValue
from vla_gym.vector.sb3 import SB3VecEnv
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.algorithms.rng import rng_state
from zoo.distributed.process_group import ProcessGroup

if TYPE_CHECKING:
    from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm


@dataclass(frozen=True)
class Boundary:
    """A run between two updates, weights and optimiser excepted (a rollout does not change those).

    Of this rank's slots; what else is in it is the same on every rank.
    """

    counters: Mapping[str, Any]
    """Attributes of the algorithm, JSON values."""
    episodes: tuple[dict[str, float], ...]
    """`ep_info_buffer`."""
    successes: tuple[float, ...]
    """`ep_success_buffer`."""
    rng: Mapping[str, Any]
    """See `zoo.algorithms.rng`."""
    env: Mapping[str, Any] | None
    """`VLAVectorEnv.state_dict()`; None for other environments, which begin anew when a run is resumed."""
    arrays: Mapping[str, np.ndarray]
    """Last observation (`obs/<key>`) and `episode_starts`."""

    @property
    def num_timesteps(self) -> int:
        """Simulator steps done."""
        return int(self.counters["num_timesteps"])


def take_boundary(algorithm: VLAOnPolicyAlgorithm) -> Boundary:
    """The present state; draws nothing and asks nothing of a simulator."""
    envs = vla_envs(algorithm.env)
    last = algorithm._last_obs
    arrays: dict[str, np.ndarray] = {}
    # Environments hand out fresh arrays, so references are enough.
    if isinstance(last, dict):
        arrays = {f"obs/{key}": np.asarray(value) for key, value in last.items()}
    elif last is not None:
        arrays = {"obs": np.asarray(last)}
    if algorithm._last_episode_starts is not None:
        arrays["episode_starts"] = np.asarray(algorithm._last_episode_starts)
    return Boundary(
        counters={name: getattr(algorithm, name) for name in algorithm.boundary_counters},
        episodes=tuple(_numbers(one) for one in algorithm.ep_info_buffer or ()),
        successes=tuple(float(one) for one in algorithm.ep_success_buffer or ()),
        rng=rng_state(),
        env=None if envs is None else envs.state_dict(),
        arrays=arrays,
    )


def gather_boundary(boundary: Boundary, process_group: ProcessGroup) -> Boundary | None:
    """On rank 0 the boundary of the whole run, its slots in the order that one process would have; None elsewhere."""
    if process_group.size == 1:
        return boundary
    states = process_group.all_gather_object(boundary.env)
    arrays = process_group.gather(boundary.arrays)
    if not process_group.is_first:
        return None
    return replace(
        boundary,
        env=None if boundary.env is None else {**boundary.env, **_joined(states)},
        arrays={key: np.concatenate([one[key] for one in arrays]) for key in boundary.arrays},
    )


def own_env_state(saved: Mapping[str, Any], slots: slice, num_slots: int) -> dict[str, Any]:
    """This rank's `slots` of a saved environment; raises `BadValue` unless it had `num_slots` in all."""
    if len(saved["slots"]) != num_slots:
        raise BadValue(
            f"the checkpoint is of {len(saved['slots'])} environments, this run has {num_slots} on all its processes"
        )
    return {**saved, **{key: saved[key][slots] for key in _PER_SLOT}}


_PER_SLOT = ("episodes", "slots")
"""What `VLAVectorEnv.state_dict` keeps of every slot."""


def _joined(states: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {key: [one for state in states for one in state[key]] for key in _PER_SLOT}


def vla_envs(env: VecEnv | None) -> VLAVectorEnv | None:
    """The environment of `vla_gym` beneath whatever wraps it; None when there is none."""
    base = None if env is None else env.unwrapped
    return base.envs if isinstance(base, SB3VecEnv) else None


def _numbers(info: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(info[key]) for key in ("r", "l", "t") if key in info}
