"""Stable-Baselines3 callbacks around training: checkpoints, evaluations, the monitor; and signals.

They act at update boundaries (before a rollout; for fine-tuning between updates), where the weights are those of a
finished update, and leave every random generator of the run as they found it.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from zoo.distributed.process_group import ProcessGroup
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.results import evaluated_line, evaluation_metrics
from zoo.evaluation.statistics import overall_rate
from zoo.files import remove_folder
from zoo.runs.folder import RunFolder
from zoo.runs.monitor import EvaluationFile, MonitorFile
from zoo.runs.progress import Progress, Screen
from zoo.runs.train_state import rng_state, set_rng_state
from zoo.training.checkpoint import Saving, begin_checkpoint, best_success, save_best

_logger = logging.getLogger(__name__)


class Stopped(Exception):
    """Training was asked to stop while an evaluation was running."""


class CheckpointCallback(BaseCallback):
    """Keeps a run's `checkpoints/`; every rank has this callback, rank 0 writes.

    A checkpoint is due at the first update boundary after every `save_freq` steps, and when training ends, also when
    it was asked to (`stop`, meant for signal handlers): then the rollout under way is given up and the checkpoint
    holds the boundary before it.

    :param run: the run folder.
    :param save_freq: steps between checkpoints; 0 saves at the end only.
    :param keep: newest checkpoints to keep; None keeps all.
    :param at_end: whether a run that was not asked to stop is saved when it ends.
    :param save: begins a checkpoint of the model in the parent folder it is given.
    """

    model: Any

    def __init__(
        self,
        run: Path,
        *,
        save_freq: int = 0,
        keep: int | None = None,
        at_end: bool = True,
        save: Callable[[Any, Path], Saving] = begin_checkpoint,
    ) -> None:
        super().__init__()
        self._run = RunFolder(run)
        self._save_freq = save_freq
        self._keep = keep
        self._at_end = at_end
        self._write = save
        self._last_step = 0
        self._saved = Saving(Path())
        self.stopping = False
        """Whether this rank was asked to stop."""
        self.stopped = False
        """Whether some rank was, so that training ended early; known once it has ended."""

    def stop(self) -> None:
        """End training at the next decision; safe in a signal handler."""
        self.stopping = True

    def save(self) -> None:
        """Write a checkpoint of the last update boundary unless this callback wrote it; every rank must call it."""
        self._begin()
        self._finish()

    def _begin(self) -> None:
        self._last_step = self.model.train_state.num_timesteps
        if self._run.checkpoint(self._last_step) != self._saved.folder:
            self._finish()
            self._saved = self._write(self.model, self._run.checkpoints)
            if self._saved.future is None:
                self._finish()

    def _finish(self) -> None:
        """Wait for the checkpoint that was begun last; remove older ones."""
        self._saved.wait()
        if self._keep is not None and self.model.process_group.is_first:
            for step in self._run.saved_steps()[: -self._keep]:
                remove_folder(self._run.checkpoint(step))

    def _on_training_start(self) -> None:
        self._last_step = self.model.num_timesteps

    def _on_rollout_start(self) -> None:
        if self._save_freq and self.model.num_timesteps - self._last_step >= self._save_freq:
            self._begin()

    def _on_step(self) -> bool:
        return not self.stopping

    def _on_training_end(self) -> None:
        self.stopped = self.model.process_group.any(self.stopping)
        if self._at_end or self.stopped:
            self._begin()
        self._finish()


class BestPolicy:
    """Keeps the policy of the best evaluation in a run's `best/`; every rank has one, rank 0 writes."""

    def __init__(
        self, folder: Path, process_group: ProcessGroup, *, later: bool = False, keep_until: int | None = None
    ) -> None:
        """`later`: of equals the later is the best; False: the earlier. With `keep_until`, a policy past that many
        simulator steps is dropped first."""
        self._folder = folder
        self._process_group = process_group
        self._later = later
        own = best_success(folder, keep_until=keep_until) if process_group.is_first else None
        self._success: float | None = process_group.broadcast_object(own)

    def offer(self, policy: Any, success: float, num_timesteps: int) -> bool:
        """Keep the policy if it is the best so far; return whether it is."""
        best = self._success
        if best is not None and (success < best or (success == best and not self._later)):
            return False
        if self._process_group.is_first:
            save_best(policy, self._folder, success=success, num_timesteps=num_timesteps)
        self._success = success
        return True


class EvaluationCallback(BaseCallback):
    """Evaluates at the first update boundary past every multiple of `every` steps, and at the end.

    Always the same start states. Keeps `evaluations.npz`, and the best policy. Every rank has this callback.
    """

    model: Any

    def __init__(
        self,
        every: int,
        *,
        at_start: bool,
        acted_at: int,
        evaluate: Callable[[], list[EpisodeRecord]],
        best: BestPolicy,
        checkpoints: CheckpointCallback,
        file: EvaluationFile | None,
        on_best: Callable[[list[EpisodeRecord]], None],
    ) -> None:
        """`every` 0 evaluates at the end only, `at_start` before the first rollout, too; a policy that has not been
        trained is not kept as the best. `acted_at` is where the run was evaluated last, 0 for never.

        `evaluate` raises `Stopped` where some rank is asked to stop; a resumed run then makes up for it. Rank 0 has
        the `file`, and calls `on_best` with the evaluation of each policy that is kept.
        """
        super().__init__()
        self.last: list[EpisodeRecord] | None = None
        """Episodes of the latest evaluation."""
        self._every = every
        self._at_start = at_start
        self._acted_at = acted_at
        self._evaluate = evaluate
        self._best = best
        self._checkpoints = checkpoints
        self._file = file
        self._on_best = on_best

    def _on_rollout_start(self) -> None:
        now = self.model.num_timesteps
        if self._at_start:
            self._at_start = False
            self._act(now, trained=False)
        elif self._every and now // self._every > self._acted_at // self._every:
            self._act(now)

    def _on_training_end(self) -> None:
        if not self._checkpoints.stopped and self.model.num_timesteps != self._acted_at:
            self._act(self.model.num_timesteps)

    def _on_step(self) -> bool:
        return True

    def _act(self, now: int, *, trained: bool = True) -> None:
        with untouched_generators(), self.model.clock.phase("evaluation"):
            episodes = self._evaluate()
        self._acted_at = now
        self.last = episodes
        kept = trained and self._best.offer(self.model.policy, overall_rate(episodes).mean, now)
        if self._file is not None:
            if kept:
                self._on_best(episodes)
            # After the policy: what this file has is not evaluated again.
            self._file.add(
                now,
                [episode.total_reward for episode in episodes],
                [episode.length for episode in episodes],
                [episode.success_once for episode in episodes],
            )
        for name, value in evaluation_metrics(episodes).items():
            self.logger.record(name, value)
        self.logger.dump(now)
        _logger.info(evaluated_line(now, episodes, kept=kept))


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
        for episode in self.model.rollout_stats.episodes:
            self._file.add(episode.record, episode.num_timesteps)
        self._progress.to(self.model.num_timesteps)
        recent = self.model.ep_success_buffer
        if recent:
            self._progress.note(f"success {np.mean(recent):.1%}")


_SAME_CTRL_C_SECONDS = 3.0
"""Launchers pass a terminal's Ctrl-C on: within this time a second one is the same."""


class StopSignals:
    """While entered, calls `act` when a cluster asks for the machine (SIGTERM, SIGUSR1), when the terminal
    is gone (SIGHUP, unless it is ignored, or a line that cannot be printed), and on Ctrl-C. A second Ctrl-C interrupts
    whatever happens.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._former: dict[int, Any] = {}
        self._first_ctrl_c = 0.0
        self.by_ctrl_c = False
        """Whether it was Ctrl-C."""

    def __enter__(self) -> Self:
        signals = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup's
            signals.append(signal.SIGHUP)
        self._former = {number: signal.signal(number, self._handle) for number in signals}
        Screen.on_error = self._act
        return self

    def __exit__(self, *error: object) -> None:
        Screen.on_error = None
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            now = time.monotonic()
            if not self.by_ctrl_c:
                self._first_ctrl_c, self.by_ctrl_c = now, True
            elif now - self._first_ctrl_c > _SAME_CTRL_C_SECONDS:
                raise KeyboardInterrupt
        self._act()


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Context manager that restores torch's, NumPy's and Python's global generators at the end."""
    state = rng_state()
    try:
        yield
    finally:
        set_rng_state(state)
