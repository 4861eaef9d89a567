"""The paired test, worked out by hand."""

from __future__ import annotations

import pytest

from tests.zoo.evaluation.test_evaluator import episode, task
from vla_gym.errors import BadValue
from zoo.evaluation.statistics import (
    compare,
    compare_tasks,
    holm,
    mcnemar_exact,
    outcomes_of,
    overall_rate,
    rates_by_suite,
    rates_by_task,
    task_weighted_mean,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [
        (0, 0, 1.0),  # nothing changed
        (1, 0, 1.0),  # one coin: either side is as likely
        (3, 3, 1.0),
        (5, 0, 2 / 32),  # five heads or five tails
        (0, 5, 2 / 32),
        (8, 2, 2 * (1 + 10 + 45) / 1024),
        (40, 0, 2 / 2**40),
    ],
)
def test_mcnemar_counts_coins(gained: int, lost: int, p: float) -> None:
    assert mcnemar_exact(gained, lost) == pytest.approx(p)


def test_counts_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="-1 and 2"):
        mcnemar_exact(-1, 2)


def states(solved: str) -> dict[tuple[str, str], bool]:
    return {("Reach/0", str(k)): letter == "x" for k, letter in enumerate(solved)}


def test_what_changed_is_counted_state_by_state() -> None:
    found = compare(states("xx---x"), states("x-xx-x"))
    assert (found.before.successes, found.after.successes, found.before.episodes) == (3, 4, 6)
    assert (found.gained, found.lost) == (2, 1)
    assert found.p_value == 1.0
    assert not found.separated


def test_intervals_apart() -> None:
    # Wilson: 10 of 40 is at most 0.402, 30 of 40 at least 0.598.
    found = compare(states("x" * 10 + "-" * 30), states("x" * 30 + "-" * 10))
    assert found.separated
    assert (found.gained, found.lost) == (20, 0)
    assert found.p_value == pytest.approx(2 / 2**20)


def test_other_start_states_are_refused() -> None:
    with pytest.raises(BadValue, match="3 before, 2 after, 2 in common"):
        compare(states("xxx"), states("x-"))


def record(*episodes: tuple[str, bool]) -> dict:
    parts = [{"task_id": 0, "start_state": state, "success_once": solved} for state, solved in episodes]
    return {"env": "Reach", "episodes": parts}


def test_splits_count_together_and_none_counts_twice() -> None:
    train, test = record(("aa", True), ("bb", False)), record(("cc", True))
    assert outcomes_of([train, test]) == {
        ("Reach/0", "aa"): True,
        ("Reach/0", "bb"): False,
        ("Reach/0", "cc"): True,
    }
    with pytest.raises(BadValue, match="start state aa of task 0 of Reach is there twice"):
        outcomes_of([train, train])


def test_holm_raises_the_smallest_most() -> None:
    # 0.01 * 3, 0.03 * 2, then 0.04 * 1, which may not be below the 0.06 before it.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_tasks_are_compared_each_by_itself() -> None:
    before = {("Reach/0", "a"): True, ("Reach/1", "b"): False, ("Reach/1", "c"): False}
    after = {("Reach/1", "c"): False, ("Reach/1", "b"): True, ("Reach/0", "a"): False}
    found = compare_tasks(before, after)
    assert {task: (one.gained, one.lost) for task, one in found.items()} == {
        "Reach/0": (0, 1),
        "Reach/1": (1, 0),
    }
    assert found["Reach/1"].after.episodes == 2
    with pytest.raises(BadValue, match="2 in common"):
        compare_tasks(before, dict.fromkeys(list(after)[:2], True))


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    # Wilson's formula by hand with z = 1.959964; the last row is the textbook's 8 of 10.
    [(0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (1, 2, 0.09453, 0.90547), (8, 10, 0.49016, 0.94332)],
)
def test_wilson_interval(successes: int, episodes: int, low: float, high: float) -> None:
    assert wilson_interval(successes, episodes) == pytest.approx((low, high), abs=1e-5)


def test_wilson_interval_refuses_counts_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="3 of 2"):
        wilson_interval(3, 2)


def test_rates_by_task_and_suite_and_their_means() -> None:
    tasks = [task("a", suite="one"), task("b", suite="one"), task("c", suite="two")]
    episodes = [episode(0, 0, True), episode(0, 1, True), episode(0, 2, False), episode(2, 0, False)]
    by_task = rates_by_task(episodes, tasks)
    assert [(r.label, r.successes, r.episodes) for r in by_task] == [("a", 2, 3), ("c", 0, 1)]
    assert [(r.label, r.successes, r.episodes) for r in rates_by_suite(episodes, tasks)] == [
        ("one", 2, 3),
        ("two", 0, 1),
    ]
    assert (overall_rate(episodes).successes, overall_rate(episodes).episodes) == (2, 4)
    assert task_weighted_mean(by_task) == pytest.approx(1 / 3)
