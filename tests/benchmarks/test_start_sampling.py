"""The toy of many difficulties, and the table."""

from __future__ import annotations

import numpy as np

from benchmarks.start_sampling import line, mixed_benchmark
from vla_gym import make_vec


def test_tasks_are_solved_at_once_never_or_by_reaching() -> None:
    envs = make_vec(mixed_benchmark(), 9, chunk=1, autoreset_mode="disabled")
    _, infos = envs.reset(options={"task_id": np.arange(9), "trial_id": 0})
    assert len(set(infos["start_state"])) == 9, "nothing begins in one state but the members of a group"
    *_, infos = envs.step(np.zeros((9, 2)))
    assert infos["success"].tolist() == [False] * 3 + [True] * 3 + [False] * 3
    for _ in range(11):
        *_, infos = envs.step(np.zeros((9, 2)))
    assert envs.finished.all()
    assert not infos["success"][6:].any()


def test_a_row_is_arithmetic_over_seeds() -> None:
    runs = [{"dead": 0.5, "tasks": 4.0, "curve": [0.1, 0.4]}, {"dead": 0.7, "tasks": 5.0, "curve": [0.3, 0.6]}]
    row = "| grpo | uniform | 0.600 | 4.5 | 0.200 (0.100 to 0.300) | 0.500 (0.400 to 0.600) |"
    assert line("grpo", "uniform", runs) == row
    assert line("ppo", "uniform", [{**one, "dead": None} for one in runs]).startswith("| ppo | uniform |  | 4.5 |")
