"""Stages overlap: with a simulator and a policy of equal latency, two stages are nearly twice as fast as one."""

from __future__ import annotations

import pytest

from benchmarks.pipelining import sleeping, sleeping_physics

pytestmark = pytest.mark.processes


def test_two_stages_overlap_simulation_and_inference():
    # One stage: 4 slots in 2 workers sleep 2 steps x 2 slots x 40 ms = 160 ms, then the policy as long: 320 ms.
    # Two stages: each 80 and 80 ms, side by side: 160 ms, and 80 ms once to begin with. Of 6 rows: 1.8.
    one, two = (sleeping(stages, num_envs=4, seconds=0.04, rows=6) for stages in (1, 2))
    assert two / one >= 1.5


def test_half_batches_of_gpu_physics_take_turns_with_the_policy():
    # One batch: 2 steps x 4 slots x 20 ms = 160 ms, then the policy as long: 320 ms. Two halves: 80 and 80 ms, side by
    # side: 160 ms, and 80 ms once to begin with. Of 6 rows: 1.8.
    one, two = (sleeping_physics(stages, num_envs=4, seconds=0.02, rows=6) for stages in (1, 2))
    assert two / one >= 1.5
