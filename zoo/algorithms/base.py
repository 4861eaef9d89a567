"""Components and state of PPO and GRPO behind Stable-Baselines3's contract; the loop is in `on_policy`."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ProgressBarCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    BasePolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv

from vla_gym.errors import BadValue
from vla_gym.vector.sb3 import SB3VecEnv
from vla_gym.vector.vector_env import VLAVectorEnv
from vla_policies import VLAPolicy
from vla_policies.precision import built_for
from zoo.algorithms.arguments import check_plain_settings, policy_class_of, saved_attributes
from zoo.algorithms.reference_policy import Reference, check_reference, check_start, make_reference
from zoo.algorithms.rollout_data import ChunkRolloutData, PlainRolloutData, RolloutData
from zoo.algorithms.scorer import ChunkScorer, PlainScorer
from zoo.algorithms.start_sampling import StartSampler
from zoo.algorithms.training_warnings import TrainingWarnings
from zoo.config.algorithm_configs import (
    CreditLevel,
    GroupLossWeight,
    KLReference,
    LogprobLevel,
    LossWeight,
    StartSampling,
    folders_of,
)
from zoo.demonstrations.lerobot_reader import check_dataset
from zoo.distributed.learner import Learner
from zoo.distributed.process_group import ProcessGroup, current_process_group
from zoo.imitation.loss import DemonstrationsLoss, read_frames
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.collector import (
    CollectorConfig,
    RolloutCollector,
    RolloutSource,
    first_env,
    is_chunk_policy,
)
from zoo.rollout.env_views import chunk_view, plain_view, vector_view, vla_envs
from zoo.rollout.stats import LogWindow, PhaseClock, RolloutStats
from zoo.rollout.types import RolloutStart
from zoo.runs.train_state import Counters, TrainState, observation_arrays, rng_state, set_rng_state

_OF_THIS_PROCESS = (
    *("process_group", "rollout_source", "rollout_stats", "train_state", "tasks_seen", "clock"),
    *("training_warnings", "_collector", "_learner", "_reference", "_anchor", "_log_window", "_start_sampler"),
)
"""Attributes that `save` leaves out."""
_SB3_SETTINGS = inspect.signature(OnPolicyAlgorithm.__init__).parameters.keys()


class StepsBar(ProgressBarCallback):
    """Progress bar of `learn` that moves by the steps the model counts; Stable-Baselines3's moves by decisions."""

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._done = self.model.num_timesteps

    def _on_step(self) -> bool:
        self.pbar.update(self.model.num_timesteps - self._done)
        self._done = self.model.num_timesteps
        return True


class AlgorithmBase(OnPolicyAlgorithm):
    """Settings, components and state of an algorithm.

    Policies with `act` and `evaluate` (`VLAPolicy`) are trained on whole chunks, kept token by token; any
    other policy goes through SB3's own rollout loop and buffer.
    """

    own_setting: ClassVar[str]
    """A setting that this algorithm alone has."""
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": ActorCriticPolicy,
        "CnnPolicy": ActorCriticCnnPolicy,
        "MultiInputPolicy": MultiInputActorCriticPolicy,
        "VLAPolicy": VLAPolicy,
    }
    batch_size: int
    n_epochs: int
    clip_range: Any
    clip_range_high: float | None
    normalize_advantage: bool = False
    target_kl: float | None
    logprob_level: LogprobLevel
    recompute_logprobs: bool
    entropy_level: LogprobLevel | None
    kl_coef: float
    kl_reference: KLReference
    micro_batch_size: int | None
    masked_minibatches: bool
    bc_coef: float
    bc_dataset: str | Sequence[str] | None
    start_sampling: StartSampling
    reward_level: CreditLevel = "chunk"
    value_level: CreditLevel = "chunk"
    bootstrap_time_limit: bool = True
    bootstrap_termination: bool = False
    rounds_per_update: int | None = None
    critic_epochs: int = 0
    loss_weight: LossWeight | GroupLossWeight = "decision"
    # Beyond the constructor's settings:
    offload_idle: bool = False
    """Whether the optimiser's state rests in main memory while the policy decides."""
    off_policy: bool = False
    """Whether rollouts may be of older weights than the update's."""
    noise_seed: int = 0
    """Seed of the noise that decisions are drawn from and of the order in which an update goes over them."""

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | VLAVectorEnv | str | None,
        *,
        process_group: ProcessGroup | None,
        **settings: Any,
    ) -> None:
        """Arguments that `OnPolicyAlgorithm` knows go to it; the other `settings` become attributes of their names."""
        policy_class = policy_class_of(policy, self.policy_aliases)
        vars(self).update({name: settings.pop(name) for name in sorted(settings.keys() - _SB3_SETTINGS)})
        self.process_group = current_process_group() if process_group is None else process_group
        self.rollout_source: RolloutSource | None = None
        """Source of rollouts that other processes collect; None = this process collects its own."""
        self.rollout_stats: RolloutStats | None = None
        """The last rollout of all ranks; None for plain policies."""
        self.train_state: TrainState | None = None
        """The run between two updates; None within an update, whose weights belong to neither side."""
        self.tasks_seen: set[int] = set()
        """Tasks of which at least one step was trained on."""
        self.clock = PhaseClock()
        self.training_warnings = TrainingWarnings()
        self._collector: RolloutCollector | None = None
        self._learner: Learner | None = None
        self._reference: Reference | None = None
        self._anchor: DemonstrationsLoss | None = None
        self._log_window = LogWindow()
        self._start_sampler: StartSampler | None = None
        self._updates_done = 0
        self._needs_reset = True
        """With `whole_episodes`: whether the coming rollout must begin the episodes of its first round."""
        super().__init__(
            policy,
            self._view(policy_class, env),
            _init_setup_model=False,
            supported_action_spaces=(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
            **settings,
        )

    # Components ------------------------------------------------------------------------------------------

    @property
    def chunked(self) -> bool:
        """Whether the policy acts in chunks (`VLAPolicy`), and so trains on a `ChunkRolloutBuffer`."""
        return is_chunk_policy(self.policy_class)

    @property
    def whole_episodes(self) -> bool:
        """Whether a rollout is rounds of one episode in every sub-environment."""
        return False

    @property
    def chunk_buffer(self) -> ChunkRolloutBuffer:
        """The rollout buffer of chunk policies."""
        buffer: Any = self.rollout_buffer
        assert isinstance(buffer, ChunkRolloutBuffer)
        return buffer

    @property
    def first_env(self) -> int:
        """Place of this rank's first sub-environment among those of all ranks."""
        assert self.env is not None
        return first_env(self.env, self.process_group)

    def collector(self) -> RolloutCollector:
        """The collector of this process; replaced when environment, policy, buffer or seed are."""
        present = self._collector
        if (
            present is None
            or present.env is not self.env
            or present.policy is not self.policy
            or present.buffer is not self.chunk_buffer
            or present.seed != self.noise_seed
        ):
            present = self._collector = self.make_collector()
        return present

    def make_collector(self) -> RolloutCollector:
        """Return a collector for the present environment, policy and buffer."""
        return RolloutCollector(**self.collector_arguments())

    def collector_arguments(self) -> dict[str, Any]:
        """Arguments of a `RolloutCollector`."""
        return {
            "env": self.env,
            "policy": self.policy,
            "buffer": self.chunk_buffer,
            "process_group": self.process_group,
            "seed": self.noise_seed,
            "config": CollectorConfig(
                num_decisions=self.n_steps,
                reward_level=self.reward_level,
                value_level=self.value_level,
                bootstrap_time_limit=self.bootstrap_time_limit,
                bootstrap_termination=self.bootstrap_termination,
            ),
            "clock": self.clock,
        }

    def rollout_start(self) -> RolloutStart:
        """Return where the coming rollout begins."""
        obs: Any = self._last_obs
        at_start = self.whole_episodes and not self._needs_reset
        self._needs_reset = True
        return RolloutStart(self._updates_done, self.num_timesteps, obs, at_episode_start=at_start)

    def rollout_data(self) -> RolloutData:
        """The rollout in the buffer, as the update goes over it."""
        if not self.chunked:
            return PlainRolloutData(
                buffer=self.rollout_buffer,
                action_space=self.action_space,
                batch_size=self.batch_size,
                micro_batch_size=self.micro_batch_size,
                normalize_advantage=self.normalize_advantage,
            )
        return ChunkRolloutData(
            buffer=self.chunk_buffer,
            process_group=self.process_group,
            num_envs=self.n_envs,
            batch_size=self.batch_size,
            micro_batch_size=self.micro_batch_size,
            level=self.logprob_level,
            seed=self.noise_seed,
            device=self.device,
            masked=self.masked_minibatches,
            off_policy=self.off_policy,
        )

    @property
    def learner(self) -> Learner:
        """The learner of the present policy."""
        if self._learner is None or not self._learner.serves(self.policy, self.policy.optimizer):
            scorer = (
                ChunkScorer(self.policy, self.logprob_level, self.value_level, self.entropy_level)
                if self.chunked
                else PlainScorer(self.policy)
            )
            self._learner = Learner(
                scorer, self.policy.optimizer, self.max_grad_norm, group=self.process_group.gradient_group
            )
        return self._learner

    @property
    def learns_sharded(self) -> bool:
        """Whether a sharded copy of the policy has begun to learn."""
        return self._learner is not None and self._learner.sharded

    @property
    def reference(self) -> Reference:
        """The reference policy of the KL term: the policy as it was at the first access, before the first update.

        A checkpoint keeps it; a model that was saved and loaded does not.
        """
        if self._reference is None:
            self._reference = make_reference(self.policy, self.kl_reference)
        return self._reference

    @property
    def anchor(self) -> DemonstrationsLoss | None:
        """The demonstrations that updates imitate, read at the first access; None without `bc_coef`.

        Raises `BadValue` where they do not fit the policy.
        """
        if self.bc_coef and self._anchor is None:
            envs = vla_envs(self.env)
            frames = read_frames(
                folders_of(self.bc_dataset),
                self.policy,
                None if envs is None else envs.benchmark,
                self.action_space.shape[0],  # type: ignore[index]
            )
            self._anchor = DemonstrationsLoss(
                frames,
                coef=self.bc_coef,
                batch_size=self.batch_size,
                micro_batch_size=self.micro_batch_size,
                seed=self.noise_seed,
                process_group=self.process_group,
            )
        return self._anchor

    @property
    def start_sampler(self) -> StartSampler | None:
        """What weighs the start states; None where they are drawn uniformly."""
        if self.start_sampling == "uniform":
            return None
        if self._start_sampler is None:
            envs = vla_envs(self.env)
            if envs is None:
                raise BadValue(
                    f"start_sampling={self.start_sampling!r} needs an environment of vla_gym.make_vec, got "
                    f"{type(self.env).__name__}; leave it at 'uniform'"
                )
            self._start_sampler = StartSampler(
                tuple(task.num_trials for task in envs.benchmark.tasks),
            )
        return self._start_sampler

    def weigh_starts(self) -> None:
        """Let the environment draw the coming episodes' start states by `start_sampler`."""
        if self.start_sampler is not None:
            envs = vla_envs(self.env)
            assert envs is not None, "start_sampler says so"
            envs.set_start_weights(self.start_sampler.probabilities())

    def check_reference_at_start(self) -> None:
        """Raise `BadValue` where the KL of a run that is yet to begin would not be to the policy it begins with."""
        if self.chunked and self.kl_coef and not self._updates_done:
            check_start(self.policy, self.kl_reference)

    def record(self, values: dict[str, float]) -> None:
        """Log numbers."""
        for key, value in values.items():
            self.logger.record(key, value)

    # Environment ------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        path: str | Path | BufferedIOBase,
        env: GymEnv | VLAVectorEnv | str | None = None,
        device: torch.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Self:
        """As Stable-Baselines3's; `env` is what the constructor takes.

        Raises `BadValue` for a folder, a file that `save` did not write, and a model of another algorithm.
        """
        if isinstance(path, str | Path) and Path(path).is_dir():
            raise BadValue(
                f"'{path}' is a folder, and load reads the zip that save wrote; a folder of weights is given as "
                "policy_kwargs={'backbone': FOLDER}"
            )
        saved = saved_attributes(path, custom_objects)
        if cls.own_setting not in saved:
            raise BadValue(f"'{path}' was saved by another algorithm than {cls.__name__}: it has no {cls.own_setting}")
        view = None if env is None else cls._view(saved["policy_class"], env)
        return super().load(path, view, device, custom_objects, *args, **kwargs)

    def set_env(self, env: GymEnv | VLAVectorEnv | str, force_reset: bool = True) -> None:
        """As Stable-Baselines3's, of what the constructor takes; what follows from the environment follows."""
        super().set_env(self._view(self.policy_class, env), force_reset)
        self._start_sampler = self._anchor = None
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

    def _fit_to_env(self) -> None:
        """Set `n_steps` where it follows from the environment, which is there."""

    # State ------------------------------------------------------------------------------------------

    def capture_state(self) -> TrainState:
        """Return the present state, without a random number drawn or a simulator stepped."""
        envs = vla_envs(self.env)
        return TrainState(
            counters=self.counters(),
            episodes=tuple(
                {key: float(info[key]) for key in ("r", "l", "t") if key in info} for info in self.ep_info_buffer or ()
            ),
            successes=tuple(float(success) for success in self.ep_success_buffer or ()),
            rng=rng_state(),
            env=None if envs is None else envs.state_dict(),
            arrays=observation_arrays(self._last_obs, self._last_episode_starts),
            starts=None if self.start_sampler is None else self.start_sampler.to_json(),
        )

    def counters(self) -> Counters:
        """Return the present counts and seeds."""
        return Counters(
            num_timesteps=self.num_timesteps,
            total_timesteps=self._total_timesteps,
            num_timesteps_at_start=self._num_timesteps_at_start,
            episode_num=self._episode_num,
            n_updates=self._n_updates,
            updates_done=self._updates_done,
            progress_remaining=self._current_progress_remaining,
            noise_seed=self.noise_seed,
            needs_reset=self._needs_reset if self.whole_episodes else None,
        )

    def restore_state(self, state: TrainState) -> None:
        """Restore `state`, of this rank's sub-environments; raises `BadValue` for an environment of another kind."""
        envs = vla_envs(self.env)
        if (envs is None) != (state.env is None):
            raise BadValue("the checkpoint is of an environment of another kind than the present one")
        assert self.env is not None
        # An environment whose state is not kept begins anew, which SB3 does when there is no last observation.
        if envs is not None and state.env is not None:
            envs.load_state_dict(state.env)
            # The constructor set a seed for the next reset, which would start the schedule anew.
            self.env.unwrapped._reset_seeds()
            self._last_obs = state.last_obs
            self._last_episode_starts = state.arrays["episode_starts"]
        if self.start_sampler is not None and state.starts is not None:
            self.start_sampler.restore(state.starts)
        self.restore_counters(state.counters)
        self.ep_info_buffer = deque(state.episodes, maxlen=self._stats_window_size)
        self.ep_success_buffer = deque(state.successes, maxlen=self._stats_window_size)
        self.train_state = None
        set_rng_state(state.rng)

    def restore_counters(self, counters: Counters) -> None:
        """Restore counts and seeds."""
        self.num_timesteps = counters.num_timesteps
        self._total_timesteps = counters.total_timesteps
        self._num_timesteps_at_start = counters.num_timesteps_at_start
        self._episode_num = counters.episode_num
        self._n_updates = counters.n_updates
        self._updates_done = counters.updates_done
        self._current_progress_remaining = counters.progress_remaining
        self.noise_seed = counters.noise_seed
        if self.whole_episodes:
            self._needs_reset = bool(counters.needs_reset)

    # Inside -----------------------------------------------------------------------------------------

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
            both.callbacks[-1] = StepsBar()
            both.callbacks[-1].init_callback(self)
        return both

    @staticmethod
    def _view(policy_class: type[BasePolicy], env: Any) -> Any:
        return chunk_view(env) if is_chunk_policy(policy_class) else plain_view(env)

    def _setup_model(self) -> None:
        if self.env is not None:  # that of a model which is loaded may be another than it was saved with
            self._fit_to_env()
        if self.chunked:
            self._check_chunk_settings()
            # Without a seed a run draws one; all ranks have rank 0's, and so the same weights.
            seed = int(np.random.randint(2**31)) if self.seed is None else self.seed
            self.noise_seed = self.process_group.broadcast_object(seed)
            if self.process_group.size > 1:
                self.seed = self.noise_seed
            if self.rollout_buffer_class is None:
                self.rollout_buffer_class = ChunkRolloutBuffer  # type: ignore[assignment]
        else:
            self._check_plain_settings()
        with built_for(self.device):
            super()._setup_model()
        self.clip_range = FloatSchedule(self.clip_range)
        if self.kl_coef:
            check_reference(self.policy, self.kl_reference)

    def _check_chunk_settings(self) -> None:
        if self.use_sde:
            raise BadValue("use_sde (state-dependent noise) does not apply to policies of action tokens")
        for folder in folders_of(self.bc_dataset):
            check_dataset(folder)
        buffer_class = self.rollout_buffer_class
        if buffer_class is not None and not issubclass(buffer_class, ChunkRolloutBuffer):
            raise BadValue(
                "rollout_buffer_class of a chunk policy must derive from ChunkRolloutBuffer, got "
                f"{buffer_class.__name__}"
            )

    def _check_plain_settings(self) -> None:
        if self.process_group.size > 1:
            raise BadValue(
                f"{self.policy_class.__name__} is trained in one process; several are for policies with `act` and "
                "`evaluate`, such as 'VLAPolicy'"
            )
        check_plain_settings(vars(self))

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """SB3's wrapping; environments of `vla_gym` become `as_sb3()` and keep images as [H, W, 3]."""
        env = vector_view(env)
        if isinstance(env, VecEnv) and isinstance(env.unwrapped, SB3VecEnv):
            return env
        return BaseAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *_OF_THIS_PROCESS]
