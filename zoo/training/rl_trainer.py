"""A run of PPO or GRPO on this process: its set-up, its trainer, and videos of its episodes."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter

from vla_gym.observation import decode_instruction
from vla_gym.video import VideoGrid
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.distributed.process_group import check_same_weights
from zoo.evaluation.evaluator import EpisodeRecord
from zoo.files import quoted
from zoo.rollout.buffer import Step
from zoo.runs.folder import REPLAY_FOLDER, RunFolder, longer
from zoo.runs.loggers import ScreenTable
from zoo.runs.lookup import TRAINING
from zoo.runs.monitor import MonitorFile
from zoo.runs.progress import Progress
from zoo.training.callbacks import CheckpointCallback, MonitorCallback
from zoo.training.checkpoint import load_checkpoint
from zoo.training.evaluation import VIDEO_EPISODES, Evaluator, evaluations_before_the_end, write_video
from zoo.training.run_plan import RunPlan, TrainJob, log_plan
from zoo.training.setup import (
    join_run,
    keep_stages_that_pay,
    make_envs,
    make_model,
    open_run_folder,
    run_log,
    training_share,
    use_memory,
)
from zoo.training.trainer import Trainer

if TYPE_CHECKING:  # PPO and GRPO need none of its modules
    from zoo.off_policy.algorithm import VLAOffPolicyAlgorithm

_logger = logging.getLogger(__name__)
_FIRST_TIME = {"libero": " (a task met for the first time on this machine is compiled, 2 to 10 s each)"}
"""Extra -> what its simulators do once."""


class SupportingRank(Protocol):
    """The part in the run of a process that does not learn."""

    def train(self) -> None:
        """Simulate or decide until the ranks that learn have ended."""


class RLTrainer(Trainer):
    """A run of PPO or GRPO: the last evaluation is recorded and reported."""

    command = TRAINING
    model: VLAOnPolicyAlgorithm | VLAOffPolicyAlgorithm
    _monitor: MonitorFile
    """Training episodes; of the rank that writes."""

    def __init__(
        self, job: TrainJob, plan: RunPlan, model: VLAOnPolicyAlgorithm | VLAOffPolicyAlgorithm, run: RunFolder
    ) -> None:
        config, done, rollout = job.config, model.num_timesteps, plan.batch.simulator_steps
        if not isinstance(model, VLAOnPolicyAlgorithm):
            model.replay_folder = run.path / REPLAY_FOLDER
        super().__init__(
            job,
            model,
            model.envs,
            run,
            CheckpointCallback(run.path, save_freq=config.save_freq),
            planned_steps=done + -(-(config.n_timesteps - done) // rollout) * rollout,
        )

    def headline(self) -> str:
        config, size = self.config, sum(parameter.numel() for parameter in self.model.policy.parameters())
        start = f", going on at {self.done}" if self.done else ""
        return (
            f"{config.algo.upper()} on {config.env} with {config.policy} ({size / 1e6:.1f} M parameters), "
            f"{config.num_envs} envs, {config.n_timesteps} simulator steps{start}, seed {config.seed} -> "
            f"{self.run.path}"
        )

    def make_evaluator(self) -> Evaluator:
        return Evaluator(
            self.config,
            self.evaluated.tasks,
            lambda: self.model.policy,
            lambda: self.checkpoints.stopping,
            self.process_group,
            recorded_episodes=VIDEO_EPISODES if self.job.evaluation_video else 0,
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
        if self.job.video_freq:
            callbacks.append(TrainingVideo(self.job.video_freq, self.videos, fps=self._fps))
        return callbacks

    def is_work_left(self) -> bool:
        state = self.model.train_state
        assert state is not None, "it was saved"
        return bool(self.config.eval_episodes) or state.num_timesteps < self.config.n_timesteps

    def conclude(self, episodes: list[EpisodeRecord] | None) -> None:
        tasks, steps = self.envs.benchmark.tasks, self.model.num_timesteps
        # A run that only made up for its last evaluation has seen no task.
        if steps > self.done:
            seen = len(self.model.tasks_seen | self._monitor.tasks)
            _logger.info(f"trained for {steps} simulator steps on {seen} of {len(tasks)} tasks")
        video, shows = None, ""
        if self.evaluator is not None and episodes is not None:
            _logger.info(self.write_evaluation(episodes))
            if self.job.evaluation_video:
                grid = self.evaluator.video
                video = write_video(grid, self.videos / f"step_{steps}.mp4", fps=self._fps)
                shows = f"{grid.num_solved} of {len(grid)} episodes solved"
        num_starts = sum(task.num_trials for task in tasks)
        _logger.info(self._next_steps(video, shows, num_starts, len(episodes or ())))

    @property
    def _fps(self) -> float:
        return float(self.envs.metadata["render_fps"])

    def _next_steps(self, video: Path | None, shows: str, num_starts: int, evaluated: int) -> str:
        from zoo.runs.report_page import report_of  # brings jinja2

        run = quoted(self.run.path)
        look = f"vla-zoo evaluate -i {run} -P   (on all {num_starts} start states; --eval-episodes N for fewer)"
        if evaluated >= num_starts:
            look = f"vla-zoo enjoy -i {run}   (watch it)"
        steps = longer(self.config.n_timesteps, self.model.num_timesteps)
        lines = [
            f"run folder  {self.run.path}",
            "next:",
            f"  {look}",
            f"  vla-zoo train -i {run} -n {steps}   (train on)",
            f"  tensorboard --logdir {quoted(self.events)}   (curves)",
        ]
        if video is not None:
            lines.append(f"video       {video}   ({shows})")
        if (report := report_of(self.run)) is not None:
            lines.append(f"report      {report}   (open it in a browser)")
        return "\n".join(lines)


def set_up(job: TrainJob, plan: RunPlan, cleanup: ExitStack) -> RLTrainer | SupportingRank:
    """Meet the run's other processes and return this one's part of the run, whose parts `cleanup` ends.

    A user's mistake that shows only here leaves no run folder behind.
    """
    job, process_group, device = join_run(job)
    # Machines differ in cores and GPUs: the first rank that decides chooses the stages for all.
    plan = replace(plan, config=job.config).with_stages(accelerator=device.type != "cpu")
    stages = process_group.all_gather_object(plan.batch.num_stages)[plan.placement.rollout[0]]
    plan = replace(plan, batch=replace(plan.batch, num_stages=stages))
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    cleanup.enter_context(run_log(writes=process_group.rank == plan.placement.actor[0]))
    log_plan(plan, job.resume)
    if plan.placement.everywhere:
        config, benchmark = plan.config, plan.config.benchmark
        where = f"{plan.num_workers} processes" if plan.num_workers else "this process"
        wait = _FIRST_TIME.get(benchmark.extra or "", "")
        _logger.info(f"starting     {plan.batch.envs_per_rank} simulators in {where}{wait}")
        envs = make_envs(config, cleanup, pipeline_stages=stages, **training_share(config, process_group))
        model = make_model(job, envs, device, process_group)
        check_same_weights(model.policy, process_group)
        if config.pipeline_stages == "auto":
            keep_stages_that_pay(model)
    else:
        from zoo.training.roles import set_up_roles

        part = set_up_roles(job, plan, process_group, device, cleanup)
        if not isinstance(part, VLAOnPolicyAlgorithm):
            return part
        model = part
    if free is not None:
        use_memory(model, plan, free)
    if job.checkpoint is not None:
        load_checkpoint(model, job.checkpoint)
    run = open_run_folder(job, model.envs, model.process_group, cleanup)
    return RLTrainer(job, plan, model, run)


class TrainingVideo(BaseCallback):
    """Records the first episodes that begin after every `every` simulator steps, one frame per decision.

    They are this process's, with the actions that training draws. A video that is under way when the next is due is
    finished first, and the end of training writes what there is.
    """

    model: Any

    def __init__(self, every: int, folder: Path, *, fps: float) -> None:
        super().__init__()
        self._every = every
        self._folder = folder
        self._fps = fps
        self._grid: VideoGrid | None = None
        """The video under way."""

    def _on_training_start(self) -> None:
        num_envs, done = self.model.n_envs, self.model.num_timesteps
        # A run that goes on may be in the middle of episodes; a new one is recorded from its start.
        self._at_start_N = np.full(num_envs, done == 0)
        self._recorded_at = done if done else -1
        self._tile_N: list[int | None] = [None] * num_envs
        self._begun = 0

    def _on_rollout_start(self) -> None:
        now = self.model.num_timesteps
        if self._grid is None and now // self._every > self._recorded_at // self._every:
            self._grid, self._recorded_at, self._begun = VideoGrid(), now, 0

    def _on_step(self) -> bool:
        step: Step | None = self.locals["step"]
        if step is None:
            return True
        for row, env in enumerate(step.env_n.tolist()):
            if self._grid is not None:
                self._record(self._grid, step, row, env)
            self._at_start_N[env] = step.done_n[row]
        if self._grid is not None and len(self._grid) == VIDEO_EPISODES and all(tile is None for tile in self._tile_N):
            self._write()
        return True

    def _on_training_end(self) -> None:
        if self._grid is not None and len(self._grid):
            self._write()

    def _record(self, grid: VideoGrid, step: Step, row: int, env: int) -> None:
        if self._at_start_N[env] and len(grid) < VIDEO_EPISODES:
            self._tile_N[env] = self._begun
            grid.begin(self._begun, decode_instruction(step.obs["instruction"][row]))
            grid.add(self._begun, step.obs["image"][row], solved=False)
            self._begun += 1
        tile = self._tile_N[env]
        if tile is None:
            return
        done = bool(step.done_n[row])
        if step.outcome.lost_n[row]:
            grid.drop(tile)
        else:
            grid.add(tile, step.outcome.obs["image"][row], solved=bool(step.outcome.success_n[row]))
        if done:
            self._tile_N[env] = None

    def _write(self) -> None:
        assert self._grid is not None
        path = write_video(self._grid, self._folder / f"training_{self._recorded_at}.mp4", fps=self._fps)
        if path is not None:
            _logger.info(f"{self.model.num_timesteps:>10} recorded: {len(self._grid)} training episodes, {path}")
        self._grid = None
        self._tile_N = [None] * len(self._tile_N)
