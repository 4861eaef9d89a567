from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.video import find_ffmpeg


def test_it_is_a_file_or_its_lack_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(find_ffmpeg()).is_file()
    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", lambda: (_ for _ in ()).throw(RuntimeError("none")))
    with pytest.raises(OSError, match="no ffmpeg runs here; install ffmpeg, or name its file in IMAGEIO_FFMPEG_EXE"):
        find_ffmpeg()
