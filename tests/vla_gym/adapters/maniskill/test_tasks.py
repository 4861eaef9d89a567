"""ManiSkill's table: names, sentences, horizons, options. No simulator."""

from __future__ import annotations

from vla_gym.adapters.maniskill.tasks import TASKS, maniskill_benchmark
from vla_gym.registry import find_benchmark


def test_horizons_are_upstreams() -> None:
    others = {
        "PegInsertionSide": 100,
        "PullCubeTool": 100,
        "StackPyramid": 250,
        "PlugCharger": 200,
        "RollBall": 80,
    }
    for name in TASKS:
        (task,) = find_benchmark(f"ManiSkill/{name}").tasks
        assert task.horizon == others.get(name, 50)


def test_splits_do_not_overlap() -> None:
    seeds = []
    for split in ("train", "test", "validation"):
        benchmark = maniskill_benchmark("ManiSkill/PickCube", split=split, task_seed=5)
        first = benchmark.simulator_kwargs["first_seed"]
        seeds.append(set(range(first, first + benchmark.tasks[0].num_trials)))
    assert min(seeds[0]) == 5
    assert len(set.union(*seeds)) == 3000
