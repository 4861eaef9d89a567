"""PutOnPlateInScene25 ("ManiSkill-Plate25"): ids, tasks and protocol of the published suite; loads no simulator.

Named rules (`PROTOCOLS`) on which the published code bases differ or err are written to `protocol.json`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import get_args

from vla_gym.adapters.plate25.assets import DOWNLOAD, Assets, find_assets, missing
from vla_gym.adapters.plate25.catalogue import OBJECTS, PLATES, TEMPLATES
from vla_gym.adapters.plate25.runs import MAIN, RUNS, Run, Spread, find_run
from vla_gym.errors import BadValue, MissingDependency, check_known, shown
from vla_gym.specs import ActionSpec, Benchmark, RenderQuality, Task

FAMILY = "ManiSkill-Plate25"
IDS: dict[str, str] = {FAMILY: "", **{f"{FAMILY}-{name}": name for name in RUNS}}
"""Public id -> run."""
NUM_TASKS = {env_id: find_run(name, "train").num_tasks for env_id, name in IDS.items()}
ALIASES = {f"{FAMILY}-CarrotTest": f"{FAMILY}-Carrot"}
STARTS = ("published", "all")

_END = {False: "the episode goes on to step 80", True: "the episode ends there"}

ANNOUNCED: set[tuple[str, ...]] = set()
"""Stand-ins that this process has warned of."""


HORIZON = 80
"""Policy steps per episode."""
CONTROL_HZ = 5.0
PRIVILEGED_DIM = 37
"""Length of `Plate25Simulator.privileged`."""
PLACES = (15, 16, 17, 25, 26, 27)
"""Where object and plate are, in it."""
PUBLISHED_EPISODES = 256
"""Episodes behind each published rate of a run, to which the printed digits fit."""
TRIPLE_HEIGHTS: dict[Spread, tuple[float, float, float]] = {
    "ring": (0.95, 0.95, 0.0),
    "object_triples": (0.95, 0.92, 1.0),
    "plate_triples": (1.0, 0.92, 0.96),
}
"""Heights from which object, plate and third thing are let go, metres; the code bases agree on these."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Rules on which the published code bases differ or err: success rates of different rules do not compare."""

    heights: Mapping[Spread, tuple[float, float, float]]
    """Let-go heights of object, plate and third thing, metres."""
    settle: bool
    """Whether things come to rest before the first image; else they fall during the first policy steps."""
    published_distractor: bool
    """Whether to repeat the slip that leaves out one of eight distractors of MultiCarrotTest."""
    texture_of_table: bool
    """Whether to blend in the table's own texture (none for table 0) instead of the one of the episode id."""
    move_stops: bool
    """Whether the object loses its speed when PositionChangeTo moves it."""
    move_settles: bool
    """Whether physics runs 50 substeps before success is read in the step that moved it."""
    source: str


_MENDED = Protocol(
    heights={"trained": (0.95, 0.95, 0.0), **TRIPLE_HEIGHTS},
    settle=True,
    published_distractor=False,
    texture_of_table=False,
    move_stops=True,
    move_settles=True,
    source="RL4VLA 55f966d6 with its slips mended",
)
PROTOCOLS: dict[str, Protocol] = {
    "mended": _MENDED,
    "rl4vla": replace(
        _MENDED,
        published_distractor=True,
        move_stops=False,
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
"""Meaning of an action of 1 per dim, metres, radians, gripper. "physical" passes numbers on as published policies write
them; "scaled" makes [-1, 1] span what the arm does in a step, a little more than 98 % of BridgeData's actions."""

ASPECTS = ("squeezed", "kept")
"""How the view of 640 x 480 becomes a square: made narrower, as OpenVLA's processors do, or with black above and below,
as openpi's."""


def plate25_benchmark(
    env_id: str,
    *,
    split: str = "train",
    protocol: str = "mended",
    action_units: str = "physical",
    render_quality: RenderQuality = "full",
    aspect: str = "squeezed",
    starts: str | None = None,
    stand_ins: bool = True,
    success_ends: bool = False,
) -> Benchmark:
    """Describe the training set (`ManiSkill-Plate25`) or one of the 16 evaluation runs (`ManiSkill-Plate25-Plate`).

    Args:
        env_id: a key of `IDS`.
        split: of the training set, "train", "test" or "all". A run has the split of its name alone, also for "train".
        protocol: a key of `PROTOCOLS`.
        action_units: meaning of an action of 1, a key of `ACTION_UNITS`.
        render_quality: "full" draws 640 x 480 pixels and shrinks them, as published; "fast" draws small images.
        aspect: a key of `ASPECTS`: what happens to the sides of the image.
        starts: "all" offers every start state of a task, "published" 256 (or just above) of a run, evenly spread.
            Default: "all" for the training set, "published" for runs.
        success_ends: whether the first success ends the episode, as published recipes train. Published rates
            are of episodes that always last 80 steps.
        stand_ins: whether boxes and generated images may take the place of published files that are missing here.

    Raises:
        UnknownName: no such id, split, protocol, unit, quality or choice of start states.
        BadValue: the run has another split.
        MissingDependency: files are missing and `stand_ins` is False, or the folder asked for does not exist.
    """
    for kind, got, known in (
        (f"{FAMILY} id", env_id, IDS),
        ("split", split, MAIN),
        (f"{FAMILY} protocol", protocol, PROTOCOLS),
        ("action units", action_units, ACTION_UNITS),
        ("render quality", render_quality, get_args(RenderQuality)),
        ("aspect of the image", aspect, ASPECTS),
        ("starts", STARTS[0] if starts is None else starts, STARTS),
    ):
        check_known(kind, got, known)
    for option, flag in (("stand_ins", stand_ins), ("success_ends", success_ends)):
        if not isinstance(flag, bool):
            raise BadValue(f"{option} must be true or false, got {shown(flag)}")
    name = IDS[env_id]
    run = find_run(name, split)
    if split not in ("train", run.split):
        raise BadValue(f"{env_id} has only the split of its name, '{run.split}', got '{split}'; leave split out")
    assets = find_assets()
    absent = missing(assets, run)
    _announce(env_id, absent, allowed=stand_ins)
    trials = run.trials
    if (starts or ("published" if name else "all")) == "published":
        trials = min(trials, -(-PUBLISHED_EPISODES // run.num_tasks))
    return Benchmark(
        id=env_id,
        tasks=tuple(
            Task(
                name=task_name,
                instruction=TEMPLATES[template].format(object=OBJECTS[thing].name, plate=PLATES[plate].name),
                horizon=HORIZON,
                num_trials=trials,
                suite=f"plate25_{run.category}",
            )
            for task_name, (thing, plate, template) in zip(run.task_names, run.tasks, strict=True)
        ),
        action_dim=7,
        action_spec=ActionSpec(
            rotation="euler_xyz",
            gripper="plus_one_opens",
            frame="delta_target",
            units="physical" if action_units == "physical" else "scaled",
        ),
        state_dim=8,
        cameras=("image",),
        default_image_size=224,
        control_hz=CONTROL_HZ,
        simulator="vla_gym.adapters.plate25.simulator:Plate25Simulator",
        simulator_kwargs={
            "run": name,
            "split": run.split,
            "protocol": protocol,
            "action_units": action_units,
            "picture": (render_quality, aspect),
            "success_ends": success_ends,
            "assets": asdict(assets),
        },
        extra="maniskill",
        requires=("mani_skill", "sapien"),
        newest_python=(3, 12),  # mplib 0.1.1
        privileged_dim=PRIVILEGED_DIM,
        places=PLACES,
        pays_differences=True,
        split=run.split,
        protocol=_record(run, protocol, action_units, render_quality, aspect, assets, absent)
        | {"success": f"object on plate in this very step; {_END[success_ends]}"},
    )


def _announce(env_id: str, absent: tuple[str, ...], *, allowed: bool) -> None:
    if not absent:
        return
    listed = ", ".join(absent[:4]) + (f" and {len(absent) - 4} more" if len(absent) > 4 else "")
    if not allowed:
        raise MissingDependency(
            f"{env_id}: published files are missing ({listed}) and stand_ins is false. Download with: {DOWNLOAD}"
        )
    if absent not in ANNOUNCED:
        ANNOUNCED.add(absent)
        logging.getLogger("vla_gym").warning(
            "%s: boxes and generated images stand in for missing files (%s); success rates compare with no published "
            "ones. The published files: %s",
            *(env_id, listed, DOWNLOAD),
        )


def _record(
    run: Run,
    protocol: str,
    action_units: str,
    render_quality: str,
    aspect: str,
    assets: Assets,
    absent: tuple[str, ...],
) -> dict[str, object]:
    rules = asdict(PROTOCOLS[protocol])
    return {
        "upstream": run.upstream,
        "category": run.category,
        "protocol": {"name": protocol, **rules, "heights": {spread: list(z) for spread, z in rules["heights"].items()}},
        "episodes": run.total,
        "start_states": "trial k of a task: an episode id spread over tables, positions and yaws (`Run.start`)",
        "physics": "SAPIEN, CPU, 500 Hz; published runs used PhysX on a GPU",
        "picture": f"640 x 480, green screen, {_SHRUNK[aspect]}"
        if render_quality == "full"
        else f"drawn at image_size, green screen, aspect {aspect}",
        "render_quality": render_quality,
        "state": "joint positions: 6 radians, 2 finger metres",
        "action": "delta of the target pose: xyz, Euler XYZ; gripper (+1 opens)",
        "action_units": {"name": action_units, "of_one": list(ACTION_UNITS[action_units])},
        "reward": "change of 0.1 [grasped once] + 0.1 [held 5 steps once] + 1 [on plate now and grasped once]",
        "assets": asdict(assets),
        "stand_ins": list(absent),
    }


_SHRUNK = {
    "squeezed": "shrunk bicubically with its aspect squeezed",
    "kept": "shrunk bilinearly with its aspect kept, black above and below",
}
