"""Reads a LeRobotDataset v3.0 folder, of `zoo.collect` or another's, as demonstrations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vla_gym.errors import BadValue
from vla_gym.specs import StartState
from zoo import lerobot_format as lr
from zoo.demonstrations import Demonstration
from zoo.lerobot_pictures import Videos, cameras_of, pictures_of
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
    cameras = cameras_of(info, root)
    sentences = _sentences(root)
    out: list[Demonstration] = []
    for rows in _episode_files(root):
        videos = Videos(root, info)
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
    videos: Videos,
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
        camera: videos.of(row, key) if key not in table.column_names else pictures_of(steps, key, root)
        for camera, key in cameras.items()
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
