"""When checkpoints are written: every so many simulator steps, on request, and at the end."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from zoo.training.checkpoint import best_success, save_best, save_checkpoint


class CheckpointCallback(BaseCallback):
    """Keeps a run's `checkpoints/` and `best/`.

    A checkpoint is due at the first update boundary after every `save_freq` simulator steps, and when
    training ends, also when it was asked to (`stop`, meant for signal handlers): then the rollout under way
    is given up and the checkpoint holds the boundary before it. Every rank has this callback; rank 0 writes.

    :param run: the run folder.
    :param save_freq: simulator steps between checkpoints; 0 saves at the end only.
    :param keep: newest checkpoints to keep; None keeps all.
    :param on_save: called with each folder once it is complete.
    """

    model: Any

    def __init__(
        self,
        run: Path,
        *,
        save_freq: int = 0,
        keep: int | None = None,
        on_save: Callable[[Path], None] | None = None,
    ) -> None:
        super().__init__()
        self._run = run
        self._save_freq = save_freq
        self._keep = keep
        self._on_save = on_save
        self._saved: list[Path] = []
        self._last_step = 0
        self._best = best_success(run / "best")
        self.stopping = False
        """Was this rank asked to stop?"""
        self.stopped = False
        """Did training, or its last evaluation, end early because some rank was? Known once both have ended."""

    def stop(self) -> None:
        """End training at the next decision; safe in a signal handler."""
        self.stopping = True

    def offer_best(self, success: float) -> bool:
        """Keep the present policy as `best/` if `success` beats the best so far; did it?"""
        if self._best is not None and success <= self._best:
            return False
        if self.model.process_group.is_first:
            save_best(
                self.model.policy, self._run / "best", success=success, num_timesteps=self.model.num_timesteps
            )
        self._best = success
        return True

    def _on_training_start(self) -> None:
        self._last_step = self.model.num_timesteps

    def _on_rollout_start(self) -> None:
        if self._save_freq and self.model.num_timesteps - self._last_step >= self._save_freq:
            self._save()

    def _on_step(self) -> bool:
        return not self.stopping

    def _on_training_end(self) -> None:
        self.stopped = self.model.process_group.any(self.stopping)
        if not self._saved or self._saved[-1].name != f"step_{self.model.boundary.num_timesteps}":
            self._save()

    def _save(self) -> None:
        folder = save_checkpoint(self.model, self._run / "checkpoints")
        self._last_step = self.model.boundary.num_timesteps
        self._saved.append(folder)
        if not self.model.process_group.is_first:
            return
        if self._keep is not None:
            for old in self._saved[: -self._keep]:
                shutil.rmtree(old, ignore_errors=True)
            self._saved = self._saved[-self._keep :]
        if self._on_save is not None:
            self._on_save(folder)
