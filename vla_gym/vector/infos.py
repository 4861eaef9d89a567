"""The `infos` dict of a vector environment: arrays over environments, each with its `_key` mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_gym.workers.sub_env import EpisodeStats, Report

EPISODE_DTYPES: dict[str, type] = {
    "return": np.float64,
    "length": np.int64,
    "success_once": np.bool_,
    "success_at_end": np.bool_,
    "seconds": np.float64,
}
"""Keys of `infos["episode"]`."""


class Decision:
    """Outcome of one step (or reset) of N environments."""

    def __init__(self, num_envs: int, chunk: int) -> None:
        self.reward_N = np.zeros(num_envs, dtype=np.float64)
        self.executed_N = np.zeros(num_envs, dtype=np.int64)
        self.success_N = np.zeros(num_envs, dtype=np.bool_)
        self.step_reward_NK = np.zeros((num_envs, chunk), dtype=np.float32)
        self.episodes: list[EpisodeStats | None] = [None] * num_envs

    def enter(self, env: int, report: Report) -> None:
        """Enter one environment's report."""
        executed = len(report.step_rewards)
        self.reward_N[env] = sum(report.step_rewards)
        self.executed_N[env] = executed
        self.success_N[env] = report.success
        self.step_reward_NK[env, :executed] = report.step_rewards
        self.episodes[env] = report.episode

    def cleared(self, mask_N: np.ndarray) -> Decision:
        """A copy in which the environments of `mask_N` did nothing."""
        other = Decision(*self.step_reward_NK.shape)
        other.reward_N = np.where(mask_N, 0.0, self.reward_N)
        other.executed_N = np.where(mask_N, 0, self.executed_N)
        other.success_N = self.success_N & ~mask_N
        other.step_reward_NK = np.where(mask_N[:, None], np.float32(0), self.step_reward_NK)
        other.episodes = [None if cleared else stats for cleared, stats in zip(mask_N, self.episodes, strict=True)]
        return other


def masked(fields: Mapping[str, np.ndarray], mask_N: np.ndarray) -> dict[str, Any]:
    """Arrays with `mask_N` beside each, zero (None in object arrays) where it is False."""
    infos: dict[str, Any] = {}
    for key, value in fields.items():
        kept = value.copy()
        kept[~mask_N] = None if value.dtype == object else 0
        infos[key] = kept
        infos[f"_{key}"] = mask_N.copy()
    return infos


def episode_info(episodes: Sequence[EpisodeStats | None]) -> dict[str, Any]:
    """`{"episode": {...}, "_episode": mask}` of the episodes that ended; empty when none did."""
    mask_N = np.array([stats is not None for stats in episodes])
    if not mask_N.any():
        return {}
    fields: dict[str, np.ndarray] = {key: np.zeros(len(episodes), dtype) for key, dtype in EPISODE_DTYPES.items()}
    for env, stats in enumerate(episodes):
        if stats is not None:
            fields["return"][env] = stats.total_reward
            fields["length"][env] = stats.length
            fields["success_once"][env] = stats.success_once
            fields["success_at_end"][env] = stats.success_at_end
            fields["seconds"][env] = stats.seconds
    return {"episode": masked(fields, mask_N), "_episode": mask_N}


def single_info(infos: Mapping[str, Any], env: int) -> dict[str, Any]:
    """One environment's part of `infos` as plain Python values (arrays stay arrays), nested dicts included."""
    out: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_"):
            continue
        mask_N = infos.get(f"_{key}")
        if mask_N is not None and not mask_N[env]:
            continue
        if isinstance(value, dict):
            out[key] = single_info(value, env)
        else:
            item = value[env]
            out[key] = item.item() if isinstance(item, np.generic) else item
    return out
