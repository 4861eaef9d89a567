"""Several runs as one number: interquartile mean and stratified bootstrap, as rliable computes them for rl_zoo3.

Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", arXiv:2108.13264. Written
here because rliable brings arch, statsmodels and six packages more for these two functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

REPEATS = 2000
"""Resamples of an interval, as rl_zoo3's `plot_from_file` asks of rliable."""
_TAILS = (2.5, 97.5)
"""Percentiles that bound a 95 % interval."""


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean of the middle half along `axis`: a quarter of the entries, rounded down, is left out at either end."""
    ordered = np.sort(np.moveaxis(values, axis, 0), axis=0)
    cut = len(ordered) // 4
    middle: np.ndarray = ordered[cut : len(ordered) - cut].mean(axis=0)
    return middle


def interquartile_interval(strata: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile bootstrap interval of the interquartile mean over all entries of `strata`.

    `strata[t]` is `[runs of environment t, ...]`; each is resampled by itself, so that every environment keeps its
    number of runs. A whole run is drawn at once, with everything in its trailing dims. Returns lower and upper bounds,
    of the trailing shape; with one run in every stratum both are the interquartile mean.
    """
    rng = np.random.default_rng(0)
    drawn = [values[rng.integers(len(values), size=(REPEATS, len(values)))] for values in strata]
    low, high = np.percentile(interquartile_mean(np.concatenate(drawn, axis=1), axis=1), _TAILS, axis=0)
    return low, high
