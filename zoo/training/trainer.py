"""A training run: set up (`zoo.training.setup`), then learn, evaluate, save checkpoints and report."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Protocol

from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import KVWriter, Logger

from vla_gym import VLAVectorEnv
from vla_gym.errors import LostRank, VLAZooError
from vla_policies import VLAPolicy
from zoo.config.gym_packages import built, import_parts
from zoo.distributed.process_group import ProcessGroup
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.evaluation.results import evaluation_record, evaluation_table
from zoo.files import quoted, read_json, write_text
from zoo.runs.evaluations import OF_WEIGHTS
from zoo.runs.folder import EVALUATION_FILE, PROTOCOL_FILE, RunFolder
from zoo.runs.loggers import JsonLines, TensorBoard, start_trackers
from zoo.runs.monitor import EvaluationFile
from zoo.runs.progress import Progress
from zoo.training.callbacks import BestPolicy, CheckpointCallback, EvaluationCallback, Stopped, StopSignals
from zoo.training.evaluation import Evaluator, sampling_by
from zoo.training.run_plan import TrainJob

_logger = logging.getLogger(__name__)


class Trainable(Protocol):
    """The part of an algorithm that a `Trainer` uses: Stable-Baselines3's `learn`, and what a checkpoint needs."""

    policy: VLAPolicy
    process_group: ProcessGroup
    num_timesteps: int
    train_state: Any
    """The last update boundary, with its `num_timesteps`; None within an update."""

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

    def __init__(
        self,
        job: TrainJob,
        model: Trainable,
        envs: VLAVectorEnv,
        run: RunFolder,
        checkpoints: CheckpointCallback,
        *,
        planned_steps: int,
    ) -> None:
        """`planned_steps`: where the run ends, for the progress bar."""
        self.job = job
        self.config = job.config
        self.model = model
        self.envs = envs
        self.run = run
        self.checkpoints = checkpoints
        self.process_group = model.process_group
        self.done = model.num_timesteps
        """Steps that were made before."""
        in_place = job.resume is not None and job.resume.in_place
        # Files of a run that goes on lose what its last checkpoint does not know.
        self.keep_until = self.done if in_place else None
        self.events = self._folder_of(job.tensorboard_log, run.path)
        self.videos = self._folder_of(job.video_folder, run.videos)
        self.evaluated = self.config.evaluated_benchmark
        """Where the policy is evaluated."""
        self.evaluator: Evaluator | None = None
        self._planned_steps = planned_steps

    # What differs from algorithm to algorithm -----------------------------------------------------------

    def headline(self) -> str:
        """Return the line that begins the run."""
        raise NotImplementedError

    def make_evaluator(self) -> Evaluator:
        """Return the callable that evaluates."""
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

    def is_work_left(self) -> bool:
        """Whether a run that was stopped has steps to make, or its last evaluation."""
        return True

    def conclude(self, episodes: list[EpisodeRecord] | None) -> None:
        """Write and report what came of the run that has ended; `episodes` of its last evaluation. Rank 0 alone."""
        raise NotImplementedError

    # The run ------------------------------------------------------------------------------------------

    def train(self) -> RunFolder | None:
        """Train to the end or to a signal, save, and log what came of it; rank 0 alone writes and logs.

        Returns the run folder to rank 0, None to others. A new run that fails before its first step leaves no folder.
        """
        model, config, first = self.model, self.config, self.process_group.is_first
        go_on = f"go on with: {self.command} -i {quoted(self.run.path)}"
        _logger.info(self.headline())
        with ExitStack() as cleanup:
            cleanup.push(self._remove_empty_run)
            evaluation = None
            if config.eval_episodes:  # a damaged file of evaluations is refused before others are written
                self.evaluator = self.make_evaluator()
                cleanup.callback(self.evaluator.close)
                evaluation = self._make_evaluation(self.evaluator)
            progress = Progress(self._planned_steps, done=self.done, on=self.job.progress if first else False)
            cleanup.callback(progress.close)
            logger = self._make_logger()
            cleanup.callback(logger.close)
            model.set_logger(logger)
            signals = cleanup.enter_context(StopSignals(self.checkpoints.stop))
            # Saving first: a kill during an evaluation then loses nothing.
            own = [built(one, "callback", BaseCallback) for one in import_parts(config.callback, "callback")]
            callbacks = [*(self.monitors(progress, cleanup) if first else []), *own, self.checkpoints]
            if evaluation is not None:
                callbacks.append(evaluation)
            try:
                model.learn(
                    config.n_timesteps - self.done,
                    callback=CallbackList(callbacks),
                    reset_num_timesteps=self.job.resume is None,
                )
                stopped = self.checkpoints.stopped
            except Stopped:
                self.checkpoints.save()
                stopped = True
            except (KeyboardInterrupt, Exception):
                # A second Ctrl-C, a lost simulator and any other error outside an update save what the last update
                # left. With several ranks it would take all of them to save, and they are on their way out.
                state = model.train_state
                if self.process_group.size == 1 and state is not None and state.num_timesteps > self.done:
                    self.checkpoints.save()
                    _logger.info(f"saved; {go_on}")
                raise
            if stopped and self.is_work_left():
                _logger.info(f"stopped and saved; {go_on}")
            elif first:
                self.conclude(None if evaluation is None else evaluation.last)
        if signals.by_ctrl_c:
            raise KeyboardInterrupt
        return self.run if first else None

    def _remove_empty_run(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Remove the folder of a new run that a user's mistake ended before its first step."""
        is_mistake = isinstance(error, VLAZooError | OSError) and not isinstance(error, LostRank)
        empty = self.model.num_timesteps == 0 and not self.run.best.exists() and not self.run.saved_steps()
        if is_mistake and empty and self.process_group.is_first and self.job.resume is None:
            shutil.rmtree(self.run.path, ignore_errors=True)

    def _folder_of(self, parent: Path | None, own: Path) -> Path:
        return own if parent is None else parent / self.config.algo / self.run.path.name

    def _make_logger(self) -> Logger:
        if not self.process_group.is_first:
            return Logger(folder=None, output_formats=[])
        formats: list[KVWriter] = [
            *self.screen(),
            JsonLines(self.run.path, keep_until=self.keep_until),
            TensorBoard(self.events, keep_until=self.keep_until),
            *start_trackers(self.job.tracking, self.run, self.config),
        ]
        return Logger(folder=str(self.run.path), output_formats=formats)

    def _make_evaluation(self, evaluator: Evaluator) -> EvaluationCallback:
        first = self.process_group.is_first
        file = EvaluationFile(self.run.path, keep_until=self.keep_until) if first else None
        evaluated = self.process_group.broadcast_object(file.timesteps if file is not None else [])
        fresh = 0 if self.keep_until is not None else self.done
        every, at_start = self.evaluation_steps()
        return EvaluationCallback(
            every,
            # Also of a run that was stopped in this very evaluation.
            at_start=at_start and self.done == 0 and not evaluated,
            acted_at=evaluated[-1] if evaluated else fresh,
            evaluate=evaluator,
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

    def write_evaluation(self, episodes: Sequence[EpisodeRecord], **facts: object) -> str:
        """Write `evaluation.json`, an evaluation of the present policy, of which `facts` say more; return its table."""
        config, policy = self.config, self.model.policy
        protocol = config.evaluation
        with sampling_by(policy, protocol):
            actions = policy.action_selection_text(deterministic=not protocol.sample)
        start = read_json(self.run.path / PROTOCOL_FILE).get("read_as", {})
        evaluated = {} if self.evaluator is None else self.evaluator.protocol
        record = evaluation_record(
            episodes,
            self.evaluated,
            protocol,
            env_id=config.eval_env,
            env_protocol=evaluated or self.envs.protocol(),
            actions=actions,
            seed=config.seed,
            facts={
                "num_timesteps": self.model.num_timesteps,
                "read_as": {name: value for name, value in start.items() if name not in OF_WEIGHTS},
                **facts,
            },
        )
        write_text(self.run.path / EVALUATION_FILE, json.dumps(record, indent=2) + "\n")
        return evaluation_table(episodes, self.evaluated.tasks, record["summary"])
