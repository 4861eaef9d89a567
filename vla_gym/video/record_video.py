"""`RecordVideo`: any of this package's vector environments, filmed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper

from vla_gym.errors import BadValue
from vla_gym.vector.vector_env import Observation, VLAVectorEnv
from vla_gym.video.grid import Film


class RecordVideo(VectorWrapper):
    """Films the first `episodes` episodes, one frame per decision, side by side in one mp4.

    Each tile carries its instruction, and turns green once solved or red when it ends unsolved. The file is
    written when that many episodes have ended, or else by `close` with what there is. An episode lost with its
    worker is left out and another one filmed. Works with every autoreset mode; wrap before `reset`.
    """

    env: VLAVectorEnv

    def __init__(
        self, envs: VLAVectorEnv, path: str | Path, *, episodes: int = 9, fps: float | None = None
    ) -> None:
        """`fps` defaults to the speed of the simulated world (decisions per simulated second)."""
        if episodes < 1:
            raise BadValue(f"episodes must be at least 1, got {episodes}")
        super().__init__(envs)
        self.path = Path(path)
        self.written = False
        """Is the file there?"""
        self._wanted = episodes
        self._fps = float(envs.metadata["render_fps"]) if fps is None else fps
        self._film = Film()
        self._begun = 0
        self._tile: list[int | None] = [None] * envs.num_envs
        """What each slot is filmed on, None between episodes or when enough are under way."""
        self._solved = [False] * envs.num_envs
        self._between = np.zeros(envs.num_envs, dtype=np.bool_)
        """Slots whose next step shows a new episode (NEXT_STEP)."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `VLAVectorEnv.reset`; what was filmed of an unfinished episode is dropped."""
        obs, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        mask_N = (options or {}).get("reset_mask")
        chosen = range(self.num_envs) if mask_N is None else np.flatnonzero(mask_N).tolist()
        for slot in chosen:
            self._drop(slot)
            self._begin(slot, obs, idle=bool(infos["idle"][slot]))
        self._between[list(chosen)] = False
        return obs, infos

    def step(
        self, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """See `VLAVectorEnv.step`."""
        obs, reward_N, terminated_N, truncated_N, infos = self.env.step(actions)
        ended_N = terminated_N | truncated_N
        same_step = self.env.autoreset_mode is AutoresetMode.SAME_STEP
        for slot in range(self.num_envs):
            if self._between[slot]:
                self._begin(slot, obs, idle=bool(infos["idle"][slot]))
                continue
            moved = same_step and ended_N[slot]
            last_info = infos["final_info"] if moved else infos
            image = infos["final_obs"][slot]["image"] if moved else obs["image"][slot]
            if last_info["lost"][slot]:
                self._drop(slot)
            elif self._tile[slot] is not None:
                self._add(slot, image, solved=bool(last_info["success"][slot]))
            if ended_N[slot]:
                self._tile[slot] = None
            if moved:
                self._begin(slot, obs, idle=bool(infos["idle"][slot]))
        self._between = ended_N & (self.env.autoreset_mode is AutoresetMode.NEXT_STEP)
        self._write_when_done()
        return obs, reward_N, terminated_N, truncated_N, infos

    def close(self, **kwargs: Any) -> None:
        """Write what has been filmed if that has not happened, and close the environment."""
        if not self.written and len(self._film):
            self._write()
        self.env.close(**kwargs)

    def _begin(self, slot: int, obs: Observation, *, idle: bool) -> None:
        if idle or len(self._film) == self._wanted or self.written:
            return
        self._tile[slot], self._solved[slot] = self._begun, False
        self._film.begin(self._begun, obs["instruction"][slot])
        self._begun += 1
        self._add(slot, obs["image"][slot], solved=False)

    def _add(self, slot: int, image: np.ndarray, *, solved: bool) -> None:
        tile = self._tile[slot]
        assert tile is not None
        self._solved[slot] = self._solved[slot] or solved
        self._film.add(tile, image, solved=self._solved[slot])

    def _drop(self, slot: int) -> None:
        tile, self._tile[slot] = self._tile[slot], None
        if tile is not None:
            self._film.drop(tile)

    def _write_when_done(self) -> None:
        if not self.written and len(self._film) == self._wanted and all(one is None for one in self._tile):
            self._write()

    def _write(self) -> None:
        self._film.write(self.path, fps=self._fps)
        self.written = True
