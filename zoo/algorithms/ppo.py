"""PPO for vision-language-action policies; for any other policy a drop-in for Stable-Baselines3's PPO."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.common.utils import FloatSchedule
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.vector.vector_env import VLAVectorEnv
from zoo.algorithms.advantages import (
    Discount,
    decision_advantages,
    normalize,
    step_advantages,
    write_advantages,
    write_even_weights,
    write_trajectory_weights,
)
from zoo.algorithms.arguments import constructor_settings
from zoo.algorithms.losses import PPOLoss
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.algorithms.update_metrics import (
    UpdateMetrics,
    explained_variance,
    learning_rates,
    rank_means,
    value_range,
)
from zoo.config.algorithm_configs import (
    STEP_VALUES_LACKING,
    CreditLevel,
    KLReference,
    LogprobLevel,
    LossWeight,
    PPOConfig,
    StartSampling,
    ValueClip,
)
from zoo.distributed.learner import critic_parameters
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.collector import RolloutCollector
from zoo.rollout.env_views import vla_envs
from zoo.rollout.round_collector import RoundCollector, decisions_of_an_episode
from zoo.rollout.stats import RolloutStats


class PPO(VLAOnPolicyAlgorithm):
    """Proximal Policy Optimization (arXiv:1707.06347), clipped, with generalised advantage estimation.

    The positional arguments are Stable-Baselines3's, with its meaning and defaults. With a `VLAPolicy`:

    - `n_steps` counts decisions (chunks of up to K simulator steps) per environment, and so do `gamma` and
      `gae_lambda`: a reward one decision later is discounted by gamma, however many steps the chunk ran;
    - the reward of a decision is the sum of its chunk's rewards;
    - an episode cut off by its time limit is bootstrapped with the value of the observation it ended in, unless
      `bootstrap_time_limit` is False;
    - advantages are normalised once over the whole rollout (and all ranks), minibatches are reshuffled in
      every epoch, and steps of a chunk that were not executed carry no loss.

    :param clip_range_high: upper clip bound where it differs from `clip_range` ("clip-higher").
    :param value_clip: how `clip_range_vf` acts: "replace" as in SB3, or "max", the worse of both errors.
    :param huber_delta: Huber's error for the critic (with its factor 1/2) instead of the square.
    :param logprob_level: what one probability ratio is of: "token", "action" (the default published for
        OpenVLA), "chunk", or "sequence", the geometric mean over the chunk's tokens (GSPO).
    :param recompute_logprobs: score the rollout again in the training path before the first step, at the
        price of one more forward pass; for weights in half precision.
    :param entropy_level: what one entropy of the bonus is of, as `logprob_level`; None = the same. A decision's bonus
        is the mean over its elements.
    :param kl_coef: weight of the KL to a reference policy, per token (k3 estimate); 0 = none.
    :param kl_reference: "adapter_off", the policy without its LoRA adapter, or "copy", a frozen second copy.
    :param micro_batch_size: decisions scored at once; a minibatch's gradient is accumulated over them. None
        = whole minibatches. The result is the same, the memory is less.
    :param masked_minibatches: cut minibatches from every place of the rollout, also from those without a loss: an
        update then has the same number of optimiser steps always, and what is masked shrinks the gradient.
    :param start_sampling: "uniform", or "learnability": start states are drawn in proportion to p (1 - p) of their
        recent success rates p; `rollout/*` and `env/*` are then not means over start states.
    :param critic_warmup_updates: first updates (one for each rollout) that train the critic alone.
    :param critic_epochs: passes over a rollout that train the critic alone, after those of the policy, which
        `target_kl` may have ended.
    :param reward_level: what is credited: "chunk", a whole decision, or "action", each simulator step by its own
        reward; gamma and gae_lambda then count simulator steps.
    :param value_level: "chunk", one value for a decision, or "action", one for each step of it (with reward_level
        "action" and a critic of K outputs). With "action" rewards and "chunk" values, an action's advantage is the
        chunk's rewards from it on and what follows, less the chunk's value.
    :param rounds_per_update: collect so many rounds of one episode in every sub-environment, none of which begins
        another before all have ended, instead of `n_steps` decisions with automatic resets; `n_steps` then is what an
        episode takes at most.
    :param loss_weight: what counts the same in the losses: "decision", or "trajectory", every episode (or part of one
        in the rollout) however long it was.
    :param bootstrap_time_limit: False makes the time limit an end like any other: worth nothing more. Where success
        is judged within that limit, as on Meta-World and LIBERO, the return then is the success rate itself.
    :param bootstrap_termination: an episode that the task itself ended (by success, say) is worth the value of its last
        observation, too, as if it went on: RLinf's "always".
    :param bc_coef: weight of the loss of imitation that every optimiser step of the policy adds (DAPG); 0 = none.
    :param bc_dataset: folder of the demonstrations that are imitated, or several: LeRobotDatasets as `zoo.sft` reads.
    :param process_group: processes that train together; None = all that a launcher has started.
    """

    log_name = "PPO"
    own_setting = "clip_range_vf"
    clip_range_vf: Any
    value_clip: ValueClip
    huber_delta: float | None
    critic_warmup_updates: int

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | VLAVectorEnv | str | None,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule = 0.2,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: bool = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        clip_range_high: float | None = None,
        value_clip: ValueClip = "replace",
        huber_delta: float | None = None,
        logprob_level: LogprobLevel = "action",
        recompute_logprobs: bool = False,
        entropy_level: LogprobLevel | None = None,
        kl_coef: float = 0.0,
        kl_reference: KLReference = "adapter_off",
        micro_batch_size: int | None = None,
        masked_minibatches: bool = False,
        start_sampling: StartSampling = "uniform",
        critic_warmup_updates: int = 0,
        critic_epochs: int = 0,
        reward_level: CreditLevel = "chunk",
        value_level: CreditLevel = "chunk",
        rounds_per_update: int | None = None,
        loss_weight: LossWeight = "decision",
        bootstrap_time_limit: bool = True,
        bootstrap_termination: bool = False,
        bc_coef: float = 0.0,
        bc_dataset: str | Sequence[str] | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        settings = constructor_settings(PPOConfig, locals())
        if rounds_per_update is not None:
            settings["rollout_buffer_kwargs"] = {**(rollout_buffer_kwargs or {}), "rollouts": rounds_per_update}
        super().__init__(**settings)
        self._largest_reward = 0.0
        self._barren_episodes: int | None = 0
        if self.env is not None:
            self._fit_to_env()
        self._check_batch()
        if _init_setup_model:
            self._setup_model()

    @property
    def whole_episodes(self) -> bool:
        return self.rounds_per_update is not None

    def _fit_to_env(self) -> None:
        """With rounds, n_steps is what an episode takes at most; raises `BadValue` where rounds cannot be."""
        if self.rounds_per_update is None:
            return
        envs = vla_envs(self.env)
        if envs is None or not self.chunked:
            raise BadValue(
                "rounds_per_update needs a 'VLAPolicy' and an environment of vla_gym.make_vec; leave it out, and give "
                "n_steps"
            )
        self.n_steps = decisions_of_an_episode(envs)

    def make_collector(self) -> RolloutCollector:
        if self.rounds_per_update is None:
            return super().make_collector()
        return RoundCollector(**self.collector_arguments(), num_rounds=self.rounds_per_update)

    def _check_batch(self) -> None:
        """Check as SB3 does, with its messages."""
        if self.normalize_advantage:
            assert self.batch_size > 1, "`batch_size` must be greater than 1 to normalise advantages"
        if self.env is None:
            return
        size = self.env.num_envs * self.n_steps * (self.rounds_per_update or 1)
        assert size > 1 or not self.normalize_advantage, (
            f"`n_steps * n_envs` must be greater than 1, got n_steps={self.n_steps} and n_envs={self.env.num_envs}"
        )
        rest = size % self.batch_size
        if rest and not self.chunked:
            warnings.warn(
                f"You have specified a mini-batch size of {self.batch_size}, but because the `RolloutBuffer` is of "
                f"size `n_steps * n_envs = {size}`, after every {size // self.batch_size} untruncated mini-batches, "
                f"there will be a truncated mini-batch of size {rest}. Use a `batch_size` that is a factor of "
                f"`n_steps * n_envs` (n_steps={self.n_steps} and n_envs={self.env.num_envs})",
                stacklevel=3,
            )

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.critic_warmup_updates or self.critic_epochs:
            critic_parameters(self.policy)
        backbone = getattr(self.policy, "backbone", None)
        if self.value_level == "action" and backbone is not None and not backbone.step_values:
            raise BadValue(f"{STEP_VALUES_LACKING} (chunk {backbone.conventions.chunk})")
        if self.clip_range_vf is not None:
            if isinstance(self.clip_range_vf, float | int):
                assert self.clip_range_vf > 0, "`clip_range_vf` must be positive, pass `None` to deactivate vf clipping"
            self.clip_range_vf = FloatSchedule(self.clip_range_vf)

    def loss(self) -> PPOLoss:
        return replace(
            super().loss(),
            vf_coef=self.vf_coef,
            clip_vf=None if self.clip_range_vf is None else self.clip_range_vf(self._current_progress_remaining),
            value_clip=self.value_clip,
            huber_delta=self.huber_delta,
            critic_only=self._updates_done < self.critic_warmup_updates,
        )

    def compute_returns_and_advantages(self, stats: RolloutStats) -> None:
        assert stats.last_value_N is not None
        buffer = self.chunk_buffer
        estimate = step_advantages if self.reward_level == "action" else decision_advantages
        discount = Discount(gamma=self.gamma, gae_lambda=self.gae_lambda)
        advantage, valid = estimate(buffer, stats.last_value_N, discount)
        raw = value_range("raw", advantage[valid], self.process_group)
        self._advantage_spread = raw.get("raw_max", math.nan) - raw.get("raw_min", math.nan)
        if self.normalize_advantage:
            advantage = normalize(advantage, *self.process_group.moments(advantage[valid]))
        write_advantages(buffer, advantage.masked_fill(~valid, 0.0))
        if self.loss_weight == "trajectory":
            write_trajectory_weights(buffer, self.logprob_level, self.process_group, masked=self.masked_minibatches)
        else:
            write_even_weights(buffer, self.logprob_level, self.process_group)
        valid_TN = buffer.executed_TN > 0
        self._record_rollout(buffer.reward_TN[valid_TN], advantage[valid], buffer.return_TN[valid_TN])

    def log_update(self, loss: PPOLoss, metrics: UpdateMetrics) -> None:
        if metrics.empty:
            return
        sb3, values = metrics.as_sb3(), metrics.actor() | metrics.critic()
        # "train/loss" is SB3's (last minibatch) for plain policies and the mean for chunk policies.
        self.record(sb3 | values if self.chunked else values | sb3)
        self.record(dict(learning_rates(self.policy.optimizer)))
        if self.critic_warmup_updates:
            self.logger.record("train/critic/warmup", float(loss.critic_only))
        value, target = self.rollout_data().values_and_returns()
        self.logger.record("train/explained_variance", explained_variance(value, target, self.process_group))
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", torch.exp(self.policy.log_std).mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", loss.clip_low)
        if loss.clip_vf is not None:
            self.logger.record("train/clip_range_vf", loss.clip_vf)
        if self.chunked:
            value_gap = self._value_gap(value, target)
            health = replace(
                self.update_health(metrics, values),
                no_success_episodes=self._count_barren(),
                advantage_spread=self._advantage_spread,
                value_gap=value_gap,
            )
            self.training_warnings.check(health)

    def _count_barren(self) -> int:
        """Count the rollout's episodes while none has been solved and no reward has come; 0 from then on."""
        assert self.rollout_stats is not None
        episodes = self.rollout_stats.episodes
        if self._barren_episodes is None or self._largest_reward or any(episode.success for episode in episodes):
            self._barren_episodes = None
            return 0
        self._barren_episodes += len(episodes)
        return self._barren_episodes

    def _value_gap(self, value: Tensor, target: Tensor) -> float:
        """Error of the values over the largest return possible; nan while no reward was seen."""
        largest = float(self.process_group.all_reduce_max(self.chunk_buffer.reward_TN.abs().max()[None]))
        self._largest_reward = max(self._largest_reward, largest)
        error = rank_means({"square": (value - target).square()}, self.process_group)["square"]
        if not self._largest_reward:
            return math.nan
        reach = 1 / (1 - self.gamma) if self.gamma < 1 else math.inf
        largest_return = self._largest_reward * min(reach, 10 * self.n_steps)
        return math.sqrt(error) / largest_return
