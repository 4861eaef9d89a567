"""LIBERO-PRO's tables: ids, sentences, goals and start states of all sixteen suites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vla_gym import find_benchmark
from vla_gym.adapters.libero.tasks import BASES, pro_suites
from vla_gym.errors import BadValue
from vla_gym.observation import check_instruction

pytestmark = pytest.mark.sim  # reads the installed package's files; starts no simulator

KNOWN_PREDICATES = {"on", "in", "open", "close", "turnon", "turnoff"}
"""Those that `upstream.read_goal` turns into conditions."""


def parsed(suite: str, task: str) -> dict[str, Any]:
    from libero.libero import get_libero_path
    from libero.libero.envs.bddl_utils import robosuite_parse_problem

    found: dict[str, Any] = robosuite_parse_problem(str(Path(get_libero_path("bddl_files")) / suite / f"{task}.bddl"))
    return found


SUITES = [
    pytest.param(env_id, marks=() if base == "LIBERO-Spatial" else pytest.mark.thorough)
    for env_id, (base, _) in pro_suites().items()
]


@pytest.mark.parametrize("env_id", SUITES)
def test_each_suite_tells_what_upstream_s_environment_tells(env_id: str) -> None:
    from libero.libero.envs.bddl_utils import get_problem_info

    from vla_gym.adapters.libero.compile import bddl_file, start_states

    base, _ = pro_suites()[env_id]
    benchmark = find_benchmark(env_id)
    unchanged = find_benchmark(base)
    assert [task.name for task in benchmark.tasks] == [task.name for task in unchanged.tasks]
    assert [task.horizon for task in benchmark.tasks] == [task.horizon for task in unchanged.tasks]
    for task in benchmark.tasks:
        info = get_problem_info(str(bddl_file(task.suite, task.name)))
        assert task.instruction == info["language_instruction"]
        check_instruction(task.instruction)
        states = start_states(task.suite, task.name)
        old = start_states(BASES[base], task.name)
        assert states.shape == old.shape
        assert len(states) == 50 == task.num_trials
        assert not (states[:, None, 1:] == old[None, :, 1:]).all(axis=2).any()  # its own rows, every one


@pytest.mark.parametrize("env_id", SUITES)
def test_a_suite_changes_what_its_name_says_and_nothing_else(env_id: str) -> None:
    base, kind = pro_suites()[env_id]
    may_change = {
        "lan": {"language_instruction"},
        "swap": {"initial_state"},
        "task": {"language_instruction", "goal_state", "obj_of_interest"},
        "object": {"fixtures", "objects", "regions", "initial_state", "goal_state", "obj_of_interest"},
    }[kind]
    must_change = {"lan": "language_instruction", "swap": "initial_state", "task": "goal_state"}.get(kind)
    for task in find_benchmark(env_id).tasks:
        old, new = parsed(BASES[base], task.name), parsed(task.suite, task.name)
        changed = {key for key in new if new[key] != old[key]}
        assert changed <= may_change
        assert must_change is None or must_change in changed
        assert kind != "object" or changed & {"objects", "fixtures"}
        assert {predicate[0] for predicate in new["goal_state"]} <= KNOWN_PREDICATES


def test_the_file_name_s_sentence_where_it_fits() -> None:
    swap = find_benchmark("LIBERO-Spatial-PRO-swap", instruction="file")
    assert [task.instruction for task in swap.tasks] == [
        task.instruction for task in find_benchmark("LIBERO-Spatial").tasks
    ]
    assert swap.protocol["instruction"] == "file name"
    for kind in ("lan", "task"):
        with pytest.raises(BadValue, match="object and swap only"):
            find_benchmark(f"LIBERO-Spatial-PRO-{kind}", instruction="file")
