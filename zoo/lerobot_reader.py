"""Reads a LeRobotDataset v3.0 folder, of `zoo.collect` or another's, as demonstrations."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np

from vla_gym.errors import BadValue
from vla_gym.specs import StartState
from zoo import lerobot_format as lr
from zoo.demonstrations import Demonstration
from zoo.lerobot_writer import column_TD

UNKNOWN_START = StartState(task_id=-1, trial_id=-1)
"""Where the episodes of datasets that do not say began."""


def read_dataset(root: Path, episodes: int | None = None) -> list[Demonstration]:
    """The dataset's first `episodes` episodes, all by default.

    One camera, whatever it is called, becomes `image`; ours keep their names. Raises `BadValue` for a folder that
    is no such dataset, or is incomplete.
    """
    info = check_dataset(root)
    if episodes is not None and not 1 <= episodes <= info["total_episodes"]:
        raise BadValue(f"'{root}' holds {info['total_episodes']} episodes, asked for {episodes}")
    cameras = _cameras(info, root)
    sentences = _sentences(root)
    out: list[Demonstration] = []
    for rows in _episode_files(root):
        videos: dict[str, np.ndarray] = {}
        tables: dict[str, Any] = {}
        for row in rows:
            if episodes is not None and len(out) == episodes:
                return out
            out.append(_episode(root, info, row, cameras, sentences, tables, videos))
    if len(out) != info["total_episodes"]:
        raise BadValue(f"'{root}' says it has {info['total_episodes']} episodes, found {len(out)}")
    return out


def check_dataset(root: Path) -> dict[str, Any]:
    """`info.json` of a dataset that can be read here; raises `BadValue` otherwise."""
    if not root.is_dir():
        raise BadValue(
            f"no folder '{root}'. Collect demonstrations with: python -m zoo.collect --env ID --expert -o {root}"
        )
    info = lr.read_json(root / lr.INFO_PATH)
    if info.get("codebase_version") != lr.VERSION:
        raise BadValue(
            f"'{root}' is of LeRobotDataset {info.get('codebase_version')}, only {lr.VERSION} is read"
        )
    for name in (lr.ACTION,):
        if name not in info["features"]:
            raise BadValue(f"'{root}' has no '{name}'; its features are {', '.join(info['features'])}")
    return info


def _cameras(info: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Our name of each camera -> its feature."""
    found = [key for key, feature in info["features"].items() if feature["dtype"] == "video"]
    if not found:
        raise BadValue(f"'{root}' has no videos; features of dtype 'image' are not read")
    if len(found) == 1:
        return {"image": found[0]}
    ours = {key.removeprefix(lr.CAMERA_PREFIX): key for key in found if key.startswith(lr.CAMERA_PREFIX)}
    kept = {name: key for name, key in ours.items() if name in ("image", "wrist_image")}
    if "image" not in kept:
        raise BadValue(f"'{root}' has cameras {', '.join(found)}; one must be '{lr.camera_key('image')}'")
    return kept


def _sentences(root: Path) -> dict[int, str]:
    _, pq = lr.parquet()
    table = pq.read_table(root / lr.TASKS_PATH).to_pydict()
    (texts,) = [values for name, values in table.items() if name != "task_index"]
    return dict(zip(table["task_index"], texts, strict=True))


def _episode_files(root: Path) -> Iterator[list[dict[str, Any]]]:
    _, pq = lr.parquet()
    for path in sorted((root / "meta/episodes").glob("*/*.parquet")):
        yield pq.read_table(path).to_pylist()


def _episode(
    root: Path,
    info: Mapping[str, Any],
    row: Mapping[str, Any],
    cameras: Mapping[str, str],
    sentences: Mapping[int, str],
    tables: dict[str, Any],
    videos: dict[str, np.ndarray],
) -> Demonstration:
    name = info["data_path"].format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"])
    if name not in tables:
        _, pq = lr.parquet()
        tables[name] = pq.read_table(root / name)
    table = tables[name]
    number_T = table.column("episode_index").to_numpy()
    steps = table.take(np.flatnonzero(number_T == row["episode_index"]))
    if len(steps) != row["length"]:
        raise BadValue(
            f"episode {row['episode_index']} of '{root}' should have {row['length']} frames, has {len(steps)}"
        )
    images = {
        camera: _pictures(root, info, row, key, videos)[: row["length"]] for camera, key in cameras.items()
    }
    has_state = lr.STATE in info["features"]
    return Demonstration(
        task=row.get("vla_zoo/task", ""),
        instruction=sentences[steps.column("task_index")[0].as_py()],
        start=StartState(task_id=row["vla_zoo/task_id"], trial_id=row["vla_zoo/trial_id"])
        if "vla_zoo/task_id" in row
        else UNKNOWN_START,
        start_state=row.get("vla_zoo/start_state", ""),
        success=row.get("vla_zoo/success", True),
        images=images,
        state_TS=column_TD(steps, lr.STATE) if has_state else np.zeros((len(steps), 0), np.float32),
        action_TA=column_TD(steps, lr.ACTION),
    )


def _pictures(
    root: Path, info: Mapping[str, Any], row: Mapping[str, Any], key: str, videos: dict[str, np.ndarray]
) -> np.ndarray:
    name = info["video_path"].format(
        video_key=key,
        chunk_index=row[f"videos/{key}/chunk_index"],
        file_index=row[f"videos/{key}/file_index"],
    )
    if name not in videos:
        height, width = info["features"][key]["shape"][:2]
        videos[name] = read_video(root / name, height, width)
    first = round(row[f"videos/{key}/from_timestamp"] * info["fps"])
    found = videos[name][first : first + row["length"]]
    if len(found) != row["length"]:
        raise BadValue(f"'{root / name}' ends before episode {row['episode_index']} does")
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
