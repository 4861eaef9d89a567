"""Evaluations of a fine-tuning run, and the policy it keeps: the one that solved the most."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stable_baselines3.common.logger import Logger

from vla_gym import VLAVectorEnv
from vla_gym.specs import StartState
from vla_policies import VLAPolicy
from zoo.config.run_config import RunConfig
from zoo.distributed.process_group import ProcessGroup
from zoo.evaluation.evaluator import EpisodeRecord, Frame, evaluate
from zoo.evaluation.results import (
    evaluated_line,
    evaluation_metrics,
    evaluation_record,
    evaluation_table,
    protocol_line,
)
from zoo.evaluation.statistics import overall_rate
from zoo.files import write_text
from zoo.runs.folder import EVALUATION_FILE, RunFolder
from zoo.runs.monitor import EvaluationFile
from zoo.training.callbacks import Stopped, untouched_generators
from zoo.training.checkpoint import best_success, save_best
from zoo.training.evaluation import of_all_ranks

_logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class BestKeeper:
    """Evaluates every so many updates and at the end, all ranks together; rank 0 keeps the best in the run folder.

    Of equals the later is the best: it has learned the demonstrations longer.
    """

    config: RunConfig
    """The run; `eval_freq` and `n_timesteps` count updates."""
    dataset: str
    """What is learned, for the record."""
    policy: VLAPolicy
    """The policy that acts."""
    envs: VLAVectorEnv
    """This rank's simulators, autoreset DISABLED."""
    cells: Sequence[StartState]
    """The start states of this rank."""
    process_group: ProcessGroup
    """All who evaluate."""
    run: RunFolder
    """Where rank 0 writes."""
    logger: Logger
    """Gets `eval/*`."""
    keep_until: int | None = None
    """Updates that a run which goes on had made: evaluations after more are forgotten, but not what is in `best/`."""

    def __post_init__(self) -> None:
        self._file = EvaluationFile(self.run.path, keep_until=self.keep_until)
        self._looked_at = self.process_group.broadcast_object(
            self._file.timesteps[-1] if self._file.timesteps else 0
        )
        self._best = best_success(self.run.best)

    def owes(self, updates: int) -> bool:
        """Is the policy looked at after so many updates, and was not yet?"""
        every = self.config.eval_freq if self.config.eval_episodes else 0
        due = updates == self.config.n_timesteps or (every > 0 and updates % every == 0)
        return due and updates != self._looked_at

    def look(self, updates: int, *, stopping: Callable[[], bool]) -> None:
        """Evaluate the policy, and keep it unless an earlier one was better; every rank must call it.

        Raises `Stopped` where a rank was asked to stop (`stopping` tells of this one); the look is then owed still.
        """

        def on_frame(frame: Frame) -> None:
            if stopping():
                raise Stopped

        self.policy.set_training_mode(False)
        with untouched_generators():
            episodes = of_all_ranks(lambda: self._evaluate_own(on_frame), self.process_group)
        self._looked_at = updates
        if not self.process_group.is_first:
            return
        if not episodes:
            save_best(self.policy, self.run.best, success=0.0, num_timesteps=updates)
            return
        success = overall_rate(episodes).mean
        kept = self._best is None or success >= self._best
        if kept:
            self._best = success
            save_best(self.policy, self.run.best, success=success, num_timesteps=updates)
            self._write_record(episodes, updates)
        # Last: what is in this file is not looked at again.
        self._file.add_episodes(updates, episodes)
        for name, value in evaluation_metrics(episodes).items():
            self.logger.record(name, value)
        self.logger.dump(updates)
        _logger.info(evaluated_line(updates, episodes, kept=kept))

    def table(self) -> str:
        """The evaluation of the policy in `best/`."""
        episodes = self._recorded()
        return evaluation_table(episodes, self.envs.benchmark.tasks, self._protocol_line(episodes))

    def _evaluate_own(self, on_frame: Callable[[Frame], None]) -> list[EpisodeRecord]:
        if not self.cells:
            return []
        return evaluate(self.policy, self.envs, self.cells, on_frame=on_frame)

    def _recorded(self) -> list[EpisodeRecord]:
        record = json.loads((self.run.path / EVALUATION_FILE).read_text(encoding="utf-8"))
        return [EpisodeRecord(**one) for one in record["episodes"]]

    def _write_record(self, episodes: Sequence[EpisodeRecord], updates: int) -> None:
        record = evaluation_record(
            episodes,
            self.envs.benchmark.tasks,
            env_id=self.config.env,
            protocol=self.envs.protocol(),
            num_timesteps=updates,  # as in best/'s score: the evaluation is of these weights
            updates=updates,
            dataset=self.dataset,
            deterministic=True,
            summary=self._protocol_line(episodes),
        )
        write_text(self.run.path / EVALUATION_FILE, json.dumps(record, indent=2) + "\n")

    def _protocol_line(self, episodes: Sequence[EpisodeRecord]) -> str:
        tasks = self.envs.benchmark.tasks
        return protocol_line(
            self.config.env,
            episodes,
            tasks,
            chunk=self.envs.chunk,
            actions=self.policy.action_selection_text(deterministic=True),
            start_kind=self.envs.benchmark.start_kind,
        )
