"""Benchmarks whose arguments are plain words say what these are."""

from __future__ import annotations

import runpy
import sys

import pytest


@pytest.mark.parametrize("name", ["experts", "quicker_expert"])
def test_help_is_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out
