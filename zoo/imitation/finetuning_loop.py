"""The updates of a fine-tuning run, with what happens between them: checkpoints, evaluations, the end."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from vla_gym.errors import BadValue, VLAZooError
from vla_policies import VLAPolicy
from vla_policies.actions.noise import Noise, SlotNoise
from zoo.algorithms.learner import Learner
from zoo.config.run_config import sft_config
from zoo.distributed.shares import own_block
from zoo.files import quoted
from zoo.imitation.augmentation import augmented
from zoo.imitation.checkpoint import FinetuningCheckpoints
from zoo.imitation.objective import Frames, ImitationScorer, batches
from zoo.training.best_keeper import BestKeeper
from zoo.training.callbacks import Stopped

_logger = logging.getLogger(__name__)

_LINES = 20
"""Losses shown on the screen."""


class FinetuningLoop:
    """Every frame once in random order, then once more, at a rate that falls to 0; every rank has one."""

    def __init__(
        self,
        frames: Frames,
        keeper: BestKeeper,
        checkpoints: FinetuningCheckpoints,
        *,
        done: int,
    ) -> None:
        """`done`: updates that were made before, by the run that goes on."""
        self._config = keeper.config
        self._settings = sft_config(keeper.config)
        self._policy = keeper.policy
        self._frames = frames
        self.keeper = keeper
        """What evaluates the policy, and keeps the best."""
        self._process_group = keeper.process_group
        self._checkpoints = checkpoints
        self._learner = Learner(
            ImitationScorer(self._policy), self._policy.optimizer, self._settings.max_grad_norm
        )
        self._done = done
        self._began = time.perf_counter()
        self._stopping = False

    def stop(self) -> None:
        """Ask this rank to end the run after the present update; safe in a signal handler."""
        self._stopping = True

    def learn(self) -> None:
        """Make the updates that are left; then no checkpoint is.

        Raises `Stopped` where a rank was asked to stop, with a checkpoint written; a lost simulator leaves one as well.
        """
        generator = torch.Generator().manual_seed(self._config.seed)
        order = batches(len(self._frames), self._settings.batch_size, generator)
        try:
            self._look()
            for index_B in islice(order, self._done, self._config.n_timesteps):
                self._update(index_B)
                self._pass_boundary()
        except Stopped:
            self._save()
            raise
        except VLAZooError:
            # With several ranks it would take all of them to save, and they are on their way out.
            if self._done and self._process_group.size == 1:
                self._save()
                _logger.info(f"saved; go on with: python -m zoo.sft -i {quoted(self.keeper.run.path)}")
            raise
        self._checkpoints.clear()

    def _update(self, index_B: Tensor) -> None:
        """One optimiser step on the frames of `index_B`."""
        total, logger = self._config.n_timesteps, self.keeper.logger
        rate = self._settings.learning_rate * (1.0 - self._done / total)
        for group in self._learner.raw_optimizer.param_groups:
            group["lr"] = rate
        loss, norm = self._step(
            _Batch(self._frames, index_B, self._done, self._config.seed, self._settings.augment)
        )
        self._done += 1
        logger.record("train/loss", loss)
        logger.record("train/actor/grad_norm", norm)
        logger.record("train/actor/lr", rate)
        logger.dump(self._done)
        if self._done % max(1, total // _LINES) == 0 or self._done == total:
            seconds = time.perf_counter() - self._began
            _logger.info(f"{self._done:>8} of {total}   loss {loss:.3f}   {seconds:.0f} s")

    def _pass_boundary(self) -> None:
        if self._process_group.any(self._stopping):
            raise Stopped
        # Saving first: a kill during an evaluation then loses nothing.
        if self._config.save_freq and self._done % self._config.save_freq == 0:
            self._save()
        self._look()

    def _look(self) -> None:
        if self.keeper.owes(self._done):
            self._learner.hand_over()
            self.keeper.look(self._done, stopping=lambda: self._stopping)

    def _save(self) -> None:
        self._learner.hand_over()
        self._checkpoints.save(self._done)

    def _step(self, batch: _Batch) -> tuple[float, float]:
        """One optimiser step on the batch, this rank's block of it in parts.

        Returns the loss of the whole batch, and the gradient's norm before it is cut.
        """
        learner, size = self._learner, len(batch.index_B)
        own_P = torch.arange(size)[own_block(size, self._process_group)]
        parts = own_P.split(self._settings.micro_batch_size or size)
        mask_BK = batch.frames.mask_BK[batch.index_B]
        learner.policy.set_training_mode(True)  # type: ignore[operator]
        learner.begin()
        loss = 0.0
        for number, place_P in enumerate(parts, start=1):
            with learner.part(last=number == len(parts)):
                # A part's loss is the mean over its actions; weighed so, all parts give the mean over the update's.
                share = float(mask_BK[place_P].sum() / mask_BK.sum())
                scored: Any = learner.score(*batch.part(place_P, self._policy)) * share
                # Gradients are averaged over ranks, not summed.
                learner.backward(scored * self._process_group.size)
            loss += scored.item()
        norm, finite = learner.apply()
        if not finite and learner.accelerator.scaler is None:
            raise BadValue(
                f"the gradient of update {self._done + 1} is not finite, and the update was left out: "
                "give a lower --learning-rate"
            )
        return float(self._process_group.all_reduce_sum(torch.tensor([loss]))), float(norm)


@dataclass(frozen=True)
class _Batch:
    """The frames of one update, of all ranks."""

    frames: Frames
    """The whole dataset."""
    index_B: Tensor
    """Which of them."""
    update: int
    """Number of the update."""
    seed: int
    """Of the run."""
    augment: bool
    """Change the pictures at random?"""

    def part(self, place_P: Tensor, policy: VLAPolicy) -> tuple[Frames, Noise]:
        """The frames at some places of the batch, on the policy's device, and what their losses draw from.

        What is drawn follows from (seed, update, place), so neither ranks nor parts change it.
        """
        noise = SlotNoise(self.seed, (self.update, 0), place_P.numpy())
        picked = self.frames.pick(self.index_B[place_P], policy.device)
        if self.augment:
            picked = replace(picked, obs=augmented(picked.obs, policy.conventions.cameras, noise))
        return picked, noise
