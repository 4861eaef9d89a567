"""Supervised fine-tuning: a run from its datasets on (`finetune`), the algorithm in Stable-Baselines3's manner (`SFT`),
and its checkpoints.

    <run>/checkpoints/step_<updates>/
        config.json, model.safetensors   the policy (or its adapter's files), as `from_pretrained` reads it
        optimizer.safetensors            tensors of the optimiser's state
        training_state.json              updates, random generators, parameter groups, what is learned; written last

A run goes on from one as if it had never stopped: bit for bit, on a CPU. Which frames an update takes and how their
images are changed follow from the seed and the update's number, so nothing needs to be kept of them.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed
from torch import Tensor

from vla_gym import VLAVectorEnv
from vla_gym.errors import BadValue
from vla_gym.reading import user_path
from vla_gym.specs import Benchmark
from vla_gym.vector.protocol import with_instructions
from vla_policies import VLAPolicy
from vla_policies.actions.noise import Noise
from vla_policies.devices import built_for
from zoo.config.algorithm_configs import SFTConfig
from zoo.config.batch_plan import check_dealing
from zoo.config.gym_packages import packages_flag, packages_of
from zoo.config.hyperparams import deep_merge
from zoo.config.run_config import RunConfig, sft_config
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.demonstrations.recorder import PRIVILEGED, Demonstration
from zoo.distributed.fsdp import check_learnable
from zoo.distributed.learner import Learner
from zoo.distributed.process_group import ProcessGroup, check_same, check_same_weights, launched_processes
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.results import evaluation_table
from zoo.files import quoted, read_json, remove_folder
from zoo.imitation.augmentation import Paraphrases, augmented, read_paraphrases
from zoo.imitation.frames import Frames, batches, fitting, frames_of
from zoo.imitation.loss import FrameBatch, ImitationScorer, add_gradients
from zoo.rollout.stats import PhaseClock
from zoo.runs.folder import ARGS_FILE, EVALUATION_FILE, RunFolder
from zoo.runs.lookup import FINETUNING
from zoo.runs.report_page import report_of
from zoo.runs.train_state import rng_state, set_rng_state
from zoo.training.callbacks import CheckpointCallback
from zoo.training.checkpoint import Saving, load_moments, read_state, save_best, write_checkpoint
from zoo.training.evaluation import Evaluator, make_evaluation_envs, own_start_states
from zoo.training.run_plan import TrainJob
from zoo.training.setup import join_run, open_run_folder, policy_arguments, run_log
from zoo.training.trainer import Trainer

_logger = logging.getLogger(__name__)

FAMILY_WITH_HEAD = "nano"
"""The family whose fresh weights can have a head that tells what the expert saw."""
_LINES = 20
"""Losses shown on the screen."""


@dataclass(frozen=True)
class SFTState:
    """A run between two updates; weights and optimiser are kept beside it."""

    num_timesteps: int
    """Updates made."""
    rng: Mapping[str, Any]
    """See `zoo.runs.train_state.rng_state`."""


class SFT:
    """Learns every frame once in random order, then once more, at a rate that falls to 0.

    `num_timesteps` counts updates. Every rank has one.
    """

    def __init__(
        self,
        policy: VLAPolicy,
        frames: Frames,
        settings: SFTConfig,
        *,
        seed: int,
        process_group: ProcessGroup,
        paraphrases: Paraphrases | None = None,
    ) -> None:
        self.policy = policy
        self.process_group = process_group
        self.num_timesteps = 0
        self.train_state: SFTState | None = None
        """The last update boundary; None within an update."""
        self.clock = PhaseClock()
        self.logger = Logger(folder=None, output_formats=[])
        self.digests = frames.digests()
        """Hashes of the frames, see `Frames.digests`."""
        self._frames = frames
        self._settings = settings
        self._seed = seed
        self._paraphrases = paraphrases

    def set_logger(self, logger: Logger) -> None:
        """Log there."""
        self.logger = logger

    def learn(self, total_timesteps: int, callback: BaseCallback, *, reset_num_timesteps: bool = True) -> Self:
        """Make `total_timesteps` updates; without a reset, that many more than were made.

        Ends early where `callback` on some rank asks for it.
        """
        settings = self._settings
        self.num_timesteps = 0 if reset_num_timesteps else self.num_timesteps
        total = self.num_timesteps + total_timesteps
        learner = self._learner
        order = batches(len(self._frames), settings.batch_size, torch.Generator().manual_seed(self._seed))
        began = time.perf_counter()
        callback.init_callback(self)  # type: ignore[arg-type]
        callback.on_training_start({}, {})
        self.train_state = SFTState(self.num_timesteps, rng_state())
        callback.on_rollout_start()
        for index_B in islice(order, self.num_timesteps, total):
            loss = self._update(index_B, learner, total)
            if self.num_timesteps % max(1, total // _LINES) == 0 or self.num_timesteps == total:
                seconds = time.perf_counter() - began
                left = seconds * (total - self.num_timesteps) / (self.num_timesteps - total + total_timesteps)
                _logger.info(
                    f"{self.num_timesteps:>8} of {total}   loss {loss:.3f}   {seconds:.0f} s, {left:.0f} s left"
                )
            if self.process_group.any(not callback.on_step()):
                break
            callback.on_rollout_start()
        self.acting_policy()
        callback.on_training_end()
        return self

    @functools.cached_property
    def _learner(self) -> Learner:
        scorer = ImitationScorer(self.policy, self._settings.privileged_coef)
        return Learner(scorer, self.policy.optimizer, self._settings.max_grad_norm)

    def _update(self, index_B: Tensor, learner: Learner, total: int) -> float:
        settings = self._settings
        rate = settings.learning_rate * (1.0 - self.num_timesteps / total)
        for group in learner.raw_optimizer.param_groups:
            group["lr"] = rate
        step = (self.num_timesteps, 0)
        batch = FrameBatch(frames=self._frames, index_B=index_B, seed=self._seed, step=step, change=self._changed)
        state, self.train_state = self.train_state, None
        learner.policy.set_training_mode(True)  # type: ignore[operator]
        learner.zero_grad()
        own_loss = add_gradients(learner, batch, self.process_group, settings.micro_batch_size)
        norm, finite = learner.apply()
        if not finite and learner.accelerator.scaler is None:
            self.train_state = state  # no weight has changed
            raise BadValue(
                f"the gradient of update {self.num_timesteps + 1} is not finite, and the update was left out: "
                "give a lower --learning-rate"
            )
        loss = float(self.process_group.all_reduce_sum(torch.tensor([own_loss])))
        self.num_timesteps += 1
        self.train_state = SFTState(self.num_timesteps, rng_state())
        for name, value in (("loss", loss), ("actor/grad_norm", float(norm)), ("actor/lr", rate)):
            self.logger.record(f"train/{name}", value)
        self.logger.dump(self.num_timesteps)
        return loss

    def _changed(self, frames: Frames, noise: Noise) -> Frames:
        """Return frames with other images and sentences, drawn by `noise`, as far as the settings ask for them."""
        obs = frames.obs
        if self._settings.augment:
            obs = augmented(obs, self.policy.conventions.cameras, noise)
        if self._paraphrases is not None:
            obs = {**obs, "instruction": self._paraphrases.drawn(obs["instruction"], noise)}
        return replace(frames, obs=obs)

    def acting_policy(self) -> VLAPolicy:
        """Return the policy with its present weights, ready to act; every rank must call it."""
        self._learner.sync_weights()
        self.policy.set_training_mode(False)
        return self.policy

    def begin_checkpoint(self, checkpoints: Path) -> Saving:
        """Write `checkpoints/step_<n>` for the last boundary, see `zoo.training.checkpoint.begin_checkpoint`."""
        state = self.train_state
        assert state is not None
        policy = self.acting_policy()
        facts = {"counters": {"num_timesteps": state.num_timesteps}, "digest": self.digests[0], "rng": state.rng}
        return write_checkpoint(checkpoints / f"step_{state.num_timesteps}", policy, self.process_group, "sft", facts)

    def load_checkpoint(self, folder: Path) -> None:
        """Go on from there, before `learn`: the policy was opened from this checkpoint.

        The number of ranks may be another. Raise `BadValue` for a damaged checkpoint, and for one of a run that
        learned from other demonstrations.
        """
        own = slice(self.process_group.rank, None, self.process_group.size)
        state = read_state(folder, "sft", "digest", hashed=own)
        # The hash of paraphrases followed that of frames in earlier versions.
        if not state["digest"].startswith(tuple(self.digests)):
            raise BadValue(
                f"the dataset does not hold what '{folder}' learned from: its images, sentences or actions are others. "
                "Give what it began with, as --dataset FOLDER"
            )
        load_moments(self._learner.raw_optimizer, folder, state)
        set_rng_state(state["rng"])
        self.num_timesteps = int(state["counters"]["num_timesteps"])


# The run ------------------------------------------------------------------------------------------


def finetune(job: TrainJob) -> RunFolder | None:
    """Make the run that was asked for.

    Return the run folder, its policy in `best/`, to the rank that writes (and alone logs), None to others. Raise
    `BadValue` for a dataset that does not fit the environment or the policy, and for frames that ranks cannot share
    evenly. SIGTERM, SIGUSR1 and Ctrl-C, which raises `KeyboardInterrupt`, leave a checkpoint to go on from.
    """
    settings = sft_config(job.config)
    check_dealing(settings.batch_size, launched_processes())
    job, process_group, device = join_run(job)
    privileged = settings.privileged_coef > 0
    groups = {folder: read_dataset(folder, settings.episodes, privileged=privileged) for folder in settings.folders}
    benchmark = job.config.benchmark
    words = None
    if settings.paraphrases is not None:
        tasks = with_instructions(benchmark, job.config.env_options.get("instructions", {})).tasks
        taught = {one.instruction for one in chain.from_iterable(groups.values())}
        words = read_paraphrases(user_path(settings.paraphrases), taught | {task.instruction for task in tasks})
    if privileged:
        groups = only_places(groups, benchmark)
        job = replace(job, config=config_with_head(job.config, job.policy.family, groups))
        if job.checkpoint is None:
            job = replace(job, policy=job.policy.read_by(job.config.policy_kwargs))
    config = job.config
    set_random_seed(config.seed)
    with ExitStack() as cleanup:
        cleanup.enter_context(run_log(writes=process_group.is_first))
        start_states = own_start_states(config, config.evaluated_benchmark.tasks, process_group)
        envs = make_evaluation_envs(config, len(start_states) * config.evaluation.rounds, process_group)
        cleanup.callback(envs.close)
        with built_for(device):
            policy = VLAPolicy(
                envs.layout.bytes_space(),
                envs.single_action_space,
                lambda _: settings.learning_rate,
                **policy_arguments(config, job.policy),
            ).to(device)
        check_learnable(policy)
        check_same_weights(policy, process_group)
        frames, demonstrations = _learned(groups, policy, benchmark)
        groups.clear()  # closes the datasets' files
        if privileged:
            prepare_head(policy, frames)
        model = SFT(policy, frames, settings, seed=config.seed, process_group=process_group, paraphrases=words)
        check_same({"what the dataset holds": model.digests[0]}, process_group)
        if job.checkpoint is not None:
            model.load_checkpoint(job.checkpoint)
        run = open_run_folder(job, envs, process_group, cleanup)
        return SFTTrainer(job, model, envs, run, demonstrations).train()


def _learned(
    groups: Mapping[Path, Sequence[Demonstration]], policy: VLAPolicy, benchmark: Benchmark
) -> tuple[Frames, str]:
    learned = fitting(groups, policy, benchmark)
    frames = frames_of(learned, policy.backbone.imitated_steps)
    return frames, f"{len(learned)} episodes, {len(frames)} frames, chunks of {frames.action_BKA.shape[1]}"


# The head that tells what the expert saw ------------------------------------------------------------


def only_places(
    groups: Mapping[Path, Sequence[Demonstration]], benchmark: Benchmark
) -> dict[Path, list[Demonstration]]:
    """Return the episodes with those numbers of their privileged vectors alone that are coordinates of things.

    The rest can be told without the image, as the hand's own place, or not from it, as a cube's quaternion, whose signs
    mean the same; learned together they keep the eye from finding small things. All numbers stay where the benchmark
    does not say which are coordinates. Raise `BadValue` for vectors of another length than the benchmark's.
    """
    if not benchmark.places:
        return {folder: list(group) for folder, group in groups.items()}
    chosen = list(benchmark.places)
    for folder, group in groups.items():
        if (got := group[0].extra[PRIVILEGED].shape[1]) != benchmark.privileged_dim:
            raise BadValue(
                f"'{folder}': the expert saw {got} numbers, that of {benchmark.id} sees {benchmark.privileged_dim}: "
                "learn demonstrations of this benchmark, or leave --privileged-coef out"
            )
    return {
        folder: [replace(one, extra={**one.extra, PRIVILEGED: one.extra[PRIVILEGED][:, chosen]}) for one in group]
        for folder, group in groups.items()
    }


def config_with_head(config: RunConfig, family: str, groups: Mapping[Path, Sequence[Demonstration]]) -> RunConfig:
    """Return the configuration with a head of the datasets' length; a checkpoint's own of that length goes on.

    Raise `BadValue` for datasets whose privileged vectors differ in length: they are of other robots or scenes.
    """
    sizes = {folder: group[0].extra[PRIVILEGED].shape[1] for folder, group in groups.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{folder}' {size}" for folder, size in sizes.items())
        raise BadValue(f"--privileged-coef learns vectors of one length; got {listed}: learn the datasets separately")
    if family != FAMILY_WITH_HEAD:
        raise BadValue(f"--privileged-coef is for family '{FAMILY_WITH_HEAD}', got '{family}': leave it out")
    head = {"backbone_kwargs": {"privileged_dim": next(iter(sizes.values()))}}
    return replace(config, policy_kwargs=deep_merge(config.policy_kwargs, head))


def prepare_head(policy: VLAPolicy, frames: Frames) -> None:
    """Give a fresh head the frames' mean and standard deviation; one that has learned keeps its own."""
    head: Any = policy.backbone.privileged
    if not head.mean_P.any():
        head.fit(frames.privileged_BP)


class SFTTrainer(Trainer):
    """A fine-tuning run: of equally good policies the later is kept, for it has learned the demonstrations longer.

    It keeps its newest checkpoint only, and none once it has ended: then its policy is the one in `best/`, and
    nothing may take an older one for it.
    """

    command = FINETUNING
    later_is_best = True
    keeps_best = True
    model: SFT

    def __init__(self, job: TrainJob, model: SFT, envs: VLAVectorEnv, run: RunFolder, demonstrations: str) -> None:
        """`demonstrations` says how many there are."""
        # It keeps no checkpoint but the newest, and none once it has ended.
        checkpoints = CheckpointCallback(
            run.path, save_freq=job.config.save_freq, keep=1, at_end=False, save=SFT.begin_checkpoint
        )
        super().__init__(job, model, envs, run, checkpoints, planned_steps=job.config.n_timesteps)
        self._demonstrations = demonstrations

    def headline(self) -> str:
        config = self.config
        start = f", going on at {self.done}" if self.done else ""
        return (
            f"SFT on {config.env} with {config.policy}: {self._demonstrations}, {config.n_timesteps} updates of "
            f"{sft_config(config).batch_size}{start}, seed {config.seed} -> {self.run.path}"
        )

    def make_evaluator(self) -> Evaluator:
        return Evaluator(
            self.config,
            self.evaluated.tasks,
            self.model.acting_policy,
            lambda: self.checkpoints.stopping,
            self.process_group,
            envs=self.envs,
            recorded_episodes=0,
        )

    def on_best(self, episodes: list[EpisodeRecord]) -> None:
        dataset = ", ".join(map(str, sft_config(self.config).folders))
        self.write_evaluation(episodes, updates=self.model.num_timesteps, dataset=dataset)

    def conclude(self, episodes: list[EpisodeRecord] | None) -> None:
        run = self.run
        if self.evaluator is None:
            save_best(self.model.policy, run.best, success=0.0, num_timesteps=self.model.num_timesteps)
        if run.checkpoints.is_dir():
            remove_folder(run.checkpoints)
        if self.evaluator is not None:
            best = read_json(run.path / EVALUATION_FILE)
            episodes = [EpisodeRecord(**episode) for episode in best["episodes"]]
            _logger.info(evaluation_table(episodes, self.evaluated.tasks, best["summary"]))
        flag = packages_flag(packages_of(run.path / ARGS_FILE))
        _logger.info(
            f"policy      {run.best}\nreport      {report_of(run) or 'none'}\nnext:\n"
            f"  vla-zoo train{flag} --algo ppo --env {self.config.env} --policy {quoted(run.best)}\n"
            f"  vla-zoo evaluate -i {quoted(run.path)}"
        )
