"""The runs of the suite, and the episode ids each one has: the training set and the 16 evaluation runs, as published.

An episode id is a mixed-radix number. Its digits are, most significant first: object, [extra], plate, [extra],
table, position, yaw. Source: RL4VLA 55f966d6 and RLinf a3816b59, which agree on every radix below.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any, Literal

from vla_gym.adapters.plate25.catalogue import OBJECTS, PLATES, TABLES

Digit = Literal["object", "plate", "table", "position", "yaw", "texture", "sentence", "arm", "second"]
Category = Literal["vision", "semantic", "execution", "in_distribution"]
Spread = Literal["trained", "ring", "object_triples", "plate_triples"]
Blend = Literal["none", "texture", "whole"]

IN_SENTENCE: tuple[Digit, ...] = ("object", "plate", "sentence")
"""Digits that the instruction depends on."""
GOLDEN_SECTION = (5**0.5 - 1) / 2
TASKS_APART = 101
"""Steps between the first start states of neighbouring tasks."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One environment of the suite."""

    name: str
    """Suffix of `ManiSkill-Plate25-`; empty for the training set."""
    upstream: str
    """Published environment and split."""
    category: Category
    digits: tuple[tuple[Digit, int, int], ...]
    """(digit, how many, first id), most significant first."""
    spread: Spread = "trained"
    """Table of positions that the digit "position" counts."""
    second: Literal["none", "object", "plate"] = "none"
    """Kind of thing that the digit "second" adds to the scene."""
    moves: bool = False
    """Whether the object is moved to the third point during the episode."""
    blend: Blend = "none"
    """The part of the image that a texture is blended into."""
    alpha: float = 0.0
    """Share of the texture."""

    @property
    def split(self) -> str:
        """Split of the published environment."""
        return self.upstream.rpartition(", ")[2]

    @property
    def total(self) -> int:
        return prod(count for _, count, _ in self.digits)

    @property
    def tasks(self) -> tuple[tuple[int, int, int], ...]:
        """(object, plate, template) of each task, in the order of episode ids."""
        episodes = [self.episode(task * self.trials) for task in range(self.num_tasks)]
        return tuple((episode.object, episode.plate, episode.sentence) for episode in episodes)

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
        last = max(i for i, (digit, count, _) in enumerate(self.digits) if digit in IN_SENTENCE and count > 1)
        return prod(count for _, count, _ in self.digits[last + 1 :])

    def start(self, task: int, trial: int) -> int:
        """Return the episode id of a task's `trial`-th start state.

        A bijection of 0 .. trials - 1 that spreads the first few trials over tables, positions and yaws, which
        counting upwards would not. Steps by the golden section of all trials, and tasks begin apart.
        """
        step = round(self.trials * GOLDEN_SECTION)
        while gcd(step, self.trials) > 1:
            step += 1
        return task * self.trials + (trial + task * TASKS_APART) * step % self.trials

    def episode(self, episode_id: int) -> Episode:
        """Decode an id, 0 .. total - 1."""
        values: dict[str, int] = {}
        rest = episode_id
        for digit, count, first in reversed(self.digits):
            rest, value = divmod(rest, count)
            values[digit] = value + first
        return Episode(**values)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """The meaning of one episode id. Ids count the tables of `catalogue` and `layouts`."""

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
    """Another object or plate, counted from the target onwards; see `distractor`."""


def distractor(run: Run, episode: Episode, *, as_published: bool) -> int:
    """Return the id of the second object or plate: the `second + 1`-th after the target, round the run's own set.

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


def _digits(
    *,
    objects: tuple[int, int] = (16, 0),
    tables: tuple[int, int] = (16, 0),
    plates: tuple[int, int] = (1, 0),
    positions: int = 784,
    yaws: tuple[int, int] = (4, 0),
    before_plate: tuple[tuple[Digit, int, int], ...] = (),
    after_plate: tuple[tuple[Digit, int, int], ...] = (),
) -> tuple[tuple[Digit, int, int], ...]:
    return (
        ("object", *objects),
        *before_plate,
        ("plate", *plates),
        *after_plate,
        ("table", *tables),
        ("position", positions, 0),
        ("yaw", *yaws),
    )


UNSEEN_OBJECTS, UNSEEN_PLATES, UNSEEN_TABLES = (9, 16), (16, 1), (5, 16)
ALL_OBJECTS, ALL_TABLES = (len(OBJECTS), 0), (len(TABLES), 0)
TRIPLES = 2104


def _main(split: str, **digits: Any) -> Run:
    return Run(
        name="",
        upstream=f"PutOnPlateInScene25Main-v3, {split}",
        category="in_distribution",
        digits=_digits(**digits),
    )


MAIN: dict[str, Run] = {
    "train": _main("train"),
    "test": _main("test", objects=UNSEEN_OBJECTS, tables=UNSEEN_TABLES),
    "all": _main("all", objects=ALL_OBJECTS, tables=ALL_TABLES),
}
"""Split -> the training set `ManiSkill-Plate25`."""


def _run(name: str, category: Category, digits: tuple[tuple[Digit, int, int], ...], **options: Any) -> tuple[str, Run]:
    split = "train" if name.endswith("Train") else "test"
    published = f"PutOnPlateInScene25{name.removesuffix('Train').removesuffix('Test')}-v1, {split}"
    return name, Run(name=name, upstream=published, category=category, digits=digits, **options)


def _blended(name: str, blend: Blend, alpha: float) -> tuple[str, Run]:
    return _run(name, "vision", _digits(before_plate=(("texture", 16, 1),)), blend=blend, alpha=alpha)


def _second(name: str, second: Literal["object", "plate"], **digits: Any) -> tuple[str, Run]:
    spread = f"{second}_triples"
    return _run(name, "semantic", _digits(**digits, positions=TRIPLES), spread=spread, second=second)


RUNS: dict[str, Run] = dict(
    [
        _run("VisionImage", "vision", _digits(tables=UNSEEN_TABLES)),
        _blended("VisionTexture03", "texture", 0.3),
        _blended("VisionTexture05", "texture", 0.5),
        _blended("VisionWhole03", "whole", 0.3),
        _blended("VisionWhole05", "whole", 0.5),
        _run("Carrot", "semantic", _digits(objects=UNSEEN_OBJECTS)),
        _run("Plate", "semantic", _digits(plates=UNSEEN_PLATES)),
        _run("Instruct", "semantic", _digits(before_plate=(("sentence", 16, 1),))),
        _second("MultiCarrotTrain", "object", before_plate=(("second", 15, 0),)),
        _second("MultiCarrotTest", "object", objects=UNSEEN_OBJECTS, before_plate=(("second", 8, 0),)),
        _second("MultiPlateTrain", "plate", after_plate=(("second", 16, 0),), tables=ALL_TABLES),
        _second(
            "MultiPlateTest",
            "plate",
            plates=UNSEEN_PLATES,
            after_plate=(("second", 15, 0),),
            tables=ALL_TABLES,
        ),
        _run("Position", "execution", _digits(positions=628, yaws=(4, 4)), spread="ring"),
        _run("EEPose", "execution", _digits(before_plate=(("arm", 14_375, 1),))),
        _run("PositionChangeTo", "execution", _digits(positions=TRIPLES), spread="object_triples", moves=True),
        _run("CarrotTrain", "in_distribution", _digits()),
    ]
)
"""Name -> run, in the published order; the last is the in-distribution control."""


def find_run(name: str, split: str) -> Run:
    """Return a run by name; "" is the training set, of which `split` chooses a part."""
    return RUNS[name] if name else MAIN[split]
