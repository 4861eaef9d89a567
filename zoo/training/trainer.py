"""A training run while it trains: files, callbacks, the end, and how it ends early."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import KVWriter, Logger

from vla_gym import VLAVectorEnv
from vla_gym.errors import VLAZooError
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.config.run_config import RunConfig
from zoo.evaluation.results import evaluation_record, evaluation_table, protocol_line
from zoo.files import quoted, write_text
from zoo.runs.folder import EVALUATION_FILE, RunFolder, closing_lines, headline
from zoo.runs.loggers import JsonLines, ScreenTable, TensorBoard, start_tracker
from zoo.runs.lookup import ResumePoint
from zoo.runs.monitor import EvaluationFile, MonitorFile
from zoo.runs.progress import Progress
from zoo.runs.report_page import write_run_page
from zoo.training.callbacks import EvaluationCallback, MonitorCallback, StopSignals
from zoo.training.checkpoint import save_checkpoint
from zoo.training.checkpoint_callback import CheckpointCallback
from zoo.training.evaluation import Evaluator

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """Everything a training run is told."""

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
    progress: bool = False
    """Show a progress bar."""
    track: str | None = None
    """Experiment tracker that follows the run; None = none."""


class Session:
    """Trains `model` into `run`."""

    def __init__(
        self,
        request: TrainingRequest,
        model: VLAOnPolicyAlgorithm,
        envs: VLAVectorEnv,
        run: RunFolder,
    ) -> None:
        self._request = request
        self._config = request.config
        self._model = model
        self._envs = envs
        self._run = run
        self._process_group = model.process_group
        self._done = model.num_timesteps
        in_place = request.resume is not None and request.resume.in_place
        # Files of a run that goes on lose what its last checkpoint does not know.
        self._keep_until = self._done if in_place else None
        parent = request.tensorboard_log
        self._events = run.path if parent is None else parent / request.config.algo / run.path.name

    def learn(self) -> None:
        """Train to the end or to a signal, save, and log what came of it; rank 0 alone writes and logs."""
        with ExitStack() as cleanup:
            shown = self._request.progress and self._process_group.is_first
            progress = Progress(self._config.n_timesteps, done=self._done, on=shown)
            cleanup.callback(progress.close)
            logger = self._logger()
            cleanup.callback(logger.close)
            self._model.set_logger(logger)
            checkpoints = CheckpointCallback(self._run.path, save_freq=self._config.save_freq)
            stop = StopSignals(checkpoints.stop)
            cleanup.enter_context(stop)
            evaluation = self._evaluation(checkpoints, cleanup) if self._config.eval_episodes else None
            monitor = [self._monitor(progress, cleanup)] if self._process_group.is_first else []
            # Saving first: a kill during an evaluation then loses nothing.
            callbacks = [*monitor, checkpoints, *([evaluation] if evaluation else [])]
            size = sum(parameter.numel() for parameter in self._model.policy.parameters())
            _logger.info(headline(self._config, self._run.path, size, self._done))
            self._learn_guarded(CallbackList(callbacks))
            ended_early = checkpoints.stopped and self._is_work_left()
            if ended_early:
                _logger.info(
                    f"stopped and saved; go on with: python -m zoo.train -i {quoted(self._run.path)}"
                )
        if not ended_early and self._process_group.is_first:
            self._close(len(self._model.news.tasks), evaluation)
        if stop.by_ctrl_c:
            raise KeyboardInterrupt

    def _is_work_left(self) -> bool:
        """Of a run that was stopped: are there steps to make, or the last evaluation?"""
        boundary = self._model.boundary
        assert boundary is not None, "`learn` has returned"
        return bool(self._config.eval_episodes) or boundary.num_timesteps < self._config.n_timesteps

    def _learn_guarded(self, callbacks: CallbackList) -> None:
        """`model.learn`; a Ctrl-C that does not wait and a lost simulator save what the last update left.

        With several ranks it would take all of them to save, and they are on their way out.
        """
        try:
            self._model.learn(
                self._config.n_timesteps - self._done,
                callback=callbacks,
                reset_num_timesteps=self._request.resume is None,
            )
        except (KeyboardInterrupt, VLAZooError):
            boundary = self._model.boundary
            alone = self._process_group.size == 1
            if alone and boundary is not None and boundary.num_timesteps > self._done:
                save_checkpoint(self._model, self._run.checkpoints)
                _logger.info(f"saved; go on with: python -m zoo.train -i {quoted(self._run.path)}")
            raise

    def _logger(self) -> Logger:
        if not self._process_group.is_first:
            return Logger(folder=None, output_formats=[])
        formats: list[KVWriter] = [
            ScreenTable(self._config.algo),
            JsonLines(self._run.path, keep_until=self._keep_until),
            TensorBoard(self._events, keep_until=self._keep_until),
        ]
        if self._request.track is not None:
            formats.append(start_tracker(self._request.track, self._run, self._config))
        return Logger(folder=str(self._run.path), output_formats=formats)

    def _monitor(self, progress: Progress, cleanup: ExitStack) -> MonitorCallback:
        file = MonitorFile(self._run.path, self._config.env, keep_until=self._keep_until)
        cleanup.callback(file.close)
        return MonitorCallback(file, progress)

    def _evaluation(self, checkpoints: CheckpointCallback, cleanup: ExitStack) -> EvaluationCallback:
        self._evaluator = Evaluator(
            self._config, self._envs, self._model.policy, checkpoints, self._process_group
        )
        cleanup.callback(self._evaluator.close)
        log = (
            EvaluationFile(self._run.path, keep_until=self._keep_until)
            if self._process_group.is_first
            else None
        )
        fresh = 0 if self._keep_until is not None else self._done
        return EvaluationCallback(
            self._config.eval_freq,
            acted_at=self._process_group.broadcast_object(
                log.timesteps[-1] if log is not None and log.timesteps else fresh
            ),
            evaluate=self._evaluator,
            log=log,
            checkpoints=checkpoints,
        )

    def _close(self, tasks_seen: int, evaluation: EvaluationCallback | None) -> None:
        """The evaluation's table, its film, and what to do next."""
        tasks = self._envs.benchmark.tasks
        # A run that only made up for its last evaluation has seen none.
        if self._model.num_timesteps > self._done:
            _logger.info(
                f"trained for {self._model.num_timesteps} simulator steps on {tasks_seen} of {len(tasks)} tasks"
            )
        video = None
        if evaluation is not None and evaluation.last is not None:
            episodes = evaluation.last
            policy: Any = self._model.policy
            line = protocol_line(
                self._config.env,
                episodes,
                tasks,
                chunk=self._config.chunk,
                actions=policy.action_selection_text(deterministic=True),
                start_kind=self._envs.benchmark.start_kind,
            )
            _logger.info(evaluation_table(episodes, tasks, line))
            record = evaluation_record(
                episodes,
                tasks,
                env_id=self._config.env,
                protocol=self._envs.protocol(),
                num_timesteps=self._model.num_timesteps,
                deterministic=True,
                summary=line,
            )
            write_text(self._run.path / EVALUATION_FILE, json.dumps(record, indent=2) + "\n")
            name = f"step_{self._model.num_timesteps}.mp4"
            fps = float(self._envs.metadata["render_fps"])
            video = self._evaluator.video.write(self._run.videos / name, fps=fps)
        starts = sum(task.num_trials for task in tasks)
        write_run_page(self._run)
        lines = closing_lines(
            self._run.path,
            video,
            events=self._events,
            n_timesteps=self._config.n_timesteps,
            done=self._model.num_timesteps,
            num_starts=starts,
        )
        _logger.info(lines)
