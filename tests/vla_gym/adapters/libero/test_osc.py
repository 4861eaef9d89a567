from __future__ import annotations

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
def test_the_log_file_of_another_users_robosuite_is_left_alone() -> None:
    """robosuite logs to /tmp/robosuite.log, which on a shared machine belongs to whoever came first."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_BESIDE_ANOTHER_USER], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "macro file" not in done.stderr
