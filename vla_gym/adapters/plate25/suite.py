"""The training set and the 16 evaluation runs, as published: which digits each one's episode ids have.

Source: RL4VLA 55f966d6 and RLinf a3816b59, which agree on every radix below.
"""

from __future__ import annotations

from vla_gym.adapters.plate25 import layouts
from vla_gym.adapters.plate25.catalogue import OBJECTS, TABLES
from vla_gym.adapters.plate25.runs import Blend, Digit, Run


def _digits(
    *,
    objects: tuple[int, int] = (16, 0),
    tables: tuple[int, int] = (16, 0),
    plates: tuple[int, int] = (1, 0),
    positions: int = 784,
    yaws: tuple[int, int] = (4, 0),
    before_plate: tuple[Digit, int, int] | None = None,
    after_plate: tuple[Digit, int, int] | None = None,
) -> tuple[tuple[Digit, int, int], ...]:
    found: list[tuple[Digit, int, int] | None] = [
        ("object", *objects),
        before_plate,
        ("plate", *plates),
        after_plate,
        ("table", *tables),
        ("position", positions, 0),
        ("yaw", *yaws),
    ]
    return tuple(digit for digit in found if digit is not None)


UNSEEN_OBJECTS = (9, 16)
UNSEEN_PLATES = (16, 1)
UNSEEN_TABLES = (5, 16)
ALL_TABLES = (len(TABLES), 0)
TRIPLES = 2104

MAIN: dict[str, Run] = {
    split: Run(
        name="",
        upstream=f"PutOnPlateInScene25Main-v3, {split}",
        category="in_distribution",
        digits=_digits(objects=objects, tables=tables),
    )
    for split, objects, tables in (
        ("train", (16, 0), (16, 0)),
        ("test", UNSEEN_OBJECTS, UNSEEN_TABLES),
        ("all", (len(OBJECTS), 0), ALL_TABLES),
    )
}
"""Split -> the training set `ManiSkill-Plate25`."""


def _blended(name: str, blend: Blend, alpha: float) -> Run:
    return Run(
        name=name,
        upstream=f"PutOnPlateInScene25{name}-v1, test",
        category="vision",
        digits=_digits(before_plate=("texture", 16, 1)),
        blend=blend,
        alpha=alpha,
    )


_RUNS = (
    Run(
        name="VisionImage",
        upstream="PutOnPlateInScene25VisionImage-v1, test",
        category="vision",
        digits=_digits(tables=UNSEEN_TABLES),
    ),
    _blended("VisionTexture03", "texture", 0.3),
    _blended("VisionTexture05", "texture", 0.5),
    _blended("VisionWhole03", "whole", 0.3),
    _blended("VisionWhole05", "whole", 0.5),
    Run(
        name="Carrot",
        upstream="PutOnPlateInScene25Carrot-v1, test",
        category="semantic",
        digits=_digits(objects=UNSEEN_OBJECTS),
    ),
    Run(
        name="Plate",
        upstream="PutOnPlateInScene25Plate-v1, test",
        category="semantic",
        digits=_digits(plates=UNSEEN_PLATES),
    ),
    Run(
        name="Instruct",
        upstream="PutOnPlateInScene25Instruct-v1, test",
        category="semantic",
        digits=_digits(before_plate=("sentence", 16, 1)),
    ),
    Run(
        name="MultiCarrotTrain",
        upstream="PutOnPlateInScene25MultiCarrot-v1, train",
        category="semantic",
        digits=_digits(before_plate=("second", 15, 0), positions=TRIPLES),
        spread="object_triples",
        second="object",
    ),
    Run(
        name="MultiCarrotTest",
        upstream="PutOnPlateInScene25MultiCarrot-v1, test",
        category="semantic",
        digits=_digits(objects=UNSEEN_OBJECTS, before_plate=("second", 8, 0), positions=TRIPLES),
        spread="object_triples",
        second="object",
    ),
    Run(
        name="MultiPlateTrain",
        upstream="PutOnPlateInScene25MultiPlate-v1, train",
        category="semantic",
        digits=_digits(after_plate=("second", 16, 0), tables=ALL_TABLES, positions=TRIPLES),
        spread="plate_triples",
        second="plate",
    ),
    Run(
        name="MultiPlateTest",
        upstream="PutOnPlateInScene25MultiPlate-v1, test",
        category="semantic",
        digits=_digits(
            plates=UNSEEN_PLATES, after_plate=("second", 15, 0), tables=ALL_TABLES, positions=TRIPLES
        ),
        spread="plate_triples",
        second="plate",
    ),
    Run(
        name="Position",
        upstream="PutOnPlateInScene25Position-v1, test",
        category="execution",
        digits=_digits(positions=628, yaws=(4, 4)),
        spread="ring",
    ),
    Run(
        name="EEPose",
        upstream="PutOnPlateInScene25EEPose-v1, test",
        category="execution",
        digits=_digits(before_plate=("arm", 14_375, 1)),
    ),
    Run(
        name="PositionChangeTo",
        upstream="PutOnPlateInScene25PositionChangeTo-v1, test",
        category="execution",
        digits=_digits(positions=TRIPLES),
        spread="object_triples",
        moves=True,
    ),
    Run(
        name="CarrotTrain",
        upstream="PutOnPlateInScene25Carrot-v1, train",
        category="in_distribution",
        digits=_digits(),
    ),
)
RUNS: dict[str, Run] = {run.name: run for run in _RUNS}
"""Name -> run, in the published order; the last is the in-distribution control."""


def find_run(name: str, split: str) -> Run:
    """A run by name; "" is the training set, of which `split` chooses a part."""
    return RUNS[name] if name else MAIN[split]


SPREADS = {
    "trained": (layouts.grid_points, layouts.trained_pairs),
    "ring": (layouts.ring_points, layouts.ring_pairs),
    "object_triples": (layouts.grid_points, layouts.object_triples),
    "plate_triples": (layouts.grid_points, layouts.plate_triples),
}
"""Spread -> (points in metres, rows of point numbers)."""
