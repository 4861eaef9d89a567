"""Supervised fine-tuning as an algorithm in Stable-Baselines3's manner, and its checkpoints.

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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from vla_policies.actions.noise import Noise
from zoo.config.algorithm_configs import SFTConfig
from zoo.distributed.learner import Learner
from zoo.distributed.process_group import ProcessGroup
from zoo.imitation.augmentation import Paraphrases, augmented
from zoo.imitation.frames import Frames, batches
from zoo.imitation.loss import FrameBatch, ImitationScorer, add_gradients
from zoo.rollout.stats import PhaseClock
from zoo.runs.train_state import rng_state, set_rng_state
from zoo.training.checkpoint import Saving, load_moments, read_state, write_checkpoint

_logger = logging.getLogger(__name__)

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
