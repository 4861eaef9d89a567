"""Meta-World's tables: sets, ids, protocols. No simulator."""

from __future__ import annotations

import pytest

from vla_gym.adapters.metaworld.tasks import MT10, PROTOCOLS, TASKS, metaworld_benchmark
from vla_gym.registry import find_benchmark


def test_the_sets_of_tasks() -> None:
    assert [task.name for task in find_benchmark("MetaWorld-MT10").tasks] == list(MT10)
    train, test = ({task.name for task in find_benchmark(f"MetaWorld-ML45{part}").tasks} for part in ("", "-test"))
    assert (len(train), test) == (45, set(TASKS) - train)
    single = find_benchmark("MetaWorld/reach")
    assert [(task.name, task.suite, task.num_trials) for task in single.tasks] == [("reach", "easy", 50)]
    assert find_benchmark("MetaWorld-MT50/33").tasks[0].name == "push"


@pytest.mark.parametrize(
    ("env_id", "protocol", "horizon", "settle"),
    [
        ("MetaWorld-MT50", None, 100, 15),
        ("MetaWorld-ML45", None, 160, 15),
        ("MetaWorld-MT50", "lerobot", 500, 0),
    ],
)
def test_protocols_set_horizon_and_settling(env_id: str, protocol: str | None, horizon: int, settle: int) -> None:
    benchmark = metaworld_benchmark(env_id, protocol=protocol)
    assert {task.horizon for task in benchmark.tasks} == {horizon}
    assert benchmark.simulator_kwargs["settle_steps"] == settle
    source = benchmark.protocol["source"]
    assert source == PROTOCOLS[str(benchmark.protocol["name"])].source
    assert ("new episodes there begin after 16" in str(source)) == (settle == 15)


def test_each_split_has_the_seed_after_the_one_before() -> None:
    splits = ("train", "test", "validation")
    seeds = [metaworld_benchmark("MetaWorld/reach", split=split).simulator_kwargs["task_seed"] for split in splits]
    assert seeds == [42, 43, 44]
