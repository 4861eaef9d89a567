"""Experts through our environments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vla_gym import find_benchmark, make_vec
from vla_gym.errors import BadValue
from vla_gym.specs import StartState
from zoo.demonstrations.recorder import demonstrate
from zoo.experts.base import expert_class


@pytest.mark.parametrize("env_id", ["Toy-Reach", "ManiSkill/RollBall"])
def test_a_benchmark_without_an_expert_says_so(env_id: str) -> None:
    with pytest.raises(BadValue, match=f"{env_id} has no scripted expert"):
        expert_class(find_benchmark(env_id))


@pytest.mark.sim
@pytest.mark.parametrize("task", ["reach", "push", "window-close", "button-press-topdown"])
def test_meta_worlds_experts_solve_their_tasks(task: str) -> None:
    pytest.importorskip("metaworld")
    benchmark = replace(find_benchmark(f"MetaWorld/{task}", protocol="lerobot"), cameras=())
    envs = make_vec(benchmark, 2, chunk=1, privileged=True, autoreset_mode="disabled", num_workers=0)
    try:
        cells = [(StartState(task_id=0, trial_id=trial), 0) for trial in (0, 49)]
        shown = demonstrate(envs, expert_class(benchmark), cells)
    finally:
        envs.close()
    for one in shown:
        assert one.success
        assert one.length < 120
        assert one.action_TA.dtype == np.float32
        assert np.abs(one.action_TA).max() <= 1.0
