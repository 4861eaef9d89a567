"""The machine's memory, a container's and a job's."""

from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.system import control_groups
from vla_gym.system.memory import main_memory


@pytest.fixture(autouse=True)
def own_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control_groups, "MOUNT", tmp_path)
    monkeypatch.setattr(control_groups, "OWN_GROUPS", tmp_path / "own")
    return tmp_path / "own"


def limit(folder: Path, text: str, name: str = "memory.max") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.mark.parametrize(("text", "less"), [("4096\n", True), ("max\n", False), (f"{2**62}\n", False)])
def test_a_container_s_limit_counts_where_it_is_less(text: str, less: bool, tmp_path: Path) -> None:
    machine = main_memory()
    assert machine > 2**28
    limit(tmp_path, text)
    assert main_memory() == (4096 if less else machine)


def test_a_job_s_limit_is_that_of_the_groups_it_is_in(tmp_path: Path, own_groups: Path) -> None:
    own_groups.write_text("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n")
    job = tmp_path / "system.slice/slurmstepd.scope/job_7"
    limit(job, "8192\n")
    limit(job / "step_0", "max\n")
    limit(tmp_path / "system.slice/slurmstepd.scope/job_8", "1\n")
    assert main_memory() == 8192


def test_groups_of_version_1_are_in_a_folder_of_their_own(tmp_path: Path, own_groups: Path) -> None:
    own_groups.write_text("4:cpu,memory:/slurm/uid_0/job_7\n3:cpuset:/other\n0::/\n")
    limit(tmp_path / "memory/slurm/uid_0/job_7", "8192\n", "memory.limit_in_bytes")
    limit(tmp_path / "memory/other", "1\n", "memory.limit_in_bytes")
    assert main_memory() == 8192
