from __future__ import annotations

import pytest

from vla_gym import find_benchmark, list_envs
from vla_gym.benchmarks import FAMILIES, num_tasks
from vla_gym.errors import UnknownName


def test_the_ids_of_the_contract_are_listed() -> None:
    listed = list_envs()
    assert listed == sorted(set(listed))
    suites = ("Spatial", "Object", "Goal", "Long", "10", "90", "130")
    assert {"Toy-Reach", *(f"LIBERO-{suite}" for suite in suites)} <= set(listed)


def test_counts_are_known_without_the_adapters() -> None:
    assert [num_tasks(name) for name in ("LIBERO-Long", "LIBERO-10", "LIBERO-130")] == [10, 10, 130]


def test_the_table_s_count_is_the_benchmark_s() -> None:
    assert len(find_benchmark("Toy-Reach").tasks) == num_tasks("Toy-Reach")


def test_one_task_is_a_benchmark_of_its_own() -> None:
    one = find_benchmark("Toy-Reach/2")
    assert one.id == "Toy-Reach/2"
    assert [task.instruction for task in one.tasks] == ["reach the blue block"]


def test_options_go_to_the_family() -> None:
    assert find_benchmark("Toy-Reach", split="test").simulator_kwargs == {"split": "test"}
    with pytest.raises(UnknownName, match=r"no option of Toy-Reach 'spilt'.*Did you mean 'split'"):
        find_benchmark("Toy-Reach", spilt="test")
    with pytest.raises(UnknownName, match=r"no split 'tset'.*Did you mean 'test'"):
        find_benchmark("Toy-Reach", split="tset")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("Toy-Rich", "Toy-Reach"),
        ("LIBERO-Spacial", "LIBERO-Spatial"),
        ("libero-spatial", "LIBERO-Spatial"),
        ("LIBERO-Spacial/3", "LIBERO-Spatial"),
        ("Toy-Reach/3", "Toy-Reach/2"),
        ("Toy-Reach/red", "Toy-Reach/0"),
        ("Toy-Reach/", "Toy-Reach/0"),
        ("Toy-Reach/-1", "Toy-Reach/0"),
    ],
)
def test_a_wrong_id_names_the_nearest(wrong: str, hint: str) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean '{hint}'"):
        find_benchmark(wrong)


def test_no_id_belongs_to_two_families() -> None:
    names = [name for family in FAMILIES for name in (*family.num_tasks, *family.aliases)]
    assert len(names) == len(set(names))
