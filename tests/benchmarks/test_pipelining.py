"""Stages overlap: with a simulator and a policy of equal latency, two stages are nearly twice as fast as one."""

from __future__ import annotations

import pytest

from benchmarks.pipelining import sleeping

pytestmark = pytest.mark.processes


def test_two_stages_overlap_simulation_and_inference():
    # One stage: 4 slots in 2 workers sleep 2 steps x 2 slots x 40 ms = 160 ms, then the policy as long: 320 ms.
    # Two stages: each 80 and 80 ms, side by side: 160 ms, and 80 ms once to begin with. Of 6 rows: 1.8.
    one, two = (sleeping(stages, num_envs=4, seconds=0.04, rows=6) for stages in (1, 2))
    assert two / one >= 1.5
