from __future__ import annotations

import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from zoo.evaluation import Frame
from zoo.video import VideoRecorder, caption


def frame(episode: int, *, success: bool = False, level: int = 0) -> Frame:
    return Frame(slot=0, episode=episode, image=np.full((32, 32, 3), level, dtype=np.uint8), success=success)


def test_a_film_holds_every_frame_and_then_the_outcome(tmp_path: Path) -> None:
    recorder = VideoRecorder(["reach the red block", "reach the blue block"])
    for level in (0, 100, 200):
        recorder.add(frame(0, level=level))
    recorder.add(frame(1, success=True))
    path = recorder.write(tmp_path / "videos" / "film.mp4", fps=5)
    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    raw = [ffmpeg, "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(raw, capture_output=True, check=True)
    assert b"5 fps" in done.stderr
    # Two tiles of 192 x (192 + caption) side by side; three steps and a second of standing still.
    frames = np.frombuffer(done.stdout, dtype=np.uint8).reshape(-1, 236, 384, 3)
    assert len(frames) == 8
    left = [int(one[150, 100].mean()) for one in frames[:3]]
    assert left == pytest.approx([0, 100, 200], abs=8)


def test_only_the_first_episodes_are_kept(tmp_path: Path) -> None:
    recorder = VideoRecorder(["a", "b"], max_episodes=1)
    recorder.add(frame(1))
    with pytest.raises(ValueError, match="no frame"):
        recorder.write(tmp_path / "film.mp4", fps=5)


def test_the_bar_tells_solved_from_failed_from_under_way() -> None:
    image = np.zeros((32, 32, 3), dtype=np.uint8)
    bars = [
        caption(image, "go", success=success, over=over)[-200, -1]
        for success, over in ((True, False), (False, True), (False, False))
    ]
    assert np.argmax(bars[0]) == 1
    assert np.argmax(bars[1]) == 0
    assert len(set(bars[2].tolist())) == 1


def test_the_instruction_is_drawn() -> None:
    image = np.zeros((64, 64, 3), dtype=np.uint8)
    short = caption(image, "go", success=False, over=False)
    long = caption(image, "put both moka pots on the stove and " * 3, success=False, over=False)
    assert short.shape == long.shape == (236, 192, 3)
    bar = slice(0, 26)
    assert (long[bar] > 160).all(axis=2).sum() > 3 * (short[bar] > 160).all(axis=2).sum() > 0
