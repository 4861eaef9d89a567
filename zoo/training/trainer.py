"""A training run while it trains: files, callbacks, the end, and how it ends early."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import KVWriter, Logger

from vla_gym import VLAVectorEnv
from vla_gym.errors import LostRank, VLAZooError
from zoo.config.batch_plan import evaluated_benchmark
from zoo.config.run_config import RunConfig
from zoo.config.tracking import Tracking
from zoo.distributed.process_group import ProcessGroup
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.results import evaluation_record, evaluation_table, protocol_line
from zoo.evaluation.statistics import rate_values, rates_by_group
from zoo.files import quoted, write_text
from zoo.runs.folder import EVALUATION_FILE, RunFolder
from zoo.runs.loggers import JsonLines, RunLogger, TensorBoard
from zoo.runs.lookup import ResumePoint
from zoo.runs.monitor import EvaluationFile
from zoo.runs.progress import Progress, errors_to
from zoo.runs.trackers import start_trackers
from zoo.runs.trained_tasks import trained_tasks
from zoo.training.callbacks import (
    BestPolicy,
    CheckpointCallback,
    EvaluationCallback,
    Stopped,
    StopSignals,
)
from zoo.training.evaluation import Evaluator, sampling_by
from zoo.training.films import Films

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """A training run as its command was asked for it."""

    config: RunConfig
    """What to compute."""
    log_folder: Path
    """Where a new run folder goes."""
    command: Sequence[str]
    """The command line, for `command.txt`."""
    args: Mapping[str, Any]
    """Its parsed flags, for `args.yml`."""
    resume: ResumePoint | None = None
    """Where to go on from."""
    tensorboard_log: Path | None = None
    """Parent of the TensorBoard folder; None puts events into the run folder."""
    progress: bool | None = False
    """Show a progress bar; None: where stderr is a terminal."""
    tracking: Tracking = field(default_factory=Tracking)
    """Trackers that follow the run."""
    films: Films = field(default_factory=Films)
    """Films of its episodes."""

    @property
    def checkpoint(self) -> Path | None:
        """Folder of the checkpoint to go on from."""
        return None if self.resume is None else self.resume.checkpoint


class StateAtBoundary(Protocol):
    """A model's state between two updates."""

    @property
    def num_timesteps(self) -> int:
        """Steps done."""


class Trainable(Protocol):
    """What a `Trainer` needs of an algorithm: Stable-Baselines3's `learn`, and what a checkpoint needs."""

    policy: Any
    process_group: ProcessGroup
    num_timesteps: int

    @property
    def train_state(self) -> StateAtBoundary | None:
        """The last update boundary; None within an update."""

    def set_logger(self, logger: Logger) -> None:
        """Log there."""

    def learn(self, total_timesteps: int, callback: BaseCallback, *, reset_num_timesteps: bool = True) -> object:
        """Train for so many steps more."""


class Trainer:
    """Trains `model` into `run`; subclasses add what differs between algorithms."""

    command: ClassVar[str]
    """The command that makes such runs and goes on with them."""
    later_is_best: ClassVar[bool] = False
    """Whether of two equal evaluations the later one's policy is kept."""
    keeps_best: ClassVar[bool] = False
    """Whether a resumed run keeps a policy in `best/` that is newer than its checkpoint."""
    model: Trainable

    def __init__(self, job: TrainJob, model: Trainable, envs: VLAVectorEnv, run: RunFolder) -> None:
        self.job = job
        self.config = job.config
        self.model = model
        self.envs = envs
        self.run = run
        self.process_group = model.process_group
        self.done = model.num_timesteps
        """Steps that were made before."""
        in_place = job.resume is not None and job.resume.in_place
        # Files of a run that goes on lose what its last checkpoint does not know.
        self.keep_until = self.done if in_place else None
        parent = job.tensorboard_log
        self.events = run.path if parent is None else parent / self.config.algo / run.path.name
        parent = job.films.folder
        self.videos = run.videos if parent is None else parent / self.config.algo / run.path.name
        self.checkpoints = self.make_checkpoints()
        first = self.process_group.is_first
        self.evaluations = EvaluationFile(run.path, keep_until=self.keep_until) if first else None
        """Evaluations so far, read before anything is written."""
        self.evaluated = evaluated_benchmark(self.config)
        """Where the policy is evaluated."""
        self.evaluator: Evaluator | None = None
        self._unwritten: OSError | None = None
        """Why the screen or the log could not be written."""

    # Parts of a run that differ from algorithm to algorithm --------------------------------------------

    def headline(self) -> str:
        """The line that begins the run."""
        raise NotImplementedError

    def make_checkpoints(self) -> CheckpointCallback:
        """The callback that saves."""
        raise NotImplementedError

    def make_evaluator(self) -> Evaluator:
        """The callable that evaluates."""
        raise NotImplementedError

    def evaluation_steps(self) -> tuple[int, bool]:
        """Steps between evaluations, 0 for none before the end; and whether there is one before training."""
        return self.config.eval_freq or 0, False

    def screen(self) -> list[KVWriter]:
        """Writers of the logger that print."""
        return []

    def monitors(self, progress: Progress, cleanup: ExitStack) -> list[BaseCallback]:
        """Callbacks of the writing rank that follow single episodes."""
        return []

    def on_best(self, episodes: list[EpisodeRecord]) -> None:
        """The present policy was kept as the best, by this evaluation. Rank 0 alone."""

    def planned_steps(self) -> int:
        """Steps at which the run ends."""
        return self.config.n_timesteps

    def is_work_left(self) -> bool:
        """Whether a run that was stopped has steps to make, or its last evaluation."""
        return True

    def conclude(self, evaluator: Evaluator | None, episodes: list[EpisodeRecord] | None) -> None:
        """Write and report what came of the run that has ended; `episodes` of its last evaluation. Rank 0 alone."""
        raise NotImplementedError

    # The run ------------------------------------------------------------------------------------------

    def learn(self) -> None:
        """Train to the end or to a signal, save, and log what came of it; rank 0 alone writes and logs.

        A new run that fails before its first step leaves no folder; what came of one stays.
        """
        try:
            _logger.info(self.headline())
            with errors_to(self._stop_for):
                self._learn()
            if self._unwritten is not None:
                raise self._unwritten
        except LostRank:
            raise
        except (VLAZooError, OSError):
            empty = self.model.num_timesteps == 0 and not self.run.best.exists() and not self.run.saved_steps()
            if self.process_group.is_first and self.job.resume is None and empty:
                shutil.rmtree(self.run.path, ignore_errors=True)
            raise

    def _learn(self) -> None:
        first = self.process_group.is_first
        with ExitStack() as cleanup:
            progress = Progress(self.planned_steps(), done=self.done, on=self.job.progress if first else False)
            cleanup.callback(progress.close)
            logger = self._make_logger()
            cleanup.callback(logger.close)
            self.model.set_logger(logger)
            signals = cleanup.enter_context(StopSignals(self.checkpoints.stop))
            # Saving first: a kill during an evaluation then loses nothing.
            callbacks = [*(self.monitors(progress, cleanup) if first else []), self.checkpoints]
            evaluator = evaluation = None
            if self.config.eval_episodes:
                evaluator = self.evaluator = self.make_evaluator()
                cleanup.callback(evaluator.close)
                evaluation = self._make_evaluation(evaluator)
                callbacks.append(evaluation)
            ended_early = self._learn_guarded(CallbackList(callbacks)) and self.is_work_left()
            if ended_early:
                _logger.info(f"stopped and saved; {self._go_on}")
        if not ended_early and first:
            self.conclude(evaluator, None if evaluation is None else evaluation.last)
        if signals.by_ctrl_c:
            raise KeyboardInterrupt

    @property
    def _go_on(self) -> str:
        return f"go on with: python -m {self.command} -i {quoted(self.run.path)}"

    def _learn_guarded(self, callbacks: CallbackList) -> bool:
        """`model.learn`; return whether it was stopped.

        A Ctrl-C that does not wait, a lost simulator and any other error outside an update save what the last update
        left. With several ranks it would take all of them to save, and they are on their way out.
        """
        try:
            self.model.learn(
                self.config.n_timesteps - self.done,
                callback=callbacks,
                reset_num_timesteps=self.job.resume is None,
            )
        except Stopped:
            self.checkpoints.save()
            return True
        except (KeyboardInterrupt, Exception):
            state = self.model.train_state
            alone = self.process_group.size == 1
            if alone and state is not None and state.num_timesteps > self.done:
                self.checkpoints.save()
                _logger.info(f"saved; {self._go_on}")
            raise
        return self.checkpoints.stopped

    def _stop_for(self, error: OSError) -> None:
        """The screen or the log cannot be written: end as for SIGTERM, whatever is under way; `learn` then raises."""
        self._unwritten = self._unwritten or error
        self.checkpoints.stop()

    def _make_logger(self) -> Logger:
        if not self.process_group.is_first:
            return Logger(folder=None, output_formats=[])
        formats: list[KVWriter] = [
            *self.screen(),
            JsonLines(self.run.path, keep_until=self.keep_until),
            TensorBoard(self.events, keep_until=self.keep_until),
        ]
        formats += start_trackers(self.job.tracking, self.run, self.config)
        return RunLogger(self.run.path, formats, on_error=self._stop_for)

    def _make_evaluation(self, evaluate: Callable[[], list[EpisodeRecord]]) -> EvaluationCallback:
        file = self.evaluations
        evaluated = self.process_group.broadcast_object(file.timesteps if file is not None else [])
        fresh = 0 if self.keep_until is not None else self.done
        every, at_start = self.evaluation_steps()
        return EvaluationCallback(
            every,
            # Also of a run that was stopped in this very evaluation.
            at_start=at_start and self.done == 0 and not evaluated,
            acted_at=evaluated[-1] if evaluated else fresh,
            evaluate=evaluate,
            best=BestPolicy(
                self.run.best,
                self.process_group,
                later=self.later_is_best,
                keep_until=None if self.keeps_best else self.keep_until,
            ),
            checkpoints=self.checkpoints,
            file=file,
            on_best=self.on_best,
        )

    # Its evaluation ---------------------------------------------------------------------------------------

    def write_evaluation(self, episodes: Sequence[EpisodeRecord], **facts: Any) -> None:
        """Write `evaluation.json`: an evaluation of the present policy; `facts` say more of what was evaluated."""
        record = evaluation_record(
            episodes,
            self.evaluated.tasks,
            env_id=self.config.eval_env,
            protocol={
                **self._protocol,
                "evaluation": {**self.config.evaluation.to_json(), "actions": self._actions, "seed": self.config.seed},
            },
            num_timesteps=self.model.num_timesteps,
            groups=[rate_values(rate) for rate in rates_by_group(episodes, self._groups(episodes))],
            **facts,
            deterministic=not self.config.evaluation.sample,
            rounds=self.config.evaluation.rounds,
            summary=self._protocol_line(episodes),
        )
        write_text(self.run.path / EVALUATION_FILE, json.dumps(record, indent=2) + "\n")

    def table(self, episodes: Sequence[EpisodeRecord]) -> str:
        """The table of an evaluation."""
        tasks, line = self.evaluated.tasks, self._protocol_line(episodes)
        return evaluation_table(episodes, tasks, line, self._groups(episodes))

    def _groups(self, episodes: Sequence[EpisodeRecord]) -> dict[str, list[int]]:
        """Tasks that the run's first policy was trained on before, and others, where both were evaluated."""
        trained = trained_tasks(self.config.policy)
        groups = {} if trained is None else trained.groups(self.evaluated.tasks)
        both = all(any(episode.task_id in tasks for episode in episodes) for tasks in groups.values())
        return groups if both else {}

    def _protocol_line(self, episodes: Sequence[EpisodeRecord]) -> str:
        return protocol_line(
            self.config.eval_env,
            episodes,
            self.evaluated,
            chunk=self.envs.chunk,
            actions=self._actions,
            own_words=len(self._protocol["own_instructions"]),
        )

    @property
    def _protocol(self) -> Mapping[str, Any]:
        """The protocol of what is evaluated."""
        evaluated = {} if self.evaluator is None else self.evaluator.protocol
        return evaluated or self.envs.protocol()

    @property
    def _actions(self) -> str:
        """How actions are selected in evaluations."""
        protocol = self.config.evaluation
        with sampling_by(self.model.policy, protocol):
            text: str = self.model.policy.action_selection_text(deterministic=not protocol.sample)
        return text
