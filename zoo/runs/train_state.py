"""The state of a run between two updates, to which a run returns when the next rollout is interrupted."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from vla_gym.errors import BadValue, shown
from vla_gym.observation import MAX_INSTRUCTION_BYTES
from vla_policies.checkpoint_io.json_records import from_json
from zoo.config.settings import LARGEST_COUNT
from zoo.distributed.process_group import ProcessGroup


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counts and seeds of a run; the same on every rank."""

    num_timesteps: int
    """Simulator steps done."""
    total_timesteps: int
    """Simulator steps that `learn` trains for."""
    num_timesteps_at_start: int
    """Simulator steps done when `learn` began."""
    episode_num: int
    """Stable-Baselines3's own count."""
    n_updates: int
    """Passes over rollouts, as Stable-Baselines3 counts updates."""
    updates_done: int
    """Rollouts learnt from."""
    progress_remaining: float
    """1 at the beginning, 0 at the end; schedules read it."""
    noise_seed: int
    """Seed of decisions and of the order of minibatches."""
    needs_reset: bool | None = None
    """GRPO: whether the next round begins with a reset."""
    no_signal_updates: int | None = None
    """GRPO: consecutive updates without signal or success."""
    no_signal_episodes: int | None = None
    """GRPO: episodes of these updates."""

    def to_json(self) -> dict[str, object]:
        """Return the values under their names in a checkpoint."""
        values = {ATTRIBUTES[field.name]: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Counters:
        """Return the counters of a checkpoint; raises `BadValue` where one is missing or can be no such count.

        Nothing else that stands there has any effect.
        """
        known = {name: values[key] for name, key in ATTRIBUTES.items() if key in values}
        counters = from_json(cls, known, "counters")
        for name in known:
            number = getattr(counters, name)
            if number is not None and not 0 <= number <= LARGEST_COUNT:
                raise BadValue(f"{ATTRIBUTES[name]} of counters must be in 0 .. {LARGEST_COUNT}, got {shown(number)}")
        return counters


ATTRIBUTES = {
    "num_timesteps": "num_timesteps",
    "total_timesteps": "_total_timesteps",
    "num_timesteps_at_start": "_num_timesteps_at_start",
    "episode_num": "_episode_num",
    "n_updates": "_n_updates",
    "updates_done": "_updates_done",
    "progress_remaining": "_current_progress_remaining",
    "noise_seed": "noise_seed",
    "needs_reset": "_needs_reset",
    "no_signal_updates": "_barren_updates",
    "no_signal_episodes": "_barren_episodes",
}
"""Field of `Counters` -> attribute of the algorithm, and name in `training_state.json`."""


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """A run between two updates, but for weights and optimiser, which no rollout changes."""

    counters: Counters
    episodes: tuple[Mapping[str, float], ...]
    """`ep_info_buffer`."""
    successes: tuple[float, ...]
    """`ep_success_buffer`."""
    rng: Mapping[str, Any]
    """Random generators of this process, see `rng_state`."""
    env: Mapping[str, Any]
    """`VLAVectorEnv.state_dict()`."""
    arrays: Mapping[str, np.ndarray]
    """Of this rank's sub-environments: last observation (`obs/<key>`) and `episode_starts`."""
    starts: Mapping[str, Any] | None = None
    """`StartSampler.to_json()`, the same on every rank; None where start states are drawn uniformly."""

    @property
    def num_timesteps(self) -> int:
        """Simulator steps done."""
        return self.counters.num_timesteps

    def to_json(self) -> dict[str, Any]:
        """Return all but the arrays under their names in a checkpoint."""
        names = ("episodes", "successes", "env", "rng")
        facts = {"counters": self.counters.to_json(), **{name: getattr(self, name) for name in names}}
        return facts if self.starts is None else {**facts, "starts": self.starts}

    @property
    def last_obs(self) -> Any:
        """The last observation as the environment gave it."""
        obs = {name.removeprefix("obs/"): array for name, array in self.arrays.items() if name.startswith("obs/")}
        if "instruction" in obs:  # of fewer bytes in runs from before there were sentences as long as LIBERO-Plus's
            missing = MAX_INSTRUCTION_BYTES - obs["instruction"].shape[1]
            obs["instruction"] = np.pad(obs["instruction"], ((0, 0), (0, missing)))
        return obs

    def gather(self, process_group: ProcessGroup) -> TrainState | None:
        """On rank 0 the whole run's state, sub-environments in the order one process would have; None elsewhere."""
        if process_group.size == 1:
            return self
        env_states = process_group.all_gather_object(self.env)
        arrays = process_group.gather(self.arrays)
        if not process_group.is_first:
            return None
        env = {**self.env, **{key: [item for state in env_states for item in state[key]] for key in _PER_ENV}}
        joined = {key: np.concatenate([of_rank[key] for of_rank in arrays]) for key in self.arrays}
        return replace(self, env=env, arrays=joined)

    def scatter(self, own: slice, num_envs: int) -> TrainState:
        """The state of the sub-environments `own` of a whole run's; raises `BadValue` unless it had `num_envs`."""
        if len(self.env["slots"]) != num_envs:
            raise BadValue(
                f"the checkpoint is of {len(self.env['slots'])} environments, this run has {num_envs} on all its "
                "processes"
            )
        env = {**self.env, **{key: self.env[key][own] for key in _PER_ENV}}
        return replace(self, env=env, arrays={key: array[own] for key, array in self.arrays.items()})


_PER_ENV = ("episodes", "slots")
"""Entries of `VLAVectorEnv.state_dict` that have an item for each sub-environment."""


def observation_arrays(last_obs: Any, episode_starts: np.ndarray | None) -> dict[str, np.ndarray]:
    """`TrainState.arrays`; environments hand out fresh arrays, so references are enough."""
    arrays = {f"obs/{key}": np.asarray(value) for key, value in (last_obs or {}).items()}
    if episode_starts is not None:
        arrays["episode_starts"] = np.asarray(episode_starts)
    return arrays


def rng_state() -> dict[str, Any]:
    """The state of every random generator a run draws from, as JSON values; draws nothing.

    Python's `random`, NumPy's legacy global generator (Stable-Baselines3 shuffles with it), torch's CPU generator
    and, where CUDA is in use, the present CUDA device's.
    """
    version, words, gauss_next = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": {"version": version, "words": list(words), "gauss_next": gauss_next},
        "numpy": {
            "name": name,
            "keys": _to_text(np.asarray(keys, dtype="<u4").tobytes()),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gauss": float(cached),
        },
        "torch": _to_text(torch.get_rng_state().numpy().tobytes()),
        "cuda": None,
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = _to_text(torch.cuda.get_rng_state().numpy().tobytes())
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore `state`.

    A CUDA generator's state is for the present device and ignored without one: runs go on on other machines, and a
    `VLAPolicy`'s decisions depend on none of these (see `vla_policies.actions.noise`).
    """
    python, numpy_ = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss_next"]))
    keys = np.frombuffer(base64.b64decode(numpy_["keys"]), dtype="<u4").astype(np.uint32)
    np.random.set_state((numpy_["name"], keys, numpy_["position"], numpy_["has_gauss"], numpy_["cached_gauss"]))
    torch.set_rng_state(_to_tensor(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(_to_tensor(state["cuda"]))


def _to_text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _to_tensor(text: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype=np.uint8).copy())
