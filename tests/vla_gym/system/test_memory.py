from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.system import memory
from vla_gym.system.memory import main_memory


@pytest.mark.parametrize(("limit", "less"), [("4096\n", True), ("max\n", False), (f"{2**62}\n", False)])
def test_a_container_s_limit_counts_where_it_is_less(
    limit: str, less: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CGROUP_LIMITS", ())
    machine = main_memory()
    assert machine > 2**28
    file = tmp_path / "memory.max"
    file.write_text(limit)
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (file, tmp_path / "absent"))
    assert main_memory() == (4096 if less else machine)
