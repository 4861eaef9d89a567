"""`VLAOnPolicyAlgorithm`: the loop of PPO and GRPO behind Stable-Baselines3's `OnPolicyAlgorithm`.

    learn             collect, update and log, until the steps are done
    collect_rollouts  fill the rollout buffer and its advantages
    train             n_epochs passes over the buffer, an optimiser step for each minibatch

PPO and GRPO add the advantages, the loss, and what they log.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import cached_property
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ProgressBarCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.vector.sb3 import SB3VecEnv
from vla_policies import VLAPolicy
from vla_policies.devices import built_for
from zoo.algorithms.arguments import bound_arguments, constructor_signature
from zoo.algorithms.collecting import Collecting
from zoo.algorithms.losses import PolicyScorer, PPOLoss
from zoo.algorithms.reference_policy import Reference, check_start
from zoo.algorithms.start_sampling import StartSampler
from zoo.algorithms.update_metrics import (
    UpdateMetrics,
    behaviour_gap,
    in_half_precision,
    rank_means,
    value_range,
    warn_of_faults,
)
from zoo.config.algorithm_configs import ADAPTER_LACKING, CreditLevel, OnPolicyConfig
from zoo.distributed.fsdp import check_learnable, offloaded_state, will_shard
from zoo.distributed.learner import Learner
from zoo.distributed.process_group import ProcessGroup, check_same, current_process_group
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.collector import (
    RolloutCollector,
    RolloutSource,
    RolloutStart,
    check_share,
)
from zoo.rollout.env_loop import sb3_view
from zoo.rollout.minibatches import RolloutData
from zoo.rollout.stats import PhaseClock, RolloutStats, log_metrics
from zoo.runs.train_state import TrainState

if TYPE_CHECKING:  # only runs beside demonstrations load them
    from zoo.imitation.loss import DemonstrationsLoss

_OF_THIS_PROCESS = (
    *("process_group", "rollout_stats", "train_state", "tasks_seen", "clock", "fault_counts", "rollout_source"),
    *("_collector", "_learner", "reference", "demonstrations", "_not_logged", "start_sampler", "offload_idle"),
)
"""Attributes that `save` leaves out."""
_SB3_SETTINGS: Mapping[str, Any] = {
    "learning_rate": None,
    "n_steps": 1,
    "gamma": None,
    "gae_lambda": 1.0,
    "ent_coef": None,
    "vf_coef": 0.0,
    "max_grad_norm": None,
}
"""Settings that `OnPolicyAlgorithm` takes, and their values where the algorithm has no such setting."""


class VLAOnPolicyAlgorithm(Collecting, OnPolicyAlgorithm):
    """Collects whole chunks of a `VLAPolicy`, kept token by token, and updates it with minibatches of them.

    Every setting is an attribute of its name, which callbacks may change, as in Stable-Baselines3. `num_timesteps`
    counts simulator steps that were run.
    """

    config_class: ClassVar[type[OnPolicyConfig]]
    """The settings: types, ranges, defaults and explanations."""
    positional: ClassVar[tuple[str, ...]]
    """Settings that may be given by place, after policy and env."""
    foreign_setting: ClassVar[str]
    """A setting that models of the other algorithm alone have."""
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"VLAPolicy": VLAPolicy}
    policy: VLAPolicy
    env: SB3VecEnv | None
    value_level: CreditLevel = "chunk"
    critic_epochs: int = 0
    noise_seed: int = 0
    """Seed of the noise that decisions are drawn from and of the order in which an update goes over them."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = constructor_signature(cls.config_class, cls.positional)  # type: ignore[attr-defined]

    def __init__(
        self, *args: Any, process_group: ProcessGroup | None = None, _init_setup_model: bool = True, **settings: Any
    ) -> None:
        """`policy`: "VLAPolicy", or a class derived from it; `env`: of `vla_gym.make_vec`, or an id; then settings.

        `process_group`: processes that train together; None = all that a launcher has started.
        """
        given = bound_arguments(type(self), self.config_class, args, settings)
        policy, env = given.pop("policy"), given.pop("env")
        self.process_group = current_process_group() if process_group is None else process_group
        own = {field.name: given.pop(field.name) for field in fields(self.config_class)}
        vars(self).update(own)
        self.rollout_source: RolloutSource | None = None
        """Where rollouts come from that other processes collect; None = they are collected here."""
        self.offload_idle = False
        """Whether the optimiser's state rests in main memory while the policy decides."""
        self.rollout_stats: RolloutStats | None = None
        """The last rollout of all ranks."""
        self.train_state: TrainState | None = None
        """The run between two updates; None within an update, whose weights belong to neither side."""
        self.tasks_seen: set[int] = set()
        """Tasks of which at least one step was trained on."""
        self.clock = PhaseClock()
        self.fault_counts: Counter[str] = Counter()
        self._collector: RolloutCollector | None = None
        self._learner: Learner | None = None
        self._not_logged: list[RolloutStats] = []
        """Rollouts since the last line of the log."""
        self._updates_done = 0
        self._needs_reset = True
        """With rounds: whether the coming rollout must begin the episodes of its first round."""
        super().__init__(
            _policy_class(policy, type(self).__name__),
            None if env is None else sb3_view(env),  # type: ignore[arg-type]
            **{name: own.get(name, default) for name, default in _SB3_SETTINGS.items()},
            **given,
            use_sde=False,
            sde_sample_freq=-1,
            rollout_buffer_class=ChunkRolloutBuffer,  # type: ignore[arg-type]
            rollout_buffer_kwargs={"rollouts": self.num_rounds or 1},
            _init_setup_model=False,
            supported_action_spaces=(spaces.Box,),
        )
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        if self.env is not None:  # that of a model which is loaded may be another than it was saved with
            self._fit_to_env()
        # Without a seed a run draws one; all ranks have rank 0's, and so the same weights.
        seed = int(np.random.randint(2**31)) if self.seed is None else self.seed
        self.noise_seed = self.process_group.broadcast_object(seed)
        if self.process_group.size > 1:
            self.seed = self.noise_seed
        if self.config.bc_folders:
            from zoo.demonstrations.lerobot_reader import check_dataset

            for folder in self.config.bc_folders:
                check_dataset(folder)
        with built_for(self.device):
            super()._setup_model()
        self.clip_range = FloatSchedule(self.config.clip_range)  # type: ignore[arg-type]
        if self.config.kl_coef and self.config.kl_reference == "adapter_off" and not self.policy.backbone.has_adapter:
            raise BadValue(ADAPTER_LACKING)

    def _fit_to_env(self) -> None:
        """Set `n_steps` where it follows from the environment, which is there."""
        if self.num_rounds is not None:
            longest = max(task.horizon for task in self.envs.benchmark.tasks)
            self.n_steps = math.ceil(longest / self.envs.chunk)

    # Components ------------------------------------------------------------------------------------------

    @property
    def config(self) -> OnPolicyConfig:
        """The present settings."""
        return self.config_class(**{field.name: getattr(self, field.name) for field in fields(self.config_class)})

    @property
    @abstractmethod
    def num_rounds(self) -> int | None:
        """Rounds of one episode per sub-environment in a rollout; None = `n_steps` decisions with automatic resets."""

    @property
    def chunk_buffer(self) -> ChunkRolloutBuffer:
        """The rollout buffer."""
        buffer: Any = self.rollout_buffer
        assert isinstance(buffer, ChunkRolloutBuffer)
        return buffer

    def collector(self) -> RolloutCollector:
        """Return the collector of this process; replaced when environment, policy, buffer or seed are."""
        present, parts = self._collector, (self.env, self.policy, self.chunk_buffer)
        if (
            present is None
            or any(one is not other for one, other in zip((present.env, present.policy, present.buffer), parts))
            or present.seed != self.noise_seed
        ):
            present = self._collector = self.make_collector(self.policy)
        return present

    @abstractmethod
    def make_collector(self, policy: VLAPolicy) -> RolloutCollector:
        """Return a collector that decides with `policy`, in the present environment and into the present buffer."""

    def _collector_arguments(self, policy: VLAPolicy) -> dict[str, Any]:
        return {
            "env": self.env,
            "policy": policy,
            "buffer": self.chunk_buffer,
            "process_group": self.process_group,
            "seed": self.noise_seed,
            "clock": self.clock,
        }

    def rollout_data(self) -> RolloutData:
        """Return the rollout in the buffer, as the update goes over it."""
        config = self.config
        return RolloutData(
            buffer=self.chunk_buffer,
            process_group=self.process_group,
            num_envs=self.n_envs,
            batch_size=config.batch_size,
            micro_batch_size=config.micro_batch_size,
            level=config.logprob_level,
            seed=self.noise_seed,
            device=self.device,
            masked=config.masked_minibatches,
        )

    @property
    def learner(self) -> Learner:
        """The learner of the present policy."""
        if self._learner is None or not self._learner.serves(self.policy, self.policy.optimizer):
            config = self.config
            scorer = PolicyScorer(self.policy, config.logprob_level, self.value_level, config.entropy_level)
            group = self.process_group.gradient_group
            self._learner = Learner(scorer, self.policy.optimizer, self.max_grad_norm, group=group)
        return self._learner

    @property
    def learns_sharded(self) -> bool:
        """Whether a sharded copy of the policy has begun to learn."""
        return self._learner is not None and self._learner.sharded

    @cached_property
    def reference(self) -> Reference:
        """The reference policy of the KL term: the policy as it was at the first access, before the first update.

        A checkpoint keeps it; a model that was saved and loaded does not.
        """
        return Reference(self.policy, self.config.kl_reference)

    @cached_property
    def demonstrations(self) -> DemonstrationsLoss | None:
        """The demonstrations that updates imitate, read at the first access; None without `bc_coef`.

        Raises `BadValue` where they do not fit the policy.
        """
        config = self.config
        if not config.bc_coef:
            return None
        from zoo.imitation.loss import DemonstrationsLoss, read_frames

        return DemonstrationsLoss(
            read_frames(config.bc_folders, self.policy, self.envs.benchmark),
            coef=config.bc_coef,
            batch_size=config.batch_size,
            micro_batch_size=config.micro_batch_size,
            seed=self.noise_seed,
            process_group=self.process_group,
        )

    @cached_property
    def start_sampler(self) -> StartSampler | None:
        """Weights of the start states; None where they are drawn uniformly."""
        if self.config.start_sampling == "uniform":
            return None
        return StartSampler([task.num_trials for task in self.envs.benchmark.tasks])

    # The loop --------------------------------------------------------------------------------------------

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

        As Stable-Baselines3's; `tb_log_name` None is the class's name. To go on after
        `zoo.training.checkpoint.load_checkpoint`, pass `total_timesteps - model.num_timesteps` and
        `reset_num_timesteps=False`: schedules then continue as if nothing had happened.
        """
        if self.env is None:
            raise BadValue("this model has no environment; give it one by set_env(...), or load(PATH, env=...)")
        if self.envs.config.schedule != "random":
            raise BadValue(f"training needs schedule='random', got '{self.envs.config.schedule}', which ends")
        check_share(self.envs, self.process_group)
        check_learnable(self.policy)
        if not will_shard():
            self.policy.backbone.keep_features()
        self.check_reference_at_start()
        if self.demonstrations is not None:
            check_same({"what bc_dataset holds": self.demonstrations.digests[0]}, self.process_group)
        self._weigh_starts()
        iteration = 0
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or type(self).__name__, progress_bar
        )
        callback.on_training_start(locals(), globals())
        while self.num_timesteps < total_timesteps:
            self.train_state = self.capture_state()
            if not self.collect_rollouts(self.env, callback, self.rollout_buffer, self.n_steps):
                break
            iteration += 1
            self.train_state = None
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            self.train()
            if log_interval is not None and iteration % log_interval == 0:
                self.record(log_metrics(self._not_logged, self.clock))
                self._not_logged.clear()
                self.dump_logs(iteration)
        else:
            self.train_state = self.capture_state()
        callback.on_training_end()
        return self

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, rollout_buffer: Any, n_rollout_steps: int) -> bool:
        """Fill the rollout buffer and its advantages; False when a callback, on any rank, stopped it."""
        assert self._last_obs is not None, "No previous observation was provided"
        rest = offloaded_state(self.policy.optimizer) if self.offload_idle else nullcontext()
        with rest, self.clock.phase("rollout"):
            self.policy.set_training_mode(False)
            rollout_buffer.reset()
            callback.on_rollout_start()
            source = self.rollout_source or self.collector()
            last_obs: Any = self._last_obs
            at_start = self.num_rounds is not None and not self._needs_reset
            start = RolloutStart(self._updates_done, self.num_timesteps, last_obs, at_episode_start=at_start)
            self._needs_reset = True
            try:
                stats = source.collect(start, lambda step: self._after_decision(callback, step))
            finally:
                self._last_obs = source.obs
            if stats is None:
                return False
            self._count_rollout(stats)
            with self.clock.phase("advantages"):
                self.compute_returns_and_advantages(stats)
            callback.update_locals({"rollout_buffer": rollout_buffer})
            callback.on_rollout_end()
        return True

    def train(self) -> None:
        """Update the policy with the rollout just collected: `n_epochs` passes in fresh random order.

        Then `critic_epochs` passes that train the critic alone.
        """
        config, loss, data, learner = self.config, self.loss(), self.rollout_data(), self.learner
        metrics, fitted = UpdateMetrics(loss, self.process_group), UpdateMetrics(loss, self.process_group)
        off_policy = self.rollout_source is not None and self.rollout_source.off_policy
        learner.policy.set_training_mode(True)  # type: ignore[operator]
        self._update_learning_rate(learner.raw_optimizer)
        with self.clock.phase("update"):
            if config.recompute_logprobs or off_policy or learner.own_precision:
                if off_policy:
                    self.chunk_buffer.behaviour_logprob_TNKA = self.chunk_buffer.logprob_TNKA.clone()
                data.recompute_log_probs(lambda batch: learner.score(batch, None), self._n_updates)
                self.record(behaviour_gap(self.chunk_buffer, config.logprob_level, self.process_group))
            if config.kl_coef and not loss.critic_only:
                reference = self.reference
                data.compute_ref_log_probs(lambda batch: reference.evaluate(batch.obs, batch.choice).logprob_BKA)
            self._make_passes(config.n_epochs, loss, data, metrics, config.target_kl)
            self._make_passes(self.critic_epochs, replace(loss, critic_only=True), data, fitted, None)
            learner.sync_weights()
        if learner.accelerator.scaler is None:  # a loss scaler begins too high and comes down
            metrics.check_learnt(self._updates_done + 1)
        self._updates_done += 1
        self.log_update(loss, metrics)
        if not fitted.empty:
            self.logger.record("train/critic/value_loss_fitted", fitted.critic()["train/critic/value_loss"])

    def _make_passes(
        self, count: int, loss: PPOLoss, data: RolloutData, metrics: UpdateMetrics, target_kl: float | None
    ) -> None:
        """Make `count` passes over the rollout, fewer where the policy leaves `target_kl`."""
        if not count:
            return
        with self.learner.train_critic() if loss.critic_only else nullcontext():
            for _ in range(count):
                finished = self._make_pass(loss, data, metrics, target_kl)
                self._n_updates += 1
                if not finished:
                    break

    def _make_pass(self, loss: PPOLoss, data: RolloutData, metrics: UpdateMetrics, target_kl: float | None) -> bool:
        """Take an optimiser step with every minibatch; return False where the policy left `target_kl` before."""
        learner, demonstrations = self.learner, None if loss.critic_only else self.demonstrations
        imitated = iter(()) if demonstrations is None else demonstrations.batches(self._n_updates)
        metrics.begin_epoch()
        for micro_batches in data.minibatches(self._n_updates):
            metrics.begin_minibatch()
            learner.zero_grad()
            if demonstrations is not None:
                metrics.add_imitation(demonstrations.add_gradients(learner, next(imitated)))
            for micro_batch in micro_batches:
                with learner.accumulate(last=micro_batch.last):
                    value, terms, scores = learner.score(micro_batch.batch, loss)
                    learner.backward(value if micro_batch.weight == 1.0 else value * micro_batch.weight)
                metrics.add(terms, scores, micro_batch)
            # A KL that is not a number ends nothing: the step is then left out for its gradient.
            if target_kl is not None and not loss.critic_only and (kl := metrics.latest_kl()) > 1.5 * target_kl:
                self.logger.info(f"Early stop of update {self._n_updates}: KL {kl:.3g} > 1.5 x target_kl")
                learner.zero_grad()
                return False
            grad_norm, stepped = learner.apply()
            metrics.add_step(grad_norm, stepped=stepped)
        return True

    def loss(self) -> PPOLoss:
        """Return the loss of the coming update, schedules read; here without a critic."""
        config, low = self.config, self.clip_range(self._current_progress_remaining)
        return PPOLoss(
            clip_low=low,
            clip_high=low if config.clip_range_high is None else config.clip_range_high,
            ent_coef=config.ent_coef,
            kl_coef=config.kl_coef,
        )

    @abstractmethod
    def compute_returns_and_advantages(self, stats: RolloutStats) -> None:
        """Fill the buffer's advantages, returns and weights."""

    @abstractmethod
    def log_update(self, loss: PPOLoss, metrics: UpdateMetrics) -> None:
        """Log `train/*`."""

    def check_update(self, actor: Mapping[str, float], **others: float) -> None:
        """Warn of `faults` in the update's numbers: its `metrics.actor()`, empty without a minibatch, and others."""
        numbers = {**actor, **others, "half_precision": in_half_precision(self.policy)}
        if self.policy.backbone.continuous:  # the entropy of a density may well be small, or negative
            numbers.pop("train/actor/entropy", None)
        warn_of_faults(numbers, self.fault_counts)

    def check_reference_at_start(self) -> None:
        """Raise `BadValue` where the KL of a run that is yet to begin would not be to the policy it begins with."""
        if self.config.kl_coef and not self._updates_done:
            check_start(self.policy, self.config.kl_reference)

    def _record_rollout(self, rewards: Tensor, advantages: Tensor, returns: Tensor) -> None:
        means = {"rollout/rewards": rewards, "rollout/advantages_mean": advantages, "rollout/returns_mean": returns}
        self.record(rank_means(means, self.process_group))
        for name, values in (("advantages", advantages), ("returns", returns)):
            self.record(value_range(f"rollout/{name}", values, self.process_group))

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        """SB3's, but never below zero: the last rollout may overshoot, which would turn rates negative."""
        self._current_progress_remaining = max(0.0, 1.0 - num_timesteps / total_timesteps)

    def _setup_learn(self, total_timesteps: int, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        before = self._last_obs
        result = super()._setup_learn(total_timesteps, *args, **kwargs)
        if self._last_obs is not before:
            # SB3 has just begun an episode in every sub-environment: the first round takes those.
            self._needs_reset = False
        return result

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        both = super()._init_callback(callback, progress_bar)
        if isinstance(both, CallbackList) and progress_bar:
            both.callbacks[-1] = _StepsBar()
            both.callbacks[-1].init_callback(self)
        return both

    # Saving and loading ----------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        path: str | Path | BufferedIOBase,
        env: object = None,
        device: torch.device | str = "auto",
        custom_objects: dict[str, object] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Self:
        """As Stable-Baselines3's; `env` is what the constructor takes.

        Raises `BadValue` for a folder and for a model of another algorithm.
        """
        if isinstance(path, str | Path) and Path(path).is_dir():
            raise BadValue(
                f"'{path}' is a folder, and load reads the zip that save wrote; a folder of weights is given as "
                "policy_kwargs={'backbone': FOLDER}"
            )
        view = None if env is None else sb3_view(env)
        model = super().load(path, view, device, custom_objects, *args, **kwargs)
        if cls.foreign_setting in vars(model):
            raise BadValue(f"'{path}' was saved by another algorithm than {cls.__name__}")
        return model

    def set_env(self, env: object, force_reset: bool = True) -> None:
        """As Stable-Baselines3's, of what the constructor takes; what follows from the environment follows."""
        super().set_env(sb3_view(env), force_reset)
        for name in ("start_sampler", "demonstrations"):
            vars(self).pop(name, None)
        num_decisions = self.n_steps
        self._fit_to_env()
        if self.n_steps != num_decisions:
            self.rollout_buffer = type(self.rollout_buffer)(
                self.n_steps,
                self.observation_space,
                self.action_space,
                device=self.device,
                gamma=self.gamma,
                gae_lambda=self.gae_lambda,
                n_envs=self.n_envs,
                **self.rollout_buffer_kwargs,
            )

    @staticmethod
    def _wrap_env(env: object, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """SB3's wrapping, of which `as_sb3()` needs none: images stay [H, W, 3]."""
        return sb3_view(env)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *_OF_THIS_PROCESS]


class _StepsBar(ProgressBarCallback):
    """Progress bar of `learn` that moves by the steps the model counts; Stable-Baselines3's moves by decisions."""

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._done = self.model.num_timesteps

    def _on_step(self) -> bool:
        self.pbar.update(self.model.num_timesteps - self._done)
        self._done = self.model.num_timesteps
        return True


def _policy_class(policy: object, algorithm: str) -> type[VLAPolicy]:
    if policy == "VLAPolicy":
        return VLAPolicy
    if isinstance(policy, type) and issubclass(policy, VLAPolicy):
        return policy
    got = policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
    raise BadValue(
        f"zoo.{algorithm} trains 'VLAPolicy', got '{got}'. stable_baselines3.PPO trains other policies; weights are "
        "chosen by policy_kwargs={'backbone': FOLDER}"
    )
