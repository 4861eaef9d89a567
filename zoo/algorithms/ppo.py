"""PPO for vision-language-action policies."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from stable_baselines3.common.utils import FloatSchedule

from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from zoo.algorithms.losses import PPOLoss
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.algorithms.update_metrics import (
    UpdateMetrics,
    explained_variance,
    learning_rates,
    rank_means,
    value_range,
)
from zoo.config.algorithm_configs import STEP_VALUES_LACKING, PPOConfig
from zoo.rollout.advantages import NORMALIZE_EPS, compute_gae, write_loss_weights
from zoo.rollout.collector import CollectorConfig, RolloutCollector
from zoo.rollout.stats import RolloutStats


class PPO(VLAOnPolicyAlgorithm):
    """Proximal Policy Optimization (arXiv:1707.06347), clipped, with generalised advantage estimation.

    The settings are those of `zoo.config.algorithm_configs.PPOConfig`, which explains each; the first twelve are
    Stable-Baselines3's, in its order and with its defaults.

    - `n_steps` counts decisions (chunks of up to K simulator steps) per environment, and so do `gamma` and
      `gae_lambda`: a reward one decision later is discounted by gamma, however many steps the chunk ran;
    - the reward of a decision is the sum of its chunk's rewards;
    - an episode cut off by its time limit is bootstrapped with the value of the observation it ended in, unless
      `bootstrap_time_limit` is False;
    - advantages are normalised once over the whole rollout (and all ranks), minibatches are reshuffled in
      every epoch, and steps of a chunk that were not executed carry no loss.
    """

    config_class = PPOConfig
    positional = (
        *("learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range", "clip_range_vf"),
        *("normalize_advantage", "ent_coef", "vf_coef", "max_grad_norm"),
    )
    foreign_setting = "rollouts_per_update"
    _largest_reward = 0.0
    _unrewarded_episodes: int | None = 0
    """Episodes until the first success or reward; None from then on."""

    @property
    def config(self) -> PPOConfig:
        config = super().config
        assert isinstance(config, PPOConfig)
        return config

    @property
    def num_rounds(self) -> int | None:
        return self.config.rounds_per_update

    def make_collector(self, policy: VLAPolicy) -> RolloutCollector:
        config = self.config
        return RolloutCollector(
            **self._collector_arguments(policy),
            config=CollectorConfig(
                num_decisions=self.n_steps,
                num_rounds=config.rounds_per_update,
                reward_level=config.reward_level,
                value_level=config.value_level,
                bootstrap_time_limit=config.bootstrap_time_limit,
                bootstrap_termination=config.bootstrap_termination,
            ),
        )

    def _setup_model(self) -> None:
        super()._setup_model()
        config, backbone = self.config, self.policy.backbone
        if config.value_level == "action" and not backbone.step_values:
            raise BadValue(f"{STEP_VALUES_LACKING} (chunk {backbone.conventions.chunk})")
        if config.clip_range_vf is not None:
            self.clip_range_vf = FloatSchedule(config.clip_range_vf)  # type: ignore[arg-type]

    def loss(self) -> PPOLoss:
        config, progress = self.config, self._current_progress_remaining
        return replace(
            super().loss(),
            vf_coef=config.vf_coef,
            clip_vf=None if config.clip_range_vf is None else self.clip_range_vf(progress),
            value_clip=config.value_clip,
            huber_delta=config.huber_delta,
            critic_only=self._updates_done < config.critic_warmup_updates,
        )

    def compute_returns_and_advantages(self, stats: RolloutStats) -> None:
        assert stats.last_value_N is not None
        buffer, config, group = self.chunk_buffer, self.config, self.process_group
        advantage = compute_gae(buffer, stats.last_value_N, config.gamma, config.gae_lambda)
        executed_TN = buffer.executed_TN > 0
        valid = executed_TN if advantage.ndim == 2 else buffer.executed_steps()
        raw = value_range("raw", advantage[valid], group)
        self._advantage_spread = raw.get("raw_max", math.nan) - raw.get("raw_min", math.nan)
        if config.normalize_advantage:
            mean, std = group.moments(advantage[valid])
            advantage = (advantage - mean) / (std + NORMALIZE_EPS)
        buffer.write_advantages(advantage.masked_fill(~valid, 0.0))
        masked = config.masked_minibatches
        write_loss_weights(buffer, executed_TN, config.logprob_level, config.loss_weight, group, masked=masked)
        self._record_rollout(buffer.reward_TN[executed_TN], advantage[valid], buffer.return_TN[executed_TN])

    def log_update(self, loss: PPOLoss, metrics: UpdateMetrics) -> None:
        if metrics.empty:
            return
        values = metrics.actor() | metrics.critic()
        self.record(metrics.as_sb3() | values | dict(learning_rates(self.policy.optimizer)))
        if self.config.critic_warmup_updates:
            self.logger.record("train/critic/warmup", float(loss.critic_only))
        value, target = self.chunk_buffer.values_and_returns()
        self.logger.record("train/explained_variance", explained_variance(value, target, self.process_group))
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", loss.clip_low)
        if loss.clip_vf is not None:
            self.logger.record("train/clip_range_vf", loss.clip_vf)
        self.check_update(
            values,
            value_gap=self._value_gap(value, target),
            no_success_episodes=self._count_unrewarded(),
            advantage_spread=self._advantage_spread,
        )

    def _count_unrewarded(self) -> int:
        """Count the rollout's episodes while none has been solved and no reward has come; 0 from then on."""
        assert self.rollout_stats is not None
        episodes = self.rollout_stats.episodes
        solved = any(episode.record.success_once for episode in episodes)
        if self._unrewarded_episodes is None or self._largest_reward or solved:
            self._unrewarded_episodes = None
            return 0
        self._unrewarded_episodes += len(episodes)
        return self._unrewarded_episodes

    def _value_gap(self, value: torch.Tensor, target: torch.Tensor) -> float:
        """Error of the values over the largest return possible; nan while no reward was seen."""
        largest = float(self.process_group.all_reduce_max(self.chunk_buffer.reward_TN.abs().max()[None]))
        self._largest_reward = max(self._largest_reward, largest)
        error = rank_means({"square": (value - target).square()}, self.process_group)["square"]
        if not self._largest_reward:
            return math.nan
        reach = 1 / (1 - self.gamma) if self.gamma < 1 else math.inf
        largest_return = self._largest_reward * min(reach, 10 * self.n_steps)
        return math.sqrt(error) / largest_return
