from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]


def heavy(code: str) -> set[str]:
    """Which heavy packages a fresh interpreter has loaded after `code`."""
    names = ("torch", "stable_baselines3", "transformers", "libero", "robosuite", "mujoco")
    tail = f"\nimport sys; print(*[name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + tail], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_worker_with_its_slots_loads_neither_torch_nor_another_simulator() -> None:
    code = """
import vla_gym, vla_gym.workers.worker
envs = vla_gym.make_vec("Toy-Reach", 2)
envs.reset()
"""
    assert heavy(code) == set()
