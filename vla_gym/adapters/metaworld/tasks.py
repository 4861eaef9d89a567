"""Meta-World's tasks, sentences, difficulty buckets and published protocols as data; loads no simulator.

Sources: Metaworld 3.1.1 (names, task sets), the instruction table that LeRobot's `metaworld_mt50` data set and
RLinf a3816b59 share (sentences and their order), the difficulty buckets of "Masked World Models for Visual
Control" (28 easy, 11 medium, 6 hard, 5 very hard), lerobot 0.4.4 and RLinf (horizons, settling, trials).
Three orders of the 50 tasks are in use upstream, so tasks are known by name.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

from vla_gym.errors import check_integer, check_known
from vla_gym.specs import ActionSpec, Benchmark, RenderQuality, Task

TaskReward = Literal["success", "dense"]

TASKS: dict[str, tuple[str, str]] = {
    "assembly": ("hard", "Pick up a nut and place it onto a peg"),
    "basketball": ("medium", "Dunk the basketball into the basket"),
    "bin-picking": ("medium", "Grasp the puck from one bin and place it into another bin"),
    "box-close": ("medium", "Grasp the cover and close the box with it"),
    "button-press-topdown": ("easy", "Press a button from the top"),
    "button-press-topdown-wall": ("easy", "Bypass a wall and press a button from the top"),
    "button-press": ("easy", "Press a button"),
    "button-press-wall": ("easy", "Bypass a wall and press a button"),
    "coffee-button": ("easy", "Push a button on the coffee machine"),
    "coffee-pull": ("medium", "Pull a mug from a coffee machine"),
    "coffee-push": ("medium", "Push a mug under a coffee machine"),
    "dial-turn": ("easy", "Rotate a dial 180 degrees"),
    "disassemble": ("very_hard", "Pick a nut out of a peg"),
    "door-close": ("easy", "Close a door with a revolving joint"),
    "door-lock": ("easy", "Lock the door by rotating the lock clockwise"),
    "door-open": ("easy", "Open a door with a revolving joint"),
    "door-unlock": ("easy", "Unlock the door by rotating the lock counter-clockwise"),
    "hand-insert": ("hard", "Insert the gripper into a hole"),
    "drawer-close": ("easy", "Push and close a drawer"),
    "drawer-open": ("easy", "Open a drawer"),
    "faucet-open": ("easy", "Rotate the faucet counter-clockwise"),
    "faucet-close": ("easy", "Rotate the faucet clockwise"),
    "hammer": ("medium", "Hammer a screw on the wall"),
    "handle-press-side": ("easy", "Press a handle down sideways"),
    "handle-press": ("easy", "Press a handle down"),
    "handle-pull-side": ("easy", "Pull a handle up sideways"),
    "handle-pull": ("easy", "Pull a handle up"),
    "lever-pull": ("easy", "Pull a lever down 90 degrees"),
    "peg-insert-side": ("medium", "Insert a peg sideways"),
    "pick-place-wall": ("very_hard", "Pick a puck, bypass a wall and place the puck"),
    "pick-out-of-hole": ("hard", "Pick up a puck from a hole"),
    "reach": ("easy", "Reach a goal position"),
    "push-back": ("hard", "Push the puck to a goal"),
    "push": ("hard", "Push the puck to a goal"),
    "pick-place": ("hard", "Pick and place a puck to a goal"),
    "plate-slide": ("easy", "Slide a plate into a cabinet"),
    "plate-slide-side": ("easy", "Slide a plate into a cabinet sideways"),
    "plate-slide-back": ("easy", "Get a plate from the cabinet"),
    "plate-slide-back-side": ("easy", "Get a plate from the cabinet sideways"),
    "peg-unplug-side": ("easy", "Unplug a peg sideways"),
    "soccer": ("medium", "Kick a soccer into the goal"),
    "stick-push": ("very_hard", "Grasp a stick and push a box using the stick"),
    "stick-pull": ("very_hard", "Grasp a stick and pull a box with the stick"),
    "push-wall": ("medium", "Bypass a wall and push a puck to a goal"),
    "reach-wall": ("easy", "Bypass a wall and reach a goal"),
    "shelf-place": ("very_hard", "Pick and place a puck onto a shelf"),
    "sweep-into": ("medium", "Sweep a puck into a hole"),
    "sweep": ("medium", "Sweep a puck off the table"),
    "window-open": ("easy", "Push and open a window"),
    "window-close": ("easy", "Push and close a window"),
}
"""Task -> (difficulty bucket, sentence), in the order of the instruction table (RLinf's task ids of MT50)."""

MT10 = (
    *("reach", "push", "pick-place", "door-open", "drawer-open", "drawer-close"),
    *("button-press-topdown", "peg-insert-side", "window-open", "window-close"),
)
"""Order of the package's MT10."""
ML45_TEST = ("bin-picking", "box-close", "hand-insert", "door-lock", "door-unlock")
"""Order of the package's ML45 test set, and of RLinf's."""

TASK_SETS: dict[str, tuple[str, ...]] = {
    "MetaWorld-MT50": tuple(TASKS),
    "MetaWorld-MT10": MT10,
    "MetaWorld-ML45": tuple(name for name in TASKS if name not in ML45_TEST),
    "MetaWorld-ML45-test": ML45_TEST,
    **{f"MetaWorld/{name}": (name,) for name in TASKS},
}
"""Public id -> tasks."""
NUM_TASKS = {env_id: len(names) for env_id, names in TASK_SETS.items()}

TRIALS = 50
"""Frozen start states per task, as `metaworld.MT1` makes them."""
MOST_STARTS = 10_000
"""Start states per task that can be asked for; drawing them takes 1.2 ms each, in every process that plays the task."""
TASK_SEED = 42
"""Default seed of `MT1`; lerobot's too."""
PLACES = (4, 5, 6, 11, 12, 13, 36, 37, 38)
"""Where the two things and the goal are, in Meta-World's observation of 39 numbers (`SawyerXYZEnv._get_obs`)."""
SPLITS = {"train": 0, "test": 1, "validation": 2}
"""Split -> offset of the seed; the package's ML1 seeds its test goals the same way."""
CAMERA = "corner4"
"""`corner2` moved to (0.75, 0.075, 0.7), which RLinf and lerobot do by hand, under its name in metaworld >= 3.1."""


@dataclass(frozen=True, kw_only=True)
class MetaWorldProtocol:
    """Rules of an evaluation: success rates of different rules do not compare."""

    horizon: int
    """Policy steps per episode; settle steps come on top."""
    settle_steps: int
    """Zero actions after the reset, before the policy sees anything."""
    published_trials: int
    """Episodes per task behind the published rates."""
    source: str
    """Publication of the numbers, and the differences of that run."""


RLINF_RESET = (
    "its reset sends one zero action more, to all slots: new episodes there begin after 16, and those under way make a "
    "step that is not counted"
)
"""Difference of settling, which is its 15 alone here."""

PROTOCOLS: dict[str, MetaWorldProtocol] = {
    "rlinf": MetaWorldProtocol(
        horizon=100,
        settle_steps=15,
        published_trials=10,
        source=f"RLinf a3816b59, MT50 recipes (500 environments); its goals are drawn unseeded; {RLINF_RESET}",
    ),
    "rlinf-ml45": MetaWorldProtocol(
        horizon=160,
        settle_steps=15,
        published_trials=20,
        source="RLinf a3816b59, ML45 evaluation (100 environments on the 5 test tasks); goals unseeded; " + RLINF_RESET,
    ),
    "lerobot": MetaWorldProtocol(
        horizon=500,
        settle_steps=0,
        published_trials=10,
        source="lerobot 0.4.4 envs/metaworld.py: MT1(seed=42), then goals from the global NumPy state",
    ),
}
"""Success at any step counts in all of them, and ends the episode here."""


def default_protocol(env_id: str) -> str:
    """Return RLinf's: 160 steps, as it evaluates, for ML45; for all others 100, as it trains."""
    return "rlinf-ml45" if env_id.startswith("MetaWorld-ML45") else "rlinf"


def metaworld_benchmark(
    env_id: str,
    *,
    protocol: str | None = None,
    split: str = "train",
    task_seed: int = TASK_SEED,
    render_quality: RenderQuality = "full",
    task_reward: TaskReward = "success",
    sampled_starts: int = 0,
) -> Benchmark:
    """Describe a set of Meta-World tasks (`MetaWorld-MT50`) or one of them (`MetaWorld/reach`).

    Args:
        env_id: a key of `TASK_SETS`.
        protocol: a key of `PROTOCOLS`; sets horizon and settling. Default: `default_protocol`.
        split: "train" is `MT1(name, seed=task_seed)`, trial k its k-th task; "test" the same of `task_seed + 1`,
            "validation" of `task_seed + 2`.
        task_seed: seed of the frozen start states, >= 0.
        render_quality: "full" is upstream's image; "fast" leaves out shadows and reflections, which is
            3-4 times faster in software. Policies see the difference: results are not comparable.
        task_reward: "success" pays 1 in a solved state, else 0; "dense" pays Meta-World's own, 0 .. 10.
        sampled_starts: start states per task, drawn on in the order in which `MT1` draws its 50: trial k is the same
            whatever the number. 0 takes those 50.

    Raises:
        UnknownName: no such id, protocol, split, quality or reward.
        BadValue: `task_seed` plus a split's offset is no seed of NumPy, or `sampled_starts` outside 0 .. `MOST_STARTS`.
    """
    check_known("Meta-World id", env_id, TASK_SETS)
    protocol = default_protocol(env_id) if protocol is None else protocol
    for kind, got, known in (
        ("Meta-World protocol", protocol, PROTOCOLS),
        ("split", split, SPLITS),
        ("render quality", render_quality, get_args(RenderQuality)),
        ("task reward", task_reward, get_args(TaskReward)),
    ):
        check_known(kind, got, known)
    check_integer("task_seed", task_seed, 0, 2**32 - len(SPLITS))
    check_integer("sampled_starts", sampled_starts, 0, MOST_STARTS, note=f"per task; 0 takes the {TRIALS} frozen ones")
    trials = sampled_starts or TRIALS
    rules = PROTOCOLS[protocol]
    drawn_on = f", drawn on to {trials} per task: published protocols have {TRIALS}" if trials > TRIALS else ""
    return Benchmark(
        id=env_id,
        tasks=tuple(
            Task(name=name, instruction=TASKS[name][1], horizon=rules.horizon, num_trials=trials, suite=TASKS[name][0])
            for name in TASK_SETS[env_id]
        ),
        action_dim=4,
        action_spec=ActionSpec(rotation="none", gripper="plus_one_closes", frame="delta_target"),
        state_dim=4,
        privileged_dim=39,
        places=PLACES,
        cameras=("image",),
        default_image_size=480,
        control_hz=80.0,
        simulator="vla_gym.adapters.metaworld:MetaWorldSimulator",
        simulator_kwargs={
            "task_seed": task_seed + SPLITS[split],
            "settle_steps": rules.settle_steps,
            "render_quality": render_quality,
            "task_reward": task_reward,
        },
        extra="metaworld",
        requires=("metaworld", "mujoco"),
        start_kind=f"sampled start states (split {split})" if trials != TRIALS else "start states",
        protocol={
            "name": protocol,
            **asdict(rules),
            "trials_per_task": trials,
            "start_states": f"metaworld.MT1(task, seed=task_seed).train_tasks[trial], frozen{drawn_on}",
            "camera": f"{CAMERA}, both image axes reversed",
            "render_quality": render_quality,
            "task_reward": task_reward,
            "state": "hand position 3, gripper opening 1 (0 closed, 1 open)",
            "action": "delta xyz * 0.01 m of the hand's target, gripper effort (+1 closes); 80 Hz",
            "success": "info['success'] at any step; the episode ends there",
            "suites": "difficulty buckets; published averages are the unweighted mean of the four buckets",
        },
    )


def expert_name(task: str) -> str:
    """Return the class of `metaworld.policies` that solves `task`, e.g. "SawyerReachV3Policy"."""
    check_known("Meta-World task", task, TASKS)
    stem = {"peg-insert-side": "peg-insertion-side"}.get(task, task)
    return "Sawyer" + "".join(word.capitalize() for word in stem.split("-")) + "V3Policy"
