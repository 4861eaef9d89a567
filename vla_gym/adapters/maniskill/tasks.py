"""ManiSkill3's twelve tabletop tasks that need no download, as data; loads no simulator.

Names, robots, horizons, rewards and cameras: ManiSkill 3.0.1 (`mani_skill/envs/tasks/tabletop`). It has no
sentences for these tasks; these here describe its scenes and its success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from vla_gym.errors import BadValue, check_integer, check_known
from vla_gym.specs import ActionSpec, Benchmark, Task

TaskReward = Literal["success", "dense"]
Physics = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class TableTask:
    """One of the tasks."""

    instruction: str
    horizon: int
    """Upstream's `max_episode_steps`."""
    wrist_camera: bool = False
    """Whether its robot (`panda_wristcam`) carries one; the others' robot is `panda`."""
    dense: bool = True
    """Whether it has a dense reward."""
    things: tuple[str, ...] = ()
    """Upstream's attributes of the bodies whose poses are privileged, the grasped one first."""


TASKS: dict[str, TableTask] = {
    "PickCube": TableTask("pick up the red cube and hold it at the green ball", 50, things=("cube", "goal_site")),
    "PushCube": TableTask("push the blue cube onto the red and white target", 50, things=("obj", "goal_region")),
    "PullCube": TableTask("pull the blue cube onto the red and white target", 50, things=("obj", "goal_region")),
    "StackCube": TableTask("stack the red cube on the green cube", 50, wrist_camera=True, things=("cubeA", "cubeB")),
    "PlaceSphere": TableTask("put the blue ball into the bin", 50, things=("obj", "bin")),
    "LiftPegUpright": TableTask("stand the red and blue peg upright on the table", 50),
    "PegInsertionSide": TableTask("insert the orange end of the peg into the hole of the box", 100, wrist_camera=True),
    "PullCubeTool": TableTask("pull the blue cube closer with the red L-shaped tool", 100),
    "StackPyramid": TableTask(
        "put the red cube next to the green cube and stack the blue cube on top of both",
        250,
        wrist_camera=True,
        dense=False,
    ),
    "PlugCharger": TableTask("plug the charger into the receptacle", 200, wrist_camera=True, dense=False),
    "PokeCube": TableTask("poke the red cube onto the red and white target with the blue peg", 50),
    "RollBall": TableTask("roll the blue ball onto the red and white target", 80, things=("ball", "goal_region")),
}
"""Upstream's id without "-v1" -> task."""

NUM_TASKS = {f"ManiSkill/{name}": 1 for name in TASKS}
"""Public id -> tasks."""
TRIALS = 1000
"""Start states per task and split; upstream draws any number of them."""
SPLITS = {"train": 0, "test": TRIALS, "validation": 2 * TRIALS}
"""Split -> seed of its first start state."""
CONTROL_MODE = "pd_ee_delta_pose"
RANDOM_SHAPES = ("PegInsertionSide",)
"""Tasks whose bodies have other sizes in every trial."""
NUM_JOINTS = 9
"""Seven of the arm, two of the gripper."""
HAND_DIM, THING_DIM = 9, 7
"""Lengths of the parts of a privileged observation: the hand, and each of a task's `things`."""
SIMULATORS: dict[Physics, str] = {
    "cpu": "vla_gym.adapters.maniskill:ManiSkillSimulator",
    "gpu": "vla_gym.adapters.maniskill:ManiSkillBatch",
}
PHYSICS: dict[Physics, str] = {
    "cpu": "PhysX on the CPU, 100 Hz, one scene per episode; control at 20 Hz",
    "gpu": "PhysX on the GPU, 100 Hz, one batch of all slots; control at 20 Hz; start states drawn on the CPU",
}
"""For the protocol: the same actions lead elsewhere on the other physics."""
CAMERAS = {"image": "base_camera", "wrist_image": "hand_camera"}
"""Observation key -> upstream's camera."""


def maniskill_benchmark(
    env_id: str,
    *,
    split: str = "train",
    task_seed: int = 0,
    task_reward: TaskReward = "success",
    physics: Physics = "cpu",
) -> Benchmark:
    """Describe one ManiSkill task, e.g. "ManiSkill/PickCube".

    Args:
        env_id: a key of `NUM_TASKS`.
        split: "train", "test" or "validation", 1000 start states each; no state is in two.
        task_seed: trial k of "train" is upstream's `reset(seed=task_seed + k)`, of "test" that of 1000 more, of
            "validation" that of 2000 more; >= 0.
        task_reward: "success" pays 1 in a solved state, else 0; "dense" upstream's normalised dense reward, 0 .. 1.
        physics: "cpu", one scene per slot in worker processes, or "gpu", all slots in one batch in this process.

    Raises:
        UnknownName: no such id, split, reward or physics.
        BadValue: `task_seed` is no integer >= 0, or the task has no dense reward.
    """
    check_known("ManiSkill id", env_id, NUM_TASKS)
    for kind, got, known in (
        ("split", split, tuple(SPLITS)),
        ("task reward", task_reward, get_args(TaskReward)),
        ("physics", physics, get_args(Physics)),
    ):
        check_known(kind, got, known)
    check_integer("task_seed", task_seed, 0, 2**31 - len(SPLITS) * TRIALS - 1)
    name = env_id.rpartition("/")[2]
    task = TASKS[name]
    if task_reward == "dense" and not task.dense:
        raise BadValue(f"{env_id} has no dense reward in ManiSkill 3.0.1; task_reward must be 'success'")
    return Benchmark(
        id=env_id,
        tasks=(
            Task(
                name=name,
                instruction=task.instruction,
                horizon=task.horizon,
                num_trials=TRIALS,
                suite="maniskill",
            ),
        ),
        action_dim=7,
        action_spec=ActionSpec(rotation="euler_xyz", gripper="plus_one_opens", frame="delta"),
        state_dim=NUM_JOINTS,
        cameras=tuple(CAMERAS) if task.wrist_camera else ("image",),
        default_image_size=128,
        control_hz=20.0,
        simulator=SIMULATORS[physics],
        simulator_kwargs={"first_seed": task_seed + SPLITS[split], "task_reward": task_reward},
        extra="maniskill",
        requires=("mani_skill", "sapien"),
        newest_python=(3, 12),  # mplib 0.1.1
        batched=physics == "gpu",
        privileged_dim=HAND_DIM + THING_DIM * len(task.things) if task.things and physics == "cpu" else 0,
        places=tuple(HAND_DIM + THING_DIM * thing + axis for thing in range(len(task.things)) for axis in range(3)),
        protocol={
            "upstream_id": f"{name}-v1",
            "robot": "panda_wristcam" if task.wrist_camera else "panda",
            "physics": PHYSICS[physics],
            "control_mode": CONTROL_MODE,
            "horizon": task.horizon,
            "horizon_source": "ManiSkill 3.0.1, max_episode_steps of the registered task",
            "start_states": "reset(seed=first_seed + trial); tasks with random shapes are rebuilt for it",
            "camera": f"{CAMERAS['image']}, shader pack minimal, goal markers shown (upstream hides PickCube's)",
            "task_reward": task_reward,
            "state": "joint positions: arm 7 (rad), gripper fingers 2 (m)",
            "action": (
                "delta xyz * 0.1 m in the robot's root frame, Euler angles XYZ * -0.1 rad (upstream's sign: +1 turns "
                "by -0.1; the vector is clipped to length 1 first), gripper +1 opens; relative to the measured pose"
            ),
            "success": "info['success'] at any step; the episode ends there",
        },
    )
