"""The paired test, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.zoo.evaluation.test_evaluator import episode, task
from vla_gym.errors import BadValue
from zoo.evaluation.statistics import (
    Rate,
    binomial_exact,
    compare,
    compare_tasks,
    effective_episodes,
    holm,
    interquartile_interval,
    interquartile_mean,
    mean_of_rates,
    outcomes_of,
    overall_rate,
    rate_values,
    rates_by_suite,
    rates_by_task,
    sign_flip_exact,
    together,
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
def test_one_round_counts_coins(gained: int, lost: int, p: float) -> None:
    assert sign_flip_exact([1] * gained + [-1] * lost) == pytest.approx(p)


def states(solved: str) -> dict[tuple[str, str], tuple[bool, ...]]:
    """A start state for each word of `solved` (or letter, if there is one word); its letters are rounds."""
    played = solved.split() if " " in solved else list(solved)
    return {("Reach/0", str(k)): tuple(letter == "x" for letter in rounds) for k, rounds in enumerate(played)}


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


def test_rounds_of_a_start_state_change_sides_together() -> None:
    # Differences 2, 1, -1, 0: of the 8 ways to give three of them signs, 6 have a sum of 2 or more in size.
    found = compare(states("-- x- xx x-"), states("xx xx x- -x"))
    assert found.differences == (2, 1, -1, 0)
    assert (found.gained, found.lost, found.rounds) == (2, 1, 2)
    assert found.p_value == pytest.approx(6 / 8)
    assert (found.before.successes, found.before.episodes, found.before.start_states) == (4, 8, 4)
    # Alike in all rounds, 6 of them won: as sure as 6 coins, not as 12.
    assert compare(states("-- " * 6), states("xx " * 6)).p_value == pytest.approx(2 / 64)


def test_different_numbers_of_rounds_are_refused() -> None:
    with pytest.raises(BadValue, match=r"as many rounds of every start state, here are \[1, 2\].*same --rounds"):
        compare(states("xx x-"), states("x-"))


@pytest.mark.parametrize(
    ("solved", "worth"),
    [
        ("xx -- xx --", 4.0),  # repeats that end alike add nothing: 4/3 * 4 / 64 = 1/12 would be worth 3, at least 4
        ("x- x- x- x-", 8.0),  # start states that are alike: as good as new ones
        ("xx xx", 2.0),  # nothing to tell the spread by
        ("x-", 1.0),
        # Rate 1/2, one start state of 2/2, one of 0/2, six of 1/2: 8/7 * 2 / 256 = 1/112, a quarter of which is 28.
        ("xx -- x- x- x- x- x- x-", 16.0),
        # Rate 1/2, of eight start states six alike: 8/7 * 6 / 256 = 3/112, which is worth 28/3.
        ("xx xx xx -- -- -- x- x-", 28 / 3),
        ("x-x-", 1.0),
    ],
)
def test_episodes_of_one_start_state_are_not_independent(solved: str, worth: float) -> None:
    rounds = [[letter == "x" for letter in word] for word in solved.split()]
    assert effective_episodes(rounds) == pytest.approx(worth)


def test_the_interval_counts_start_states_where_rounds_end_alike() -> None:
    twice = [replace(episode(0, trial, trial < 5), round=number) for trial in range(10) for number in range(2)]
    once = twice[::2]
    assert (overall_rate(twice).successes, overall_rate(twice).episodes) == (10, 20)
    assert overall_rate(twice).interval == pytest.approx(overall_rate(once).interval)
    values = rate_values(overall_rate(twice))
    assert (values["start_states"], values["effective"]) == (10, 10)
    assert "effective" not in rate_values(overall_rate(once))


def test_episodes_without_a_chosen_start_state_stand_for_themselves() -> None:
    assert overall_rate([episode(0, -1, k < 3) for k in range(6)]).interval == wilson_interval(3, 6)


def record(*episodes: tuple[str, bool]) -> dict:
    parts = [{"task_id": 0, "start_state": state, "success_once": solved} for state, solved in episodes]
    return {"env": "Reach", "episodes": parts}


def test_splits_count_together_and_none_counts_twice() -> None:
    train, test = record(("aa", True), ("bb", False)), record(("cc", True))
    assert outcomes_of([train, test]) == {
        ("Reach/0", "aa"): (True,),
        ("Reach/0", "bb"): (False,),
        ("Reach/0", "cc"): (True,),
    }
    with pytest.raises(BadValue, match="start state aa of task 0 of Reach is there twice"):
        outcomes_of([train, train])


def test_holm_raises_the_smallest_most() -> None:
    # 0.01 * 3, 0.03 * 2, then 0.04 * 1, which may not be below the 0.06 before it.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_tasks_are_compared_each_by_itself() -> None:
    before = {("Reach/0", "a"): (True,), ("Reach/1", "b"): (False,), ("Reach/1", "c"): (False,)}
    after = {("Reach/1", "c"): (False,), ("Reach/1", "b"): (True,), ("Reach/0", "a"): (False,)}
    found = compare_tasks(before, after)
    assert {task: (one.gained, one.lost) for task, one in found.items()} == {"Reach/0": (0, 1), "Reach/1": (1, 0)}
    assert found["Reach/1"].after.episodes == 2
    with pytest.raises(BadValue, match="2 in common"):
        compare_tasks(before, dict.fromkeys(list(after)[:2], (True,)))


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    # Wilson's formula by hand with z = 1.959964; the last row is the textbook's 8 of 10.
    [(0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (1, 2, 0.09453, 0.90547), (8, 10, 0.49016, 0.94332)],
)
def test_wilson_interval(successes: int, episodes: int, low: float, high: float) -> None:
    assert wilson_interval(successes, episodes) == pytest.approx((low, high), abs=1e-5)


@pytest.mark.parametrize(
    ("solved", "worth"),
    [
        # Rates 0.4, 0.5, 0.6: variance of the mean 0.01 / 3, so 75 episodes, by t of two degrees (1.95996 / 4.303)^2.
        ((20, 25, 30), 75 * 0.207468),
        ((10, 40), 1.0),  # 0.25 / 0.09 episodes, by (1.95996 / 12.706)^2: less than one
        ((25, 25), 100.0),
        ((0, 0), 100.0),
        ((50,), None),  # one run is its episodes
    ],
)
def test_the_interval_of_several_runs_is_over_runs(solved: tuple[int, ...], worth: float | None) -> None:
    rate = together("runs", [Rate(label="one", successes=one, episodes=50) for one in solved])
    assert (rate.successes, rate.episodes) == (sum(solved), 50 * len(solved))
    assert rate.effective == (None if worth is None else pytest.approx(worth, rel=1e-4))


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
    assert mean_of_rates(by_task) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("successes", "episodes", "rate", "expected"),
    [
        # 0, 1, 2, 3 and 7 .. 10 of 10 fair coins: 2 (1 + 10 + 45 + 120) / 1024.
        (3, 10, 0.5, 2 * 176 / 1024),
        # Only 0 of 2 and 1 of 2 are at most as likely as 1 of 2: 1 - 0.9^2.
        (1, 2, 0.9, 1 - 0.81),
        (2, 2, 0.9, 1.0),
        (5, 5, 1.0, 1.0),
        (4, 5, 1.0, 0.0),
    ],
)
def test_the_binomial_test_by_hand(successes: int, episodes: int, rate: float, expected: float) -> None:
    assert binomial_exact(successes, episodes, rate) == pytest.approx(expected, rel=1e-9)


@pytest.mark.thorough
def test_the_binomial_test_of_many_episodes_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    for successes, episodes, rate in ((6400, 6500, 0.9785), (12700, 13000, 0.9785), (0, 4, 0.9785)):
        assert binomial_exact(successes, episodes, rate) == pytest.approx(
            stats.binomtest(successes, episodes, rate).pvalue, rel=1e-6
        )


SCORES_RT = np.array([[0.1, 0.9], [0.2, 0.8], [0.4, 0.7], [0.3, 1.0], [0.9, 0.2]])


def test_a_quarter_at_either_end_is_left_out() -> None:
    # Of ten two each: .2 .3 .4 .7 .8 .9 stay.
    assert interquartile_mean(SCORES_RT.ravel()) == pytest.approx(0.55)
    # Of three none: the mean.
    assert interquartile_mean(np.array([[0.0, 1.0], [0.5, 1.0], [1.0, 1.0]])).tolist() == [0.5, 1.0]
    assert interquartile_mean(np.array([[5.0, 1.0, 2.0, -9.0]]), axis=1).tolist() == [1.5]


def test_the_interval_is_rliables() -> None:
    # rliable 1.2.0: get_interval_estimates(..., aggregate_iqm, reps=20000) gives 0.3 and 0.8.
    low, high = interquartile_interval([SCORES_RT[:, 0], SCORES_RT[:, 1]])
    assert (low, high) == (pytest.approx(0.3, abs=0.02), pytest.approx(0.8, abs=0.02))


def test_environments_keep_their_number_of_runs() -> None:
    # Whichever runs are drawn, half of the entries are 0 and half 1: of four, one 0 and one 1 stay.
    low, high = interquartile_interval([np.zeros(2), np.ones(2)])
    assert low == high == 0.5
    assert interquartile_interval([np.array([0.7])]) == (0.7, 0.7)


def test_a_run_is_drawn_whole() -> None:
    # Two runs whose points mirror each other: so do all resamples, and the bounds.
    low_P, high_P = interquartile_interval([np.array([[0.0, 1.0], [1.0, 0.0]])])
    assert low_P.tolist() == [0.0, 0.0]
    assert high_P.tolist() == [1.0, 1.0]
    both = interquartile_interval([np.array([[0.0, 1.0], [1.0, 0.0]]).sum(axis=1, keepdims=True)])
    assert [bound.tolist() for bound in both] == [[1.0], [1.0]]
