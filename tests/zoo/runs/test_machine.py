from __future__ import annotations

from pathlib import Path

import pytest

from zoo.runs import machine
from zoo.runs.machine import describe_machine


def test_a_machine_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU 5\n")
    monkeypatch.setattr(machine, "_CPU_INFO", info)
    monkeypatch.setattr(machine, "num_cores", lambda: 2)
    monkeypatch.setattr(machine, "main_memory", lambda: 24 * 2**30)
    assert describe_machine() == "2 cores of Some CPU 5, 24.0 GiB"
    assert describe_machine("NVIDIA H200").endswith("24.0 GiB, NVIDIA H200")


def test_a_machine_that_does_not_name_its_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "none")
    assert " cores of " in describe_machine()
