"""LIBERO's tables: counts, order, sentences, horizons."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vla_gym.adapters.libero.tasks import libero_benchmark

pytestmark = pytest.mark.sim  # reads the installed package's tables; starts no simulator


def test_libero_130_is_five_suites_in_order_without_duplicates() -> None:
    tasks = libero_benchmark("LIBERO-130").tasks
    assert [tasks[i].suite for i in (0, 9, 10, 19, 20, 29, 30, 119, 120, 129)] == [
        name for name in ("libero_spatial", "libero_object", "libero_goal", "libero_90", "libero_10") for _ in range(2)
    ]
    assert len({task.name for task in tasks}) == 130
    assert tasks[120:] == libero_benchmark("LIBERO-Long").tasks


def test_the_sentence_is_the_file_names_not_the_bddl_files() -> None:
    from libero.libero.envs.bddl_utils import get_problem_info

    from vla_gym.adapters.libero.compile import bddl_file

    tasks = libero_benchmark("LIBERO-130").tasks
    differing = [
        index
        for index, task in enumerate(tasks)
        if get_problem_info(str(bddl_file(task.suite, task.name)))["language_instruction"] != task.instruction
    ]
    # All of spatial and object, goal 0 2 3 4 6, libero_90 14 17 84 85.
    assert differing == [*range(20), 20, 22, 23, 24, 26, 30 + 14, 30 + 17, 30 + 84, 30 + 85]


def test_horizons_are_the_protocols() -> None:
    by_suite = {task.suite: task.horizon for task in libero_benchmark("LIBERO-130").tasks}
    assert by_suite == {
        "libero_spatial": 220,
        "libero_object": 280,
        "libero_goal": 300,
        "libero_90": 400,
        "libero_10": 520,
    }
    assert {task.horizon for task in libero_benchmark("LIBERO-130", protocol="rlinf").tasks} == {512}
    assert libero_benchmark("LIBERO-Goal", protocol="rlinf").simulator_kwargs["settle_steps"] == 15


def test_listing_tasks_loads_no_simulator(tmp_path: Path) -> None:
    code = (
        "import sys; from vla_gym.adapters.libero.tasks import libero_benchmark as b; b('LIBERO-130');"
        "print([m for m in ('mujoco', 'robosuite', 'torch', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]", done.stderr
