from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zoo.evaluation.evaluator import Frame
from zoo.evaluation.video import EvaluationVideo


def frame(episode: int, *, success: bool = False, level: int = 0, first: bool = False) -> Frame:
    image = np.full((32, 32, 3), level, dtype=np.uint8)
    return Frame(slot=0, episode=episode, image=image, success=success, first=first)


def test_only_the_first_episodes_are_kept(tmp_path: Path) -> None:
    recorder = EvaluationVideo(["a", "b"], max_episodes=1)
    recorder.add_frame(frame(1, first=True))
    with pytest.raises(ValueError, match="no frame"):
        recorder.write(tmp_path / "film.mp4", fps=5)


def test_an_episode_is_told_what_its_cell_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, bool, bool]] = []

    def remember(image: np.ndarray, instruction: str, *, success: bool, over: bool) -> np.ndarray:
        told.append((instruction, success, over))
        return np.zeros((236, 192, 3), dtype=np.uint8)

    monkeypatch.setattr("vla_gym.video.grid.caption", remember)
    recorder = EvaluationVideo(["a", "b"])
    recorder.add_frame(frame(0, first=True))  # lost, and begun once more
    recorder.add_frame(frame(0, first=True))
    recorder.add_frame(frame(0, success=True))
    recorder.add_frame(frame(1, first=True))
    recorder.write(tmp_path / "film.mp4", fps=1)
    # The sheet's size is measured on the first frame, then two steps and one of standing still.
    assert told == [("a", False, False), ("b", False, True)] * 2 + [("a", True, True), ("b", False, True)] * 2
