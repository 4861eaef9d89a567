"""Named rules on which the published code bases differ or err; what each decides is written to `protocol.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vla_gym.adapters.plate25.runs import Spread

RenderQuality = Literal["full", "fast"]

HORIZON = 80
"""Policy steps per episode."""
CONTROL_HZ = 5.0
PRIVILEGED_DIM = 37
"""Numbers of `Plate25Simulator.privileged`."""
MOVE_AT = 5
"""Steps after which PositionChangeTo moves the object."""
PUBLISHED_EPISODES = 256
"""Episodes behind each published rate of a run, to which the printed digits fit."""
SETTLE, LONG_SETTLE = 50, 600
"""Substeps, and how many more when something still moves."""
STILL = (1e-3, 1e-2)
"""Summed linear (m/s) and angular (rad/s) speeds below which things lie still."""

TRIPLE_HEIGHTS: dict[Spread, tuple[float, float, float]] = {
    "ring": (0.95, 0.95, 0.0),
    "object_triples": (0.95, 0.92, 1.0),
    "plate_triples": (1.0, 0.92, 0.96),
}
"""Heights from which object, plate and third thing are let go, metres; the code bases agree on these."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What decides whether two success rates may be compared."""

    heights: Mapping[Spread, tuple[float, float, float]]
    """Let-go heights of object, plate and third thing, metres."""
    settle: bool
    """Do things come to rest before the first picture? Else they fall during the first policy steps."""
    published_distractor: bool
    """Repeat the slip that leaves out one of eight distractors of MultiCarrotTest?"""
    texture_of_table: bool
    """Blend in the table's own texture (and none for table 0) instead of the one the episode id names?"""
    move_stops: bool
    """Does the object lose its speed when PositionChangeTo moves it?"""
    move_settles: bool
    """Does physics run 50 substeps before the step in which it was moved is judged?"""
    source: str


PROTOCOLS: dict[str, Protocol] = {
    "mended": Protocol(
        heights={"trained": (0.95, 0.95, 0.0), **TRIPLE_HEIGHTS},
        settle=True,
        published_distractor=False,
        texture_of_table=False,
        move_stops=True,
        move_settles=True,
        source="RL4VLA 55f966d6 with its slips mended",
    ),
    "rl4vla": Protocol(
        heights={"trained": (0.95, 0.95, 0.0), **TRIPLE_HEIGHTS},
        settle=True,
        published_distractor=True,
        texture_of_table=False,
        move_stops=False,
        move_settles=True,
        source="RL4VLA 55f966d6; it reports success in the last of 80 steps (success_at_end here)",
    ),
    "rlinf": Protocol(
        heights={"trained": (0.90, 0.90, 0.0), **TRIPLE_HEIGHTS},
        settle=False,
        published_distractor=True,
        texture_of_table=True,
        move_stops=False,
        move_settles=False,
        source="RLinf a3816b59; it reports success in any step (success_once here)",
    ),
}
"""Name -> rules. The first is the default. All run on CPU physics; published runs used PhysX on a GPU."""

ACTION_UNITS: dict[str, tuple[float, ...]] = {
    "physical": (1.0,) * 7,
    "scaled": (0.05,) * 3 + (0.25,) * 3 + (1.0,),
}
"""What an action of 1 means per dim, metres, radians, gripper. "physical" passes numbers on as published policies write
them; "scaled" makes [-1, 1] span what the arm does in a step, a little more than 98 % of BridgeData's actions."""


def protocol_record(name: str) -> dict[str, Any]:
    """JSON values of a protocol."""
    rules = asdict(PROTOCOLS[name])
    return {"name": name, **rules, "heights": {spread: list(z) for spread, z in rules["heights"].items()}}
