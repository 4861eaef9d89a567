"""Writes demonstrations as a LeRobotDataset v3.0, some episodes at a time, so that a collection can go on later."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vla_gym.errors import BadValue, shown
from vla_gym.reading import check_no_pipe, read_json_object
from vla_policies.checkpoint_io.json_records import from_json
from zoo.demonstrations import lerobot_format as lr
from zoo.demonstrations.lerobot_video import write_video
from zoo.demonstrations.recorder import Demonstration
from zoo.files import lock, missing_folders, recover_folders, remove_empty

PROGRESS_PATH = "meta/vla_zoo.json"
"""Progress of the collection, and sums behind the statistics: this project's own, written last."""
_PARTS = ("meta", "data", "videos")
"""Folders of a dataset."""


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Context manager in which this process alone writes the dataset; `BadValue` where another does.

    The lock is the system's, on the folder, and ends with the process. A folder that stays empty is removed.
    """
    made = missing_folders(root)
    root.mkdir(parents=True, exist_ok=True)
    handle = os.open(root, os.O_RDONLY)
    try:
        lock(handle, f"another process collects into '{root}'; wait until it ends, or name another -o")
        recover_folders(root / "meta")
        yield
    finally:
        os.close(handle)
        remove_empty(made)


@dataclass(kw_only=True)
class Collected:
    """Progress of a collection, as `PROGRESS_PATH` holds it."""

    settings: dict[str, object]
    tried: int = 0
    """Start states tried so far, in their order."""
    episodes: int = 0
    frames: int = 0
    files: int = 0
    tasks: list[str] = field(default_factory=list)
    """Sentences, by their index."""
    cameras: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Camera -> `lerobot_format.image_moments` of all frames."""


class LeRobotWriter:
    """A dataset folder; `add` writes one file of each kind, and the folder is complete after every call.

    A folder that was begun goes on only under equal `settings`. `crf` is x264's measure of the loss in images: 0 is
    none.
    """

    def __init__(self, root: Path, settings: Mapping[str, object], *, fps: int, crf: int = 0) -> None:
        lr.parquet()  # a missing pyarrow shows before anything is collected
        self.root, self.fps, self._crf = root, fps, crf
        self.done = Collected(settings=dict(settings))
        if (root / PROGRESS_PATH).is_file():
            with lr.opening(root):
                self._go_on(from_json(Collected, read_json_object(root / PROGRESS_PATH), f"'{root / PROGRESS_PATH}'"))
        elif root.exists() and not root.is_dir():
            raise BadValue(f"'{root}' is a file; name a new folder with -o")
        elif any(one.name not in _PARTS or any(path.is_file() for path in one.rglob("*")) for one in root.glob("*")):
            raise BadValue(f"'{root}' is not empty and no dataset of vla-zoo collect; name a new folder with -o")

    def add(self, episodes: Sequence[Demonstration], *, tried: int) -> None:
        """Write these episodes and note that `tried` start states are done by now.

        Nothing is written before the first episode: a folder without any is no dataset.
        """
        if episodes:
            first = not self.done.files
            try:
                with lr.opening(self.root):
                    self._write_files(episodes)
            except BaseException:
                for name in _PARTS if first else ():
                    shutil.rmtree(self.root / name, ignore_errors=True)
                raise
        self.done.tried = tried
        if self.done.episodes:
            lr.write_json(self.root / PROGRESS_PATH, vars(self.done))

    def _go_on(self, begun: Collected) -> None:
        if not begun.episodes:
            return
        now, self.done, stored = self.done.settings, begun, begun.settings
        for key in sorted({*stored, *now}):
            if stored.get(key) != now.get(key):
                raise BadValue(
                    f"'{self.root}' was collected with {key}={shown(stored.get(key))}, now it is "
                    f"{shown(now.get(key))}: name a new folder with -o, or repeat the settings to go on"
                )
        for table in self._tables():
            check_no_pipe(table)
            lr.parquet()[1].read_metadata(table)  # before simulators start

    def _tables(self) -> list[Path]:
        return [self.root / lr.DATA_PATH.format(**lr.place(number)) for number in range(self.done.files)]

    def _write_files(self, episodes: Sequence[Demonstration]) -> None:
        if not self.done.files:
            # Whatever interrupts the first files: the folder is ours.
            lr.write_json(self.root / PROGRESS_PATH, vars(self.done))
        pa, _ = lr.parquet()
        file = lr.place(self.done.files)
        cameras = sorted(episodes[0].images)
        for camera in cameras:
            path = self.root / lr.VIDEO_PATH.format(video_key=lr.camera_key(camera), **file)
            images = [np.asarray(episode.images[camera]) for episode in episodes]
            write_video(path, images, fps=self.fps, crf=self._crf)
            self.done.cameras[camera] = lr.image_moments(np.concatenate(images), self.done.cameras.get(camera))
        rows = pa.Table.from_pylist(list(self._episode_rows(episodes, cameras, file)))
        for name, table in ((lr.DATA_PATH, pa.table(self._frame_columns(episodes))), (lr.EPISODES_PATH, rows)):
            lr.write_table(self.root / name.format(**file), table)
        self.done.episodes += len(episodes)
        self.done.frames += sum(episode.length for episode in episodes)
        self.done.files += 1
        self._write_tasks()
        self._write_stats()
        self._write_info(episodes[0])

    def _frame_columns(self, episodes: Sequence[Demonstration]) -> dict[str, lr.Table]:
        pa, _ = lr.parquet()
        tasks = self.done.tasks
        tasks += [one for one in dict.fromkeys(episode.instruction for episode in episodes) if one not in tasks]
        lengths = [episode.length for episode in episodes]
        step_F = np.concatenate([np.arange(length) for length in lengths])
        columns = {
            "timestamp": (step_F / self.fps).astype(np.float32),
            "frame_index": step_F,
            "episode_index": np.repeat(np.arange(self.done.episodes, self.done.episodes + len(episodes)), lengths),
            "index": np.arange(self.done.frames, self.done.frames + sum(lengths)),
            "task_index": np.repeat([tasks.index(episode.instruction) for episode in episodes], lengths),
        }
        table = {name: pa.array(value_F) for name, value_F in columns.items()}
        every = [_own_columns(episode) for episode in episodes]
        for name in every[0]:
            value = np.concatenate([own[name] for own in every])
            flat = pa.array(value.ravel())
            # One number a frame is no list: lerobot reads features of shape [1] as numbers.
            is_flat = value.size == len(value)
            table[name] = flat if is_flat else pa.FixedSizeListArray.from_arrays(flat, value.shape[1])
        return table

    def _episode_rows(
        self, episodes: Sequence[Demonstration], cameras: Sequence[str], file: Mapping[str, int]
    ) -> Iterator[dict[str, object]]:
        first, seconds = self.done.frames, 0.0
        for number, episode in enumerate(episodes, start=self.done.episodes):
            row: dict[str, object] = {
                "episode_index": number,
                "tasks": [episode.instruction],
                "length": episode.length,
                **{f"data/{name}": index for name, index in file.items()},
                "dataset_from_index": first,
                "dataset_to_index": first + episode.length,
                **{f"meta/episodes/{name}": index for name, index in file.items()},
                "vla_zoo/task": episode.task,
                "vla_zoo/task_id": episode.start.task_id,
                "vla_zoo/trial_id": episode.start.trial_id,
                "vla_zoo/start_state": episode.start_state,
                "vla_zoo/success": episode.success,
            }
            ends = seconds + episode.length / self.fps
            for video in (f"videos/{lr.camera_key(camera)}" for camera in cameras):
                row |= {f"{video}/{name}": index for name, index in file.items()}
                row |= {f"{video}/from_timestamp": seconds, f"{video}/to_timestamp": ends}
            for name, value_TD in ((lr.ACTION, episode.action_TA), (lr.STATE, episode.state_TS)):
                if value_TD.shape[1]:
                    row |= {f"stats/{name}/{key}": v for key, v in lr.vector_stats(value_TD).items()}
            first, seconds = first + episode.length, ends
            yield row

    def _write_tasks(self) -> None:
        """Write what pandas writes of a table whose index is the sentence and whose one column is `task_index`."""
        pa, _ = lr.parquet()
        tasks = self.done.tasks
        table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "__index_level_0__": pa.array(tasks)})
        lr.write_table(self.root / lr.TASKS_PATH, table.replace_schema_metadata({b"pandas": _PANDAS_INDEX}))

    def _write_stats(self) -> None:
        stats: dict[str, object] = {
            lr.camera_key(camera): lr.image_stats(moments, self.done.frames)
            for camera, moments in self.done.cameras.items()
        }
        tables = [lr.read_table(path) for path in self._tables()]
        for name in (lr.STATE, lr.ACTION):
            if name in tables[0].column_names:
                columns = [lr.column_TD(table, name, f"'{self.root}'") for table in tables]
                stats[name] = lr.vector_stats(np.concatenate(columns))
        lr.write_json(self.root / lr.STATS_PATH, stats)

    def _write_info(self, like: Demonstration) -> None:
        image_size, columns = next(iter(like.images.values())).shape[1], _own_columns(like)
        info = {
            "codebase_version": lr.VERSION,
            "robot_type": None,
            "total_episodes": self.done.episodes,
            "total_frames": self.done.frames,
            "total_tasks": len(self.done.tasks),
            "chunks_size": lr.CHUNK_SIZE,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": self.fps,
            "splits": {"train": f"0:{self.done.episodes}"},
            "data_path": lr.DATA_PATH,
            "video_path": lr.VIDEO_PATH,
            "features": lr.features(sorted(like.images), image_size, columns, fps=self.fps, crf=self._crf),
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


def _own_columns(episode: Demonstration) -> dict[str, np.ndarray]:
    """Return an episode's columns, `[T]` or `[T, D]`: state (where there is one), action, and its extra ones."""
    state = {lr.STATE: episode.state_TS} if episode.state_TS.shape[1] else {}
    return {**state, lr.ACTION: episode.action_TA, **episode.extra}
