"""The pictures of a LeRobotDataset: frames of videos, or PNG and JPEG files that stand in the tables."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
from PIL import Image

from vla_gym.errors import BadValue
from zoo import lerobot_format as lr

PICTURES = ("video", "image")
"""What `info.json` calls a camera's dtype."""


def cameras_of(info: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Our name of each camera -> its feature. A single one is `image`, whatever it is called."""
    found = [key for key, feature in info["features"].items() if feature["dtype"] in PICTURES]
    if not found:
        raise BadValue(f"'{root}' has no pictures: no feature is of dtype {' or '.join(PICTURES)}")
    if len(found) == 1:
        return {"image": found[0]}
    ours = {key.removeprefix(lr.CAMERA_PREFIX): key for key in found if key.startswith(lr.CAMERA_PREFIX)}
    kept = {name: key for name, key in ours.items() if name in ("image", "wrist_image")}
    if "image" not in kept:
        raise BadValue(f"'{root}' has cameras {', '.join(found)}; one must be '{lr.camera_key('image')}'")
    return kept


def pictures_of(steps: Any, key: str, root: Path) -> np.ndarray:
    """Those of a camera in the rows `steps` of a table, uint8 `[T, H, W, 3]`; each is a file, or names one."""
    frames = []
    for entry in steps.column(key).to_pylist():
        data = entry.get("bytes") if isinstance(entry, Mapping) else None
        path = root / str(entry.get("path")) if isinstance(entry, Mapping) else root
        if data is None and not path.is_file():
            raise BadValue(
                f"'{key}' of '{root}' holds neither a picture nor the name of a file of the dataset"
            )
        try:
            with Image.open(io.BytesIO(data) if data is not None else path) as picture:
                frames.append(np.asarray(picture.convert("RGB")))
        except OSError as error:
            raise BadValue(f"a picture of '{key}' of '{root}' cannot be read: {error}") from error
    sizes = {frame.shape for frame in frames}
    if len(sizes) > 1:
        raise BadValue(f"'{key}' of '{root}' has pictures of several sizes: {sorted(sizes)}")
    return np.stack(frames)


class Videos:
    """Videos of a dataset, each read once."""

    def __init__(self, root: Path, info: Mapping[str, Any]) -> None:
        self._root = root
        self._info = info
        self._frames: dict[str, np.ndarray] = {}

    def of(self, row: Mapping[str, Any], key: str) -> np.ndarray:
        """Frames of camera `key` in the episode that `row` of the episodes' table describes."""
        name = self._info["video_path"].format(
            video_key=key,
            chunk_index=row[f"videos/{key}/chunk_index"],
            file_index=row[f"videos/{key}/file_index"],
        )
        if name not in self._frames:
            height, width = _height_and_width(self._info["features"][key])
            self._frames[name] = read_video(self._root / name, height, width)
        first = round(row[f"videos/{key}/from_timestamp"] * self._info["fps"])
        found = self._frames[name][first : first + row["length"]]
        if len(found) != row["length"]:
            raise BadValue(f"'{self._root / name}' ends before episode {row['episode_index']} does")
        return found


def read_video(path: Path, height: int, width: int) -> np.ndarray:
    """Every frame of an mp4, uint8 `[T, H, W, 3]`; raises `BadValue` when it is missing or cannot be read."""
    if not path.is_file():
        raise BadValue(f"the dataset lacks '{path}'")
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path), "-fps_mode", "passthrough"]
    done = subprocess.run(  # noqa: S603 - our own ffmpeg
        [*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=False
    )
    size = height * width * 3
    if done.returncode or not done.stdout or len(done.stdout) % size:
        raise BadValue(f"'{path}' cannot be read as {width}x{height} video: {done.stderr.decode()[-200:]}")
    return np.frombuffer(done.stdout, dtype=np.uint8).reshape(-1, height, width, 3)


def _height_and_width(feature: Mapping[str, Any]) -> tuple[int, int]:
    """Of `shape`, whose channels stand last or, where `names` says so, first."""
    shape, names = feature["shape"], feature.get("names") or ()
    height, width = shape[1:] if list(names[:1]) in (["channels"], ["channel"]) else shape[:2]
    return int(height), int(width)
