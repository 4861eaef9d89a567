"""Meta-World's tables: names, sentences, buckets, ids, protocols. No simulator."""

from __future__ import annotations

from collections import Counter

import pytest

from vla_gym.adapters.metaworld.tasks import (
    MT10,
    PROTOCOLS,
    TASKS,
    metaworld_benchmark,
)
from vla_gym.observation import check_instruction
from vla_gym.registry import find_benchmark


def test_fifty_names_forty_nine_sentences_and_the_published_buckets() -> None:
    assert len(TASKS) == 50
    sentences = [sentence for _, sentence in TASKS.values()]
    assert len(set(sentences)) == 49
    assert TASKS["push"][1] == TASKS["push-back"][1]
    buckets = Counter(bucket for bucket, _ in TASKS.values())
    assert buckets == {"easy": 28, "medium": 11, "hard": 6, "very_hard": 5}
    for sentence in sentences:
        check_instruction(sentence)


def test_the_sets_of_tasks() -> None:
    assert [task.name for task in find_benchmark("MetaWorld-MT10").tasks] == list(MT10)
    test = [task.name for task in find_benchmark("MetaWorld-ML45-test").tasks]
    assert test == ["bin-picking", "box-close", "hand-insert", "door-lock", "door-unlock"]
    train = [task.name for task in find_benchmark("MetaWorld-ML45").tasks]
    assert len(train) == 45
    assert set(train) | set(test) == set(TASKS)
    single = find_benchmark("MetaWorld/reach")
    assert [(task.name, task.suite, task.num_trials) for task in single.tasks] == [("reach", "easy", 50)]
    assert find_benchmark("MetaWorld-MT50/33").tasks[0].name == "push"


@pytest.mark.parametrize(
    ("env_id", "protocol", "horizon", "settle"),
    [
        ("MetaWorld-MT50", None, 100, 15),
        ("MetaWorld/reach", None, 100, 15),
        ("MetaWorld-ML45", None, 160, 15),
        ("MetaWorld-ML45-test", None, 160, 15),
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
