from __future__ import annotations

import os
import re
import subprocess
from errno import ENOSPC
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from vla_gym.errors import BadValue
from vla_gym.video import VideoGrid, caption


def picture(level: int = 0) -> np.ndarray:
    return np.full((32, 32, 3), level, dtype=np.uint8)


def one_frame() -> VideoGrid:
    grid = VideoGrid()
    grid.begin(0, "go")
    grid.add(0, picture(), solved=True)
    return grid


def read(path: Path) -> tuple[np.ndarray, bytes]:
    """Frames `[T, H, W, 3]` of a film, and what ffmpeg says of it."""
    raw = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(raw, capture_output=True, check=True)
    size = re.search(rb", (\d+)x(\d+)", done.stderr)
    assert size is not None
    width, height = int(size[1]), int(size[2])
    return np.frombuffer(done.stdout, dtype=np.uint8).reshape(-1, height, width, 3), done.stderr


def test_a_film_holds_every_frame_and_then_the_outcome(tmp_path: Path) -> None:
    grid = VideoGrid()
    grid.begin(0, "reach the red block")
    grid.begin(1, "reach the blue block")
    for level in (0, 100, 200):
        grid.add(0, picture(level), solved=False)
    grid.add(1, picture(), solved=True)
    frames, report = read(grid.write(tmp_path / "videos" / "film.mp4", fps=5))
    assert b"5 fps" in report
    # Two tiles of 192 x (192 + caption) side by side; three steps and two seconds of standing still.
    assert frames.shape == (13, 236, 384, 3)
    left = [int(frame[150, 100].mean()) for frame in frames[:3]]
    assert left == pytest.approx([0, 100, 200], abs=8)


def test_a_tile_that_begins_again_forgets_and_a_dropped_one_is_gone(tmp_path: Path) -> None:
    grid = VideoGrid()
    grid.begin(0, "go")
    grid.begin(1, "go")
    grid.add(0, picture(200), solved=True)
    grid.begin(0, "go")
    grid.add(0, picture(50), solved=False)
    grid.drop(1)
    assert len(grid) == 1
    frames, _ = read(grid.write(tmp_path / "film.mp4", fps=1))
    assert frames.shape == (3, 236, 192, 3)
    assert int(frames[0, 150, 100].mean()) == pytest.approx(50, abs=8)


@pytest.mark.parametrize(("name", "says"), [("film.txt", r"must end in \.mp4"), ("file/film.mp4", "no folder")])
def test_a_film_goes_into_an_mp4(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match=says):
        one_frame().write(tmp_path / name, fps=1)


def test_a_machine_without_ffmpeg_is_told_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", none)
    with pytest.raises(BadValue, match=r"cannot write the video .*: no ffmpeg runs here; install ffmpeg, or name its"):
        one_frame().write(tmp_path / "film.mp4", fps=1)


@pytest.mark.parametrize(("error", "says"), [(None, "ffmpeg did not finish it"), (ENOSPC, "No space left on device")])
def test_a_film_that_fails_leaves_the_earlier_one_alone(
    error: int | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_: VideoGrid, path: Path, fps: float) -> None:
        path.write_bytes(b"half")
        if error:
            raise OSError(error, os.strerror(error))

    film = one_frame().write(tmp_path / "film.mp4", fps=1)
    earlier = film.read_bytes()
    monkeypatch.setattr(VideoGrid, "_encode", half)
    for name in ("film.mp4", "new.mp4"):
        with pytest.raises(BadValue, match=f"cannot write the video '.*{name}': {says}"):
            one_frame().write(tmp_path / name, fps=1)
    assert list(tmp_path.iterdir()) == [film]
    assert film.read_bytes() == earlier


def test_the_bar_tells_solved_from_failed_from_under_way() -> None:
    bars = [
        caption(picture(), "go", success=success, over=over)[-200, -1]
        for success, over in ((True, False), (False, True), (False, False))
    ]
    assert np.argmax(bars[0]) == 1
    assert np.argmax(bars[1]) == 0
    assert len(set(bars[2].tolist())) == 1
