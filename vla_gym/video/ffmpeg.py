"""The ffmpeg that writes and reads films."""

from __future__ import annotations

import imageio_ffmpeg


def find_ffmpeg() -> str:
    """Return its file; raises `OSError` where none runs."""
    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError as error:
        raise OSError("no ffmpeg runs here; install ffmpeg, or name its file in IMAGEIO_FFMPEG_EXE") from error
