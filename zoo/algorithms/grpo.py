"""GRPO: no critic; members of a group start in the same state and are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.algorithms.advantages import (
    discounted_sum,
    group_advantage,
    groups_with_signal,
    write_group_weights,
)
from zoo.algorithms.arguments import constructor_settings
from zoo.algorithms.losses import PPOLoss
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.algorithms.training_warnings import NothingToLearn, nothing_to_learn
from zoo.algorithms.update_metrics import UpdateMetrics, learning_rates
from zoo.config.algorithm_configs import (
    GroupAdvantage,
    GroupLossWeight,
    GRPOConfig,
    KLReference,
    LogprobLevel,
    StartSampling,
)
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.collector import RolloutCollector
from zoo.rollout.env_views import vla_envs
from zoo.rollout.group_collector import GroupCollector, GroupConfig, all_outcomes, group_lines
from zoo.rollout.round_collector import decisions_of_an_episode
from zoo.rollout.stats import GroupOutcome, RolloutStats, TrainingEpisode
from zoo.runs.train_state import Counters


class GRPO(VLAOnPolicyAlgorithm):
    """Group Relative Policy Optimization (arXiv:2402.03300) over whole episodes.

    The environment's `group_size` G is the only setting of G: sub-environments g*G .. g*G + G-1 always begin in one
    start state, which is asserted by its hash. Each update runs `rollouts_per_update` rounds of one episode
    per sub-environment in lock-step (one whose episode has ended costs nothing until the round is over). An
    episode's score is the sum of its rewards, each discounted by gamma a decision; its advantage, (score - group
    mean) / (group std + 1e-6) unless `advantage` says otherwise, goes to every executed token. Groups whose scores
    are all alike (zero variance) are left out of the update and of its normalisation, so each kept episode weighs the
    same, 1 / (kept episodes), however long it was, unless `loss_weight` says otherwise.

    Exploration comes from the policy's sampling temperature. Needs a `VLAPolicy` and an environment of
    `vla_gym.make_vec(..., group_size=G)`, G >= 2, with `schedule="random"`.

    :param rollouts_per_update: rounds per update; episodes per update = num_envs * rollouts_per_update.
    :param batch_size: decisions per minibatch (a rollout is split evenly into minibatches of at most this many).
    :param clip_range_high: upper clip bound ("clip-higher"); None = as `clip_range`.
    :param resample_dead_groups: further rounds, at most, that replace zero-variance groups before an update
        (dynamic sampling); 0 = none.
    :param max_barren_episodes: episodes without a success or a group with signal after which the run is refused
        (`NothingToLearn`): at 0 % group comparison has nothing to compare. 0 = never.
    :param advantage: "group_std"; "centred", score - group mean (Dr. GRPO); or "rloo", score - mean of the others.
    :param loss_weight: what counts the same: "trajectory", every episode; "token", every ratio (DAPO); or "constant",
        every ratio, with one divisor for all episodes (Dr. GRPO).
    :param score_bounds: keep only groups whose mean score lies within (low, high); None keeps all with signal.
    :param gamma: discount of a reward one decision later. Below 1 a quick success scores more than a slow one, so a
        group that is solved throughout has signal, too.
    The other parameters are those of `PPO`.
    """

    log_name = "GRPO"
    own_setting = "rollouts_per_update"
    advantage: GroupAdvantage
    loss_weight: GroupLossWeight
    rollouts_per_update: int
    score_bounds: tuple[float, float] | None
    resample_dead_groups: int
    max_barren_episodes: int

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: VLAVectorEnv | VecEnv | None,
        learning_rate: float | Schedule = 2e-5,
        rollouts_per_update: int = 1,
        batch_size: int = 256,
        n_epochs: int = 1,
        clip_range: float | Schedule = 0.2,
        clip_range_high: float | None = 0.28,
        ent_coef: float = 0.0,
        max_grad_norm: float = 1.0,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        advantage: GroupAdvantage = "group_std",
        loss_weight: GroupLossWeight = "trajectory",
        score_bounds: tuple[float, float] | None = None,
        gamma: float = 1.0,
        logprob_level: LogprobLevel = "token",
        recompute_logprobs: bool = False,
        entropy_level: LogprobLevel | None = None,
        kl_coef: float = 0.0,
        kl_reference: KLReference = "adapter_off",
        micro_batch_size: int | None = None,
        masked_minibatches: bool = False,
        start_sampling: StartSampling = "uniform",
        resample_dead_groups: int = 0,
        max_barren_episodes: int = 256,
        bc_coef: float = 0.0,
        bc_dataset: str | Sequence[str] | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        settings = constructor_settings(GRPOConfig, locals())
        self._barren_updates = self._barren_episodes = 0
        super().__init__(
            **settings,
            n_steps=1,  # set from the environment below
            gae_lambda=1.0,
            vf_coef=0.0,
            use_sde=False,
            sde_sample_freq=-1,
            rollout_buffer_kwargs={"rollouts": rollouts_per_update},
        )
        self.score_bounds = None if score_bounds is None else (float(score_bounds[0]), float(score_bounds[1]))
        if not self.chunked:
            raise BadValue(
                f"GRPO needs a policy with `act` and `evaluate`, such as 'VLAPolicy'; got {self.policy_class.__name__}"
            )
        if self.env is not None:
            self._fit_to_env()
        if _init_setup_model:
            self._setup_model()

    def _fit_to_env(self) -> None:
        config = self.grouped_envs.config
        if config.group_size < 2:
            raise BadValue(
                f"GRPO compares the members of a group, but the environment has group_size={config.group_size}. "
                "Make it with vla_gym.make_vec(..., group_size=8)"
            )
        self.n_steps = decisions_of_an_episode(self.grouped_envs)

    @property
    def grouped_envs(self) -> VLAVectorEnv:
        """The environment beneath."""
        envs = vla_envs(self.env)
        if envs is None:
            raise BadValue(f"GRPO needs an environment of vla_gym.make_vec, got {type(self.env).__name__}")
        return envs

    @property
    def group_size(self) -> int:
        """G, of the environment."""
        return self.grouped_envs.config.group_size

    def compute_returns_and_advantages(self, stats: RolloutStats) -> None:
        """Group-relative advantages; episodes lost with a worker take their whole group with them."""
        assert stats.groups is not None
        buffer = self.chunk_buffer
        score_PG = self._scores(buffer)
        signal_P = self.has_signal(buffer, stats.groups.lost_N)
        kept_N = signal_P.repeat_interleave(self.group_size)
        advantage_N = group_advantage(score_PG, self.advantage).flatten()
        executed_TN = buffer.executed_TN > 0
        selected_TN = executed_TN & kept_N
        buffer.advantage_TN.copy_(torch.where(selected_TN, advantage_N, 0.0))
        write_group_weights(
            buffer,
            selected_TN,
            self.logprob_level,
            self.loss_weight,
            self.process_group,
            masked=self.masked_minibatches,
        )
        self._log_groups(stats, signal_P, zero_variance_P=~groups_with_signal(score_PG))
        self._record_rollout(buffer.reward_TN[executed_TN], advantage_N[kept_N], score_PG)

    def _scores(self, buffer: ChunkRolloutBuffer) -> Tensor:
        """`[P, G]`: of every episode, which begins with the buffer."""
        return discounted_sum(buffer.reward_TN, self.gamma).reshape(-1, self.group_size)

    def _log_groups(self, stats: RolloutStats, signal_P: Tensor, zero_variance_P: Tensor) -> None:
        """Log the groups of all ranks, and keep their counts for the update's warnings."""
        groups = stats.groups
        assert groups is not None
        outcomes = all_outcomes(groups.outcomes, signal_P, self.process_group)
        self._count_no_signal(outcomes, stats.episodes)
        kept = sum(group.kept for group in outcomes)
        for line in group_lines(outcomes):
            self.logger.info(line)
        own = torch.tensor([int(zero_variance_P.sum()), groups.num_resampled])
        zero_variance, resampled = self.process_group.all_reduce_sum(own).tolist()
        self._group_counts: dict[str, Any] = {
            "groups": len(outcomes),
            "groups_with_signal": kept,
            "groups_left_out": len(outcomes) - kept - int(zero_variance),
            "groups_solved": sum(group.successes == group.size for group in outcomes),
            "no_signal_updates": self._barren_updates,
        }
        extra_rounds = float(self.process_group.all_reduce_max(torch.tensor([groups.extra_rounds]))[0])
        values = {
            "rollout/groups_kept": kept / len(outcomes),
            "rollout/groups_dead": zero_variance,
            "rollout/groups": float(len(outcomes)),
        }
        if self.resample_dead_groups:
            values |= {"rollout/groups_resampled": resampled, "rollout/resample_rounds": extra_rounds}
        self.record(values)

    def _count_no_signal(self, outcomes: Sequence[GroupOutcome], episodes: Sequence[TrainingEpisode]) -> None:
        """Count episodes, those of further rounds included, since the last signal or success.

        Raises `NothingToLearn` past the limit.
        """
        if any(group.kept or group.successes for group in outcomes) or any(episode.success for episode in episodes):
            self._barren_updates = self._barren_episodes = 0
        else:
            self._barren_updates += 1
            self._barren_episodes += len(episodes)
        if 0 < self.max_barren_episodes <= self._barren_episodes:
            raise NothingToLearn(nothing_to_learn(self._barren_episodes))

    def has_signal(self, buffer: ChunkRolloutBuffer, lost_N: Tensor) -> Tensor:
        """Bool `[P]`: collected groups whose scores differ, within `score_bounds`, and that lost no episode."""
        score_PG = self._scores(buffer)
        whole_P = ~lost_N.reshape(-1, self.group_size).any(dim=1)
        return groups_with_signal(score_PG, self.score_bounds) & whole_P

    @property
    def whole_episodes(self) -> bool:
        return True

    def make_collector(self) -> RolloutCollector:
        groups = GroupConfig(
            group_size=self.group_size,
            num_rounds=self.rollouts_per_update,
            max_extra_rounds=self.resample_dead_groups,
            has_signal=self.has_signal,
        )
        return GroupCollector(**self.collector_arguments(), groups=groups)

    def counters(self) -> Counters:
        return replace(
            super().counters(),
            no_signal_updates=self._barren_updates,
            no_signal_episodes=self._barren_episodes,
        )

    def restore_counters(self, counters: Counters) -> None:
        super().restore_counters(counters)
        self._barren_updates = counters.no_signal_updates or 0
        self._barren_episodes = counters.no_signal_episodes or 0

    def log_update(self, loss: PPOLoss, metrics: UpdateMetrics) -> None:
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        values = {} if metrics.empty else metrics.actor()
        if values:
            self.record(metrics.as_sb3() | values)
            self.record({"train/actor/lr": learning_rates(self.policy.optimizer)["train/actor/lr"]})
            self.logger.record("train/clip_range", loss.clip_low)
        self.training_warnings.check(replace(self.update_health(metrics, values), **self._group_counts))
