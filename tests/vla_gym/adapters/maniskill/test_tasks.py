"""ManiSkill's table: splits. No simulator."""

from __future__ import annotations

from vla_gym.adapters.maniskill.tasks import maniskill_benchmark


def test_splits_do_not_overlap() -> None:
    seeds = []
    for split in ("train", "test", "validation"):
        benchmark = maniskill_benchmark("ManiSkill/PickCube", split=split, task_seed=5)
        first = benchmark.simulator_kwargs["first_seed"]
        seeds.append(set(range(first, first + benchmark.tasks[0].num_trials)))
    assert min(seeds[0]) == 5
    assert len(set.union(*seeds)) == 3000
