from __future__ import annotations

import numpy as np
import pytest

from zoo.evaluation.aggregate import interquartile_interval, interquartile_mean

# Five runs of two environments.
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
