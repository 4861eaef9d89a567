"""The images of a LeRobotDataset: frames of videos, or PNG and JPEG files that stand in the tables."""

from __future__ import annotations

import functools
import io
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from vla_gym.errors import BadValue
from vla_gym.reading import check_no_pipe, inside
from vla_gym.system.child import limit_memory
from vla_gym.video import find_ffmpeg
from zoo.demonstrations import lerobot_format as lr
from zoo.demonstrations.recorder import StoredImages

DTYPES = ("video", "image")
"""Dtypes of a camera in `info.json`."""
_CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm"
"""ffmpeg's names of the files that are read as video."""
_MOST_MEMORY = 2 * 2**30
"""Bytes that ffmpeg may take to read a video: a file of a KB can say that it has 10^9 frames."""


def cameras_of(info: lr.DatasetInfo, root: Path) -> dict[str, str]:
    """Map our name of each camera to its feature; a single one is `image`, whatever its name.

    lerobot calls LIBERO's wrist camera `image2`.
    """
    found = [key for key, feature in info.features.items() if feature.get("dtype") in DTYPES]
    if not found:
        raise BadValue(f"'{root}' has no images: no feature is of dtype {' or '.join(DTYPES)}")
    if len(found) == 1:
        return {"image": found[0]}
    named = {key.removeprefix(lr.CAMERA_PREFIX): key for key in found if key.startswith(lr.CAMERA_PREFIX)}
    if "image" not in named:
        raise BadValue(
            f"'{root}' has cameras {', '.join(found)}; one must be '{lr.camera_key('image')}'. Rename the main one in "
            f"{lr.INFO_PATH}, in the columns of its tables (data/, meta/episodes/) and in videos/"
        )
    wrist = named.get("wrist_image", named.get("image2"))
    return {"image": named["image"]} | ({} if wrist is None else {"wrist_image": wrist})


class Cameras:
    """The cameras of a dataset. Of each one video is open, and of the tables one: the last that was read."""

    def __init__(self, root: Path, info: lr.DatasetInfo) -> None:
        self._root = root
        self._info = info
        self._keys = cameras_of(info, root)
        self._videos: dict[str, Video] = {}
        images = functools.partial(ImageTable, columns=tuple(self._keys.values()))
        self._table = functools.lru_cache(maxsize=1)(images)
        self._shapes: dict[str, tuple[int, int, int]] = {}
        """(H, W, 3) of each camera's first image: `info.json` may be wrong."""

    def of(self, row: Mapping[str, Any], table: Path, columns: Sequence[str]) -> dict[str, StoredImages]:
        """Return the images of the episode that `row` of the episodes' table describes, whose numbers are in `table`.

        `columns` are those of that table. Raise `BadValue` where the first episode's first image cannot be read.
        """
        found = {}
        for camera, key in self._keys.items():
            read = functools.partial(self._in_table, row["episode_index"], table, key)
            if key not in columns:
                read = functools.partial(self._in_video, *self._place(row, key), key)
            if key not in self._shapes:
                height, width, _ = read(1).shape[1:]
                self._shapes[key] = (height, width, 3)
            shape = (row["length"], *self._shapes[key])
            found[camera] = StoredImages(shape, functools.partial(self._checked, read, key, shape))
        return found

    def _checked(self, read: Callable[[int], np.ndarray], key: str, shape: tuple[int, int, int, int]) -> np.ndarray:
        with lr.opening(self._root):
            image_THWC = read(shape[0])
            if image_THWC.shape[1:] != shape[1:]:
                sizes = sorted({shape[1:], image_THWC.shape[1:]})
                raise BadValue(f"'{key}' of '{self._root}' has images of several sizes: {sizes}")
            return image_THWC

    def _place(self, row: Mapping[str, Any], key: str) -> tuple[Path, int]:
        """Return the video that holds camera `key` of an episode, and the number of its first frame there."""
        if self._info.video_path is None:
            raise BadValue(f"'{self._root}' says of '{key}' that it is video, but not where videos are (video_path)")
        indices = {name: row[f"videos/{key}/{name}"] for name in ("chunk_index", "file_index")}
        path = lr.file_of(self._root, self._info.video_path, self._root / lr.INFO_PATH, video_key=key, **indices)
        first = round(row[f"videos/{key}/from_timestamp"] * self._info.fps)
        if first < 0:
            raise BadValue(f"episode {row['episode_index']} of '{self._root}' begins before its video '{path}'")
        return path, first

    def _in_video(self, path: Path, first: int, key: str, count: int) -> np.ndarray:
        video = self._videos.get(key)
        if video is None or video.path != path or video.position > first:
            video = self._videos[key] = Video(path)
        frames = video.read(first, count)
        if len(frames) != count:
            raise BadValue(f"'{path}' ends before frame {first + count}, which an episode of '{self._root}' has")
        return frames

    def _in_table(self, episode: int, path: Path, key: str, count: int) -> np.ndarray:
        rows = self._table(path).rows(episode, count)
        frames = (_decoded(entry, key, count, self._root) for entry in rows.column(key).to_pylist())
        return _stacked(frames, len(rows), f"'{key}' of '{self._root}'")


class ImageTable:
    """A parquet file with images. In memory are the row groups of one episode: the last that was read."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        file = lr.open_table(path)
        groups = range(file.num_row_groups)
        self._number_T = lr.read_groups(file, path, groups, ["episode_index"]).column(0).to_numpy()  # of each row
        self._ends = np.cumsum([file.metadata.row_group(group).num_rows for group in groups])  # of each row group
        self._read = functools.lru_cache(maxsize=1)(
            lambda first, last: lr.read_groups(file, path, range(first, last + 1), columns)
        )

    def rows(self, episode: int, count: int) -> lr.Table:
        """Return the first `count` rows of an episode, which has that many, as a pyarrow table."""
        place_T = np.flatnonzero(self._number_T == episode)[:count]
        first, last = np.searchsorted(self._ends, place_T[[0, -1]], side="right").tolist()
        before = self._ends[first - 1] if first else 0
        return lr.rows_of(self._read(first, last), place_T - before)


def _decoded(entry: object, key: str, count: int, root: Path) -> np.ndarray:
    """Return a PNG or JPEG, one of `count` of an episode, as uint8 `[H, W, 3]`; an entry holds it or names its file."""
    entry = entry if isinstance(entry, Mapping) else {}
    data, name = entry.get("bytes"), entry.get("path")
    if data is None and (name is None or not inside(root, str(name), root).is_file()):
        raise BadValue(f"'{key}' of '{root}' holds neither an image nor the name of a file of the dataset")
    file = inside(root, str(name), root) if data is None else io.BytesIO(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `_check_size` refuses it
            opened = Image.open(file, formats=("PNG", "JPEG"))
        with opened as image:
            _check_size(image.width, image.height, count, f"'{root}'")
            if image.mode.startswith(("I", "F")):  # Pillow would cut it off at 255: white
                raise ValueError(f"it is grey of 16 bits or more (mode {image.mode}), as depth is; 8 bits are read")
            return np.asarray(image.convert("RGB"))
    except BadValue:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        cause = "it is no PNG and no JPEG" if isinstance(error, UnidentifiedImageError) else error
        raise BadValue(f"an image of '{key}' of '{root}' cannot be read: {cause}") from error


def _stacked(frames: Iterable[np.ndarray], count: int, where: str) -> np.ndarray:
    """Return `frames`, `count` at most, as one array `[T, H, W, 3]`; in memory is one copy of them."""
    image_THWC = np.empty((0, 0, 0, 3), np.uint8)
    found = 0
    for found, frame in enumerate(frames, 1):
        if found == 1:
            _check_size(frame.shape[1], frame.shape[0], count, where)
            image_THWC = np.empty((count, *frame.shape), np.uint8)
        if frame.shape != image_THWC.shape[1:]:
            raise BadValue(f"{where} has images of several sizes: {sorted({image_THWC.shape[1:], frame.shape})}")
        image_THWC[found - 1] = frame
    return image_THWC[:found]


def _check_size(width: int, height: int, count: int, where: str) -> None:
    if width * height > lr.MOST_PIXELS or width * height * 3 * count > lr.MOST_BYTES:
        raise BadValue(
            f"{where} has {count} images of {width} x {height} in an episode; an image may have {lr.MOST_PIXELS} "
            f"pixels, all of them {lr.MOST_BYTES} bytes"
        )


# Videos ---------------------------------------------------------------------------------------------


class Video:
    """An mp4, read from its beginning on; raises `BadValue` when it is missing or cannot be read."""

    def __init__(self, path: Path) -> None:
        check_no_pipe(path)
        self.path = path
        self.position = 0  # number of the next frame
        self._frames = _frames_of(path)

    def read(self, first: int, count: int) -> np.ndarray:
        """Return frames `first .. first + count`, as far as there are any, uint8 `[T, H, W, 3]`."""
        skipped = sum(1 for _ in islice(self._frames, max(0, first - self.position)))
        image_THWC = _stacked(islice(self._frames, count), count, f"'{self.path}'")
        self.position += skipped + len(image_THWC)
        return image_THWC


def _frames_of(path: Path) -> Iterator[np.ndarray]:
    # `imageio_ffmpeg.read_frames` would leave its pipes open.
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(_decoding(path), stdout=subprocess.PIPE, stderr=log) as process,  # noqa: S603 - our own ffmpeg
    ):
        assert process.stdout is not None
        limit_memory(process.pid, _MOST_MEMORY)
        try:
            while kind := process.stdout.readline():
                size, largest = process.stdout.readline(), process.stdout.readline()
                if (kind, largest) != (b"P6\n", b"255\n"):
                    raise BadValue(f"'{path}' cannot be read as video: its images are not of one byte a colour")
                width, height = map(int, size.split())
                data = process.stdout.read(height * width * 3)
                yield np.frombuffer(data, np.uint8).reshape(height, width, 3)
            if status := process.wait():
                raise BadValue(f"'{path}' cannot be read as video: {_cause(log, status)}")
        finally:
            process.kill()  # the reader may stop early


def _decoding(path: Path) -> list[str]:
    # Frames are written as PPM, which says its own size: `info.json` may be wrong.
    # Without -xerror a damaged frame is left out, and every later one taken for the one before.
    command = [find_ffmpeg(), "-v", "error", "-xerror", "-max_pixels", str(lr.MOST_PIXELS)]
    # A thread of filters for each of 256 cores would take all that ffmpeg may.
    command += ["-filter_threads", "1"]
    # Playlists, whatever their file is called, would name other files.
    command += ["-format_whitelist", _CONTAINERS, "-protocol_whitelist", "file", "-i", f"file:{path}"]
    return [*command, "-fps_mode", "passthrough", "-f", "image2pipe", "-c:v", "ppm", "-pix_fmt", "rgb24", "-"]


def write_video(path: Path, images: Sequence[np.ndarray], *, fps: int, crf: int) -> None:
    """Write images `[T, H, W, 3]` of several episodes as one mp4; every second frame can be jumped to.

    `crf` is x264's: 0 keeps every byte, 16 a quarter of the size and mean errors of 3 in 255. Raise `BadValue` where
    ffmpeg does not finish it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = images[0].shape[1:3]
    command = [find_ffmpeg(), "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    pixels = lr.pixel_format(width, crf)
    codec, pixels = ("libx264rgb", "rgb24") if pixels == lr.EXACT else ("libx264", pixels)
    command += ["-r", str(fps), "-i", "-", "-c:v", codec, "-pix_fmt", pixels, "-crf", str(crf)]
    command += ["-g", "2", "-bf", "0", "-threads", "1", f"file:{path}"]
    with (
        tempfile.TemporaryFile() as log,
        # `imageio_ffmpeg.write_frames` would not say how it ended. Ctrl-C is for us alone.
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log, process_group=0) as process,  # noqa: S603 - as above
    ):
        assert process.stdin is not None
        # Where the pipe breaks, it ended early, and its status says so.
        with suppress(BrokenPipeError):
            for image_HWC in chain.from_iterable(images):
                process.stdin.write(np.ascontiguousarray(image_HWC).data)
        with suppress(BrokenPipeError):
            process.stdin.close()
        if status := process.wait():
            raise BadValue(f"cannot write the video '{path}': {_cause(log, status)}")


def _cause(log: IO[bytes], status: int) -> str:
    """Return what ffmpeg said last, without the part of it that said so; its exit status if it said nothing."""
    log.seek(0)
    lines = log.read().decode(errors="replace").split("\n")
    said = next((line for line in reversed(lines) if line.strip()), f"ffmpeg ended with status {status}")
    return said.rpartition("] ")[2].strip()[-200:]
