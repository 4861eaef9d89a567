"""LeRobotDataset v3.0, as lerobot 0.4 reads it: where files lie, what `info.json` says, statistics.

    meta/info.json  meta/stats.json  meta/tasks.parquet  meta/episodes/chunk-000/file-000.parquet
    data/chunk-000/file-000.parquet                      one row per frame, several episodes per file
    videos/<camera>/chunk-000/file-000.mp4               the same episodes' images, one after the other

The format is written and read here without the package, whose own requirements do not fit this project's.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, MissingDependency, VLAZooError, shown
from vla_gym.reading import check_no_pipe, inside
from vla_gym.system.extras import install_command
from zoo.files import atomic_file, write_text

VERSION = "v3.0"
CHUNK_SIZE = 1000  # files per folder
PLACE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH = f"data/{PLACE}.parquet"
VIDEO_PATH = f"videos/{{video_key}}/{PLACE}.mp4"
EPISODES_PATH = f"meta/episodes/{PLACE}.parquet"
INFO_PATH, STATS_PATH, TASKS_PATH = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
STATE, ACTION, CAMERA_PREFIX = "observation.state", "action", "observation.images."
EXACT = "gbrp"  # ffmpeg's name for red, green and blue planes, which H.264 keeps without loss
QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

# Limits on the datasets of others.
MOST_PIXELS = 2048 * 2048  # of one image; robots' cameras have a quarter of it at most
MOST_BYTES = 4 * 2**30  # of one camera's images in one episode, or of one table, uncompressed
MOST_ROWS = 5 * 10**7  # of one table; RT-X as a whole has 10^8 frames in thousands of files
Table = Any  # a pyarrow table or an open file; the package has no types
_FIELD = re.compile(r"\{(video_key|chunk_index|file_index)(?::0?\d{1,2}d?)?\}")


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The entries of `info.json` that are read here."""

    features: Mapping[str, Mapping[str, Any]]
    """Column or camera -> its dtype and shape."""
    fps: float
    total_episodes: int
    data_path: str
    """Pattern of the tables' names, see `DATA_PATH`."""
    video_path: str | None = None
    """Pattern of the videos' names, see `VIDEO_PATH`; None where images are in the tables."""


@contextmanager
def opening(root: Path) -> Iterator[None]:
    """Context manager that turns errors of a dataset's files into `BadValue` naming the folder."""
    pa, _ = parquet()
    try:
        yield
    except VLAZooError:
        raise
    except (OSError, LookupError, TypeError, ValueError, AttributeError, OverflowError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT, errno.ELOOP, errno.EISDIR):
            raise
        cause = shorten(f"{type(error).__name__}: {error}", 200)
        raise BadValue(
            f"'{root}' cannot be read as a LeRobotDataset {VERSION}: a file is missing, incomplete (a Git LFS "
            f"pointer?) or holds something else ({cause})"
        ) from error


def file_of(root: Path, pattern: str, where: object, **fields: object) -> Path:
    """Return the file that a pattern of `info.json` names, inside `root`; raise `BadValue` for any other.

    A pattern may hold the fields and widths of `DATA_PATH` and `VIDEO_PATH`, and no other format specification.
    """
    if not set(_FIELD.sub("", pattern)).isdisjoint("{}"):
        raise BadValue(f"'{where}' has the pattern {shown(pattern)}; it must be like {DATA_PATH}")
    return inside(root, pattern.format(**fields), where)


def place(file_index: int) -> dict[str, int]:
    """Return folder and file of the n-th file of a kind."""
    return {"chunk_index": file_index // CHUNK_SIZE, "file_index": file_index % CHUNK_SIZE}


def camera_key(camera: str) -> str:
    """Return the feature of one of our cameras: "image" -> "observation.images.image"."""
    return CAMERA_PREFIX + camera


# Tables ---------------------------------------------------------------------------------------------


def parquet() -> tuple[ModuleType, ModuleType]:
    """Return (`pyarrow`, `pyarrow.parquet`); raise `MissingDependency` with the pip line."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"datasets of demonstrations need pyarrow, not installed here. Install with: {install_command('datasets')}"
        ) from error
    return pyarrow, pyarrow.parquet


def open_table(path: Path) -> Table:
    """Return a parquet file for `read_groups`; raise `BadValue` for one of too many rows."""
    check_no_pipe(path)
    file = parquet()[1].ParquetFile(path)
    if file.metadata.num_rows > MOST_ROWS:
        raise BadValue(f"'{path}' has {file.metadata.num_rows} rows; at most {MOST_ROWS} are read")
    return file


def read_groups(file: Table, path: Path, groups: Sequence[int], columns: Collection[str] | None = None) -> Table:
    """Return row groups of a file of `open_table`, those of `columns` that it has, as a pyarrow table.

    lerobot writes a group for each episode. Raise `BadValue` for a table that would fill the memory: equal values
    stand in the file once.
    """
    pa, _ = parquet()
    names = [name for name in file.schema_arrow.names if columns is None or name in columns]
    every = [group.column(i) for group in map(file.metadata.row_group, groups) for i in range(group.num_columns)]
    parts = [part for part in every if part.path_in_schema.split(".")[0] in names]
    texts = sum(part.total_uncompressed_size for part in parts if part.physical_type == "BYTE_ARRAY")
    size, batches = 4 * sum(part.num_values for part in parts), []
    if size <= MOST_BYTES:
        size = 0
        # One text of the file may be that of every row, so few rows at a time have room in any case.
        for batch in file.iter_batches(max(1, min(MOST_BYTES // 8 // max(1, texts), 2**16)), list(groups), names):
            size += batch.nbytes
            if size > MOST_BYTES:
                break
            batches.append(batch)
    if size > MOST_BYTES:
        raise BadValue(f"'{path}' has {size} bytes or more to be read at once; at most {MOST_BYTES} are")
    return pa.Table.from_batches(batches, pa.schema([file.schema_arrow.field(name) for name in names]))


def read_table(path: Path, columns: Collection[str] | None = None) -> Table:
    """Return a parquet file, or those of `columns` that it has, as a pyarrow table."""
    with open_table(path) as file:
        return read_groups(file, path, range(file.num_row_groups), columns)


def rows_of(table: Table, place_T: np.ndarray) -> Table:
    """Return the rows `place_T`, which rise, of a pyarrow table, whose own `take` would copy all of it first."""
    if not len(place_T):
        return table.slice(0, 0)
    return table.slice(place_T[0], place_T[-1] + 1 - place_T[0]).take(place_T - place_T[0])


def column_TD(table: Table, name: str, where: str) -> np.ndarray:
    """Return a column of vectors of a pyarrow table, or of numbers, which are vectors of one: float32 `[T, D]`.

    A missing number becomes NaN. Raise `BadValue`, which says `where`, for vectors of several lengths.
    """
    column = table.column(name).combine_chunks()
    if hasattr(column, "value_lengths"):
        lengths = set(column.value_lengths().to_pylist())
        if len(lengths) != 1 or None in lengths:
            raise BadValue(f"'{name}' of {where} must have vectors of one length, got lengths {lengths}")
        column = column.flatten()
    flat = column.to_numpy(zero_copy_only=False)
    return np.asarray(flat, dtype=np.float32).reshape(len(table), -1)


def write_table(path: Path, table: Table) -> None:
    """Write a pyarrow table as parquet, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as partial:
        parquet()[1].write_table(table, partial)


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(values, indent=2) + "\n")


# What `info.json` and `stats.json` say --------------------------------------------------------------


def features(
    cameras: Sequence[str], image_size: int, columns: Mapping[str, np.ndarray], *, fps: int, crf: int
) -> dict[str, object]:
    """Return the features of `info.json`: images compressed with x264's `crf`, columns `[T]` or `[T, D]`."""
    video = {
        "video.height": image_size,
        "video.width": image_size,
        "video.codec": "h264",
        "video.pix_fmt": pixel_format(image_size, crf),
        "video.is_depth_map": False,
        "video.fps": fps,
        "video.channels": 3,
        "has_audio": False,
    }
    shape, names = [image_size, image_size, 3], ["height", "width", "channels"]
    image = {"dtype": "video", "shape": shape, "names": names, "info": video}
    indices = ("frame_index", "episode_index", "index", "task_index")
    kinds = {name: (value.dtype.name, list(value.shape[1:]) or [1]) for name, value in columns.items()}
    kinds |= {"timestamp": ("float32", [1]), **dict.fromkeys(indices, ("int64", [1]))}
    numbers = {name: {"dtype": dtype, "shape": shape, "names": None} for name, (dtype, shape) in kinds.items()}
    return {**{camera_key(camera): image for camera in cameras}, **numbers}


def pixel_format(image_size: int, crf: int) -> str:
    """Return red, green and blue where nothing is lost; else half the colours, as players want it, if the side is
    even."""
    if crf == 0:
        return EXACT
    return "yuv420p" if image_size % 2 == 0 else "yuv444p"


def vector_stats(value_TD: np.ndarray) -> dict[str, list[float]]:
    """Return min, max, mean, std, count and quantiles of each column."""
    wide_TD = value_TD.astype(np.float64)
    found = {name: getattr(wide_TD, name)(axis=0) for name in ("min", "max", "mean", "std")}
    found |= {name: np.quantile(wide_TD, share, axis=0) for name, share in QUANTILES.items()}
    return {**{name: value.tolist() for name, value in found.items()}, "count": [len(value_TD)]}


def image_moments(image_THWC: np.ndarray, before: Mapping[str, list[float]] | None = None) -> dict[str, list[float]]:
    """Return the sums behind the statistics of images and of those `before`: 3 numbers each, colours in 0 .. 255."""
    flat = image_THWC.reshape(-1, 3).astype(np.float64)
    found = {
        "pixels": np.full(3, float(len(flat))),
        "sum": flat.sum(axis=0),
        "squares": np.square(flat).sum(axis=0),
        "min": flat.min(axis=0),
        "max": flat.max(axis=0),
    }
    join = {"min": np.minimum, "max": np.maximum}
    if before:
        found = {name: join.get(name, np.add)(before[name], value) for name, value in found.items()}
    return {name: value.tolist() for name, value in found.items()}


def image_stats(moments: Mapping[str, list[float]], frames: int) -> dict[str, object]:
    """Return the statistics per channel, `[3, 1, 1]`, colours as 0 .. 1."""
    pixels, total, squares, low, high = (np.array(moments[name]) for name in ("pixels", "sum", "squares", "min", "max"))
    mean = total / pixels
    values = {
        "min": low,
        "max": high,
        "mean": mean,
        "std": np.sqrt(np.maximum(squares / pixels - np.square(mean), 0.0)),
    }
    scaled = {name: (value / 255.0).reshape(3, 1, 1).tolist() for name, value in values.items()}
    return {**scaled, "count": [frames]}
