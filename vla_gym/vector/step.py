"""`EnvStep`: one step of several sub-environments as arrays, and `EpisodeTable`: what each of them is at."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, shown
from vla_gym.specs import StartState, Task
from vla_gym.workers.messages import EpisodeStats, Report

Observation = dict[str, Any]
"""`image` u8[N, H, W, 3], `wrist_image`?, `state` f32[N, S]?, `privileged` f64[N, P]?, `instruction` tuple of N str."""
IDLE_INSTRUCTION = "idle"
"""Instruction of a sub-environment without an episode (its part of the grid is used up)."""
_INFO_KEYS = {
    "success": "success_n",
    "task_id": "task_id_n",
    "trial_id": "trial_id_n",
    "executed": "executed_n",
    "start_state": "start_state_n",
    "step_rewards": "step_reward_nK",
    "idle": "idle_n",
    "lost": "lost_n",
}
"""Key of `infos` -> field of `EnvStep`."""
_EPISODE_DTYPES: dict[str, type] = {
    "return": np.float64,
    "length": np.int64,
    "success_once": np.bool_,
    "success_at_end": np.bool_,
    "seconds": np.float64,
}


@dataclass(frozen=True, kw_only=True)
class EnvStep:
    """Result of one decision, or of one reset, of n sub-environments."""

    obs: Observation
    """Last observation, fresh arrays `[n, ...]`; where an episode ended, its last."""
    reward_n: np.ndarray
    """Sum of the chunk's rewards, float64; 0 after a reset."""
    terminated_n: np.ndarray
    """Bool: the episode ended by the task's own rule."""
    truncated_n: np.ndarray
    """Bool: the episode was cut off by time, or lost."""
    executed_n: np.ndarray
    """Simulator steps run, int64; 0 after a reset."""
    success_n: np.ndarray
    """Bool: solved at any of them."""
    lost_n: np.ndarray
    """Bool: the worker failed with the episode, which does not count."""
    idle_n: np.ndarray
    """Bool: no episode is left in this part of the grid."""
    task_id_n: np.ndarray
    """Index into the benchmark's tasks, int64; -1 where idle."""
    trial_id_n: np.ndarray
    """Index into the task's start states, int64; -1 where idle."""
    start_state_n: np.ndarray
    """Hash of the simulator state in which each episode began, str objects; None where idle."""
    step_reward_nK: np.ndarray
    """Reward of every simulator step, float32; 0 where not executed."""
    episodes: list[EpisodeStats | None]
    """Statistics of the episodes that ended in this step."""

    @property
    def done_n(self) -> np.ndarray:
        """Bool: the episode has ended."""
        return self.terminated_n | self.truncated_n

    def wrapped(self, obs: Observation, reward: Any) -> EnvStep:
        """Return the step as wrappers around the environments show it; raises `BadValue` for rewards that are none.

        What they add to the reward of a decision counts as that of its last executed step.
        """
        reward_n = np.asarray(reward, dtype=np.float64)
        if reward_n.shape != self.reward_n.shape or not np.isfinite(reward_n).all():
            raise BadValue(f"a wrapper's rewards must be {len(self.reward_n)} finite numbers, got {shown(reward)}")
        row_n, step_reward_nK = np.flatnonzero(self.executed_n), self.step_reward_nK.copy()
        step_reward_nK[row_n, self.executed_n[row_n] - 1] += (reward_n - self.reward_n)[row_n]
        return dataclasses.replace(self, obs=obs, reward_n=reward_n, step_reward_nK=step_reward_nK)

    def infos(self, mask_n: np.ndarray | None = None) -> dict[str, Any]:
        """Return Gymnasium's batched `infos`, each key with its `_key` mask; with `mask_n`, of those rows only."""
        if mask_n is None:
            mask_n = np.ones(len(self.idle_n), dtype=np.bool_)
        infos = _masked({key: getattr(self, name) for key, name in _INFO_KEYS.items()}, mask_n)
        ended_n = np.array([stats is not None for stats in self.episodes])
        if ended_n.any():
            fields: dict[str, np.ndarray] = {
                key: np.zeros(len(ended_n), dtype) for key, dtype in _EPISODE_DTYPES.items()
            }
            for row in np.flatnonzero(ended_n):
                for key, value in _episode_info(self.episodes[row]).items():
                    fields[key][row] = value
            infos |= {"episode": _masked(fields, ended_n), "_episode": ended_n}
        return infos

    def info(self, row: int) -> dict[str, Any]:
        """Return one row's info as plain Python values; `step_rewards` stays an array."""
        info: dict[str, Any] = {}
        for key, name in _INFO_KEYS.items():
            value = getattr(self, name)[row]
            info[key] = value.item() if isinstance(value, np.generic) else value
        if self.episodes[row] is not None:
            info["episode"] = _episode_info(self.episodes[row])
        return info

    def of(self, row_n: np.ndarray) -> EnvStep:
        """Return the step of some rows only."""
        return self if len(row_n) == len(self.idle_n) else self.copied(row_n)

    def copied(self, row_n: np.ndarray) -> EnvStep:
        """Return fresh arrays with some rows."""
        fields = {
            field.name: getattr(self, field.name)[row_n]
            for field in dataclasses.fields(self)
            if field.name not in ("obs", "episodes")
        }
        obs = {
            key: tuple(value[row] for row in row_n) if key == "instruction" else value[row_n]
            for key, value in self.obs.items()
        }
        return EnvStep(**fields, obs=obs, episodes=[self.episodes[row] for row in row_n])

    def followed_by(self, begun: EnvStep, begun_n: np.ndarray) -> EnvStep:
        """Return `begun`, a reset of the rows `begun_n`, with what the other rows did in this step."""
        return dataclasses.replace(
            begun,
            executed_n=np.where(begun_n, 0, self.executed_n),
            success_n=self.success_n & ~begun_n,
            step_reward_nK=np.where(begun_n[:, None], np.float32(0), self.step_reward_nK),
            episodes=[None if begun else stats for begun, stats in zip(begun_n, self.episodes, strict=True)],
        )


class EpisodeTable:
    """The present episode of each of N sub-environments: running, finished (`terminated` or `truncated`) or idle."""

    def __init__(self, num_envs: int, chunk: int, tasks: tuple[Task, ...]) -> None:
        self._tasks = tasks
        self.now = EnvStep(
            obs={},
            reward_n=np.zeros(num_envs),
            terminated_n=np.zeros(num_envs, dtype=np.bool_),
            truncated_n=np.zeros(num_envs, dtype=np.bool_),
            executed_n=np.zeros(num_envs, dtype=np.int64),
            success_n=np.zeros(num_envs, dtype=np.bool_),
            lost_n=np.zeros(num_envs, dtype=np.bool_),
            idle_n=np.ones(num_envs, dtype=np.bool_),
            task_id_n=np.full(num_envs, -1, dtype=np.int64),
            trial_id_n=np.full(num_envs, -1, dtype=np.int64),
            start_state_n=np.full(num_envs, None, dtype=object),
            step_reward_nK=np.zeros((num_envs, chunk), dtype=np.float32),
            episodes=[None] * num_envs,
        )
        """A step in which nothing was run, without its observation."""
        self.episodes = np.zeros(num_envs, dtype=np.int64)
        """Number of episodes taken from the schedule."""
        self.losses = np.zeros(num_envs, dtype=np.int64)
        """Number of episodes lost in a row."""
        self.log: list[list[np.ndarray]] = [[] for _ in range(num_envs)]
        """Executed actions `[executed, A]` of the present episode, one array per decision."""

    @property
    def running(self) -> np.ndarray:
        """Bool `[N]`: a step would advance the episode."""
        return ~(self.now.done_n | self.now.idle_n)

    def instructions(self) -> tuple[str, ...]:
        """Instruction of each episode."""
        task_ids = self.now.task_id_n.tolist()
        return tuple(IDLE_INSTRUCTION if task_id < 0 else self._tasks[task_id].instruction for task_id in task_ids)

    def start(self, env: int) -> StartState:
        """Start state of the present episode."""
        return StartState(task_id=int(self.now.task_id_n[env]), trial_id=int(self.now.trial_id_n[env]))

    def begin_schedule(self) -> None:
        """Take the next episodes from the schedule's start; forget lost start states."""
        self.episodes[:] = 0
        self.now.lost_n[:] = False

    def align(self, group_size: int) -> None:
        """Let all members of a group go on with one episode of the schedule, that of the member furthest on."""
        self.episodes[:] = self.episodes.reshape(-1, group_size).max(axis=1).repeat(group_size)

    def begin(self, env: int, start: StartState | None, start_state: str | None = None) -> None:
        """Record that a new episode has begun, or that the schedule has none left (`start` None)."""
        now = self.now
        now.task_id_n[env], now.trial_id_n[env] = (start.task_id, start.trial_id) if start else (-1, -1)
        now.start_state_n[env] = start_state
        now.terminated_n[env] = now.truncated_n[env] = now.lost_n[env] = False
        now.idle_n[env] = start is None
        self.log[env] = []

    def record(self, env: int, report: Report, action_TA: np.ndarray) -> None:
        """Record a decision; `action_TA` holds the actions really executed."""
        self.now.terminated_n[env] = report.terminated
        self.now.truncated_n[env] = report.truncated
        self.now.lost_n[env] = report.lost
        if report.lost:
            self.losses[env] += 1
        elif report.terminated or report.truncated:
            self.losses[env] = 0
        if len(action_TA):
            self.log[env].append(action_TA)


def joined_steps(steps: Sequence[EnvStep]) -> EnvStep:
    """Return the steps of several parts, in their order, as one."""
    if len(steps) == 1:
        return steps[0]
    fields: dict[str, Any] = {
        field.name: np.concatenate([getattr(step, field.name) for step in steps])
        for field in dataclasses.fields(EnvStep)
        if field.name not in ("obs", "episodes")
    }
    obs: Observation = {
        key: sum((step.obs[key] for step in steps), ())
        if key == "instruction"
        else np.concatenate([step.obs[key] for step in steps])
        for key in steps[0].obs
    }
    return EnvStep(**fields, obs=obs, episodes=[stats for step in steps for stats in step.episodes])


def _episode_info(stats: EpisodeStats | None) -> dict[str, Any]:
    assert stats is not None
    info = dict(vars(stats))
    return {"return": info.pop("total_reward"), **info}


def _masked(fields: dict[str, np.ndarray], mask_n: np.ndarray) -> dict[str, Any]:
    """Return copies with `_key` masks beside them, zero (None in object arrays) where the mask is False."""
    infos: dict[str, Any] = {}
    for key, value in fields.items():
        kept = value.copy()
        kept[~mask_n] = None if value.dtype == object else 0
        infos[key] = kept
        infos[f"_{key}"] = mask_n.copy()
    return infos
