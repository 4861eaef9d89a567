"""GRPO: no critic; members of a group start in the same state and are compared with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from zoo.algorithms.losses import PPOLoss
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.algorithms.update_metrics import NothingToLearn, UpdateMetrics, learning_rates, nothing_to_learn
from zoo.config.algorithm_configs import GRPOConfig
from zoo.rollout.advantages import discounted_sum, group_advantage, groups_with_signal, write_loss_weights
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.collector import CollectorConfig, GroupCollector
from zoo.rollout.stats import RolloutStats, TrainingEpisode


class GRPO(VLAOnPolicyAlgorithm):
    """Group Relative Policy Optimization (arXiv:2402.03300) over whole episodes.

    The settings are those of `zoo.config.algorithm_configs.GRPOConfig`, which explains each. The environment's
    `group_size` G is the only setting of G: sub-environments g*G .. g*G + G-1 always begin in one start state, which
    is asserted by its hash. Each update runs `rollouts_per_update` rounds of one episode per sub-environment in
    lock-step (one whose episode has ended costs nothing until the round is over). An episode's score is the sum of its
    rewards, each discounted by gamma a decision; its advantage, (score - group mean) / (group std + 1e-6) unless
    `advantage` says otherwise, goes to every executed token. Groups whose scores are all alike (zero variance) are left
    out of the update and of its normalisation, so each kept episode weighs the same, 1 / (kept episodes), however long
    it was, unless `loss_weight` says otherwise.

    Exploration comes from the policy's sampling temperature. Needs an environment of
    `vla_gym.make_vec(..., group_size=G)`, G >= 2, with `schedule="random"`.
    """

    config_class = GRPOConfig
    positional = (
        *("learning_rate", "rollouts_per_update", "batch_size", "n_epochs", "clip_range", "clip_range_high"),
        *("ent_coef", "max_grad_norm", "target_kl"),
    )
    foreign_setting = "clip_range_vf"
    _barren_updates = _barren_episodes = 0
    """Consecutive updates without signal or success, and their episodes."""

    @property
    def config(self) -> GRPOConfig:
        config = super().config
        assert isinstance(config, GRPOConfig)
        return config

    @property
    def num_rounds(self) -> int:
        return self.config.rollouts_per_update

    @property
    def group_size(self) -> int:
        """G, of the environment."""
        return self.envs.config.group_size

    def _fit_to_env(self) -> None:
        if self.group_size < 2:
            raise BadValue(
                f"GRPO compares the members of a group, but the environment has group_size={self.group_size}. "
                "Make it with vla_gym.make_vec(..., group_size=8)"
            )
        super()._fit_to_env()

    def make_collector(self, policy: VLAPolicy) -> GroupCollector:
        return GroupCollector(
            **self._collector_arguments(policy),
            config=CollectorConfig(num_decisions=self.n_steps, num_rounds=self.num_rounds),
            group_size=self.group_size,
            max_extra_rounds=self.config.resample_dead_groups,
            has_signal=self.has_signal,
        )

    def compute_returns_and_advantages(self, stats: RolloutStats) -> None:
        """Group-relative advantages; episodes lost with a worker take their whole group with them."""
        assert stats.groups is not None
        buffer, config = self.chunk_buffer, self.config
        score_PG = self._scores(buffer)
        signal_P = self.has_signal(buffer, stats.groups.lost_N)
        kept_N = signal_P.repeat_interleave(self.group_size)
        advantage_N = group_advantage(score_PG, config.advantage).flatten()
        executed_TN = buffer.executed_TN > 0
        selected_TN = executed_TN & kept_N
        buffer.write_advantages(torch.where(selected_TN, advantage_N, 0.0))
        weight, masked = config.loss_weight, config.masked_minibatches
        write_loss_weights(buffer, selected_TN, config.logprob_level, weight, self.process_group, masked=masked)
        self._log_groups(stats, signal_P, zero_variance_P=~groups_with_signal(score_PG))
        self._record_rollout(buffer.reward_TN[executed_TN], advantage_N[kept_N], score_PG)

    def has_signal(self, buffer: ChunkRolloutBuffer, lost_N: Tensor) -> Tensor:
        """Bool `[P]`: collected groups whose scores differ, within `score_bounds`, and that lost no episode."""
        whole_P = ~lost_N.reshape(-1, self.group_size).any(dim=1)
        return groups_with_signal(self._scores(buffer), self.config.score_bounds) & whole_P

    def _scores(self, buffer: ChunkRolloutBuffer) -> Tensor:
        """`[P, G]`: of every episode, which begins with the buffer."""
        return discounted_sum(buffer.reward_TN, self.gamma).reshape(-1, self.group_size)

    def _log_groups(self, stats: RolloutStats, signal_P: Tensor, zero_variance_P: Tensor) -> None:
        groups = stats.groups
        assert groups is not None
        success_P = groups.solved_N.reshape(-1, self.group_size).sum(dim=1)
        success_P, kept_P = self.process_group.all_gather(torch.stack([success_P, signal_P.long()]))
        self._count_no_signal(bool(success_P.any() or kept_P.any()), stats.episodes)
        self.logger.info(group_line(success_P, kept_P, self.group_size))
        count, kept = len(kept_P), int(kept_P.sum())
        own = torch.tensor([int(zero_variance_P.sum()), groups.num_resampled])
        zero_variance, resampled = self.process_group.all_reduce_sum(own).tolist()
        self._group_counts = {
            "groups": count,
            "groups_with_signal": kept,
            "groups_left_out": count - kept - int(zero_variance),
            "groups_solved": int((success_P == self.group_size).sum()),
            "no_signal_updates": self._barren_updates,
        }
        values = {
            "rollout/groups_kept": kept / count,
            "rollout/groups_dead": zero_variance,
            "rollout/groups": float(count),
        }
        if self.config.resample_dead_groups:
            extra_rounds = float(self.process_group.all_reduce_max(torch.tensor([groups.extra_rounds]))[0])
            values |= {"rollout/groups_resampled": resampled, "rollout/resample_rounds": extra_rounds}
        self.record(values)

    def _count_no_signal(self, signal: bool, episodes: Sequence[TrainingEpisode]) -> None:
        """Count episodes, those of further rounds included, since the last success, or `signal` in a group.

        Raises `NothingToLearn` past the limit.
        """
        if signal or any(episode.record.success_once for episode in episodes):
            self._barren_updates = self._barren_episodes = 0
        else:
            self._barren_updates += 1
            self._barren_episodes += len(episodes)
        if 0 < self.config.max_barren_episodes <= self._barren_episodes:
            raise NothingToLearn(nothing_to_learn(self._barren_episodes))

    def log_update(self, loss: PPOLoss, metrics: UpdateMetrics) -> None:
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        values = {} if metrics.empty else metrics.actor()
        if values:
            self.record(metrics.as_sb3() | values)
            self.record({"train/actor/lr": learning_rates(self.policy.optimizer)["train/actor/lr"]})
            self.logger.record("train/clip_range", loss.clip_low)
        self.check_update(values, **self._group_counts)


def group_line(success_P: Tensor, kept_P: Tensor, size: int) -> str:
    """Return how many of a group's `size` episodes were solved, whether the update drops it, and for how many groups
    that is so."""
    kinds = Counter(zip(success_P.tolist(), kept_P.tolist(), strict=True))
    groups = [
        f"{successes}/{size}{'' if kept else ' dead'}{f' x{count}' if count > 1 else ''}"
        for (successes, kept), count in sorted(kinds.items())
    ]
    return "groups: " + " | ".join(groups)
