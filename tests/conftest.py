"""Shared by all tests: one thread per process, so that tests do not fight over the cores, and a Ctrl-C that arrives."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A suite begun in a shell's background ignores Ctrl-C, and so would the programs whose Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def golden_root() -> Path:
    """Tiny checkpoints in the published layouts, with numbers made by the original implementations."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "fixtures"
    root = Path(os.environ.get("VLA_ZOO_FIXTURES", beside))
    if not root.is_dir():
        pytest.skip(f"no golden fixtures at {root}; set VLA_ZOO_FIXTURES to their folder")
    return root
