"""ManiSkill's simulator in this process, against upstream's own environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from vla_gym.adapters.maniskill.tasks import TASKS, maniskill_benchmark
from vla_gym.observation import ObservationLayout
from vla_gym.specs import RewardRule, StartState
from vla_gym.workers.worker import SubEnv

pytest.importorskip("mani_skill")
pytestmark = pytest.mark.sim

SIZE = 64
QUICK = ("StackPyramid",)


def simulator(name: str, *, cameras: tuple[str, ...] = ("image",), **options: Any) -> Any:
    from vla_gym.adapters.maniskill.simulator import ManiSkillSimulator

    benchmark = maniskill_benchmark(f"ManiSkill/{name}", **options)
    return ManiSkillSimulator(benchmark.tasks, SIZE, cameras, **benchmark.simulator_kwargs)


def actions(count: int) -> np.ndarray:
    """Float32 `[count, 7]`, restless and downwards, so that the hand meets the table and what lies on it."""
    rng = np.random.default_rng(0)
    action_TA = rng.uniform(-1.0, 1.0, (count, 7)).astype(np.float32)
    action_TA[:, 2] -= 0.5
    return np.clip(action_TA, -1.0, 1.0)


def play(sim: Any, trial: int, action_TA: np.ndarray) -> tuple[str, list[bytes], np.ndarray]:
    """Fingerprint of the start, every state's bytes, the last picture."""
    start = sim.reset(StartState(task_id=0, trial_id=trial))
    states = []
    for action_A in action_TA:
        sim.step(action_A)
        states.append(sim._env.get_state().numpy().tobytes())
    return start, states, sim.observe()["image"]


@pytest.fixture(scope="module")
def pick() -> Iterator[Any]:
    sim = simulator("PickCube")
    yield sim
    sim.close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in TASKS]
)
def test_every_task_starts_steps_and_is_drawn(name: str) -> None:
    keys = ("image", "wrist_image") if TASKS[name].wrist_camera else ("image",)
    sim = simulator(name, cameras=keys)
    try:
        first = sim.reset(StartState(task_id=0, trial_id=0))
        outcome = sim.step(np.zeros(7, dtype=np.float32))
        assert (outcome.reward, outcome.success, outcome.terminated) == (0.0, False, False)
        seen = sim.observe()
        assert set(seen) == {"state", *keys}
        assert seen["state"].shape == (9,)
        for key in keys:
            assert (seen[key].shape, seen[key].dtype) == ((SIZE, SIZE, 3), np.uint8)
            assert seen[key].std() > 5
        assert sim.reset(StartState(task_id=0, trial_id=1)) != first
        assert sim.reset(StartState(task_id=0, trial_id=0)) == first
    finally:
        sim.close()


@pytest.mark.parametrize(
    "name",
    [
        "PokeCube",
        pytest.param("PlugCharger", marks=pytest.mark.thorough),
        pytest.param("PegInsertionSide", marks=pytest.mark.thorough),
    ],
)
def test_an_episode_does_not_depend_on_those_before(name: str) -> None:
    """Two, reset in place as upstream does it, go on differently; PegInsertionSide is rebuilt for each trial."""
    sim, other = simulator(name), simulator(name)
    try:
        expected = play(sim, 3, actions(25))
        play(sim, 5, actions(7))
        for found in (play(sim, 3, actions(25)), play(other, 3, actions(25))):
            assert found[0] == expected[0]
            assert found[1] == expected[1]
            np.testing.assert_array_equal(found[2], expected[2])
    finally:
        sim.close()
        other.close()


def test_states_success_and_pictures_are_upstreams(pick: Any) -> None:
    import gymnasium as gym

    shaders = pick._env._sensors["base_camera"].config.shader_config  # with upstream's, a picture takes 7 s more
    upstream: Any = gym.make(
        "PickCube-v1",
        obs_mode="rgb",
        reward_mode="dense",
        control_mode="pd_ee_delta_pose",
        sim_backend="physx_cpu",
        render_backend="cpu",
        sensor_configs={"width": SIZE, "height": SIZE, "shader_config": shaders},
        human_render_camera_configs={"shader_config": shaders},
    ).unwrapped
    upstream.goal_site.show_visual()  # its policies read the goal as numbers
    upstream._hidden_objects.clear()
    observation, _ = upstream.reset(seed=[7])
    pick.reset(StartState(task_id=0, trial_id=7))
    seen = pick.observe()
    for action_A in (*actions(12), None):
        drawn = observation["sensor_data"]["base_camera"]["rgb"][0].numpy()
        np.testing.assert_array_equal(seen["image"], drawn)
        np.testing.assert_array_equal(seen["state"], observation["agent"]["qpos"][0].numpy())
        np.testing.assert_array_equal(pick._env.get_state().numpy(), upstream.get_state().numpy())
        if action_A is not None:
            observation, _, _, _, info = upstream.step(action_A)
            assert pick.step(action_A).success == bool(info["success"])
            seen = pick.observe()
    upstream.close()


def test_success_is_paid_and_stops_a_chunk(pick: Any) -> None:
    """The goal is laid on the cube: the first step ends in success, the other seven are not run."""
    layout = ObservationLayout(cameras=("image",), image_size=SIZE, state_dim=9)
    slot = SubEnv(pick, maniskill_benchmark("ManiSkill/PickCube").tasks, RewardRule(), layout)
    slot.reset(StartState(task_id=0, trial_id=0))
    pick._env.goal_site.set_pose(pick._env.cube.pose)
    report = slot.step(np.zeros((8, 7), dtype=np.float32))
    assert report.step_rewards == (1.0,)
    assert (report.success, report.terminated, report.truncated) == (True, True, False)
    assert report.episode is not None
    assert report.episode.length == 1


def test_rotations_turn_against_their_sign(pick: Any) -> None:
    """The declared convention: +1 on x aims 0.1 m further along x, +1 about z turns by -0.1 rad about z."""
    import sapien

    def aim(action: list[float]) -> Any:
        """Displacement of the hand's target from its pose, in the robot's root frame."""
        pick.reset(StartState(task_id=0, trial_id=0))
        hand = pick._control._arm.ee_pose_at_base.sp
        target = pick._control._target(np.array(action, dtype=np.float32)[:6])
        return target.p - hand.p, (sapien.Pose(q=target.q) * sapien.Pose(q=hand.q).inv()).q

    moved, _ = aim([1, 0, 0, 0, 0, 0, 1])
    np.testing.assert_allclose(moved, [0.1, 0, 0], atol=1e-6)
    _, (w, x, y, z) = aim([0, 0, 0, 0, 0, 1, 1])
    assert 2 * np.arctan2(z, w) == pytest.approx(-0.1, abs=1e-5)
    np.testing.assert_allclose([x, y], 0, atol=1e-6)


def test_dense_rewards_are_upstreams_normalised_ones() -> None:
    sim = simulator("PushCube", task_reward="dense")
    try:
        sim.reset(StartState(task_id=0, trial_id=0))
        rewards = [sim.step(action_A).reward for action_A in actions(3)]
        assert all(0.0 < reward < 1.0 for reward in rewards)
        assert len(set(rewards)) == 3
    finally:
        sim.close()
