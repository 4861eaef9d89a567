"""`VLAOffPolicyAlgorithm`: collect decisions into a replay, learn from the replay, log, until the steps are done.

QC and RECAP add the networks that judge, and the update. The replay of each rank lies in `<run>/replay/rank_<r>/`,
where it goes on in place.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import FloatSchedule, get_device, set_random_seed
from torch import Tensor

from vla_gym.errors import BadValue
from vla_gym.observation import ObservationLayout
from vla_policies import VLAPolicy
from vla_policies.devices import built_for
from zoo.algorithms.collecting import Collecting
from zoo.config.algorithm_configs import OffPolicyConfig
from zoo.config.settings import annotations_of, check_fields
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.distributed.fsdp import will_shard
from zoo.distributed.process_group import ProcessGroup, current_process_group
from zoo.imitation.frames import Frames, fitting
from zoo.imitation.loss import FrameBatch, add_gradients
from zoo.off_policy.replay import Decisions, Replay
from zoo.rollout.buffer import Step, executed_mask
from zoo.rollout.collector import CollectorConfig, RolloutCollector, RolloutStart, check_share
from zoo.rollout.env_loop import sb3_view
from zoo.rollout.stats import PhaseClock, RolloutStats, log_metrics
from zoo.runs.train_state import TrainState

STREAM = 2 << 64
"""Added to the seed of what updates draw, apart from what rollouts and imitation beside PPO do."""


class ReplayCollector(RolloutCollector):
    """Collects T decisions of every sub-environment into a replay."""

    add: Callable[[Step], None]
    """Writes a decision."""

    def results(self) -> dict[str, Any]:
        return {"done_N": self._done_N}

    def _write(self, row: int, columns: np.ndarray, step: Step) -> None:
        self.add(step)


class VLAOffPolicyAlgorithm(Collecting):
    """The loop; `num_timesteps` counts simulator steps of all ranks, each of which has a replay of its own."""

    config_class: ClassVar[type[OffPolicyConfig]]
    start_sampler = None
    demonstrations = None

    def __init__(
        self,
        policy: object,
        env: object,
        *,
        seed: int | None = None,
        device: torch.device | str = "auto",
        policy_kwargs: Mapping[str, Any] | None = None,
        process_group: ProcessGroup | None = None,
        **settings: Any,
    ) -> None:
        """`policy`: "VLAPolicy"; `env`: of `vla_gym.make_vec`, or an id; settings: of `config_class`."""
        if policy != "VLAPolicy":
            raise BadValue(f"{type(self).__name__} trains 'VLAPolicy', got {policy!r}")
        if will_shard():
            raise BadValue(f"{type(self).__name__} learns whole policies on each process; leave FSDP out")
        numbers = {name: value for name, value in settings.items() if not callable(value)}
        where = type(self).__name__
        checked = check_fields(annotations_of(self.config_class), numbers, where)
        self.config = self.config_class(**{**settings, **checked})
        self.process_group = current_process_group() if process_group is None else process_group
        self.env = sb3_view(env)
        self.device = get_device(device)
        drawn = int(np.random.randint(2**31)) if seed is None else seed
        self.noise_seed: int = self.process_group.broadcast_object(drawn)
        set_random_seed(self.noise_seed, using_cuda=self.device.type == "cuda")
        self.env.seed(self.noise_seed)
        self._rate = FloatSchedule(self.config.learning_rate)  # type: ignore[arg-type]
        with built_for(self.device):
            kwargs: Any = policy_kwargs or {}
            space = self.env.observation_space, self.env.action_space
            self.policy = VLAPolicy(*space, self._rate, **kwargs).to(self.device)
        self.micro_batch_size = self.config.micro_batch_size
        self.offload_idle = False
        self.logger = Logger(folder=None, output_formats=[])
        self.clock = PhaseClock()
        self.num_timesteps = 0
        self.rollout_stats: RolloutStats | None = None
        self.train_state: TrainState | None = None
        self.tasks_seen: set[int] = set()
        self.ep_info_buffer: deque[Any] = deque(maxlen=self._stats_window_size)
        self.ep_success_buffer: deque[Any] = deque(maxlen=self._stats_window_size)
        self.replay_folder: Path | None = None
        """Where the replays lie; None: in a temporary folder."""
        self.replay: Replay | None = None
        self.replay_state: Mapping[str, Any] | None = None
        """Of the last update boundary, or of the checkpoint that the run goes on from."""
        self._not_logged: list[RolloutStats] = []
        self._total_timesteps = self._num_timesteps_at_start = self._episode_num = 0
        self._n_updates = self._updates_done = 0
        self._current_progress_remaining = 1.0
        self._needs_reset = True
        self._last_obs: Any = None
        self._last_episode_starts: Any = None
        self.networks: dict[str, Any] = {}
        """Networks beside the policy that a checkpoint keeps; one that learns has an `optimizer`."""
        self.build()

    _stats_window_size = 100

    @abstractmethod
    def build(self) -> None:
        """Make the networks and learners."""

    def row_shape(self) -> tuple[ObservationLayout, int, int]:
        """Return the shape of a row: observation, steps of an action, and numbers of each."""
        return self.envs.layout, self.policy.conventions.chunk, self.policy.conventions.action_dim

    def add(self, replay: Replay, step: Step) -> None:
        """Write a decision."""
        replay.add(step)

    def steer(self) -> None:
        """Choose how the policy acts from here on."""

    @abstractmethod
    def train(self, replay: Replay, stats: RolloutStats) -> None:
        """Learn from the replay, after a rollout, and log `train/*`."""

    def get_env(self) -> Any:
        """Return Stable-Baselines3's view of the environments, for its callbacks."""
        return self.env

    def set_logger(self, logger: Logger) -> None:
        """Log there."""
        self.logger = logger

    def check_reference_at_start(self) -> None:
        """There is no reference policy."""

    # The loop -------------------------------------------------------------------------------------------

    def learn(self, total_timesteps: int, callback: BaseCallback, *, reset_num_timesteps: bool = True) -> Self:
        """Train for `total_timesteps` simulator steps, more by the rest of the last rollout; without a reset so many
        more than were made."""
        check_share(self.envs, self.process_group)
        if reset_num_timesteps:
            self.num_timesteps = self._num_timesteps_at_start = 0
        total = self._total_timesteps = total_timesteps + self.num_timesteps
        if self._last_obs is None:
            self._last_obs = self.env.reset()
            self._last_episode_starts = np.ones(self.env.num_envs, dtype=bool)
        replay = self.replay = self._open_replay(total)
        collector = ReplayCollector(
            *(self.env, self.policy, None, self.process_group, self.noise_seed),  # type: ignore[arg-type]
            config=CollectorConfig(num_decisions=self.config.n_steps),
            clock=self.clock,
        )
        collector.add = partial(self.add, replay)
        self.steer()
        callback.init_callback(self)  # type: ignore[arg-type]
        callback.on_training_start(locals(), globals())
        while self.num_timesteps < total:
            self.train_state = self.capture_state()
            stats = self._collect(collector, callback)
            if stats is None:
                break
            self.train_state = None
            self._current_progress_remaining = max(0.0, 1.0 - self.num_timesteps / total)
            with self.clock.phase("update"):
                self.train(replay, stats)
            self.steer()
            self._updates_done += 1
            self.record(log_metrics(self._not_logged, self.clock))
            self._not_logged.clear()
            self.logger.dump(self.num_timesteps)
        else:
            self.train_state = self.capture_state()
        callback.on_training_end()
        return self

    def capture_state(self) -> TrainState:
        assert self.replay is not None
        self.replay_state = self.replay.state()
        return super().capture_state()

    def _collect(self, collector: ReplayCollector, callback: BaseCallback) -> RolloutStats | None:
        with self.clock.phase("rollout"):
            self.policy.set_training_mode(False)
            callback.on_rollout_start()
            start = RolloutStart(self._updates_done, self.num_timesteps, self._last_obs)
            try:
                stats = collector.collect(start, lambda step: self._after_decision(callback, step))
            finally:
                self._last_obs = collector.obs
            if stats is not None:
                self._count_rollout(stats)
                callback.on_rollout_end()
        return stats

    def _open_replay(self, total: int) -> Replay:
        """Open this rank's replay, with the demonstrations of a run that begins, or as the checkpoint has it."""
        folder = None if self.replay_folder is None else self.replay_folder / f"rank_{self.process_group.rank}"
        demonstrations = []
        if self.replay_state is None:
            groups = {one: read_dataset(one, outcomes=True) for one in self.config.bc_folders}
            demonstrations = fitting(groups, self.policy, self.envs.benchmark)
        frames = sum(one.length for one in demonstrations)
        known = 0 if self.replay_state is None else int(self.replay_state["size"])
        layout, chunk, action_dim = self.row_shape()
        replay = Replay(
            layout,
            num_envs=self.env.num_envs,
            chunk=chunk,
            action_dim=action_dim,
            # A decision is of one step at least; rollouts end whole; each episode has an observation more.
            capacity=frames + known + 2 * (total + self.env.num_envs * (self.config.n_steps * self.envs.chunk + 1)),
            folder=folder,
        )
        if self.replay_state is not None:
            replay.restore(self.replay_state)
        replay.add_demonstrations(demonstrations)
        return replay

    # Imitation ------------------------------------------------------------------------------------------

    def imitate(
        self, learner: Any, batch: Decisions, obs: dict[str, Tensor], weight_B: Tensor | None
    ) -> dict[str, float]:
        """Take one step of the policy towards this rank's part of a batch; return what to log of it."""
        chunk = batch.action_BKA.shape[1]
        mask_BK = executed_mask(batch.executed_B, chunk)
        frames = Frames(obs=obs, action_BKA=batch.action_BKA, mask_BK=mask_BK, weight_B=weight_B)
        index_B, step = torch.arange(len(batch.row_B)), (self._n_updates, self.process_group.rank)
        drawn = FrameBatch(frames=frames, index_B=index_B, seed=self.noise_seed + STREAM, step=step)
        learner.policy.set_training_mode(True)
        rate = self._rate(self._current_progress_remaining)
        for group in learner.raw_optimizer.param_groups:
            group["lr"] = rate
        learner.zero_grad()
        loss = add_gradients(learner, drawn, ProcessGroup(), self.micro_batch_size)
        norm, _ = learner.apply()
        learner.policy.set_training_mode(False)
        return {"train/actor/imitation_loss": loss, "train/actor/grad_norm": float(norm), "train/actor/lr": rate}

    def draw(self, replay: Replay) -> Decisions:
        """Return this rank's part of the batch of the present optimiser step."""
        group, config = self.process_group, self.config
        rng = np.random.default_rng([self.noise_seed, self._n_updates, group.rank])
        rows = replay.draw(rng, config.batch_size // group.size, config.demonstration_share)
        return replay.decisions(rows, self.device)
