"""Collecting a rollout: a policy, vector environments and a buffer; no algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies.actions.noise import TORCH_NOISE, Noise, SlotNoise
from vla_policies.types import ActionSample, Evaluation
from zoo.config.algorithm_configs import CreditLevel
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.env_loop import env_loop
from zoo.rollout.env_views import vla_envs
from zoo.rollout.log_prob_levels import step_values
from zoo.rollout.stats import PhaseClock, RolloutRecorder, RolloutStats
from zoo.rollout.types import Observation, OnStep, RolloutStart, Step


@runtime_checkable
class ChunkPolicy(Protocol):
    """The methods by which a chunk policy differs from a plain one."""

    def act(self, obs: Mapping[str, Any], deterministic: bool = False, noise: Noise = TORCH_NOISE) -> ActionSample:
        """Decide, with a row of `noise` for each observation."""

    def evaluate(self, obs: Mapping[str, Any], record: Mapping[str, Tensor]) -> Evaluation:
        """Score decisions made earlier."""


def is_chunk_policy(policy_class: type) -> bool:
    """Whether the class has the methods of a `ChunkPolicy`."""
    return issubclass(policy_class, ChunkPolicy)


class RolloutSource(Protocol):
    """Fills the rollout buffer: `RolloutCollector` here, `zoo.training.remote_rollouts` from other processes."""

    obs: Observation
    """Present observation of this rank's sub-environments, also after a rollout that was stopped."""

    def collect(self, start: RolloutStart, on_step: OnStep) -> RolloutStats | None:
        """Fill the buffer with the next rollout; None when `on_step`, on any rank, stopped it.

        Every rank must call it.
        """


@dataclass(frozen=True, kw_only=True)
class CollectorConfig:
    """Settings of a `RolloutCollector`."""

    num_decisions: int
    """T, decisions of each sub-environment."""
    reward_level: CreditLevel = "chunk"
    """"action" keeps the reward of every simulator step."""
    value_level: CreditLevel = "chunk"
    """"action" keeps a value of every simulator step."""
    bootstrap_time_limit: bool = True
    """Whether the return of an episode cut off by time goes on with the value of its last observation."""
    bootstrap_termination: bool = False
    """Whether that of an episode which the task's own rule ended does, too."""


class RolloutCollector:
    """T decisions of every sub-environment, new episodes beginning where others end (partial resets).

    The noise of a decision follows from `seed`, the rollout's number, the decision's number and the sub-environment's
    place among those of all ranks, so decisions are the same however sub-environments are spread over ranks.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Any,
        buffer: ChunkRolloutBuffer,
        process_group: ProcessGroup,
        seed: int,
        config: CollectorConfig,
        clock: PhaseClock | None = None,
    ) -> None:
        self.env = env
        self.policy = policy
        self.buffer = buffer
        self.recorder = RolloutRecorder()
        """This rank's numbers of the present rollout."""
        self.obs: Observation = {}
        """Present observation."""
        self.done_N = np.zeros(env.num_envs, dtype=bool)
        """Bool: the last decision ended an episode."""
        self.first_env = first_env(env, process_group)
        """Place of this rank's first sub-environment among those of all ranks."""
        self._process_group = process_group
        self.seed = seed
        self._config = config
        self._clock = PhaseClock() if clock is None else clock
        self._flag = ""

    def collect(self, start: RolloutStart, on_step: OnStep) -> RolloutStats | None:
        """See `RolloutSource.collect`."""
        finished = self.fill(start, on_step)
        if self._process_group.any(not finished):
            return None
        stats = self.recorder.finish(self._process_group, start.num_timesteps)
        return replace(stats, **self.results())

    def fill(self, start: RolloutStart, on_step: OnStep) -> bool:
        """Fill the buffer with this rank's decisions; False when a rank stopped it. Waits for no other rank."""
        self._flag = self._process_group.new_flag()
        self.recorder.begin()
        return self._fill(start, on_step)

    def results(self) -> dict[str, Any]:
        """Fields of `RolloutStats` that differ by kind of collector."""
        return {"done_N": self.done_N, "last_value_N": self._values(self.obs)}

    def _fill(self, start: RolloutStart, on_step: OnStep) -> bool:
        loop = env_loop(self.env, start.obs, self._act(start.number), self._clock)
        self.obs = start.obs
        try:
            with closing(loop.steps(self._config.num_decisions)) as steps:
                for decision, step in enumerate(steps):
                    if not self._count(decision, step, on_step):
                        return False
                    self._write(decision, step.env_n, step)
                    self.done_N = step.done_n
        finally:
            self.obs = loop.obs
        return True

    def _act(self, number: int) -> Any:
        def act(obs: Observation, decision: int, env_n: np.ndarray) -> ActionSample:
            noise = SlotNoise(self.seed, (number, decision), self.first_env + env_n)
            sample: ActionSample = self.policy.act(obs, noise=noise)
            return sample

        return act

    def _count(self, decision: int, step: Step, on_step: OnStep) -> bool:
        """Call `on_step` and record the step; False when this or another rank stops the rollout."""
        if not on_step(step):
            self._process_group.set_flag(self._flag)
            return False
        self.recorder.add(decision, self.first_env, step)
        return not self._process_group.has_flag(self._flag)

    def _write(self, row: int, columns: np.ndarray, step: Step) -> None:
        """Write a step to the buffer, with what its advantages need."""
        bootstrapped_n = self._bootstrapped(step)
        self.buffer.write(
            row,
            columns,
            step,
            bootstrapped_n=bootstrapped_n,
            final_value_n=self._final_values(step, bootstrapped_n),
            **self._per_step(step),
        )

    def _per_step(self, step: Step) -> dict[str, Any]:
        """Rewards and values of the chunk's simulator steps, where steps are credited."""
        if self._config.reward_level == "chunk":
            return {}
        if step.step_reward_nK is None:
            raise BadValue(
                "reward_level='action' needs each step's reward: infos['step_rewards'], as vla_gym.make_vec gives"
            )
        per_step: dict[str, Any] = {"step_reward_nK": step.step_reward_nK}
        if self._config.value_level == "action":
            per_step["step_value_nK"] = step_values(step.sample, step.sample.action_BKA.shape[1])
        return per_step

    def _bootstrapped(self, step: Step) -> np.ndarray:
        """Bool `[n]`: the episode ended, and its return goes on with the value of its last observation.

        That includes every episode lost with its simulator, which has not failed.
        """
        cut_off_n: np.ndarray = step.truncated_n & (self._config.bootstrap_time_limit | step.lost_n)
        return cut_off_n | step.terminated_n if self._config.bootstrap_termination else cut_off_n

    def _final_values(self, step: Step, bootstrapped_n: np.ndarray) -> Tensor:
        """Values of the observations in which bootstrapped episodes ended, zero elsewhere, `[n]`."""
        value_n = torch.zeros(len(step.env_n))
        rows = np.flatnonzero(bootstrapped_n)
        if len(rows):
            last = [step.infos[row]["terminal_observation"] for row in rows.tolist()]
            stacked = {key: np.stack([obs[key] for obs in last]) for key in last[0]}
            value_n[torch.from_numpy(rows)] = self._values(stacked)
        return value_n

    def _values(self, obs: Observation) -> Tensor:
        with torch.no_grad(), self._clock.phase("policy"):
            value_N: Tensor = self.policy.predict_values(obs).flatten().cpu()
        return value_N


def first_env(env: VecEnv, process_group: ProcessGroup) -> int:
    """Place of this rank's first sub-environment among those of all ranks."""
    envs = vla_envs(env)
    if envs is None:
        return process_group.rank * env.num_envs
    return envs.config.group_offset * envs.config.group_size
