"""The scene on SAPIEN, in this process: stand-ins, published files, and ManiSkill's own arm."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_gym.adapters.plate25.tasks import IDS, plate25_benchmark
from vla_gym.errors import MissingDependency
from vla_gym.specs import StartState
from vla_gym.system.vulkan import sapien_device

pytest.importorskip("sapien")
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


@pytest.mark.parametrize("quality", ["fast", "full"])
def test_a_view_whose_aspect_is_kept_has_black_above_and_below(quality: str, bare: Path) -> None:
    sim = simulator(render_quality=quality, aspect="kept")
    sim.reset(START)
    image = sim.observe()["image"]
    assert image.shape == (64, 64, 3)
    assert image.any(axis=(1, 2)).nonzero()[0][[0, -1]].tolist() == [8, 55]
    sim.close()


@pytest.mark.parametrize("env_id", IDS)
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
    from vla_gym.adapters.plate25 import images as pictures

    sim = simulator(render_quality="full")
    sim.reset(START)
    drawn, foreground = sim._scene.draw()
    frame = sim.frame()
    assert frame.shape == (480, 640, 3)
    assert 0.02 < foreground.mean() < 0.6
    np.testing.assert_array_equal(frame[foreground], drawn[foreground])
    photo = pictures.photo(sim._assets, sim._episode.table, (480, 640))
    np.testing.assert_array_equal(frame[~foreground], photo[~foreground])


def test_things_lie_still_before_the_first_picture(bare: Path) -> None:
    settled, falling = simulator(), simulator(protocol="rlinf")
    settled.reset(START)
    falling.reset(START)
    assert max(settled._scene.speeds()) < 0.05
    assert falling._object.pose.p[2] == pytest.approx(0.90)
    for sim in (settled, falling):
        np.testing.assert_allclose(sim.observe()["state"][:3], [-0.01840777, 0.0398835, 0.22242722], atol=1e-6)


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


def test_an_object_laid_on_the_plate_counts_and_pays_only_once_grasped(bare: Path) -> None:
    from vla_gym.adapters.plate25.simulator import Progress

    sim = simulator()
    sim.reset(START)
    assert not sim.step(STILL).success
    lay_on_plate(sim)
    sim.step(STILL)
    lying = sim.step(STILL)
    assert (lying.success, lying.reward, lying.terminated) == (True, 0.0, False)
    sim._progress = Progress(grasped=True)
    assert sim.step(STILL).reward == pytest.approx(1.0)


def test_success_ends_an_episode_where_that_was_asked_for(bare: Path) -> None:
    sim = simulator(success_ends=True)
    sim.reset(START)
    assert not sim.step(STILL).terminated
    lay_on_plate(sim)
    sim.step(STILL)
    assert sim.step(STILL).terminated


def test_published_files_are_used_where_they_are(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANISKILL_ASSET_DIR", str(sample))
    sim = simulator("ManiSkill-Plate25-Carrot", render_quality="full")
    names = [thing.name for thing in plate25_benchmark("ManiSkill-Plate25-Carrot").tasks]
    sim.reset(StartState(task_id=names.index("onion on plate"), trial_id=0))
    # A mesh of an onion weighs less than its box would: 1137 kg/m^3 * 5.1 * 6.2 * 5.1 cm^3 = 0.184 kg.
    from vla_gym.adapters.plate25.scene import dynamic_body

    assert 0.03 < dynamic_body(sim._object).mass < 0.15
    assert 0.865 < sim._plate.pose.p[2] < 0.875
    sim.step(np.zeros(7))
