"""LIBERO-PRO's tables: ids, sentences, goals and start states of all sixteen suites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_gym import find_benchmark, list_envs
from vla_gym.adapters.libero.tasks import BASES, PERTURBATIONS, pro_suites
from vla_gym.errors import BadValue, UnknownName
from vla_gym.observation import check_instruction

pytestmark = pytest.mark.sim  # reads the installed package's files; starts no simulator

KNOWN_PREDICATES = {"on", "in", "open", "close", "turnon", "turnoff"}
"""Those that `upstream.read_goal` turns into conditions."""


def parsed(suite: str, task: str) -> dict[str, Any]:
    from libero.libero import get_libero_path
    from libero.libero.envs.bddl_utils import robosuite_parse_problem

    found: dict[str, Any] = robosuite_parse_problem(str(Path(get_libero_path("bddl_files")) / suite / f"{task}.bddl"))
    return found


def test_sixteen_suites_and_their_other_names() -> None:
    assert len(pro_suites()) == 16
    assert set(pro_suites()) <= set(list_envs())
    assert "LIBERO-10-PRO-lan" in list_envs()
    assert find_benchmark("LIBERO-10-PRO-lan") == find_benchmark("LIBERO-Long-PRO-lan")


@pytest.mark.parametrize("env_id", pro_suites())
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


@pytest.mark.parametrize("env_id", pro_suites())
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


def test_the_sentences_of_one_task_in_its_five_forms() -> None:
    ids = ("LIBERO-Goal", *(f"LIBERO-Goal-PRO-{kind}" for kind in ("lan", "object", "swap", "task")))
    assert [find_benchmark(f"{env_id}/0").tasks[0].instruction for env_id in ids] == [
        "open the middle drawer of the cabinet",
        "open the cabinet\u2019s middle drawer",
        "open the middle layer of the drawer",
        "open the middle layer of the drawer",
        "open the bottom drawer of the cabinet",
    ]


def test_the_file_name_s_sentence_where_it_fits() -> None:
    swap = find_benchmark("LIBERO-Spatial-PRO-swap", instruction="file")
    assert [task.instruction for task in swap.tasks] == [
        task.instruction for task in find_benchmark("LIBERO-Spatial").tasks
    ]
    assert swap.protocol["instruction"] == "file name"
    for kind in ("lan", "task"):
        with pytest.raises(BadValue, match="object and swap only"):
            find_benchmark(f"LIBERO-Spatial-PRO-{kind}", instruction="file")


def test_the_protocol_says_what_is_changed() -> None:
    for env_id, (base, kind) in pro_suites().items():
        protocol = find_benchmark(env_id, protocol="rlinf").protocol
        assert protocol["perturbation"] == kind
        assert protocol["perturbation_changes"] == PERTURBATIONS[kind].changes
        assert protocol["unchanged_suite"] == base
        assert protocol["settle_steps"] == 15
        assert f"{BASES[base]}_{kind}" in protocol["instruction"]


def test_a_single_task() -> None:
    single = find_benchmark("LIBERO-Goal-PRO-lan/3")
    assert single.id == "LIBERO-Goal-PRO-lan/3"
    (task,) = single.tasks
    assert task.suite == "libero_goal_lan"
    assert task.instruction == "slide open the top drawer and place the bowl in it"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("LIBERO-Spatial-PRO-swop", "LIBERO-Spatial-PRO-swap"),
        ("libero-goal-pro-lam", "LIBERO-Goal-PRO-lan"),
        ("LIBERO-Goal-PRO-lan/10", "LIBERO-Goal-PRO-lan/9"),
    ],
)
def test_a_wrong_id_names_the_nearest(wrong: str, hint: str) -> None:
    with pytest.raises(UnknownName, match=f"Did you mean '{hint}'"):
        find_benchmark(wrong)


def test_a_wrong_option_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'bddl'"):
        find_benchmark("LIBERO-Goal-PRO-lan", instruction="bdl")


def test_start_states_are_numbers() -> None:
    from vla_gym.adapters.libero.compile import start_states

    assert np.isfinite(start_states("libero_10_swap", find_benchmark("LIBERO-Long-PRO-swap/0").tasks[0].name)).all()
