"""LIBERO-PRO's tables: ids, sentences, goals and start states of all sixteen suites."""

from __future__ import annotations

import pytest

from vla_gym import find_benchmark
from vla_gym.adapters.libero.tasks import BASES, pro_suites
from vla_gym.errors import BadValue
from vla_gym.observation import check_instruction

pytestmark = pytest.mark.sim  # reads the installed package's files; starts no simulator


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


def test_the_file_name_s_sentence_where_it_fits() -> None:
    swap = find_benchmark("LIBERO-Spatial-PRO-swap", instruction="file")
    assert [task.instruction for task in swap.tasks] == [
        task.instruction for task in find_benchmark("LIBERO-Spatial").tasks
    ]
    assert swap.protocol["instruction"] == "file name"
    for kind in ("lan", "task"):
        with pytest.raises(BadValue, match="object and swap only"):
            find_benchmark(f"LIBERO-Spatial-PRO-{kind}", instruction="file")
