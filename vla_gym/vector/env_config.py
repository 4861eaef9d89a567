"""How an environment was asked for: the checked arguments of `make_vec`, as one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gymnasium.vector import AutoresetMode

from vla_gym.rewards import RewardRule
from vla_gym.workers.pool import OnWorkerError


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Settings of a `VLAVectorEnv`; every field is already checked."""

    num_envs: int
    """N."""
    chunk: int
    """K."""
    group_size: int
    """G."""
    group_offset: int
    """Global number of the first local group."""
    num_groups: int
    """Groups over all ranks."""
    split: str
    """Which start states (and, for some benchmarks, tasks)."""
    schedule: str
    """`random` or `grid`."""
    image_size: int
    """H = W, pixels."""
    cameras: tuple[str, ...]
    """Observation keys of the images."""
    seed: int
    """First seed of the schedule."""
    num_workers: int
    """Worker processes; 0 runs the slots in this process."""
    pipeline_stages: int
    """Equal parts of the slots that can be stepped by themselves."""
    autoreset_mode: AutoresetMode
    """What happened after an episode's end when the environment was made."""
    reward: RewardRule
    """What a simulator step pays."""
    on_worker_error: OnWorkerError
    """Raise, or restart the worker and count its episodes as lost."""
    step_timeout: float
    """Seconds a worker may take for one chunk of its slots."""
    reset_timeout: float
    """Seconds a worker may take to start, to reset or to replay."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The benchmark's own options."""
    own_instructions: Mapping[str, str] = field(default_factory=dict)
    """Task name -> the benchmark's own instruction, of the tasks that are told otherwise."""
