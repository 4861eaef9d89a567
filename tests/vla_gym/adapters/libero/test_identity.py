"""Our LIBERO gives LIBERO's own bytes: positions, velocities, rewards, state vector and both cameras."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.vla_gym.adapters.libero import libero_recorder
from vla_gym import find_benchmark
from vla_gym.workers.process_pool import worker_environment

pytestmark = [pytest.mark.sim, pytest.mark.slow]
STEPS = 40


def recorded_upstream(suite: str, task: int, trial: int, out: Path) -> dict[str, np.ndarray]:
    """In a process of its own, for two renderers in one would draw into each other's GL context."""
    command = [sys.executable, libero_recorder.__file__, suite, str(task), str(trial), str(STEPS), str(out)]
    environment = worker_environment(find_benchmark(suite), os.environ, worker=0, num_workers=1)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(out) as log:
        return dict(log)


@pytest.mark.parametrize(
    ("suite", "task", "trial"),
    [
        ("LIBERO-Long", 2, 9),
        pytest.param("LIBERO-Object", 4, 2, marks=pytest.mark.thorough),
        pytest.param("LIBERO-Goal", 7, 0, marks=pytest.mark.thorough),
        pytest.param("LIBERO-90", 60, 5, marks=pytest.mark.thorough),
        pytest.param("LIBERO-Goal-PRO-object", 7, 3, marks=pytest.mark.thorough),
    ],
)
def test_forty_steps_are_bit_identical_to_offscreen_render_env(
    suite: str, task: int, trial: int, tmp_path: Path, probe: Callable[..., Any]
) -> None:
    log = {key: np.array(values) for key, values in probe(libero_recorder.adapter, suite, task, trial, STEPS).items()}
    expected = recorded_upstream(suite, task, trial, tmp_path / "upstream.npz")
    assert set(log) == set(expected)
    for key in ("qpos", "qvel", "reward", "done", "state", "image", "wrist_image"):
        assert log[key].shape == expected[key].shape
        assert len(log[key]) == STEPS + 1
        np.testing.assert_array_equal(log[key], expected[key], err_msg=key)
    # The comparison would mean little if nothing moved or nothing could be seen.
    assert np.abs(log["qpos"][-1] - log["qpos"][0]).max() > 0.05
    assert log["image"].std() > 20
    assert (log["wrist_image"][0] != log["wrist_image"][-1]).any()
