"""Cores, memory and extras of a machine, a container and a job."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from scripted_simulator import scripted_benchmark

from vla_gym.errors import BadValue, MissingDependency
from vla_gym.system import limits
from vla_gym.system.extras import check_installed, install_command
from vla_gym.system.limits import let_waiting_threads_sleep, main_memory, num_cores
from vla_gym.workers.process_pool import simulator_environment, worker_environment

PLAIN = scripted_benchmark()


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of control groups, on a machine of 64 cores."""
    monkeypatch.setattr(limits, "MOUNT", tmp_path)
    monkeypatch.setattr(limits, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("400000 100000\n", 4), ("150000 100000\n", 2), ("1000 100000", 1), ("max 100000\n", 64), ("", 64)],
)
def test_a_container_s_share_of_the_cores(text: str, cores: int, groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(groups / "cpu.max", text)
    assert num_cores() == cores
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert num_cores() == max(1, cores // 2)


@pytest.mark.parametrize(("text", "less"), [("4096\n", True), ("max\n", False), (f"{2**62}\n", False)])
def test_a_container_s_memory_counts_where_it_is_less(text: str, less: bool, groups: Path) -> None:
    machine = main_memory()
    assert machine > 2**28
    write(groups / "memory.max", text)
    assert main_memory() == (4096 if less else machine)


def test_the_least_of_the_groups_that_the_process_lies_in_counts(groups: Path) -> None:
    write(groups / "own", "0::/slurm/job_7/step_0\n")
    for folder, cores in (("slurm/job_7/step_0", "max"), ("slurm/job_7", "200000"), ("slurm/job_8", "1000")):
        write(groups / folder / "cpu.max", f"{cores} 100000")
    write(groups / "slurm/job_7/memory.max", "8192\n")
    write(groups / "slurm/job_8/memory.max", "1\n")
    assert (num_cores(), main_memory()) == (2, 8192)


def test_groups_of_version_1(groups: Path) -> None:
    write(groups / "own", "4:cpu,memory:/docker/7\n3:cpuset:/other\n0::/\n")
    write(groups / "cpu/docker/7/cpu.cfs_quota_us", "300000\n")
    write(groups / "cpu/docker/7/cpu.cfs_period_us", "100000\n")
    write(groups / "memory/docker/7/memory.limit_in_bytes", "8192\n")
    write(groups / "memory/other/memory.limit_in_bytes", "1\n")
    assert (num_cores(), main_memory()) == (3, 8192)


@pytest.mark.processes
def test_torch_finds_the_thread_policy_when_it_is_loaded() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environ["OMP_DISPLAY_ENV"] = "verbose"  # libgomp then prints the settings that it was loaded with
    done = subprocess.run([sys.executable, "-c", "import zoo; zoo.PPO"], env=environ, capture_output=True, check=True)
    assert b"GOMP_SPINCOUNT = '0'" in done.stderr


def test_the_user_s_thread_policy_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    let_waiting_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_gym.workers.process_pool.num_cores", lambda: 8)
    monkeypatch.setattr(sys, "path", ["", "/x"])
    given = {"HOME": "/h", "OMP_NUM_THREADS": "6", "PYTHONPATH": "/gone", "LP_NUM_THREADS": "4"}
    environ = worker_environment(PLAIN, given, worker=0, num_workers=3)
    assert (environ["HOME"], environ["OMP_NUM_THREADS"], environ["LP_NUM_THREADS"]) == ("/h", "1", "4")
    assert environ["NUMBA_NUM_THREADS"] == "2"
    assert environ["PYTHONPATH"] == os.getcwd() + os.pathsep + "/x"


def test_gl_and_caches_only_for_mujoco(tmp_path: Path) -> None:
    environ = {"MUJOCO_GL": "osmesa", "VLA_ZOO_CACHE": str(tmp_path)}
    assert simulator_environment(PLAIN, environ) == {}
    variables = simulator_environment(dataclasses.replace(PLAIN, requires=("mujoco",)), environ)
    assert variables["PYOPENGL_PLATFORM"] == "osmesa"
    assert variables["LIBERO_CONFIG_PATH"] == str(tmp_path / "libero-config")


def test_a_missing_extra_gives_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed(PLAIN)
    missing = dataclasses.replace(PLAIN, requires=("json", "no_such"), extra="libero", newest_python=(3, 12))
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    with pytest.raises(MissingDependency, match=r'needs no_such, .*here\. Install .*pip install "vla-zoo\[libero\]"'):
        check_installed(missing)
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    with pytest.raises(MissingDependency, match=r"Python 3\.13: .*Python 3\.12\."):
        check_installed(missing)


def test_a_checkout_that_is_not_installed_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_command("plots") == f'pip install -e "{Path(__file__).parents[3]}[plots]"'


def test_a_workers_memory_is_a_share_of_half_the_machine_or_what_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "main_memory", lambda: 16 * 10**9)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv("VLA_ZOO_WORKER_GB", raising=False)
    assert limits.worker_memory(4) == pytest.approx(1e9)  # 16 GB / 2 / 2 ranks / 4 workers
    monkeypatch.setenv("VLA_ZOO_WORKER_GB", "2.5")
    assert limits.worker_memory(4) == 2.5e9
    monkeypatch.setenv("VLA_ZOO_WORKER_GB", "2GB")
    with pytest.raises(BadValue, match=r"VLA_ZOO_WORKER_GB.*'2GB'"):
        limits.worker_memory()
