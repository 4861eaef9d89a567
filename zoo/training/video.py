"""Videos of the episodes that a run trains on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from vla_gym.observation import decode_instruction
from vla_gym.video import VideoGrid
from zoo.rollout.buffer import Step
from zoo.training.evaluation import VIDEO_EPISODES, write_video

_logger = logging.getLogger(__name__)


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
