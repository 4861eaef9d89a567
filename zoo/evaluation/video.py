"""Videos of evaluated episodes."""

from __future__ import annotations

from collections.abc import Sequence

from vla_gym.video.grid import VideoGrid
from zoo.evaluation.evaluator import Frame


class EvaluationVideo(VideoGrid):
    """Grid of the first `max_episodes` episodes; give its `add_frame` to `zoo.evaluation.evaluator.evaluate`."""

    def __init__(self, instructions: Sequence[str], *, max_episodes: int = 9) -> None:
        """`instructions[i]` belongs to episode i."""
        super().__init__()
        self._sentences = instructions
        self._max_episodes = max_episodes

    def add_frame(self, frame: Frame) -> None:
        """Append the frame to its episode's tile, if that is among the first `max_episodes`."""
        if frame.episode < self._max_episodes:
            if frame.first:
                self.begin(frame.episode, self._sentences[frame.episode])
            self.add(frame.episode, frame.image, solved=frame.success)
