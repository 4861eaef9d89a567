from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("robosuite")

IMPORTED_BESIDE_ANOTHER_USER = """
import logging

def refuse(self):
    raise PermissionError(13, "Permission denied", self.baseFilename)

logging.FileHandler._open = refuse
import vla_gym.adapters.libero.osc
"""


@pytest.mark.sim
def test_it_comes_up_beside_another_users_log_file_and_where_gpus_are_named_by_uuid() -> None:
    """robosuite logs to /tmp/robosuite.log, which on a shared machine belongs to whoever came first."""
    environ = {**os.environ, "MUJOCO_EGL_DEVICE_ID": "3", "CUDA_VISIBLE_DEVICES": "GPU-1f,GPU-2e"}
    command = [sys.executable, "-c", IMPORTED_BESIDE_ANOTHER_USER]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "macro file" not in done.stderr
