"""Meta-World's tables: names, sentences, buckets, ids, protocols. No simulator."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from vla_gym.adapters.metaworld.tasks import (
    MT10,
    PROTOCOLS,
    TASK_SETS,
    TASKS,
    expert_name,
    metaworld_benchmark,
)
from vla_gym.errors import BadValue, UnknownName
from vla_gym.observation import check_instruction
from vla_gym.registry import find_benchmark, list_envs, num_tasks


def test_fifty_names_forty_nine_sentences_and_the_published_buckets() -> None:
    assert len(TASKS) == 50
    sentences = [sentence for _, sentence in TASKS.values()]
    assert len(set(sentences)) == 49
    assert TASKS["push"][1] == TASKS["push-back"][1]
    buckets = Counter(bucket for bucket, _ in TASKS.values())
    assert buckets == {"easy": 28, "medium": 11, "hard": 6, "very_hard": 5}
    for sentence in sentences:
        check_instruction(sentence)


def test_task_ids_are_positions_in_the_instruction_table() -> None:
    tasks = find_benchmark("MetaWorld-MT50").tasks
    assert tasks[0].name == "assembly"
    assert tasks[17].name == "hand-insert"  # where lerobot's own alphabetical table begins to differ
    assert [task.name for task in tasks[31:35]] == ["reach", "push-back", "push", "pick-place"]
    assert tasks[49].name == "window-close"


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


def test_every_id_is_listed_with_its_number_of_tasks() -> None:
    assert set(TASK_SETS) <= set(list_envs())
    for env_id in TASK_SETS:
        assert num_tasks(env_id) == len(find_benchmark(env_id).tasks)


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


def test_the_record_says_how_pictures_are_drawn_and_is_json() -> None:
    assert metaworld_benchmark("MetaWorld/reach").protocol["render_quality"] == "full"
    fast = metaworld_benchmark("MetaWorld/reach", render_quality="fast")
    assert json.loads(json.dumps(dict(fast.protocol)))["render_quality"] == "fast"
    assert fast.simulator_kwargs["render_quality"] == "fast"


def test_each_split_has_the_seed_after_the_one_before() -> None:
    splits = ("train", "test", "validation")
    seeds = [metaworld_benchmark("MetaWorld/reach", split=split).simulator_kwargs["task_seed"] for split in splits]
    assert seeds == [42, 43, 44]


def test_more_start_states_are_said_in_the_record() -> None:
    usual, more = (
        metaworld_benchmark("MetaWorld/reach"),
        metaworld_benchmark("MetaWorld/reach", sampled_starts=200),
    )
    assert usual == metaworld_benchmark("MetaWorld/reach", sampled_starts=0)
    assert (usual.tasks[0].num_trials, usual.start_kind) == (50, "start states")
    assert more.tasks[0].num_trials == 200
    assert more.start_kind == "sampled start states (split train)"
    assert "drawn on to 200 per task" in str(more.protocol["start_states"])
    assert "drawn on" not in str(usual.protocol["start_states"])


@pytest.mark.parametrize("number", [-1, 10_001, 1.5, True, "50"])
def test_a_wrong_number_of_start_states_is_refused(number: object) -> None:
    with pytest.raises(BadValue, match=r"sampled_starts must be an integer in 0 \.\. 10000 \(per task; .*, got"):
        find_benchmark("MetaWorld-MT10", sampled_starts=number)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "rlimf"}, "'rlinf'"),
        ({"split": "tset"}, "'test'"),
        ({"render_quality": "ful"}, "'full'"),
        ({"task_reward": "dens"}, "'dense'"),
    ],
)
def test_a_mistyped_option_names_the_nearest(options: dict[str, str], message: str) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean {message}"):
        find_benchmark("MetaWorld-MT50", **options)


def test_mistyped_ids_and_seeds_are_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'MetaWorld/reach'"):
        find_benchmark("MetaWorld/reech")
    for seed in (-1, 2**32 - 2):  # "validation" adds 2, and NumPy's seeds end at 2^32 - 1
        with pytest.raises(BadValue, match=f"task_seed must be an integer in 0 .. {2**32 - 3}, got {seed}"):
            find_benchmark("MetaWorld/reach", task_seed=seed)


def test_experts_are_named_as_the_package_names_them() -> None:
    assert expert_name("button-press-topdown") == "SawyerButtonPressTopdownV3Policy"
    assert expert_name("peg-insert-side") == "SawyerPegInsertionSideV3Policy"
    with pytest.raises(UnknownName, match="Did you mean 'push'"):
        expert_name("psh")
