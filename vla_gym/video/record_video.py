"""`RecordVideo`: any of this package's vector environments, filmed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper

from vla_gym.errors import BadValue
from vla_gym.system.writable_paths import check_destination
from vla_gym.vector.vector_env import Observation, VLAVectorEnv
from vla_gym.video.grid import VideoGrid


class RecordVideo(VectorWrapper):
    """Records the first `episodes` episodes, one frame per decision, side by side in one mp4.

    Each tile shows its instruction, and turns green once solved or red when it ends unsolved. The file is
    written when that many episodes have ended, else by `close` with the frames so far. An episode lost with its
    worker is left out and another one recorded. Works with every autoreset mode; wrap before `reset`.
    """

    env: VLAVectorEnv

    def __init__(self, envs: VLAVectorEnv, path: str | Path, *, episodes: int = 9, fps: float | None = None) -> None:
        """`fps` defaults to the speed of the simulated world (decisions per simulated second).

        Raises `BadValue` for a `path` that is no mp4 or cannot be written.
        """
        if episodes < 1:
            raise BadValue(f"episodes must be at least 1, got {episodes}")
        check_destination(Path(path), suffix=".mp4")
        super().__init__(envs)
        self.path = Path(path)
        self.written = False
        """Whether the file has been written."""
        self._wanted = episodes
        self._fps = float(envs.metadata["render_fps"]) if fps is None else fps
        self._grid = VideoGrid()
        self._begun = 0
        self._tile: list[int | None] = [None] * envs.num_envs
        """Tile of each environment, None between episodes or when enough are being recorded."""
        self._between = np.zeros(envs.num_envs, dtype=np.bool_)
        """Bool `[N]`: the next step shows a new episode (NEXT_STEP)."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `VLAVectorEnv.reset`; the frames of an unfinished episode are dropped."""
        obs, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        mask_N = (options or {}).get("reset_mask")
        chosen = range(self.num_envs) if mask_N is None else np.flatnonzero(mask_N).tolist()
        for env in chosen:
            self._drop(env)
            self._begin(env, obs, idle=bool(infos["idle"][env]))
        self._between[list(chosen)] = False
        return obs, infos

    def step(self, actions: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """See `VLAVectorEnv.step`."""
        obs, reward_N, terminated_N, truncated_N, infos = self.env.step(actions)
        ended_N = terminated_N | truncated_N
        same_step = self.env.autoreset_mode is AutoresetMode.SAME_STEP
        for env in range(self.num_envs):
            if self._between[env]:
                self._begin(env, obs, idle=bool(infos["idle"][env]))
                continue
            moved = same_step and ended_N[env]
            last_info = infos["final_info"] if moved else infos
            image = infos["final_obs"][env]["image"] if moved else obs["image"][env]
            if last_info["lost"][env]:
                self._drop(env)
            elif (tile := self._tile[env]) is not None:
                self._grid.add(tile, image, solved=bool(last_info["success"][env]))
            if ended_N[env]:
                self._tile[env] = None
            if moved:
                self._begin(env, obs, idle=bool(infos["idle"][env]))
        self._between = ended_N & (self.env.autoreset_mode is AutoresetMode.NEXT_STEP)
        self._write_when_done()
        return obs, reward_N, terminated_N, truncated_N, infos

    def close(self, **kwargs: Any) -> None:
        """Write the file if that has not happened, and close the environment."""
        try:
            if not self.written and len(self._grid):
                self._write()
        finally:
            self.env.close(**kwargs)

    def _begin(self, env: int, obs: Observation, *, idle: bool) -> None:
        if idle or len(self._grid) == self._wanted or self.written:
            return
        self._tile[env] = self._begun
        self._grid.begin(self._begun, obs["instruction"][env])
        self._grid.add(self._begun, obs["image"][env], solved=False)
        self._begun += 1

    def _drop(self, env: int) -> None:
        tile, self._tile[env] = self._tile[env], None
        if tile is not None:
            self._grid.drop(tile)

    def _write_when_done(self) -> None:
        if not self.written and len(self._grid) == self._wanted and all(tile is None for tile in self._tile):
            self._write()

    def _write(self) -> None:
        self._grid.write(self.path, fps=self._fps)
        self.written = True
