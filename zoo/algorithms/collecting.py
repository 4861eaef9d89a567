"""`Collecting`: what algorithms that step environments have in common, between Stable-Baselines3 and a run's rooms."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from vla_gym.vector.sb3 import SB3VecEnv
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import Step
from zoo.rollout.stats import RolloutStats
from zoo.runs.train_state import ATTRIBUTES, Counters, TrainState, observation_arrays, rng_state, set_rng_state


class Collecting:
    """Counts decisions and episodes, calls callbacks, and says how a run goes on; a base beside another."""

    env: Any
    process_group: ProcessGroup
    logger: Any
    num_timesteps: int
    ep_info_buffer: Any
    ep_success_buffer: Any
    start_sampler: Any
    rollout_stats: RolloutStats | None
    train_state: TrainState | None
    tasks_seen: set[int]
    _not_logged: list[RolloutStats]
    _last_obs: Any
    _last_episode_starts: Any
    _stats_window_size: int

    @property
    def envs(self) -> VLAVectorEnv:
        """The environment beneath Stable-Baselines3's view."""
        assert self.env is not None, "this model has no environment"
        envs: VLAVectorEnv = self.env.envs
        return envs

    def record(self, values: Mapping[str, float]) -> None:
        """Log numbers."""
        for key, value in values.items():
            self.logger.record(key, value)

    def _weigh_starts(self) -> None:
        if self.start_sampler is not None:
            self.envs.set_start_weights(self.start_sampler.probabilities())

    def _after_decision(self, callback: BaseCallback, step: Step | None) -> bool:
        """Count a decision and call Stable-Baselines3's callbacks; False when one of them stops training.

        While a rollout lasts `num_timesteps` grows by this rank's steps alone. `step` is None for a rollout that other
        processes collected.
        """
        assert self.env is not None
        seen: dict[str, object] = {"infos": [], "dones": np.zeros(0, dtype=bool)}
        if step is not None:
            self.num_timesteps += int(step.outcome.executed_n.sum())
            done_N, reward_N = np.zeros(self.env.num_envs, dtype=bool), np.zeros(self.env.num_envs, dtype=np.float32)
            done_N[step.env_n], reward_N[step.env_n] = step.done_n, step.outcome.reward_n
            seen = {
                "infos": _Infos(self.env, step),
                "dones": done_N,
                "rewards": reward_N,
                "new_obs": step.next_obs,
                "actions": step.sample.action_BKA.cpu().numpy(),
            }
        callback.update_locals({"env": self.env, "step": step, **seen})
        return callback.on_step()

    def _count_rollout(self, stats: RolloutStats) -> None:
        assert self.ep_info_buffer is not None
        assert self.ep_success_buffer is not None
        self.rollout_stats = stats
        self.num_timesteps = stats.num_timesteps
        if stats.done_N is not None:
            self._last_episode_starts = stats.done_N
        episodes = [episode.record for episode in stats.episodes]
        self.ep_info_buffer.extend(episode.info for episode in stats.episodes)
        self.ep_success_buffer.extend(record.success_once for record in episodes)
        self.tasks_seen |= stats.tasks
        self._not_logged.append(stats)
        self.record(stats.metrics)
        if self.start_sampler is not None:
            self.record(self.start_sampler.metrics(episodes))
            self.start_sampler.count(episodes)
            self._weigh_starts()

    def capture_state(self) -> TrainState:
        """Return the present state, without a random number drawn or a simulator stepped."""
        counts: dict[str, Any] = {name: getattr(self, attribute, None) for name, attribute in ATTRIBUTES.items()}
        return TrainState(
            counters=Counters(**counts),
            episodes=tuple(
                {key: float(info[key]) for key in ("r", "l", "t") if key in info} for info in self.ep_info_buffer or ()
            ),
            successes=tuple(float(success) for success in self.ep_success_buffer or ()),
            rng=rng_state(),
            env=self.envs.state_dict(),
            arrays=observation_arrays(self._last_obs, self._last_episode_starts),
            starts=None if self.start_sampler is None else self.start_sampler.to_json(),
        )

    def restore_state(self, state: TrainState) -> None:
        """Restore `state`, of this rank's sub-environments."""
        assert self.env is not None
        self.envs.load_state_dict(state.env)
        # The constructor set a seed for the next reset, which would start the schedule anew.
        self.env._reset_seeds()
        self._last_obs = state.last_obs
        self._last_episode_starts = state.arrays["episode_starts"]
        if self.start_sampler is not None and state.starts is not None:
            self.start_sampler.restore(state.starts)
        for name, attribute in ATTRIBUTES.items():
            if (value := getattr(state.counters, name)) is not None:
                setattr(self, attribute, value)
        self.ep_info_buffer = deque(state.episodes, maxlen=self._stats_window_size)
        self.ep_success_buffer = deque(state.successes, maxlen=self._stats_window_size)
        self.train_state = None
        set_rng_state(state.rng)


class _Infos(Sequence[Mapping[str, object]]):
    """Stable-Baselines3's `infos` of a decision, one per sub-environment; made when a callback first reads them."""

    def __init__(self, env: SB3VecEnv, step: Step) -> None:
        self._env = env
        self._step = step

    @cached_property
    def _infos(self) -> list[Mapping[str, object]]:
        infos: list[Mapping[str, object]] = [{}] * self._env.num_envs
        for env, info in zip(self._step.env_n.tolist(), self._env.step_infos(self._step.outcome), strict=True):
            infos[env] = info
        return infos

    def __getitem__(self, index: Any) -> Any:
        return self._infos[index]

    def __len__(self) -> int:
        return self._env.num_envs
