"""Success rates with intervals, and two policies compared on the same start states."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vla_gym.errors import BadValue
from vla_gym.specs import Task
from zoo.evaluation.evaluator import EpisodeRecord

Outcomes = Mapping[tuple[str, str], bool]
"""(<environment>/<task id>, hash of the start state) -> whether the episode was solved."""
_Z95 = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """k successes of n, with the Wilson 95 % interval."""

    label: str
    """Task or suite."""
    successes: int
    """k."""
    episodes: int
    """n."""

    @property
    def mean(self) -> float:
        """k / n."""
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson score interval, 95 %."""
        return wilson_interval(self.successes, self.episodes)


def wilson_interval(successes: int, episodes: int) -> tuple[float, float]:
    """95 % score interval of a binomial rate (Wilson 1927): honest at 0 and n, where k/n +- 2 s.e. is not."""
    if not 0 <= successes <= episodes or episodes < 1:
        raise ValueError(f"need 0 <= successes <= episodes and episodes >= 1, got {successes} of {episodes}")
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
    """One rate per task that was tried, in task order."""
    tried = sorted({episode.task_id for episode in episodes})
    return [_rate(tasks[i].name, [e for e in episodes if e.task_id == i]) for i in tried]


def rates_by_suite(episodes: Sequence[EpisodeRecord], tasks: Sequence[Task]) -> list[Rate]:
    """One rate per suite that was tried, in task order."""
    suites = dict.fromkeys(tasks[i].suite for i in sorted({episode.task_id for episode in episodes}))
    return [_rate(suite, [e for e in episodes if tasks[e.task_id].suite == suite]) for suite in suites]


def overall_rate(episodes: Sequence[EpisodeRecord]) -> Rate:
    """All episodes together."""
    return _rate("all episodes", episodes)


def task_weighted_mean(rates: Sequence[Rate]) -> float:
    """Mean of the tasks' rates: every task counts once, however many episodes it got."""
    return statistics.fmean(rate.mean for rate in rates)


def suite_weighted_mean(rates: Sequence[Rate]) -> float:
    """Mean of the suites' rates, as LIBERO's and Meta-World's published averages are taken.

    Meta-World's suites are its four difficulty buckets of 28, 11, 6 and 5 tasks, so this is not the mean over tasks.
    """
    return statistics.fmean(rate.mean for rate in rates)


def _rate(label: str, episodes: Sequence[EpisodeRecord]) -> Rate:
    return Rate(label=label, successes=sum(e.success_once for e in episodes), episodes=len(episodes))


def rate_values(rate: Rate) -> dict[str, Any]:
    """Return a rate with its Wilson 95 % interval as JSON values."""
    low, high = rate.interval
    return {
        "name": rate.label,
        "success": rate.mean,
        "successes": rate.successes,
        "episodes": rate.episodes,
        "low": low,
        "high": high,
    }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The same start states before and after."""

    before: Rate
    """Of the first policy."""
    after: Rate
    """Of the second."""
    gained: int
    """Start states that only the second solves."""
    lost: int
    """Start states that only the first solves."""

    @property
    def p_value(self) -> float:
        """Two-sided, of McNemar's exact test."""
        return mcnemar_exact(self.gained, self.lost)

    @property
    def separated(self) -> bool:
        """Whether the two Wilson 95 % intervals are disjoint."""
        (low_a, high_a), (low_b, high_b) = self.before.interval, self.after.interval
        return high_a < low_b or high_b < low_a


def mcnemar_exact(gained: int, lost: int) -> float:
    """Chance of a split at least as uneven when either change is as likely as the other (McNemar 1947, exact).

    Twice the lower tail of a binomial of `gained + lost` fair coins, at most 1.
    """
    if gained < 0 or lost < 0:
        raise ValueError(f"counts must be >= 0, got {gained} and {lost}")
    coins = gained + lost
    tail = sum(math.comb(coins, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**coins)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values raised for being several, in the order given (Holm 1979).

    The k-th smallest of m, k from 0, times m - k; at most 1, and never below a smaller one's.
    """
    raised, floor = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, p_values[index] * (len(p_values) - rank)))
        raised[index] = floor
    return raised


def compare_tasks(before: Outcomes, after: Outcomes) -> dict[str, Comparison]:
    """`compare` for each task by itself, <environment>/<task id> -> its comparison, in the order of `before`.

    Raises `BadValue` where the start states are not the same.
    """
    compare(before, after)
    return {
        task: compare(*({key: solved for key, solved in side.items() if key[0] == task} for side in (before, after)))
        for task in dict.fromkeys(key[0] for key in before)
    }


def compare(before: Outcomes, after: Outcomes) -> Comparison:
    """Compare outcomes on the same start states; raises `BadValue` where they are not the same."""
    if before.keys() != after.keys():
        common = len(before.keys() & after.keys())
        raise BadValue(
            f"a paired comparison needs the same start states in both: {len(before)} before, {len(after)} after, "
            f"{common} in common. Evaluate both with the same --env, --split and --eval-episodes"
        )
    return Comparison(
        before=Rate(label="before", successes=sum(before.values()), episodes=len(before)),
        after=Rate(label="after", successes=sum(after.values()), episodes=len(after)),
        gained=sum(after[state] and not solved for state, solved in before.items()),
        lost=sum(solved and not after[state] for state, solved in before.items()),
    )


def outcomes_of(records: Sequence[Mapping[str, Any]]) -> Outcomes:
    """Outcomes of `zoo.evaluate`'s records together; raises `BadValue` where two hold one start state."""
    found: dict[tuple[str, str], bool] = {}
    for record in records:
        for episode in record["episodes"]:
            key = (f"{record['env']}/{episode['task_id']}", episode["start_state"])
            if key in found:
                raise BadValue(
                    f"start state {key[1][:8]} of task {episode['task_id']} of {record['env']} is there twice; "
                    "give each split once"
                )
            found[key] = bool(episode["success_once"])
    return found
