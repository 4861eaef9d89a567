"""What an algorithm does while it collects: draw noise, count steps, and agree with the other ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from vla_policies.actions.noise import SlotNoise
from vla_policies.types import ActionSample
from zoo.algorithms.metrics import PhaseClock
from zoo.algorithms.train_state import vla_envs
from zoo.distributed.optimizer_offload import resting
from zoo.distributed.process_group import current_process_group
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.collector import Experience
from zoo.rollout.stats import News


class CollectingAlgorithm(OnPolicyAlgorithm):
    """The collecting half of `VLAOnPolicyAlgorithm`; how slots are stepped is in `zoo.rollout.collector`."""

    experience: Experience
    offload_idle: bool = False
    """Does the optimiser's state rest in main memory while the policy decides?"""
    noise_seed: int = 0
    """Seed of the noise that decisions are drawn from and of the order in which an update goes over them."""
    _updates_done: int

    def _forget_run(self) -> None:
        """Fresh values of everything that is of this process only."""
        self.clock = PhaseClock()
        self.news = News()
        self.process_group = current_process_group()
        self._rollouts_begun = 0

    def _agree_on_seed(self) -> None:
        """Without a seed of its own a run draws one; all ranks have rank 0's, and so the same weights."""
        drawn = int(np.random.randint(2**31)) if self.seed is None else self.seed
        self.noise_seed = self.process_group.broadcast_object(drawn)
        if self.process_group.size > 1:
            self.seed = self.noise_seed

    @property
    def chunk_buffer(self) -> ChunkRolloutBuffer:
        """The rollout buffer of chunk policies."""
        buffer: Any = self.rollout_buffer
        assert isinstance(buffer, ChunkRolloutBuffer)
        return buffer

    @property
    def first_slot(self) -> int:
        """Place of this rank's first slot among those of all ranks."""
        assert self.env is not None
        envs = vla_envs(self.env)
        if envs is None:
            return self.process_group.rank * self.env.num_envs
        return envs.config.group_offset * envs.config.group_size

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: Any, n_rollout_steps: int
    ) -> bool:
        """Fill the rollout buffer; False when a callback stopped it. See `zoo.rollout.collector`."""
        assert self._last_obs is not None, "No previous observation was provided"
        assert (rollout_buffer, n_rollout_steps) == (self.rollout_buffer, self.n_steps)
        whole: Any = self
        rest = resting(self.policy.optimizer) if self.offload_idle else nullcontext()
        with rest, self.clock.phase("rollout"):
            return self.experience.collect(whole, env, callback)

    def begin_rollout(self) -> int:
        """Before this rank's first decision; returns the simulator steps of the run so far."""
        self._rollouts_begun += 1
        self.news.begin()
        return self.num_timesteps

    def decide(self, obs: Any, decision: int, slots: np.ndarray) -> ActionSample:
        """Decide for some of this rank's slots; `decision` counts from 0 in every rollout.

        What is random follows from the run's seed, the update, the decision and the slot's place among those of
        all ranks, so it is the same however the slots are spread over ranks.
        """
        policy: Any = self.policy
        sample: ActionSample = policy.act(
            obs, noise=SlotNoise(self.noise_seed, (self._updates_done, decision), self.first_slot + slots)
        )
        return sample

    def after_decision(
        self,
        callback: BaseCallback,
        *,
        decision: int,
        executed: np.ndarray,
        infos: list[dict[str, Any]],
        dones: np.ndarray,
        **seen: Any,
    ) -> bool:
        """Count a decision of every slot and tell the callbacks; False when one of them, on any rank, wants to stop.

        While a rollout lasts `num_timesteps` grows by this rank's steps alone.
        """
        self.num_timesteps += int(executed.sum())
        callback.update_locals({"infos": infos, "dones": dones, "env": self.env, **seen})
        if not callback.on_step():
            self.process_group.set_flag(self._stop_word)
            return False
        self.news.add(decision, self.first_slot, executed, infos, dones)
        return not self.process_group.has_flag(self._stop_word)

    @property
    def _stop_word(self) -> str:
        return f"stop of rollout {self._rollouts_begun}"

    def agree(self, finished: bool) -> bool:
        """Has every rank finished its rollout? Ranks wait for each other here."""
        return not self.process_group.any(not finished)

    def end_rollout(self, began_at: int) -> None:
        """After the last decision: what all ranks did counts from here on."""
        self.num_timesteps = self.news.share(self.process_group, began_at)
        assert self.ep_info_buffer is not None
        assert self.ep_success_buffer is not None
        for one in self.news.finished:
            self.ep_info_buffer.append(one.info)
            if one.success is not None:
                self.ep_success_buffer.append(one.success)
