"""`VLAOnPolicyAlgorithm`: collect, compute advantages, update, log."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from vla_gym.errors import BadValue
from zoo.algorithms.base import AlgorithmBase
from zoo.algorithms.losses import PPOLoss
from zoo.algorithms.rollout_data import RolloutData
from zoo.algorithms.training_warnings import UpdateHealth, discrete_entropy, in_half_precision
from zoo.algorithms.update_metrics import UpdateMetrics, behaviour_gap, rank_means, value_range
from zoo.distributed.agreement import check_same
from zoo.distributed.fsdp import check_learnable
from zoo.distributed.optimizer_offload import offloaded_state
from zoo.imitation.loss import DemonstrationsLoss
from zoo.rollout.env_views import check_share, vla_envs
from zoo.rollout.stats import RolloutStats
from zoo.rollout.types import Step


class VLAOnPolicyAlgorithm(AlgorithmBase):
    """The loop and the update that PPO and GRPO share.

    Subclasses compute advantages (`compute_returns_and_advantages`), and PPO adds the critic's terms to the `loss`.

    `num_timesteps` counts simulator steps really run where `infos` say so (`executed`), else one per
    environment and step.
    """

    log_name: ClassVar[str]
    """Name of the run in TensorBoard."""

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train until `num_timesteps` reaches `total_timesteps` (more by the rest of the last rollout).

        As Stable-Baselines3's; `tb_log_name` None is "PPO" or "GRPO".

        To go on after `zoo.training.checkpoint.load_checkpoint`, pass `total_timesteps - model.num_timesteps` and
        `reset_num_timesteps=False`: schedules then continue as if nothing had happened.
        """
        if self.env is None:
            raise BadValue("this model has no environment; give it one by set_env(...), or load(PATH, env=...)")
        envs = vla_envs(self.env)
        if envs is not None and envs.config.schedule != "random":
            raise BadValue(f"training needs schedule='random', got '{envs.config.schedule}', which ends")
        if envs is not None:
            check_share(envs, self.process_group)
        check_learnable(self.policy)
        self.check_reference_at_start()
        if self.anchor is not None:  # raises for demonstrations that do not fit
            check_same({"what bc_dataset holds": self.anchor.digests[0]}, self.process_group)
        self.weigh_starts()
        iteration = 0
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or self.log_name, progress_bar
        )
        callback.on_training_start(locals(), globals())
        assert self.env is not None
        while self.num_timesteps < total_timesteps:
            self.train_state = self.capture_state()
            if not self.collect_rollouts(self.env, callback, self.rollout_buffer, self.n_steps):
                break
            iteration += 1
            self.train_state = None
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            due = log_interval is not None and iteration % log_interval == 0
            if self.chunked:
                self.train()
            if due:
                self.record(self._log_window.read(self.clock))
                self.dump_logs(iteration)
            if not self.chunked:
                self.train()  # SB3 logs an update with the rollout that follows it.
        else:
            self.train_state = self.capture_state()
        callback.on_training_end()
        return self

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, rollout_buffer: Any, n_rollout_steps: int) -> bool:
        """Fill the rollout buffer and its advantages; False when a callback, on any rank, stopped it."""
        assert self._last_obs is not None, "No previous observation was provided"
        assert (rollout_buffer, n_rollout_steps) == (self.rollout_buffer, self.n_steps)
        rest = offloaded_state(self.policy.optimizer) if self.offload_idle else nullcontext()
        with rest, self.clock.phase("rollout"):
            if not self.chunked:
                return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
            self.policy.set_training_mode(False)
            self.chunk_buffer.reset()
            callback.on_rollout_start()
            source = self.collector() if self.rollout_source is None else self.rollout_source
            try:
                stats = source.collect(self.rollout_start(), lambda step: self.after_decision(callback, step))
            finally:
                self._last_obs = source.obs
            if stats is None:
                return False
            self._count_rollout(stats)
            with self.clock.phase("advantages"):
                self.compute_returns_and_advantages(stats)
            callback.update_locals({"rollout_buffer": self.chunk_buffer})
            callback.on_rollout_end()
        return True

    def after_decision(self, callback: BaseCallback, step: Step | None) -> bool:
        """Count a decision and call Stable-Baselines3's callbacks; False when one of them stops training.

        While a rollout lasts `num_timesteps` grows by this rank's steps alone. `step` is None for a rollout that other
        processes collected.
        """
        seen: dict[str, Any] = {"infos": [], "dones": np.zeros(0, dtype=bool)}
        if step is not None:
            self.num_timesteps += int(step.counted_n.sum())
            infos: list[Any] = [{}] * self.n_envs
            for env, info in zip(step.env_n.tolist(), step.infos, strict=True):
                infos[env] = info
            seen = {
                "infos": infos,
                "dones": step.spread(step.done_n, self.n_envs),
                "rewards": step.spread(step.reward_n, self.n_envs),
                "new_obs": step.next_obs,
                "actions": step.sample.action_BKA.cpu().numpy(),
            }
        callback.update_locals({"env": self.env, "step": step, **seen})
        return callback.on_step()

    def train(self) -> None:
        """Update the policy with the rollout just collected: `n_epochs` passes in fresh random order.

        Then `critic_epochs` passes that train the critic alone.
        """
        loss, data, learner = self.loss(), self.rollout_data(), self.learner
        metrics, fitted = UpdateMetrics(loss, self.process_group), UpdateMetrics(loss, self.process_group)
        learner.policy.set_training_mode(True)  # type: ignore[operator]
        self._update_learning_rate(learner.raw_optimizer)
        with self.clock.phase("update"):
            if self.recompute_logprobs or learner.own_precision:
                data.recompute_log_probs(learner, self._n_updates)
                if self.off_policy:
                    self.record(behaviour_gap(self.chunk_buffer, self.logprob_level, self.process_group))
            if self.kl_coef and not loss.critic_only:
                data.compute_ref_log_probs(self.reference)
            anchor = None if loss.critic_only else self.anchor
            self._make_passes(self.n_epochs, loss, data, metrics, anchor)
            if self.critic_epochs:
                self._make_passes(self.critic_epochs, replace(loss, critic_only=True), data, fitted, None)
            learner.sync_weights()
        if learner.accelerator.scaler is None:  # a loss scaler begins too high and comes down
            metrics.check_learnt(self._updates_done + 1)
        self._updates_done += 1
        self.log_update(loss, metrics)
        if not fitted.empty:
            self.logger.record("train/critic/value_loss_fitted", fitted.critic()["train/critic/value_loss"])

    def loss(self) -> PPOLoss:
        """Return the loss of the coming update, schedules read; here without a critic."""
        low = self.clip_range(self._current_progress_remaining)
        return PPOLoss(
            clip_low=low,
            clip_high=low if self.clip_range_high is None else self.clip_range_high,
            ent_coef=self.ent_coef,
            kl_coef=self.kl_coef,
        )

    def update_health(self, metrics: UpdateMetrics, actor: Mapping[str, float]) -> UpdateHealth:
        """Return what warnings look at in any update; `actor`: its `metrics.actor()`, empty without a minibatch."""
        health = UpdateHealth(skipped_steps=metrics.skipped_steps, half_precision=in_half_precision(self.policy))
        if not actor:
            return health
        return replace(
            health,
            clip_fraction=actor["train/actor/clip_fraction"],
            kl=actor["train/actor/approx_kl_k3"],
            entropy=discrete_entropy(self.policy, actor["train/actor/entropy"]),
            ratio_gap=actor["train/actor/ratio_first_gap"],
        )

    # Subclasses -------------------------------------------------------------------------------------

    @abstractmethod
    def compute_returns_and_advantages(self, stats: RolloutStats) -> None:
        """Fill the chunk buffer's advantages, returns and weights."""

    @abstractmethod
    def log_update(self, loss: PPOLoss, metrics: UpdateMetrics) -> None:
        """Log `train/*`."""

    # Inside -----------------------------------------------------------------------------------------

    def _record_rollout(self, rewards: Tensor, advantages: Tensor, returns: Tensor) -> None:
        """Log a rollout's rewards, advantages and returns, over all ranks."""
        means = {"rollout/rewards": rewards, "rollout/advantages_mean": advantages, "rollout/returns_mean": returns}
        self.record(rank_means(means, self.process_group))
        for name, values in (("advantages", advantages), ("returns", returns)):
            self.record(value_range(f"rollout/{name}", values, self.process_group))

    def _count_rollout(self, stats: RolloutStats) -> None:
        """Count the rollout of all ranks."""
        self.rollout_stats = stats
        self.num_timesteps = stats.num_timesteps
        if stats.done_N is not None:
            self._last_episode_starts = stats.done_N
        assert self.ep_info_buffer is not None
        assert self.ep_success_buffer is not None
        for episode in stats.episodes:
            self.ep_info_buffer.append(dict(episode.info))
            if episode.success is not None:
                self.ep_success_buffer.append(episode.success)
        self.tasks_seen |= stats.tasks
        self._log_window.add(stats)
        self.record(dict(stats.metrics))
        if self.start_sampler is not None:
            episodes = [episode.record for episode in stats.episodes if episode.record is not None]
            self.record(self.start_sampler.metrics(episodes))
            self.start_sampler.count(episodes)
            self.weigh_starts()

    def _make_passes(
        self, count: int, loss: PPOLoss, data: RolloutData, metrics: UpdateMetrics, anchor: DemonstrationsLoss | None
    ) -> None:
        """Make `count` passes over the rollout, fewer where the policy leaves `target_kl`."""
        with self.learner.train_critic() if loss.critic_only else nullcontext():
            for _ in range(count):
                finished = self._make_pass(loss, data, metrics, anchor)
                self._n_updates += 1
                if not finished:
                    break

    def _make_pass(
        self, loss: PPOLoss, data: RolloutData, metrics: UpdateMetrics, anchor: DemonstrationsLoss | None
    ) -> bool:
        """Take an optimiser step with every minibatch; return False where the policy left `target_kl` before."""
        learner = self.learner
        metrics.begin_epoch()
        demonstrations = iter(()) if anchor is None else anchor.batches(self._n_updates)
        for micro_batches in data.minibatches(self._n_updates):
            metrics.begin_minibatch()
            learner.zero_grad()
            if anchor is not None:
                metrics.add_imitation(anchor.add_gradients(learner, next(demonstrations)))
            for micro_batch in micro_batches:
                with learner.accumulate(last=micro_batch.last):
                    value, terms, scores = learner.score(micro_batch.batch, loss)
                    learner.backward(value if micro_batch.weight == 1.0 else value * micro_batch.weight)
                metrics.add(terms, scores, micro_batch)
            if not (loss.critic_only or self._within_target_kl(metrics)):
                learner.zero_grad()
                return False
            grad_norm, stepped = learner.apply()
            metrics.add_step(grad_norm, stepped=stepped)
        return True

    def _within_target_kl(self, metrics: UpdateMetrics) -> bool:
        if self.target_kl is None:
            return True
        # A KL that is not a number ends nothing: the step is then left out for its gradient.
        if (kl := metrics.latest_kl()) > 1.5 * self.target_kl:
            self.logger.info(f"Early stop of update {self._n_updates}: KL {kl:.3g} > 1.5 x target_kl")
            return False
        return True

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        """SB3's, but never below zero: the last rollout may overshoot, which would turn rates negative."""
        self._current_progress_remaining = max(0.0, 1.0 - num_timesteps / total_timesteps)
