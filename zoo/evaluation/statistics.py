"""Two policies on the same start states: what changed, and whether chance would explain it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vla_gym.errors import BadValue
from zoo.evaluation.evaluator import Rate

Outcomes = Mapping[tuple[str, str], bool]
"""(<environment>/<task id>, fingerprint of the start state) -> was the episode solved?"""


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
        """Do the two Wilson 95 % intervals have nothing in common?"""
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
        task: compare(
            *({key: one for key, one in side.items() if key[0] == task} for side in (before, after))
        )
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
