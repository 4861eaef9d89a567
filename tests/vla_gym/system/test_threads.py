"""Threads of torch that wait must leave the core to others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vla_gym.system.threads import let_waiting_threads_sleep


@pytest.mark.processes
@pytest.mark.parametrize("first", ["from zoo.cli.main import guarded; guarded(run, [])", "import zoo; zoo.PPO"])
def test_torch_finds_the_setting_when_it_is_loaded(first: str) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    # libgomp then prints the settings that it was loaded with.
    environ["OMP_DISPLAY_ENV"] = "verbose"
    code = f"def run(argv):\n    import torch\n    return 0\n{first}"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert "GOMP_SPINCOUNT = '0'" in done.stderr


def test_a_setting_of_the_user_s_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    let_waiting_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
