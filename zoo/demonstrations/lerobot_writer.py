"""Writes demonstrations as a LeRobotDataset v3.0, some episodes at a time, so that a collection can go on later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, check_integer, shown
from vla_gym.reading import check_no_pipe, read_json_object
from zoo.demonstrations import lerobot_format as lr
from zoo.demonstrations.dataset_folder import is_unused, remove_parts
from zoo.demonstrations.lerobot_video import write_video
from zoo.demonstrations.recorder import Demonstration

PROGRESS_PATH = "meta/vla_zoo.json"
"""Progress of the collection, and sums behind the statistics: this project's own, written last."""


class LeRobotWriter:
    """A dataset folder; `add` writes one file of each kind, and the folder is complete after every call.

    A folder that was begun goes on only under equal `settings`. `crf` is x264's measure of the loss in pictures: 0 is
    none.
    """

    def __init__(self, root: Path, settings: Mapping[str, Any], *, fps: int, crf: int = 0) -> None:
        lr.parquet()  # a missing pyarrow shows before anything is collected
        self.root, self.fps, self._crf = root, fps, crf
        self._settings = dict(settings)
        self._done: dict[str, Any] = {
            "settings": self._settings,
            "tried": 0,
            "episodes": 0,
            "frames": 0,
            "files": 0,
            "tasks": [],
            "cameras": {},
        }
        if (root / PROGRESS_PATH).is_file():
            begun = read_json_object(root / PROGRESS_PATH)
            with lr.opening(root):
                self._go_on(begun)
        elif root.exists() and not root.is_dir():
            raise BadValue(f"'{root}' is a file; name a new folder with -o")
        elif not is_unused(root):
            raise BadValue(f"'{root}' is not empty and no dataset of zoo.collect; name a new folder with -o")

    @property
    def tried(self) -> int:
        """Start states tried so far, in their order."""
        return int(self._done["tried"])

    @property
    def episodes(self) -> int:
        """Episodes written."""
        return int(self._done["episodes"])

    @property
    def frames(self) -> int:
        """Frames written."""
        return int(self._done["frames"])

    def add(self, episodes: Sequence[Demonstration], *, tried: int) -> None:
        """Write these episodes and note that `tried` start states are done by now.

        Nothing is written before the first episode: a folder without any is no dataset.
        """
        if episodes:
            first = not self._done["files"]
            try:
                with lr.opening(self.root):
                    self._write_files(episodes)
            except BaseException:
                if first:
                    remove_parts(self.root)
                raise
        self._done["tried"] = tried
        if self.episodes:
            lr.write_json(self.root / PROGRESS_PATH, self._done)

    def _go_on(self, begun: dict[str, Any]) -> None:
        if begun.keys() != self._done.keys():
            raise BadValue(f"'{self.root / PROGRESS_PATH}' must say {', '.join(self._done)}; name a new folder with -o")
        for name in ("tried", "episodes", "frames", "files"):
            check_integer(f"{name} of '{self.root / PROGRESS_PATH}'", begun[name], 0, 10**12)
        if begun["episodes"]:
            self._done = begun
            self._check_settings()
            for name in (lr.DATA_PATH.format(**lr.place(number)) for number in range(begun["files"])):
                check_no_pipe(self.root / name)
                lr.parquet()[1].read_metadata(self.root / name)  # before simulators start

    def _check_settings(self) -> None:
        stored = self._done["settings"]
        differing = [key for key in {**stored, **self._settings} if stored.get(key) != self._settings.get(key)]
        if differing:
            key = sorted(differing)[0]
            raise BadValue(
                f"'{self.root}' was collected with {key}={shown(stored.get(key))}, now it is "
                f"{shown(self._settings.get(key))}: "
                "name a new folder with -o, or repeat the settings to go on"
            )

    def _write_files(self, episodes: Sequence[Demonstration]) -> None:
        if not self._done["files"]:
            # Whatever interrupts the first files: the folder is ours.
            lr.write_json(self.root / PROGRESS_PATH, self._done)
        pa, _ = lr.parquet()
        file = lr.place(int(self._done["files"]))
        cameras = sorted(episodes[0].images)
        for camera in cameras:
            path = self.root / lr.VIDEO_PATH.format(video_key=lr.camera_key(camera), **file)
            images = [np.asarray(episode.images[camera]) for episode in episodes]
            write_video(path, images, fps=self.fps, crf=self._crf)
            self._add_moments(camera, images)
        rows, table = self._episode_rows(episodes, cameras, file), self._frame_columns(episodes)
        for name, columns in ((lr.DATA_PATH, table), (lr.EPISODES_PATH, rows)):
            lr.write_table(self.root / name.format(**file), pa.table(columns))
        self._done["episodes"] += len(episodes)
        self._done["frames"] += sum(episode.length for episode in episodes)
        self._done["files"] += 1
        self._write_tasks()
        self._write_stats()
        self._write_info(episodes[0])

    def _add_moments(self, camera: str, images: Sequence[np.ndarray]) -> None:
        moments = lr.image_moments(np.concatenate(images))
        before = self._done["cameras"].get(camera)
        if before is not None:
            moments = lr.add_moments({key: np.array(value) for key, value in before.items()}, moments)
        self._done["cameras"][camera] = {key: value.tolist() for key, value in moments.items()}

    def _task_index(self, instruction: str) -> int:
        tasks: list[str] = self._done["tasks"]
        if instruction not in tasks:
            tasks.append(instruction)
        return tasks.index(instruction)

    def _frame_columns(self, episodes: Sequence[Demonstration]) -> dict[str, Any]:
        pa, _ = lr.parquet()
        lengths = [episode.length for episode in episodes]
        step_F = np.concatenate([np.arange(length) for length in lengths])
        columns = {
            "timestamp": (step_F / self.fps).astype(np.float32),
            "frame_index": step_F,
            "episode_index": np.repeat(np.arange(self.episodes, self.episodes + len(episodes)), lengths),
            "index": np.arange(self.frames, self.frames + sum(lengths)),
            "task_index": np.repeat([self._task_index(episode.instruction) for episode in episodes], lengths),
        }
        table = {name: pa.array(value_F) for name, value_F in columns.items()}
        every = [own_columns(episode) for episode in episodes]
        for name in every[0]:
            value = np.concatenate([own[name] for own in every])
            flat = pa.array(value.ravel())
            # One number a frame is no list: lerobot reads features of shape [1] as numbers.
            is_flat = value.size == len(value)
            table[name] = flat if is_flat else pa.FixedSizeListArray.from_arrays(flat, value.shape[1])
        return table

    def _episode_rows(
        self, episodes: Sequence[Demonstration], cameras: Sequence[str], file: Mapping[str, int]
    ) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = {}
        first, seconds = self.frames, 0.0
        for number, episode in enumerate(episodes, start=self.episodes):
            row: dict[str, Any] = {
                "episode_index": number,
                "tasks": [episode.instruction],
                "length": episode.length,
                "data/chunk_index": file["chunk_index"],
                "data/file_index": file["file_index"],
                "dataset_from_index": first,
                "dataset_to_index": first + episode.length,
                "meta/episodes/chunk_index": file["chunk_index"],
                "meta/episodes/file_index": file["file_index"],
                "vla_zoo/task": episode.task,
                "vla_zoo/task_id": episode.start.task_id,
                "vla_zoo/trial_id": episode.start.trial_id,
                "vla_zoo/start_state": episode.start_state,
                "vla_zoo/success": episode.success,
            }
            ends = seconds + episode.length / self.fps
            for camera in cameras:
                video = f"videos/{lr.camera_key(camera)}"
                row[f"{video}/chunk_index"] = file["chunk_index"]
                row[f"{video}/file_index"] = file["file_index"]
                row[f"{video}/from_timestamp"], row[f"{video}/to_timestamp"] = seconds, ends
            for name, value_TD in ((lr.ACTION, episode.action_TA), (lr.STATE, episode.state_TS)):
                if value_TD.shape[1]:
                    row |= {f"stats/{name}/{key}": v for key, v in lr.vector_stats(value_TD).items()}
            first, seconds = first + episode.length, ends
            for key, value in row.items():
                rows.setdefault(key, []).append(value)
        return rows

    def _write_tasks(self) -> None:
        """As pandas writes a table whose index is the sentence and whose one column is `task_index`."""
        pa, _ = lr.parquet()
        tasks: list[str] = self._done["tasks"]
        table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "__index_level_0__": pa.array(tasks)})
        lr.write_table(self.root / lr.TASKS_PATH, table.replace_schema_metadata({b"pandas": _PANDAS_INDEX}))

    def _write_stats(self) -> None:
        stats: dict[str, Any] = {
            lr.camera_key(camera): lr.image_stats({key: np.array(value) for key, value in moments.items()}, self.frames)
            for camera, moments in self._done["cameras"].items()
        }
        files = [lr.DATA_PATH.format(**lr.place(number)) for number in range(int(self._done["files"]))]
        tables = [lr.read_table(self.root / name) for name in files]
        for name in (lr.STATE, lr.ACTION):
            if name in tables[0].column_names:
                columns = [column_TD(table, name, f"'{self.root}'") for table in tables]
                stats[name] = lr.vector_stats(np.concatenate(columns))
        lr.write_json(self.root / lr.STATS_PATH, stats)

    def _write_info(self, like: Demonstration) -> None:
        image = next(iter(like.images.values()))
        info = {
            "codebase_version": lr.VERSION,
            "robot_type": None,
            "total_episodes": self.episodes,
            "total_frames": self.frames,
            "total_tasks": len(self._done["tasks"]),
            "chunks_size": lr.CHUNK_SIZE,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": self.fps,
            "splits": {"train": f"0:{self.episodes}"},
            "data_path": lr.DATA_PATH,
            "video_path": lr.VIDEO_PATH,
            "features": lr.features(
                sorted(like.images), image.shape[1], own_columns(like), fps=self.fps, crf=self._crf
            ),
        }
        lr.write_json(self.root / lr.INFO_PATH, info)


_PANDAS_INDEX = (
    b'{"index_columns": ["__index_level_0__"], "column_indexes": [{"name": null, "field_name": null, '
    b'"pandas_type": "unicode", "numpy_type": "object", "metadata": {"encoding": "UTF-8"}}], "columns": '
    b'[{"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64", '
    b'"metadata": null}, {"name": null, "field_name": "__index_level_0__", "pandas_type": "unicode", '
    b'"numpy_type": "object", "metadata": null}], "creator": {"library": "pyarrow", "version": "26.0.1"}, '
    b'"pandas_version": "2.3.3"}'
)
"""Metadata by which pandas takes the sentences as the table's index, where lerobot looks tasks up."""


def own_columns(episode: Demonstration) -> dict[str, np.ndarray]:
    """Return an episode's columns, `[T]` or `[T, D]`: state (where there is one), action, and its extra ones."""
    state = {lr.STATE: episode.state_TS} if episode.state_TS.shape[1] else {}
    return {**state, lr.ACTION: episode.action_TA, **episode.extra}


def column_TD(table: Any, name: str, where: str) -> np.ndarray:
    """A column of vectors of a pyarrow table, or of numbers, which are vectors of one: float32 `[T, D]`.

    Raises `BadValue` for vectors of several lengths; `where` says whose. A number that is missing becomes NaN.
    """
    column = table.column(name).combine_chunks()
    if hasattr(column, "value_lengths"):
        lengths = set(column.value_lengths().to_pylist())
        if len(lengths) != 1 or None in lengths:
            raise BadValue(
                f"'{name}' of {where} must be a vector of the same length in every frame, got lengths {lengths}"
            )
        column = column.flatten()
    flat = column.to_numpy(zero_copy_only=False)
    return np.asarray(flat, dtype=np.float32).reshape(len(table), -1)
