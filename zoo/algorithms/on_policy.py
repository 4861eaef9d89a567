"""`VLAOnPolicyAlgorithm`: collect -> advantages -> update -> log, on Stable-Baselines3's `OnPolicyAlgorithm`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    BasePolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.vector.sb3 import SB3VecEnv
from vla_gym.vector.vector_env import VLAVectorEnv
from vla_policies import VLAPolicy
from zoo.algorithms.collecting import CollectingAlgorithm
from zoo.algorithms.learner import Learner
from zoo.algorithms.objective import Objective
from zoo.algorithms.plain_experience import PlainExperience
from zoo.algorithms.reference_policy import KLReference, Reference, check_reference, make_reference
from zoo.algorithms.train_state import Boundary, take_boundary, vla_envs
from zoo.algorithms.training_warnings import Alarms
from zoo.algorithms.update import check_update_settings, run_update
from zoo.algorithms.update_metrics import Tally
from zoo.distributed.fsdp import check_precision
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.collector import ChunkExperience, Experience, is_chunk_policy
from zoo.rollout.env_views import chunk_view, plain_view, vector_view
from zoo.rollout.log_prob_levels import CreditLevel, LogprobLevel


class VLAOnPolicyAlgorithm(CollectingAlgorithm):
    """What PPO and GRPO share: the update, the loop around it, and Stable-Baselines3's contract.

    Policies with `act` and `evaluate` (`VLAPolicy`) are trained on whole chunks, kept token by token; any
    other policy goes through SB3's own rollout loop and buffer. Subclasses say how decisions are credited
    (`credit`) and what is minimised (`objective`).

    `num_timesteps` counts simulator steps really run where `infos` say so (`executed`), else one per
    environment and step.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": ActorCriticPolicy,
        "CnnPolicy": ActorCriticCnnPolicy,
        "MultiInputPolicy": MultiInputActorCriticPolicy,
        "VLAPolicy": VLAPolicy,
    }
    chunk_experience: ClassVar[type[ChunkExperience]] = ChunkExperience
    """How decisions of chunk policies are gathered."""
    reward_level: CreditLevel = "chunk"
    """What one reward and advantage is of."""
    value_level: CreditLevel = "chunk"
    """What one value is of."""
    bootstrap_time_limit: bool = True
    """Is an episode that its time limit cut off worth what its last observation promises?"""
    boundary_counters: ClassVar[tuple[str, ...]] = (
        "num_timesteps",
        "_total_timesteps",
        "_num_timesteps_at_start",
        "_episode_num",
        "_n_updates",
        "_updates_done",
        "_current_progress_remaining",
        "noise_seed",
    )
    """Attributes (JSON values) that a checkpoint keeps."""

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | VLAVectorEnv | str | None,
        *,
        batch_size: int,
        n_epochs: int,
        clip_range: float | Schedule,
        normalize_advantage: bool,
        target_kl: float | None,
        clip_range_high: float | None,
        dual_clip: float | None,
        logprob_level: LogprobLevel,
        recompute_logprobs: bool,
        kl_coef: float,
        kl_reference: KLReference,
        micro_batch_size: int | None,
        **sb3: Any,
    ) -> None:
        check_update_settings(
            batch_size=batch_size,
            n_epochs=n_epochs,
            dual_clip=dual_clip,
            logprob_level=logprob_level,
            kl_coef=kl_coef,
            kl_reference=kl_reference,
            micro_batch_size=micro_batch_size,
        )
        self._forget_run()
        super().__init__(
            policy,
            chunk_view(env) if self._is_chunk(policy) else plain_view(env),
            _init_setup_model=False,
            supported_action_spaces=(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
            **sb3,
        )
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.clip_range: Any = clip_range
        self.clip_range_high = clip_range_high
        self.dual_clip = dual_clip
        self.normalize_advantage = normalize_advantage
        self.target_kl = target_kl
        self.logprob_level: LogprobLevel = logprob_level
        self.recompute_logprobs = recompute_logprobs
        self.kl_coef = kl_coef
        self.kl_reference: KLReference = kl_reference
        self.micro_batch_size = micro_batch_size
        self._updates_done = 0

    # What subclasses say ----------------------------------------------------------------------------

    @abstractmethod
    def objective(self) -> Objective:
        """What the coming update minimises, schedules read."""

    @abstractmethod
    def credit(self, last_value_N: Tensor | None) -> None:
        """Fill the chunk buffer's advantages, returns and weights."""

    # Setting up -------------------------------------------------------------------------------------

    @classmethod
    def _is_chunk(cls, policy: str | type) -> bool:
        found = cls.policy_aliases.get(policy) if isinstance(policy, str) else policy
        return found is not None and is_chunk_policy(found)

    def _setup_model(self) -> None:
        chunk = self._is_chunk(self.policy_class)
        self.experience: Experience = self.chunk_experience() if chunk else PlainExperience()
        self.experience.check(self)
        if chunk:
            self._agree_on_seed()
        if chunk and self.rollout_buffer_class is None:
            self.rollout_buffer_class = ChunkRolloutBuffer  # type: ignore[assignment]
        super()._setup_model()
        self.clip_range = FloatSchedule(self.clip_range)
        if self.kl_coef:
            check_reference(self.policy, self.kl_reference)

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """SB3's wrapping; environments of `vla_gym` become `as_sb3()` and keep images as [H, W, 3]."""
        env = vector_view(env)
        if isinstance(env, VecEnv) and isinstance(env.unwrapped, SB3VecEnv):
            return env
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def _excluded_save_params(self) -> list[str]:
        return [
            *super()._excluded_save_params(),
            "experience",
            "clock",
            "alarms",
            "boundary",
            "_learner",
            "_reference",
            "news",
            "process_group",
        ]

    def _forget_run(self) -> None:
        super()._forget_run()
        self._learner: Learner | None = None
        self._reference: Reference | None = None
        self.boundary: Boundary | None = None
        self.alarms = Alarms()

    @property
    def learner(self) -> Learner:
        """Takes the optimiser steps of the present policy."""
        if self._learner is None or not self._learner.serves(self.policy, self.policy.optimizer):
            self._learner = Learner(
                self.experience.scorer(self),
                self.policy.optimizer,
                self.max_grad_norm,
                group=self.process_group.gradient_group,
            )
        return self._learner

    @property
    def reference(self) -> Reference:
        """The reference policy of the KL term: the policy as it was when this was first asked for.

        That is before the first update; a checkpoint keeps it, a model that was saved and loaded does not.
        """
        if self._reference is None:
            self._reference = make_reference(self.policy, self.kl_reference)
        return self._reference

    @property
    def critic_only(self) -> bool:
        """Does the coming update move the critic alone?"""
        return False

    # Updating ---------------------------------------------------------------------------------------

    def train(self) -> None:
        """Update the policy with the rollout just gathered: `n_epochs` passes in fresh random order."""
        objective = self.objective()
        tally = run_update(self, objective)
        self._updates_done += 1
        self.record_update(objective, tally)

    @abstractmethod
    def record_update(self, objective: Objective, tally: Tally) -> None:
        """Log `train/*`."""

    def record(self, values: dict[str, float]) -> None:
        """Hand numbers to the logger."""
        for key, value in values.items():
            self.logger.record(key, value)

    # The loop ---------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "OnPolicyAlgorithm",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train until `num_timesteps` reaches `total_timesteps` (more by the rest of the last rollout).

        To go on after `zoo.training.checkpoint.load_checkpoint`, pass `total_timesteps - model.num_timesteps` and
        `reset_num_timesteps=False`: schedules then continue as if nothing had happened.
        """
        envs = vla_envs(self.env)
        if envs is not None and envs.config.schedule != "random":
            raise BadValue(f"training needs schedule='random', got '{envs.config.schedule}', which ends")
        check_precision(self.policy)
        iteration = 0
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callback.on_training_start(locals(), globals())
        assert self.env is not None
        stopped = False
        while self.num_timesteps < total_timesteps:
            self.boundary = take_boundary(self)
            if not self.collect_rollouts(self.env, callback, self.rollout_buffer, self.n_steps):
                stopped = True
                break
            iteration += 1
            # From here to the next boundary the weights belong to neither.
            self.boundary = None
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            due = log_interval is not None and iteration % log_interval == 0
            if self.experience.logs_after_update:
                self.train()
            if due:
                self.record(self.news.read(self.clock))
                self.dump_logs(iteration)
            if not self.experience.logs_after_update:
                self.train()
        if not stopped:
            self.boundary = take_boundary(self)
        callback.on_training_end()
        return self

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        """SB3's, but never below zero: the last rollout may overshoot, which would turn rates negative."""
        self._current_progress_remaining = max(0.0, 1.0 - num_timesteps / total_timesteps)
