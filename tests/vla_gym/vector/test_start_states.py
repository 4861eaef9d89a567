from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scripted_simulator import scripted_benchmark

from vla_gym.errors import BadValue
from vla_gym.specs import StartState
from vla_gym.vector.start_states import Schedule, make_schedule

TASKS = scripted_benchmark((1, 1, 1), num_trials=4).tasks  # 12 starts


def starts(schedule: Schedule, slot: int, count: int) -> list[StartState | None]:
    return [schedule.start_state(slot, episode) for episode in range(count)]


def walk(schedule: Schedule, slot: int) -> list[tuple[int, int]]:
    """Every start state the slot gets from a grid."""
    found = []
    episode = 0
    while (start := schedule.start_state(slot, episode)) is not None:
        found.append((start.task_id, start.trial_id))
        episode += 1
    return found


def test_random_depends_on_seed_group_and_episode_only() -> None:
    schedule = make_schedule("random", TASKS, num_envs=4, group_size=2, seed=7)
    same = make_schedule("random", TASKS, num_envs=6, group_size=2, seed=7)
    assert starts(schedule, 0, 20) == starts(schedule, 1, 20) == starts(same, 0, 20)
    assert starts(schedule, 0, 20) != starts(schedule, 2, 20)
    assert starts(schedule, 0, 20) != starts(schedule.reseeded(8), 0, 20)
    assert len(set(starts(schedule, 0, 20))) > 1


def test_random_is_uniform_over_cells() -> None:
    schedule = make_schedule("random", TASKS, num_envs=1)
    counts = Counter(starts(schedule, 0, 2400))
    assert len(counts) == 12
    assert all(140 < count < 270 for count in counts.values())  # 200 expected, five standard deviations


def test_ranks_share_one_schedule_by_their_group_offset() -> None:
    whole = make_schedule("random", TASKS, num_envs=8, group_size=2)
    second = make_schedule("random", TASKS, num_envs=4, group_size=2, group_offset=2)
    assert starts(whole, 4, 9) == starts(second, 0, 9)
    assert starts(whole, 7, 9) == starts(second, 3, 9)


def test_weights_are_the_proportions_of_the_draws() -> None:
    weight_P = np.array([0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 5, 0])
    schedule = make_schedule("random", TASKS, num_envs=1).weighted(weight_P)
    counts = Counter((start.task_id, start.trial_id) for start in starts(schedule, 0, 2400) if start)
    assert set(counts) == {(0, 1), (1, 0), (2, 2)}
    assert abs(counts[0, 1] - 300) < 80  # five standard deviations
    assert abs(counts[1, 0] - 600) < 105
    assert starts(schedule.weighted(None), 0, 9) == starts(make_schedule("random", TASKS, num_envs=1), 0, 9)


@pytest.mark.parametrize("num_envs", [1, 2, 5, 12, 16])
def test_grid_covers_each_cell_once(num_envs: int) -> None:
    schedule = make_schedule("grid", TASKS, num_envs=num_envs)
    found = [start for slot in range(num_envs) for start in walk(schedule, slot)]
    assert found == [(task, trial) for task in range(3) for trial in range(4)]  # also: task-major blocks


def test_grid_repeats_cells_in_the_adjacent_slots_of_a_group() -> None:
    schedule = make_schedule("grid", TASKS, num_envs=4, group_size=2)
    assert walk(schedule, 0) == walk(schedule, 1) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert walk(schedule, 2) == walk(schedule, 3) == [(1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]


def test_grid_over_ranks_covers_each_cell_once() -> None:
    ranks = [make_schedule("grid", TASKS, num_envs=2, group_offset=2 * rank, num_groups=6) for rank in range(3)]
    found = [start for schedule in ranks for slot in range(2) for start in walk(schedule, slot)]
    assert sorted(found) == [(task, trial) for task in range(3) for trial in range(4)]


def test_groups_must_fit() -> None:
    with pytest.raises(BadValue, match=r"num_envs=6 is not a multiple of group_size=4.*num_envs=4"):
        make_schedule("random", TASKS, num_envs=6, group_size=4)
    with pytest.raises(BadValue, match="group_size"):
        make_schedule("random", TASKS, num_envs=6, group_size=0)
    with pytest.raises(BadValue, match="group_offset"):
        make_schedule("random", TASKS, num_envs=6, group_offset=-1)
    with pytest.raises(BadValue, match="num_groups"):
        make_schedule("grid", TASKS, num_envs=6, group_offset=6)
    with pytest.raises(BadValue, match=r"num_groups .*got 4"):
        make_schedule("random", TASKS, num_envs=6, num_groups=4)
