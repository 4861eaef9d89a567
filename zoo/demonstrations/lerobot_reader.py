"""Reads a LeRobotDataset v3.0 folder, of `vla-zoo collect` or another's, as demonstrations."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, shown
from vla_gym.reading import inside, read_json_object
from vla_gym.specs import StartState
from vla_policies.checkpoint_io.json_records import from_json
from zoo.demonstrations import lerobot_format as lr
from zoo.demonstrations.lerobot_video import Cameras
from zoo.demonstrations.recorder import DRAWN, EXECUTED, PRIVILEGED, REWARD, SUCCESS, Demonstration
from zoo.files import quoted

UNKNOWN_START = StartState(task_id=-1, trial_id=-1)
"""Start state of episodes whose dataset names none."""
_READ = ("episode_index", "task_index", lr.STATE, lr.ACTION, REWARD, SUCCESS, EXECUTED, DRAWN, PRIVILEGED)
"""Columns of a table that are read beside the images."""


def read_dataset(
    root: Path, episodes: int | None = None, *, outcomes: bool = False, privileged: bool = False
) -> list[Demonstration]:
    """Return the dataset's first `episodes` episodes, all by default.

    With `outcomes` their rewards and successes are read, too, and with `privileged` what the expert saw. Images stay
    in the dataset's files until they are asked for, which is quickest in the order of the episodes.

    One camera, whatever it is called, becomes `image`; ours keep their names. Raise `BadValue` for a folder that is no
    such dataset, or is incomplete.
    """
    info = check_dataset(root)
    wanted = info.total_episodes if episodes is None else episodes
    if not 1 <= wanted <= info.total_episodes:
        raise BadValue(f"'{root}' holds {info.total_episodes} episodes, asked for {wanted}")
    if privileged and PRIVILEGED not in info.features:
        raise BadValue(
            f"'{root}' does not say what an expert saw ('{PRIVILEGED}'), which --privileged-coef learns; "
            "vla-zoo collect --expert records it"
        )
    if outcomes and DRAWN in info.features:
        raise BadValue(
            f"'{root}' has images of some steps alone, and every decision needs its own; collect without --draw-every"
        )
    more: dict[str, type] = {REWARD: np.float32, SUCCESS: np.bool_, EXECUTED: np.int64} if outcomes else {}
    more |= {DRAWN: np.bool_, **({PRIVILEGED: np.float32} if privileged else {})}
    cameras = Cameras(root, info)
    table_of = functools.lru_cache(maxsize=1)(lambda path: lr.read_table(path, _READ).combine_chunks())
    names_of = functools.lru_cache(maxsize=1)(lambda path: list(lr.parquet()[1].read_schema(path).names))
    found: list[Demonstration] = []
    with lr.opening(root):
        sentences = _sentences(root)
        for row in _episode_rows(root):
            indices = {name: row[f"data/{name}"] for name in ("chunk_index", "file_index")}
            path = lr.file_of(root, info.data_path, root / lr.INFO_PATH, **indices)
            table = table_of(path)
            number_T = table.column("episode_index").to_numpy()
            steps = lr.rows_of(table, np.flatnonzero(number_T == row["episode_index"]))
            where = f"episode {row['episode_index']} of '{root}'"
            if len(steps) != row["length"] or not len(steps):
                raise BadValue(f"{where} should have {row['length']} frames, has {len(steps)}")
            columns = {name: _finite_TD(steps, name, where) for name in (lr.STATE, lr.ACTION) if name in info.features}
            extra = {name: _finite_TD(steps, name, where) for name in more if name in info.features}
            found.append(
                Demonstration(
                    task=row.get("vla_zoo/task", ""),
                    instruction=sentences[steps.column("task_index")[0].as_py()],
                    start=StartState(task_id=row["vla_zoo/task_id"], trial_id=row["vla_zoo/trial_id"])
                    if "vla_zoo/task_id" in row
                    else UNKNOWN_START,
                    start_state=row.get("vla_zoo/start_state", ""),
                    success=row.get("vla_zoo/success", True),
                    images=cameras.of(row, path, names_of(path)),
                    state_TS=columns.get(lr.STATE, np.zeros((len(steps), 0), np.float32)),
                    action_TA=columns[lr.ACTION],
                    extra={
                        name: value_TD if name == PRIVILEGED else value_TD[:, 0].astype(more[name])
                        for name, value_TD in extra.items()
                    },
                )
            )
            if len(found) == wanted:
                # An interrupted collection may have written more than `info.json` counts.
                return found
    raise BadValue(f"'{root}' says it has {info.total_episodes} episodes, found {len(found)}")


def check_dataset(root: Path) -> lr.DatasetInfo:
    """Return `info.json` of a dataset that can be read here; raise `BadValue` otherwise."""
    if not root.is_dir():
        raise BadValue(
            f"no folder '{root}'. Collect demonstrations with: "
            f"vla-zoo collect --env ID --expert -n 20 -o {quoted(root)}"
        )
    path = root / lr.INFO_PATH
    if not path.is_file():
        raise BadValue(
            f"'{root}' is no LeRobotDataset {lr.VERSION}: it has no {lr.INFO_PATH}; name the folder of meta/"
        )
    values = read_json_object(path)
    if values.get("codebase_version") != lr.VERSION:
        raise BadValue(
            f"'{root}' is of LeRobotDataset {values.get('codebase_version')}, only {lr.VERSION} is read; lerobot's "
            "convert_dataset_v21_to_v30 converts one of v2.1"
        )
    info = from_json(lr.DatasetInfo, values, f"'{path}'", others=True)
    if not info.fps > 0:
        raise BadValue(f"fps of '{path}' must be above 0, got {info.fps}")
    if lr.ACTION not in info.features:
        raise BadValue(f"'{root}' has no '{lr.ACTION}'; its features are {', '.join(info.features)}")
    if not info.total_episodes:
        raise BadValue(f"'{root}' holds no episodes")
    return info


def _sentences(root: Path) -> dict[int, str]:
    """Map indices to instructions, which are the one column of texts, whatever its name."""
    pa, _ = lr.parquet()
    path = root / lr.TASKS_PATH
    table = lr.read_table(path)
    text_types = (pa.string(), pa.large_string())
    texts = [column.name for column in table.schema if column.type in text_types]
    if len(texts) != 1:
        raise BadValue(f"'{path}' must have one column of sentences, has {texts}")
    sentences = dict(zip(table["task_index"].to_pylist(), table[texts[0]].to_pylist(), strict=True))
    for index, sentence in sentences.items():
        if not sentence:
            raise BadValue(f"task {shown(index)} of '{path}' has no sentence; mend or leave it out")
    return sentences


def _episode_rows(root: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((root / "meta/episodes").glob("*/*.parquet")):
        yield from lr.read_table(inside(root, path.relative_to(root).as_posix(), root)).to_pylist()


def _finite_TD(steps: lr.Table, name: str, where: str) -> np.ndarray:
    value_TD = lr.column_TD(steps, name, where)
    if not np.isfinite(value_TD).all():
        (first, *_) = np.flatnonzero(~np.isfinite(value_TD).all(axis=1))
        raise BadValue(f"'{name}' of {where} is not finite in frame {first}; leave the episode out or mend it")
    return value_TD
