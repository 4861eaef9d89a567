"""Films of evaluated episodes; the drawing is `vla_gym.video.grid`'s."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vla_gym.video.grid import Film
from zoo.evaluation.evaluator import Frame


class VideoRecorder:
    """Collects the frames of up to `max_episodes` episodes; give its `add` to `zoo.evaluation.evaluator.evaluate`."""

    def __init__(self, instructions: Sequence[str], *, max_episodes: int = 9) -> None:
        """`instructions[i]` belongs to the episode of cell i."""
        self._instructions = instructions
        self._max_episodes = max_episodes
        self._film = Film()

    def add(self, frame: Frame) -> None:
        """Keep a frame (of the first `max_episodes` cells)."""
        if frame.episode < self._max_episodes:
            if frame.first:
                self._film.begin(frame.episode, self._instructions[frame.episode])
            self._film.add(frame.episode, frame.image, solved=frame.success)

    def write(self, path: Path, *, fps: float) -> Path:
        """Write the mp4; episodes that ended early stand still on their last frame."""
        return self._film.write(path, fps=fps)
