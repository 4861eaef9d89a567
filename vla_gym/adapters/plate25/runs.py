"""What a run of the suite is: which digits its episode ids have, and what they mean. `suite` lists the runs.

An episode id is a mixed-radix number. Its digits are, most significant first: object, [extra], plate, [extra],
table, position, yaw. Source: RL4VLA 55f966d6 and RLinf a3816b59, which agree on every radix below.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Literal

from vla_gym.adapters.plate25.catalogue import OBJECTS, PLATES
from vla_gym.adapters.plate25.sentences import sentence
from vla_gym.errors import BadValue

Digit = Literal["object", "plate", "table", "position", "yaw", "texture", "sentence", "arm", "second"]
Category = Literal["vision", "semantic", "execution", "in_distribution"]
Spread = Literal["trained", "ring", "object_triples", "plate_triples"]
Blend = Literal["none", "texture", "whole"]

SPOKEN: tuple[Digit, ...] = ("object", "plate", "sentence")
"""Digits that the instruction depends on."""


GOLDEN_SECTION = (5**0.5 - 1) / 2
TASKS_APART = 101
"""Steps between the first start states of neighbouring tasks."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One environment of the suite."""

    name: str
    """What follows `ManiSkill-Plate25-`; empty for the training set."""
    upstream: str
    """Published environment and split."""
    category: Category
    digits: tuple[tuple[Digit, int, int], ...]
    """(digit, how many, first id), most significant first."""
    spread: Spread = "trained"
    """Table of positions that the digit "position" counts."""
    second: Literal["none", "object", "plate"] = "none"
    """What the digit "second" adds to the scene."""
    moves: bool = False
    """Is the object moved to the third point during the episode?"""
    blend: Blend = "none"
    """Where a texture is blended into the picture."""
    alpha: float = 0.0
    """How much of it."""

    @property
    def total(self) -> int:
        """Number of episodes."""
        return prod(count for _, count, _ in self.digits)

    @property
    def tasks(self) -> tuple[tuple[int, int, int], ...]:
        """(object, plate, template) of each task, in the order of episode ids."""
        trials = self.trials
        found = [self.episode(task * trials) for task in range(self.num_tasks)]
        return tuple((one.object, one.plate, one.sentence) for one in found)

    @property
    def num_tasks(self) -> int:
        """Number of different sentences."""
        return self.total // self.trials

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks, such as "bread on plate"; with the template where there are several."""
        several = any(digit == "sentence" for digit, _, _ in self.digits)
        return tuple(
            f"{OBJECTS[thing].name} on {PLATES[plate].name}" + (f", wording {template}" if several else "")
            for thing, plate, template in self.tasks
        )

    @property
    def trials(self) -> int:
        """Episodes of each task: ids `task * trials` to `task * trials + trials - 1` share their sentence."""
        spoken = [
            place for place, (digit, count, _) in enumerate(self.digits) if digit in SPOKEN and count > 1
        ]
        return prod(count for _, count, _ in self.digits[max(spoken) + 1 :])

    def start(self, task: int, trial: int) -> int:
        """Episode id of a task's `trial`-th start state.

        A bijection of 0 .. trials - 1 that spreads the first few trials over tables, positions and yaws, which
        counting upwards would not. Steps by the golden section of all trials, and tasks begin apart.
        """
        if not (0 <= task < self.num_tasks and 0 <= trial < self.trials):
            raise BadValue(
                f"task {task}, trial {trial} is not one of this run's; allowed are tasks 0 .. "
                f"{self.num_tasks - 1} and trials 0 .. {self.trials - 1}"
            )
        step = round(self.trials * GOLDEN_SECTION)
        while gcd(step, self.trials) > 1:
            step += 1
        return task * self.trials + (trial + task * TASKS_APART) * step % self.trials

    def episode(self, episode_id: int) -> Episode:
        """Decode an id. Raises `BadValue` outside 0 .. total - 1."""
        if not 0 <= episode_id < self.total:
            raise BadValue(
                f"episode id {episode_id} is not one of this run's; allowed are 0 .. {self.total - 1}"
            )
        values: dict[str, int] = {}
        rest = episode_id
        for digit, count, first in reversed(self.digits):
            rest, value = divmod(rest, count)
            values[digit] = value + first
        return Episode(**values)

    def episode_id(self, episode: Episode) -> int:
        """Inverse of `episode`. Raises `BadValue` for an episode that is not of this run."""
        number = 0
        for digit, count, first in self.digits:
            value = getattr(episode, digit) - first
            if not 0 <= value < count:
                raise BadValue(
                    f"{digit}={value + first} is not one of this run's; allowed are {first} .. {first + count - 1}"
                )
            number = number * count + value
        return number


@dataclass(frozen=True, kw_only=True)
class Episode:
    """What one episode id means. Ids count the tables of `catalogue`, `layouts` and `sentences`."""

    object: int
    plate: int = 0
    table: int
    position: int
    """Row of the run's `spread`."""
    yaw: int
    """0-3 are `layouts.YAWS`, 4-7 `layouts.UNSEEN_YAWS`."""
    texture: int = 0
    """Table whose texture is blended in."""
    sentence: int = 0
    arm: int = 0
    """Row of `layouts.arm_poses`."""
    second: int = 0
    """Which other object or plate, counted from the target onwards; see `distractor`."""

    @property
    def instruction(self) -> str:
        """What the policy is told."""
        return sentence(self.sentence, OBJECTS[self.object].name, PLATES[self.plate].name)


def distractor(run: Run, episode: Episode, *, as_published: bool) -> int:
    """Id of the second object or plate: the `second + 1`-th after the target, round the run's own set.

    The published MultiCarrot adds the set's first id before taking the remainder, so with its nine test objects
    the target itself comes out in one of eight cases, and no second object is seen. `as_published` repeats that.
    """
    count, first = next((n, start) for digit, n, start in run.digits if digit == run.second)
    if run.second == "object":
        target, size = episode.object, count
    else:
        target, size = episode.plate, len(PLATES) - first
    ahead = target if as_published and run.second == "object" else target - first
    return (ahead + episode.second + 1) % size + first
