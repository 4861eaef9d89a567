"""Reads a LeRobotDataset v3.0 folder, of `zoo.collect` or another's, as demonstrations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vla_gym.errors import BadValue, shown
from vla_gym.reading import inside
from vla_gym.specs import StartState
from zoo.demonstrations import lerobot_format as lr
from zoo.demonstrations.lerobot_video import Cameras
from zoo.demonstrations.lerobot_writer import column_TD
from zoo.demonstrations.recorder import PRIVILEGED, REWARD, SUCCESS, Demonstration
from zoo.files import quoted

UNKNOWN_START = StartState(task_id=-1, trial_id=-1)
"""Start state of episodes whose dataset names none."""
_READ = ("episode_index", "task_index", lr.STATE, lr.ACTION, REWARD, SUCCESS, PRIVILEGED)
"""Columns of a table that are read beside the pictures."""


def read_dataset(
    root: Path, episodes: int | None = None, *, outcomes: bool = False, privileged: bool = False
) -> list[Demonstration]:
    """The dataset's first `episodes` episodes, all by default.

    With `outcomes` their rewards and successes, too, and with `privileged` what the expert saw. Pictures stay in the
    dataset's files until they are asked for, which is quickest in the order of the episodes.

    One camera, whatever it is called, becomes `image`; ours keep their names. Raises `BadValue` for a folder that
    is no such dataset, or is incomplete.
    """
    info = check_dataset(root)
    wanted = info.total_episodes if episodes is None else episodes
    if not 1 <= wanted <= info.total_episodes:
        raise BadValue(f"'{root}' holds {info.total_episodes} episodes, asked for {wanted}")
    if privileged and PRIVILEGED not in info.features:
        raise BadValue(
            f"'{root}' does not say what an expert saw ('{PRIVILEGED}'), which --privileged-coef learns; zoo.collect "
            "--expert records it"
        )
    cameras = Cameras(root, info)
    numbers = functools.lru_cache(maxsize=1)(_numbers)
    extra = functools.partial(_extra, outcomes=outcomes, privileged=privileged)
    out: list[Demonstration] = []
    with lr.opening(root):
        sentences = _sentences(root)
        for rows in _episode_files(root):
            for row in rows:
                out.append(_episode(root, info, row, cameras, sentences, numbers, extra))
                if len(out) == wanted:
                    # An interrupted collection may have written more than `info.json` counts.
                    return out
    raise BadValue(f"'{root}' says it has {info.total_episodes} episodes, found {len(out)}")


def check_dataset(root: Path) -> lr.DatasetInfo:
    """`info.json` of a dataset that can be read here; raises `BadValue` otherwise."""
    if not root.is_dir():
        raise BadValue(
            f"no folder '{root}'. Collect demonstrations with: "
            f"python -m zoo.collect --env ID --expert -n 20 -o {quoted(root)}"
        )
    info = lr.read_info(root)
    if lr.ACTION not in info.features:
        raise BadValue(f"'{root}' has no '{lr.ACTION}'; its features are {', '.join(info.features)}")
    if not info.total_episodes:
        raise BadValue(f"'{root}' holds no episodes")
    return info


def solved_episodes(root: Path) -> int:
    """Return how many of the episodes of a dataset of `zoo.collect` were solved."""
    info = check_dataset(root)
    with lr.opening(root):
        solved = [bool(row["vla_zoo/success"]) for rows in _episode_files(root) for row in rows]
    return sum(solved[: info.total_episodes])


def sentences_of(root: Path) -> set[str]:
    """Return the sentences of all episodes of a dataset, those of `read_dataset` or not."""
    check_dataset(root)
    with lr.opening(root):
        return set(_sentences(root).values())


def _sentences(root: Path) -> dict[int, str]:
    """Map indices to instructions, which are the one column of texts, whatever its name."""
    pa, _ = lr.parquet()
    table = lr.read_table(root / lr.TASKS_PATH)
    texts = [
        column.name
        for column in table.schema
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    ]
    if len(texts) != 1:
        raise BadValue(f"'{root / lr.TASKS_PATH}' must have one column of sentences, has {texts}")
    sentences = dict(zip(table["task_index"].to_pylist(), table[texts[0]].to_pylist(), strict=True))
    for index, sentence in sentences.items():
        if not sentence:
            raise BadValue(f"task {shown(index)} of '{root / lr.TASKS_PATH}' has no sentence; mend or leave it out")
    return sentences


def _episode_files(root: Path) -> Iterator[list[dict[str, Any]]]:
    for path in sorted((root / "meta/episodes").glob("*/*.parquet")):
        yield lr.read_table(inside(root, path.relative_to(root).as_posix(), root)).to_pylist()


def _episode(
    root: Path,
    info: lr.DatasetInfo,
    row: Mapping[str, Any],
    cameras: Cameras,
    sentences: Mapping[int, str],
    numbers: Callable[[Path], tuple[Any, list[str]]],
    extra: Callable[[Any, str], dict[str, np.ndarray]],
) -> Demonstration:
    place = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
    path = lr.file_of(root, info.data_path, root / lr.INFO_PATH, **place)
    table, columns = numbers(path)
    number_T = table.column("episode_index").to_numpy()
    steps = lr.rows_of(table, np.flatnonzero(number_T == row["episode_index"]))
    where = f"episode {row['episode_index']} of '{root}'"
    if len(steps) != row["length"] or not len(steps):
        raise BadValue(f"{where} should have {row['length']} frames, has {len(steps)}")
    has_state = lr.STATE in info.features
    return Demonstration(
        task=row.get("vla_zoo/task", ""),
        instruction=sentences[steps.column("task_index")[0].as_py()],
        start=StartState(task_id=row["vla_zoo/task_id"], trial_id=row["vla_zoo/trial_id"])
        if "vla_zoo/task_id" in row
        else UNKNOWN_START,
        start_state=row.get("vla_zoo/start_state", ""),
        success=row.get("vla_zoo/success", True),
        images=cameras.of(row, path, columns),
        state_TS=_finite_column_TD(steps, lr.STATE, where) if has_state else np.zeros((len(steps), 0), np.float32),
        action_TA=_finite_column_TD(steps, lr.ACTION, where),
        extra=extra(steps, where),
    )


def _numbers(path: Path) -> tuple[Any, list[str]]:
    """Return a table without its pictures, and the names of all its columns."""
    return lr.read_table(path, _READ).combine_chunks(), lr.columns_of(path)


def _extra(steps: Any, where: str, *, outcomes: bool, privileged: bool) -> dict[str, np.ndarray]:
    """What was asked for beside the actions, as far as the dataset has it.

    Reward (float32) and success (bool) of each step `[T]`, and what the expert saw, float32 `[T, P]`.
    """
    kinds = {REWARD: np.float32, SUCCESS: np.bool_} if outcomes else {}
    present = [name for name in kinds if name in steps.column_names]
    found: dict[str, np.ndarray] = {
        name: _finite_column_TD(steps, name, where)[:, 0].astype(kinds[name]) for name in present
    }
    return {**found, PRIVILEGED: _finite_column_TD(steps, PRIVILEGED, where)} if privileged else found


def _finite_column_TD(steps: Any, name: str, where: str) -> np.ndarray:
    """A column of an episode's rows, float32 `[T, D]`; raises `BadValue` where a number is missing or not finite."""
    value_TD = column_TD(steps, name, where)
    if not np.isfinite(value_TD).all():
        (first, *_) = np.flatnonzero(~np.isfinite(value_TD).all(axis=1))
        raise BadValue(f"'{name}' of {where} is not finite in frame {first}; leave the episode out or mend it")
    return value_TD
