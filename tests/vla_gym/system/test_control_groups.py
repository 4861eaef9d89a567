from __future__ import annotations

import math
from pathlib import Path

import pytest

from vla_gym.system import control_groups
from vla_gym.system.control_groups import cpu_limit


@pytest.fixture(autouse=True)
def own_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control_groups, "MOUNT", tmp_path)
    monkeypatch.setattr(control_groups, "OWN_GROUPS", tmp_path / "own")
    return tmp_path / "own"


@pytest.mark.parametrize(
    ("text", "cores"), [("400000 100000\n", 4.0), ("150000 100000\n", 1.5), ("max 100000\n", math.inf), ("", math.inf)]
)
def test_a_container_s_cores(text: str, cores: float, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_limit() == cores


def test_the_least_of_the_groups_that_the_process_lies_in_counts(tmp_path: Path, own_groups: Path) -> None:
    own_groups.write_text("0::/pod/container\n")
    for folder, text in (("pod/container", "max 100000"), ("pod", "200000 100000"), ("other", "1000 100000")):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "cpu.max").write_text(text)
    assert cpu_limit() == 2.0


@pytest.mark.parametrize(("quota", "cores"), [("300000\n", 3.0), ("-1\n", math.inf)])
def test_groups_of_version_1(quota: str, cores: float, tmp_path: Path, own_groups: Path) -> None:
    own_groups.write_text("4:cpu,cpuacct:/docker/7\n0::/\n")
    folder = tmp_path / "cpu/docker/7"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_limit() == cores
