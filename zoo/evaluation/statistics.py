"""Success rates with intervals, and two policies compared on the same start states."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_gym.errors import BadValue
from vla_gym.specs import Task
from zoo.evaluation.evaluator import EpisodeRecord

Outcomes = Mapping[tuple[str, str], tuple[bool, ...]]
"""(<environment>/<task id>, hash of the start state) -> whether its episode was solved, round by round."""
_Z95 = statistics.NormalDist().inv_cdf(0.975)
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for two runs, three, ..., ten or more."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """k successes of n, with the Wilson 95 % interval.

    Episodes of one start state are alike: the interval counts them as `effective_episodes` independent ones.
    """

    label: str
    successes: int
    episodes: int
    start_states: int | None = None
    """Different start states among them; None = all."""
    effective: float | None = None
    """See `effective_episodes`; None = n."""

    @property
    def mean(self) -> float:
        """k / n."""
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson score interval, 95 %."""
        if self.effective is None:
            return wilson_interval(self.successes, self.episodes)
        return wilson_interval(self.mean * self.effective, self.effective)


def effective_episodes(solved_by_start: Sequence[Sequence[bool]]) -> float:
    """Return the independent episodes that those of some start states are worth, each played once or several times.

    The number whose binomial variance is the variance between start states (the linearised one of a ratio), as
    intervals of clustered surveys have it (Korn and Graubard 1998; Dean and Pagano 2015): at most all episodes, and at
    least one for each start state, which repeats that always end alike are worth.
    """
    starts, episodes = len(solved_by_start), sum(map(len, solved_by_start))
    if starts == episodes or starts == 1:
        return float(starts)
    worth = _worth([sum(solved) for solved in solved_by_start], [len(solved) for solved in solved_by_start])
    return min(float(episodes), max(float(starts), worth))


def _worth(successes: Sequence[int], episodes: Sequence[int]) -> float:
    """Episodes whose binomial variance is that between clusters of successes; as many as clusters where all are alike
    because all or none succeed, infinite where they are alike otherwise."""
    clusters, rate = len(successes), sum(successes) / sum(episodes)
    if rate in (0.0, 1.0):
        return float(clusters)
    squares = sum((solved - rate * played) ** 2 for solved, played in zip(successes, episodes, strict=True))
    between = clusters / (clusters - 1) * squares / sum(episodes) ** 2
    return rate * (1 - rate) / between if between > 0 else math.inf


def wilson_interval(successes: float, episodes: float) -> tuple[float, float]:
    """Return the 95 % score interval of a binomial rate (Wilson 1927): honest at 0 and n, unlike k/n +- 2 s.e."""
    z2 = _Z95**2
    rate = successes / episodes
    centre = (rate + z2 / (2 * episodes)) / (1 + z2 / episodes)
    spread = rate * (1 - rate) / episodes + z2 / (4 * episodes**2)
    half = _Z95 / (1 + z2 / episodes) * math.sqrt(spread)
    # Exactly 0 and 1 at the ends, where rounding would leave 1e-17.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == episodes else min(1.0, centre + half)
    return low, high


def rates_by_task(episodes: Sequence[EpisodeRecord], tasks: Sequence[Task]) -> list[Rate]:
    """Return one rate per task that was tried, in task order."""
    tried = sorted({episode.task_id for episode in episodes})
    return [overall_rate([e for e in episodes if e.task_id == i], tasks[i].name) for i in tried]


def rates_by_suite(episodes: Sequence[EpisodeRecord], tasks: Sequence[Task]) -> list[Rate]:
    """Return one rate per suite that was tried, in task order."""
    suites = dict.fromkeys(tasks[i].suite for i in sorted({episode.task_id for episode in episodes}))
    return [overall_rate([e for e in episodes if tasks[e.task_id].suite == suite], suite) for suite in suites]


def overall_rate(episodes: Sequence[EpisodeRecord], label: str = "all episodes") -> Rate:
    """Return the rate of all episodes together; one whose start state was not chosen stands for itself."""
    found: dict[tuple[int, int], list[bool]] = {}
    for index, episode in enumerate(episodes):
        key = (episode.task_id, episode.trial_id) if episode.trial_id >= 0 else (-1, index)
        found.setdefault(key, []).append(episode.success_once)
    return _rate_of(label, list(found.values()))


def mean_of_rates(rates: Sequence[Rate]) -> float:
    """Return the mean in which every task, or every suite, counts once, however many episodes it got.

    LIBERO's and Meta-World's published averages are over suites. Meta-World's are its four difficulty buckets of 28,
    11, 6 and 5 tasks, so that is not the mean over tasks.
    """
    return statistics.fmean(rate.mean for rate in rates)


def _rate_of(label: str, solved_by_start: Sequence[Sequence[bool]]) -> Rate:
    episodes, starts = sum(map(len, solved_by_start)), len(solved_by_start)
    repeated = starts < episodes
    return Rate(
        label=label,
        successes=sum(map(sum, solved_by_start)),
        episodes=episodes,
        start_states=starts if repeated else None,
        effective=effective_episodes(solved_by_start) if repeated else None,
    )


def rate_of_rounds(label: str, success_E: np.ndarray, rounds: int) -> Rate:
    """Return the rate of an evaluation's outcomes, in the order of `zoo.evaluation.evaluator.evaluate`."""
    return _rate_of(label, success_E.astype(bool).reshape(-1, rounds).tolist())


def together(label: str, rates: Sequence[Rate]) -> Rate:
    """Return the rate of evaluations of several runs; its interval is for the mean of runs like these.

    Episodes of one run are alike: they count as those independent ones whose variance is that between the runs, fewer
    by (z / t)^2 of Student's t for as many runs (Korn and Graubard 1998), at least one and at most all.
    """
    if len(rates) == 1:
        return rates[0]
    successes, episodes = [rate.successes for rate in rates], [rate.episodes for rate in rates]
    most = sum(rate.effective or rate.episodes for rate in rates)
    t = _T_975[min(len(rates), len(_T_975) + 1) - 2]
    alike = sum(successes) in (0, sum(episodes))
    return Rate(
        label=label,
        successes=sum(successes),
        episodes=sum(episodes),
        start_states=sum(rate.start_states or rate.episodes for rate in rates),
        effective=most if alike else min(most, max(1.0, _worth(successes, episodes) * (_Z95 / t) ** 2)),
    )


def rate_values(rate: Rate) -> dict[str, Any]:
    """Return a rate with its Wilson 95 % interval as JSON values."""
    low, high = rate.interval
    repeated = {} if rate.effective is None else {"start_states": rate.start_states, "effective": rate.effective}
    return {
        "name": rate.label,
        "success": rate.mean,
        "successes": rate.successes,
        "episodes": rate.episodes,
        **repeated,
        "low": low,
        "high": high,
    }


def rate_of(values: Mapping[str, Any]) -> Rate:
    """Return the rate of `rate_values`; raises where they are none."""
    rate = Rate(
        label=str(values["name"]),
        successes=values["successes"],
        episodes=values["episodes"],
        start_states=values.get("start_states"),
        effective=values.get("effective"),
    )
    _ = rate.interval
    return rate


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The same start states before and after."""

    before: Rate
    after: Rate
    differences: tuple[int, ...]
    """Rounds that the second solves more than the first, of each start state."""
    rounds: int = 1
    """Episodes of each start state."""

    @property
    def gained(self) -> int:
        """Start states that the second solves more often; in one round, those that only the second solves."""
        return sum(difference > 0 for difference in self.differences)

    @property
    def lost(self) -> int:
        """Start states that the first solves more often."""
        return sum(difference < 0 for difference in self.differences)

    @property
    def p_value(self) -> float:
        """Two-sided, of the exact sign-flip test over start states; in one round that is McNemar's."""
        return sign_flip_exact(self.differences)

    @property
    def separated(self) -> bool:
        """Whether the two Wilson 95 % intervals are disjoint."""
        (low_a, high_a), (low_b, high_b) = self.before.interval, self.after.interval
        return high_a < low_b or high_b < low_a


def sign_flip_exact(differences: Sequence[int]) -> float:
    """Return the chance of a sum as far from 0 when each sign is as likely as the other (Fisher 1935, exact).

    Two policies that are alike in a start state may have changed places there, all its rounds together: rounds of one
    start state need not be independent. Differences of -1, 0 and 1 alone give McNemar's exact test (1947).
    """
    sizes = Counter(abs(difference) for difference in differences if difference)
    # To come to each sum, from the lowest to the highest in steps of 1; integers of any size.
    ways = np.array([1], dtype=object)
    for size, number in sizes.items():
        coins = np.zeros(2 * size * number + 1, dtype=object)
        coins[:: 2 * size] = [math.comb(number, heads) for heads in range(number + 1)]
        ways = np.convolve(ways, coins)
    sums = np.arange(len(ways)) - len(ways) // 2
    return int(ways[np.abs(sums) >= abs(sum(differences))].sum()) / 2 ** sizes.total()


def binomial_exact(successes: int, episodes: int, rate: float) -> float:
    """Return the exact two-sided p-value of `successes` of `episodes` when each succeeds at `rate`.

    The sum of all such probabilities, counting those within 1e-7 of this one's as equal, as R and SciPy do.
    """
    if rate in (0.0, 1.0):
        return 1.0 if successes == rate * episodes else 0.0
    whole, up, down = math.lgamma(episodes + 1), math.log(rate), math.log1p(-rate)

    def log_chance(count: int) -> float:
        ways = whole - math.lgamma(count + 1) - math.lgamma(episodes - count + 1)
        return ways + count * up + (episodes - count) * down

    limit = log_chance(successes) + 1e-7
    return min(1.0, math.fsum(math.exp(x) for x in map(log_chance, range(episodes + 1)) if x <= limit))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values raised for being several, in the order given (Holm 1979).

    The k-th smallest of m, k from 0, times m - k; at most 1, and never below a smaller one's.
    """
    raised, floor = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, p_values[index] * (len(p_values) - rank)))
        raised[index] = floor
    return raised


def compare_tasks(before: Outcomes, after: Outcomes) -> dict[str, Comparison]:
    """Return `compare` for each task by itself, <environment>/<task id> -> its comparison, in the order of `before`.

    Raises `BadValue` where the start states are not the same.
    """
    compare(before, after)
    return {
        task: compare(*({key: solved for key, solved in side.items() if key[0] == task} for side in (before, after)))
        for task in dict.fromkeys(key[0] for key in before)
    }


def compare(before: Outcomes, after: Outcomes) -> Comparison:
    """Return the comparison of outcomes on the same start states; raises `BadValue` where they are not the same."""
    if before.keys() != after.keys():
        common = len(before.keys() & after.keys())
        raise BadValue(
            f"a paired comparison needs the same start states in both: {len(before)} before, {len(after)} after, "
            f"{common} in common. Give vla-zoo evaluate the same --env, --split and --eval-episodes for both"
        )
    rounds = {len(solved) for solved in (*before.values(), *after.values())}
    if len(rounds) > 1:
        raise BadValue(
            f"a paired comparison needs as many rounds of every start state, here are {sorted(rounds)}. Compare the "
            f"first with --rounds {min(rounds)}, or evaluate both with the same --rounds"
        )
    return Comparison(
        before=_rate_of("before", list(before.values())),
        after=_rate_of("after", list(after.values())),
        differences=tuple(sum(after[state]) - sum(solved) for state, solved in before.items()),
        rounds=rounds.pop() if rounds else 1,
    )


def first_rounds(outcomes: Outcomes, rounds: int | None) -> Outcomes:
    """Return the outcomes of the first rounds alone, None = all; raises `BadValue` where a start state has fewer."""
    fewest = min(map(len, outcomes.values()))
    if rounds is not None and fewest < rounds:
        raise BadValue(f"--rounds {rounds} is more than the {fewest} that were played; at most --rounds {fewest}")
    return {key: solved[:rounds] for key, solved in outcomes.items()}


def outcomes_of(records: Sequence[Mapping[str, Any]]) -> Outcomes:
    """Return the outcomes of several evaluations together; raises `BadValue` where two hold one start state."""
    found: dict[tuple[str, str], dict[int, bool]] = {}
    for record in records:
        for episode in record["episodes"]:
            key = (f"{record['env']}/{episode['task_id']}", episode["start_state"])
            rounds = found.setdefault(key, {})
            # Files from before there were rounds have none.
            if episode.get("round", 0) in rounds:
                raise BadValue(
                    f"start state {key[1][:8]} of task {episode['task_id']} of {record['env']} is there twice; "
                    "give each split once"
                )
            rounds[episode.get("round", 0)] = bool(episode["success_once"])
    return {key: tuple(solved for _, solved in sorted(rounds.items())) for key, rounds in found.items()}


# Several runs as one number -------------------------------------------------------------------------------
#
# As rliable computes it for rl_zoo3 (Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical
# precipice", arXiv:2108.13264), which brings arch, statsmodels and six packages more for these two functions.

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
