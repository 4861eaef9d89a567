from __future__ import annotations

import dataclasses
import math
import os
import sys
from pathlib import Path

import pytest
from scripted_simulator import scripted_benchmark

from vla_gym.errors import MissingDependency
from vla_gym.workers import environment as module
from vla_gym.workers.environment import check_installed, num_cores, simulator_environment, worker_environment

PLAIN = scripted_benchmark()
WITH_MUJOCO = dataclasses.replace(PLAIN, requires=("mujoco",))


def test_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "num_cores", lambda: 8)
    environ = worker_environment(PLAIN, {"HOME": "/h", "OMP_NUM_THREADS": "6"}, worker=0, num_workers=3)
    assert environ["HOME"] == "/h"
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        assert environ[name] == "1"
    assert environ["LP_NUM_THREADS"] == environ["NUMBA_NUM_THREADS"] == "2"
    many = worker_environment(PLAIN, {"LP_NUM_THREADS": "4"}, worker=0, num_workers=30)
    assert (many["LP_NUM_THREADS"], many["NUMBA_NUM_THREADS"]) == ("4", "1")


def test_a_container_s_share_of_the_cores_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 workers, one for each core that a pod with `cpu: 4` sees, would not fit its memory."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    for limit, cores in ((4.0, 4), (1.5, 2), (0.1, 1), (math.inf, 64)):
        monkeypatch.setattr(module, "cpu_limit", lambda limit=limit: limit)
        assert num_cores() == cores
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert num_cores() == 8


def test_the_child_finds_the_same_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/x"])
    environ = worker_environment(PLAIN, {"PYTHONPATH": "/gone"}, worker=0, num_workers=1)
    assert environ["PYTHONPATH"] == os.getcwd() + os.pathsep + "/x"


def test_gl_and_caches_only_for_mujoco(tmp_path: Path) -> None:
    environ = {"MUJOCO_GL": "osmesa", "VLA_ZOO_CACHE": str(tmp_path)}
    assert simulator_environment(PLAIN, environ) == {}
    variables = simulator_environment(WITH_MUJOCO, environ)
    assert variables["PYOPENGL_PLATFORM"] == "osmesa"
    assert variables["LIBERO_CONFIG_PATH"] == str(tmp_path / "libero-config")


def test_a_missing_extra_gives_the_pip_line() -> None:
    check_installed(PLAIN)
    missing = dataclasses.replace(PLAIN, requires=("json", "no_such_module"), extra="libero")
    with pytest.raises(MissingDependency, match=r'needs no_such_module.*pip install "vla-zoo\[libero\]"'):
        check_installed(missing)


def test_a_python_that_the_extra_has_no_wheels_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = dataclasses.replace(PLAIN, requires=("no_such_module",), extra="maniskill", newest_python=(3, 12))
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    with pytest.raises(MissingDependency, match=r"no wheels for Python 3\.13: make an environment with Python 3\.12\."):
        check_installed(missing)
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    with pytest.raises(MissingDependency, match=r"not installed here\. Install with: pip install"):
        check_installed(missing)
