"""Evaluations of a fine-tuning run, and the policy it keeps: the one that solved the most."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stable_baselines3.common.logger import Logger

from vla_gym import VLAVectorEnv
from vla_gym.specs import StartState
from vla_policies import VLAPolicy
from zoo.callbacks import untouched_generators
from zoo.checkpoint import save_best
from zoo.config import RunConfig
from zoo.evaluation import Episode, evaluate, overall_rate
from zoo.evaluator import of_all_ranks
from zoo.monitor import EvaluationFile
from zoo.ranks import Ranks
from zoo.results import (
    evaluated_line,
    evaluation_metrics,
    evaluation_record,
    evaluation_table,
    protocol_line,
)
from zoo.runs import EVALUATION_FILE, RunFolder


@dataclass(kw_only=True)
class BestKeeper:
    """Evaluates every so many updates and at the end, all ranks together; rank 0 keeps the best in the run folder.

    Of equals the later is the best: it has learned the demonstrations longer.
    """

    config: RunConfig
    """The run; `eval_freq` and `n_timesteps` count updates."""
    dataset: Path
    """What is learned, for the record."""
    policy: VLAPolicy
    """The policy that acts."""
    envs: VLAVectorEnv
    """This rank's simulators, autoreset DISABLED."""
    cells: Sequence[StartState]
    """The start states of this rank."""
    ranks: Ranks
    """All who evaluate."""
    run: RunFolder
    """Where rank 0 writes."""
    logger: Logger
    """Gets `eval/*`, to be dumped with the update's numbers."""
    say: Callable[[str], None]
    """Gets each line for the screen."""
    best: list[Episode] = field(default_factory=list)
    """The evaluation of the policy in `best/`."""

    def __post_init__(self) -> None:
        self._file = EvaluationFile(self.run.path)

    def is_due(self, updates: int) -> bool:
        """Is the policy looked at after so many updates?"""
        every = self.config.eval_freq if self.config.eval_episodes else 0
        return updates == self.config.n_timesteps or (every > 0 and updates % every == 0)

    def look(self, updates: int) -> None:
        """Evaluate the policy, and keep it unless an earlier one was better; every rank must call it."""
        self.policy.set_training_mode(False)
        episodes = self._evaluate()
        if not self.ranks.is_first:
            return
        if not episodes:
            save_best(self.policy, self.run.best, success=0.0, num_timesteps=0)
            return
        self._file.add_episodes(updates, episodes)
        for name, value in evaluation_metrics(episodes).items():
            self.logger.record(name, value)
        success = overall_rate(episodes).mean
        kept = not self.best or success >= overall_rate(self.best).mean
        if kept:
            self.best = episodes
            save_best(self.policy, self.run.best, success=success, num_timesteps=0)
            self._write_record(updates)
        self.say(evaluated_line(updates, episodes, kept=kept))

    def table(self) -> str:
        """The evaluation of the policy in `best/`."""
        return evaluation_table(self.best, self.envs.benchmark.tasks, self._protocol_line())

    def _evaluate(self) -> list[Episode]:
        with untouched_generators():
            own = evaluate(self.policy, self.envs, self.cells) if self.cells else []
        return of_all_ranks(own, self.ranks)

    def _write_record(self, updates: int) -> None:
        record = evaluation_record(
            self.best,
            self.envs.benchmark.tasks,
            env_id=self.config.env,
            protocol=self.envs.protocol(),
            updates=updates,
            dataset=str(self.dataset),
            deterministic=True,
            summary=self._protocol_line(),
        )
        path = self.run.path / EVALUATION_FILE
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")

    def _protocol_line(self) -> str:
        tasks = self.envs.benchmark.tasks
        return protocol_line(
            self.config.env,
            self.best,
            tasks,
            chunk=self.envs.chunk,
            deterministic=True,
            start_kind=self.envs.benchmark.start_kind,
        )
