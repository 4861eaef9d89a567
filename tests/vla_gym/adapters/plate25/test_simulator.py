"""The scene on SAPIEN, in this process: stand-ins, published files, and ManiSkill's own arm."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_gym.adapters.plate25.tasks import IDS, plate25_benchmark
from vla_gym.errors import MissingDependency
from vla_gym.specs import StartState
from vla_gym.system.vulkan import sapien_device

sapien = pytest.importorskip("sapien")

from vla_gym.adapters.plate25.assets import STAND_IN_ARM  # noqa: E402
from vla_gym.adapters.plate25.simulator import TaskProgress, grips, lies_on, task_progress  # noqa: E402

pytestmark = pytest.mark.sim

START = StartState(task_id=3, trial_id=1)


@pytest.fixture(autouse=True)
def _can_draw() -> None:
    try:
        sapien_device({})
    except MissingDependency as error:
        pytest.skip(str(error))


def simulator(env_id: str = "ManiSkill-Plate25", *, size: int = 64, **options: Any) -> Any:
    from vla_gym.adapters.plate25.simulator import Plate25Simulator

    benchmark = plate25_benchmark(env_id, **{"render_quality": "fast", **options})
    return Plate25Simulator(benchmark.tasks, size, ("image",), **benchmark.simulator_kwargs)


def trace(sim: Any, start: StartState, actions: np.ndarray) -> list[bytes]:
    """Fingerprint, then every step's whole moving state and outcome."""
    found = [sim.reset(start).encode()]
    for action in actions:
        outcome = sim.step(action)
        found.append(sim._scene.moving_state().tobytes() + repr(outcome).encode())
    return found


FEW = ("ManiSkill-Plate25", "ManiSkill-Plate25-VisionWhole05", "ManiSkill-Plate25-MultiPlateTest")


@pytest.mark.parametrize("env_id", [pytest.param(one, marks=() if one in FEW else pytest.mark.thorough) for one in IDS])
def test_every_id_resets_steps_and_shows_something(env_id: str, bare: Path) -> None:
    sim = simulator(env_id)
    first = sim.reset(START)
    seen = sim.observe()
    assert seen["image"].shape == (64, 64, 3)
    assert seen["image"].std() > 5
    assert seen["state"].shape == (8,)
    outcome = sim.step(np.zeros(7, dtype=np.float32))
    assert not outcome.terminated
    assert abs(outcome.reward) <= 1.2
    assert sim.reset(START) == first
    assert sim.reset(dataclasses.replace(START, trial_id=2)) != first
    sim.close()


def test_an_episode_is_the_same_bit_for_bit_whatever_came_before(bare: Path) -> None:
    rng = np.random.default_rng(0)
    actions = np.concatenate([rng.uniform(-0.04, 0.04, (10, 6)), rng.choice([-1.0, 1.0], (10, 1))], axis=1)
    actions[:, 2] -= 0.02  # down, into whatever lies there
    used, fresh = simulator("ManiSkill-Plate25-MultiPlateTest"), simulator("ManiSkill-Plate25-MultiPlateTest")
    other = StartState(task_id=100, trial_id=0)
    trace(used, other, actions)
    assert trace(used, START, actions) == trace(fresh, START, actions)
    assert trace(used, other, actions) != trace(used, START, actions)


def test_robot_and_objects_are_shown_as_drawn(bare: Path) -> None:
    from vla_gym.adapters.plate25 import images

    sim = simulator(render_quality="full")
    sim.reset(START)
    drawn, foreground = sim._scene.draw()
    frame = sim.frame()
    assert frame.shape == (480, 640, 3)
    assert 0.02 < foreground.mean() < 0.6
    np.testing.assert_array_equal(frame[foreground], drawn[foreground])
    photo = images.photo(sim._assets, sim._episode.table, (480, 640))
    np.testing.assert_array_equal(frame[~foreground], photo[~foreground])


def test_position_change_moves_the_object_after_five_steps(bare: Path) -> None:
    sim = simulator("ManiSkill-Plate25-PositionChangeTo")
    sim.reset(START)
    places = []
    for _ in range(6):
        sim.step(np.zeros(7, dtype=np.float32))
        places.append(np.array(sim._object.pose.p))
    assert np.linalg.norm(places[3][:2] - places[0][:2]) < 0.01
    assert np.linalg.norm(places[4][:2] - places[3][:2]) > 0.1
    np.testing.assert_allclose(places[4][:2], sim._layout.moved_to.position[:2], atol=0.03)


def test_the_hand_goes_where_it_is_sent(bare: Path) -> None:
    def play(sim: Any, move: list[float]) -> np.ndarray:
        sim.reset(START)
        hand = sim._scene.arm.links["ee_gripper_link"].entity
        before = np.array(hand.pose.p)
        for _ in range(4):
            sim.step(np.array([*move, 0.0, 0.0, 0.0, 1.0]))
        for _ in range(4):
            sim.step(np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]))
        return np.array(hand.pose.p) - before

    sim, scaled = simulator(), simulator(action_units="scaled")
    # Four times that, along the axes of the base, which is turned half round: x and y change their sign.
    np.testing.assert_allclose(play(sim, [0.01, 0.02, 0.01]), [-0.04, -0.08, 0.04], atol=0.004)
    assert sim.observe()["state"][6] < 0.02  # closed
    play(scaled, [0.2, 0.4, 0.2])
    np.testing.assert_allclose(scaled.observe()["state"], sim.observe()["state"], atol=1e-5)


STILL = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])


def lay_on_plate(sim: Any) -> None:
    """Put the object 4 cm above the middle of the plate, at rest."""
    from vla_gym.adapters.plate25.layouts import Place

    x, y, z = (float(number) for number in sim._plate.pose.p)
    sim._scene.move(sim._object, Place((x, y, z + 0.04), (1.0, 0.0, 0.0, 0.0)), stop=True)


@pytest.mark.parametrize("success_ends", [False, True])
def test_an_object_laid_on_the_plate_counts_and_pays_only_once_grasped(success_ends: bool, bare: Path) -> None:
    sim = simulator(success_ends=success_ends)
    sim.reset(START)
    first = sim.step(STILL)
    assert not first.success
    assert not first.terminated
    lay_on_plate(sim)
    sim.step(STILL)
    lying = sim.step(STILL)
    assert (lying.success, lying.reward, lying.terminated) == (True, 0.0, success_ends)
    sim._progress = TaskProgress(grasped=True)
    assert sim.step(STILL).reward == pytest.approx(1.0)


def numbers(urdf: Path) -> tuple[dict[str, list[str]], dict[str, float]]:
    """Moving joint -> origin, axis, limits; link -> mass."""
    root = ET.parse(urdf).getroot()  # noqa: S314  our own files
    joints = {}
    for joint in root.iter("joint"):
        limit = joint.find("limit")
        if joint.get("type") in ("revolute", "prismatic") and limit is not None:
            parts = [joint.find(tag).get("xyz").split() for tag in ("origin", "axis")]  # type: ignore[union-attr]
            texts = [*parts[0], *parts[1], limit.get("lower"), limit.get("upper")]
            joints[joint.get("name", "")] = [float(text) for text in texts]
    masses = {link.get("name"): float(link.find("inertial/mass").get("value")) for link in root.iter("link")}  # type: ignore[union-attr, arg-type]
    return joints, masses  # type: ignore[return-value]


def test_the_stand_in_arm_s_joints_and_masses_are_the_published_ones(sample: Path) -> None:
    joints, masses = numbers(sample / "widowx" / "wx250s.urdf")
    own_joints, own_masses = numbers(STAND_IN_ARM)
    assert own_joints == joints
    assert own_masses.items() <= masses.items()


def test_the_arm_moves_as_mani_skill_s_own(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same joints after the same actions as ManiSkill's agent and controller on its own scene."""
    pytest.importorskip("mani_skill")
    import torch
    from mani_skill.envs.scene import ManiSkillScene
    from mani_skill.envs.tasks.digital_twins.bridge_dataset_eval.base_env import WidowX250SBridgeDatasetFlatTable
    from mani_skill.envs.utils.system.backend import parse_sim_and_render_backend

    from vla_gym.adapters.plate25.scene import START_QPOS, TIMESTEP, Arm, set_process_settings

    urdf = sample / "widowx" / "wx250s.urdf"
    monkeypatch.setattr(WidowX250SBridgeDatasetFlatTable, "urdf_path", str(urdf))
    set_process_settings()
    actions = np.random.default_rng(0).uniform(-0.03, 0.03, (6, 7))
    actions[:, 6] = [1, 1, -1, -1, 1, -1]

    def systems() -> list[Any]:
        return [sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem(sapien.Device("cpu"))]

    scene = sapien.Scene(systems())
    scene.timestep = TIMESTEP
    arm = Arm(scene, urdf)
    arm.reset(START_QPOS)
    backend = parse_sim_and_render_backend("physx_cpu", "sapien_cpu")
    upstream_scene = ManiSkillScene([sapien.Scene(systems())], device=torch.device("cpu"), backend=backend)
    upstream_scene.timestep = TIMESTEP
    agent = WidowX250SBridgeDatasetFlatTable(
        upstream_scene, 5, initial_pose=sapien.Pose([0.127, 0.06, 0.85], [0, 0, 0, 1])
    )
    agent.robot.set_pose(sapien.Pose([0.147, 0.028, 0.870], [0, 0, 0, 1]))
    agent.reset(init_qpos=START_QPOS)
    agent.controller.reset()
    for action in actions:
        arm.set_action(action)
        agent.set_action(torch.tensor(action[None], dtype=torch.float32))
        for _ in range(100):
            scene.step()
            upstream_scene.step()
        np.testing.assert_allclose(arm.qpos(), agent.robot.get_qpos()[0].numpy(), atol=1e-5)


PLATE = np.array([0.11, 0.11, 0.006])
CUBE = np.array([0.04, 0.04, 0.04])


@pytest.mark.parametrize(
    ("offset", "force", "on"),
    [
        ((0.0, 0.0, 0.023), 0.1, True),
        ((0.064, 0.0, 0.023), 0.1, True),  # 0.055 + 0.01 is the limit
        ((0.066, 0.0, 0.023), 0.1, False),
        ((0.05, 0.05, 0.023), 0.1, False),  # 0.0707 from the centre
        ((0.0, 0.0, 0.0), 0.1, False),  # not above
        ((0.0, 0.0, 0.072), 0.1, True),  # 0.003 + 0.02 + 0.05 = 0.073 is the limit
        ((0.0, 0.0, 0.074), 0.1, False),
        ((0.0, 0.0, 0.023), 0.03, False),  # more than 0.03 N
    ],
)
def test_lies_on(offset: tuple[float, float, float], force: float, on: bool) -> None:
    assert lies_on(np.array(offset), CUBE, PLATE, force) is on


def test_grips() -> None:
    opening = np.array([0.0, 1.0, 0.0])
    assert grips(np.array([0.0, 0.6, 0.0]), opening)
    assert not grips(np.array([0.0, 0.4, 0.0]), opening)  # less than 0.5 N
    assert not grips(np.array([0.6, 0.0, 0.0]), opening)  # 90 degrees
    near = np.deg2rad(84.0)
    assert grips(np.array([np.sin(near), np.cos(near), 0.0]), opening)
    assert not grips(np.zeros(3), opening)


def test_levels_and_memory() -> None:
    state, paid = TaskProgress(), []
    #          grasping, on plate
    script = [(0, 1), (1, 0), (0, 0), (1, 0), (1, 0), (1, 0), (1, 0), (1, 0), (1, 1), (0, 0), (0, 1)]
    for grasping, on_plate in script:
        before = state
        state = task_progress(before, grasping=bool(grasping), on_plate=bool(on_plate))
        paid.append(round(state.level - before.level, 6))
    # On the plate without a grasp pays nothing. Grasped: 0.1. Five in a row (steps 4-8): 0.1. On the plate while in
    # the gripper: 1. Off it: -1. On it again: 1.
    assert paid == [0, 0.1, 0, 0, 0, 0, 0, 0.1, 1.0, -1.0, 1.0]
    assert sum(paid) == pytest.approx(1.2)
    assert state.success
    assert state.grasped
    assert state.held
