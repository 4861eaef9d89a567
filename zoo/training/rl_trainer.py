"""The trainer of PPO and GRPO."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter

from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.config.batch_plan import solve
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.runs.folder import closing_lines
from zoo.runs.loggers import ScreenTable
from zoo.runs.lookup import TRAINING
from zoo.runs.monitor import MonitorFile
from zoo.runs.progress import Progress
from zoo.runs.report_page import report_of
from zoo.training.callbacks import CheckpointCallback, MonitorCallback
from zoo.training.evaluation import Evaluator, evaluations_before_the_end
from zoo.training.films import EPISODES, TrainingFilms, write_film
from zoo.training.trainer import Trainer

_logger = logging.getLogger(__name__)


class RLTrainer(Trainer):
    """A run of PPO or GRPO: evaluations are filmed, the last one is reported."""

    command = TRAINING
    model: VLAOnPolicyAlgorithm
    _monitor: MonitorFile
    """Training episodes; of the rank that writes."""

    def headline(self) -> str:
        config, size = self.config, sum(parameter.numel() for parameter in self.model.policy.parameters())
        start = f", going on at {self.done}" if self.done else ""
        return (
            f"{config.algo.upper()} on {config.env} with {config.policy} ({size / 1e6:.1f} M parameters), "
            f"{config.num_envs} envs, {config.n_timesteps} simulator steps{start}, seed {config.seed} -> "
            f"{self.run.path}"
        )

    def make_checkpoints(self) -> CheckpointCallback:
        return CheckpointCallback(self.run.path, save_freq=self.config.save_freq)

    def make_evaluator(self) -> Evaluator:
        return Evaluator(
            self.config,
            self.evaluated.tasks,
            lambda: self.model.policy,
            lambda: self.checkpoints.stopping,
            self.process_group,
            filmed_episodes=EPISODES if self.job.films.evaluation else 0,
            # Few evaluations far apart leave the memory to training.
            keeps_simulators=self.config.eval_freq is not None,
        )

    def evaluation_steps(self) -> tuple[int, bool]:
        if self.config.eval_freq is not None:
            return super().evaluation_steps()
        times = evaluations_before_the_end(self.config, self.evaluated.tasks)
        return -(-self.config.n_timesteps // times) if times else 0, times > 0

    def screen(self) -> list[KVWriter]:
        return [ScreenTable(self.config.algo)]

    def monitors(self, progress: Progress, cleanup: ExitStack) -> list[BaseCallback]:
        file = self._monitor = MonitorFile(self.run.path, self.config.env, keep_until=self.keep_until)
        cleanup.callback(file.close)
        callbacks: list[BaseCallback] = [MonitorCallback(file, progress)]
        if self.job.films.every:
            fps = float(self.envs.metadata["render_fps"])
            callbacks.append(TrainingFilms(self.job.films.every, self.videos, fps=fps))
        return callbacks

    def planned_steps(self) -> int:
        rollout = solve(self.config).simulator_steps
        return self.done + -(-(self.config.n_timesteps - self.done) // rollout) * rollout

    def is_work_left(self) -> bool:
        state = self.model.train_state
        assert state is not None, "it was saved"
        return bool(self.config.eval_episodes) or state.num_timesteps < self.config.n_timesteps

    def conclude(self, evaluator: Evaluator | None, episodes: list[EpisodeRecord] | None) -> None:
        tasks, steps = self.envs.benchmark.tasks, self.model.num_timesteps
        # A run that only made up for its last evaluation has seen no task.
        if steps > self.done:
            seen = len(self.model.tasks_seen | self._monitor.tasks)
            branch = self.done and self.keep_until is None
            new = f", {steps - self.done} of them in this run," if branch else ""
            _logger.info(f"trained for {steps} simulator steps{new} on {seen} of {len(tasks)} tasks")
        video, filmed = None, ""
        if evaluator is not None and episodes is not None:
            _logger.info(self.table(episodes))
            self.write_evaluation(episodes)
            if self.job.films.evaluation:
                fps = float(self.envs.metadata["render_fps"])
                video = write_film(evaluator.video, self.videos / f"step_{steps}.mp4", fps=fps)
                filmed = f"{evaluator.video.num_solved} of {len(evaluator.video)} episodes solved"
        lines = closing_lines(
            self.run.path,
            video,
            filmed=filmed,
            events=self.events,
            n_timesteps=self.config.n_timesteps,
            done=steps,
            num_starts=sum(task.num_trials for task in tasks),
            evaluated=len(episodes or ()),
            report=report_of(self.run),
        )
        _logger.info(lines)
