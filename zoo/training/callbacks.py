"""What happens around training, as Stable-Baselines3 callbacks: the monitor, and evaluations.

Evaluations happen at update boundaries (before a rollout), where the weights are those of a finished
update; they leave every random generator of the run as they found it.
"""

from __future__ import annotations

import logging
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.results import evaluated_line, evaluation_metrics
from zoo.evaluation.statistics import overall_rate
from zoo.runs.monitor import EvaluationFile, MonitorFile
from zoo.runs.progress import Progress
from zoo.training.checkpoint_callback import CheckpointCallback

_logger = logging.getLogger(__name__)


class Stopped(Exception):
    """Training was asked to stop while an evaluation was running."""


class EvaluationCallback(BaseCallback):
    """Evaluates at the first update boundary past every multiple of `every` simulator steps, and at the end.

    Always the same start states. Keeps `evaluations.npz`, and the policy that solved the most in `best/`.
    """

    def __init__(
        self,
        every: int,
        *,
        acted_at: int,
        evaluate: Callable[[], list[EpisodeRecord]],
        log: EvaluationFile | None,
        checkpoints: CheckpointCallback,
    ) -> None:
        """`every` 0 evaluates at the end only; `acted_at` is where the run was evaluated last, 0 for never.

        `evaluate` raises `Stopped` when `checkpoints.stopping`; a resumed run then makes up for it. Every rank has
        this callback; rank 0's has the `log`.
        """
        super().__init__()
        self.last: list[EpisodeRecord] | None = None
        """Episodes of the latest evaluation; None where it was given up."""
        self._every = every
        self._acted_at = acted_at
        self._evaluate = evaluate
        self._file = log
        self._checkpoints = checkpoints

    def _on_rollout_start(self) -> None:
        now = self.model.num_timesteps
        if self._every and now // self._every > self._acted_at // self._every:
            self._act(now)

    def _on_training_end(self) -> None:
        if not self._checkpoints.stopped and self.model.num_timesteps != self._acted_at:
            self._act(self.model.num_timesteps)

    def _on_step(self) -> bool:
        return True

    def _act(self, now: int) -> None:
        """Evaluate the present weights at `now` simulator steps."""
        model: Any = self.model
        try:
            with untouched_generators(), model.clock.phase("evaluation"):
                episodes = self._evaluate()
        except Stopped:
            # What is known of older weights is nothing about these.
            self.last = None
            self._checkpoints.stopped = True
            return
        self._acted_at = now
        self.last = episodes
        if self._file is not None:
            self._file.add_episodes(now, episodes)
        for name, value in evaluation_metrics(episodes).items():
            self.logger.record(name, value)
        self.logger.dump(now)
        best = self._checkpoints.offer_best(overall_rate(episodes).mean)
        _logger.info(evaluated_line(now, episodes, kept=best))


class MonitorCallback(BaseCallback):
    """Writes the training episodes of every rollout to `monitor.csv` and moves the progress bar."""

    model: Any

    def __init__(self, file: MonitorFile, progress: Progress) -> None:
        super().__init__()
        self._file = file
        self._progress = progress

    def _on_step(self) -> bool:
        self._progress.to(self.model.num_timesteps)
        return True

    def _on_rollout_end(self) -> None:
        for finished in self.model.news.finished:
            if finished.episode is not None:
                self._file.add(finished.episode, finished.num_timesteps)
        self._progress.to(self.model.num_timesteps)
        recent = self.model.ep_success_buffer
        if recent:
            self._progress.note(f"success {np.mean(recent):.1%}")


_SAME_CTRL_C_SECONDS = 3.0


class StopSignals:
    """While entered, calls `act` when a cluster asks for the machine (SIGTERM, SIGUSR1), and on Ctrl-C.

    A second Ctrl-C, some seconds later (launchers pass the first one on), interrupts whatever happens. The former
    handlers come back after.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        self._former: dict[int, Any] = {}
        self._first_ctrl_c = 0.0
        self.by_ctrl_c = False
        """Was it Ctrl-C?"""

    def __enter__(self) -> Self:
        self._former = {one: signal.signal(one, self._handle) for one in self._signals}
        return self

    def __exit__(self, *error: object) -> None:
        for one, handler in self._former.items():
            signal.signal(one, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if signum == signal.SIGINT:
            if self.by_ctrl_c and now - self._first_ctrl_c > _SAME_CTRL_C_SECONDS:
                raise KeyboardInterrupt
            self._first_ctrl_c = self._first_ctrl_c if self.by_ctrl_c else now
            self.by_ctrl_c = True
        self._act()


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Give torch's, NumPy's and Python's global generators back as they were."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
