"""Plate25's expert: where the hand goes next, worked out by hand; and that it puts a carrot on the plate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vla_gym import find_benchmark, make_vec
from vla_gym.adapters.plate25.tasks import PRIVILEGED_DIM
from vla_gym.specs import StartState
from zoo.demonstrations.recorder import demonstrate
from zoo.experts.base import expert_class
from zoo.experts.motion import Aim
from zoo.experts.plate25 import arm_action, narrow_yaw, next_aim, plate_view

HALF = np.sqrt(0.5)
DOWN = (HALF, 0.0, HALF, 0.0)
"""A quarter turn about y: the hand points down, its fingers open along y."""
FLAT = (1.0, 0.0, 0.0, 0.0)
LYING = (0.3, 0.1, 0.02, *FLAT, 0.1, 0.03, 0.04)
"""A thing 4 cm high, narrow along y."""
PLATE = (0.4, 0.0, 0.003, *FLAT, 0.11, 0.11, 0.006)


def privileged(
    hand: tuple[float, float, float],
    thing: tuple[float, ...] = LYING,
    *,
    gripped: bool = False,
    units: tuple[float, float] = (0.05, 0.25),
) -> np.ndarray:
    return np.array([*hand, *DOWN, *hand, *DOWN, gripped, *thing, *PLATE, *units])


def test_the_vector_has_the_length_the_benchmark_declares() -> None:
    vector = privileged((0.3, 0.0, 0.2), gripped=True)
    assert len(vector) == PRIVILEGED_DIM == find_benchmark("ManiSkill-Plate25").privileged_dim
    view = plate_view(vector)
    assert view.gripped
    assert (view.metres, view.radians) == (0.05, 0.25)
    np.testing.assert_array_equal(view.plate.size_3, [0.11, 0.11, 0.006])
    assert view.thing.half_height == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("quat", "yaw"),
    [
        (FLAT, np.pi / 2),  # lying as built: y is the narrow side
        ((HALF, 0.0, 0.0, HALF), np.pi),  # a quarter turn about z
        ((HALF, HALF, 0.0, 0.0), -np.pi / 2),  # on its side: z, 4 cm, is level now and narrower than x
    ],
)
def test_fingers_go_across_the_narrower_level_side(quat: tuple[float, ...], yaw: float) -> None:
    thing = plate_view(privileged((0, 0, 0), (0.0, 0.0, 0.0, *quat, 0.1, 0.03, 0.04))).thing
    assert np.sin(2 * (narrow_yaw(thing) - yaw)) == pytest.approx(0.0, abs=1e-9)
    assert abs(np.cos(narrow_yaw(thing) - yaw)) == pytest.approx(1.0)


def test_an_object_is_fetched_from_above_and_gripped_no_deeper_than_the_palm_allows() -> None:
    above = next_aim(plate_view(privileged((0.2, 0.1, 0.2))))
    # Half of its height is 2 cm; fingers reach 1.8 cm below its top: 2 mm above the middle, 8 cm higher for now.
    np.testing.assert_allclose(above.position_3, [0.3, 0.1, 0.102])
    assert above.opened
    there = next_aim(plate_view(privileged((0.3, 0.1, 0.025))))
    np.testing.assert_allclose(there.position_3, [0.3, 0.1, 0.022])
    assert not there.opened


def test_it_is_carried_over_the_plate_let_go_there_and_left() -> None:
    carried = next_aim(plate_view(privileged((0.3, 0.1, 0.03), gripped=True)))
    # Its place is 3 + 3 + 20 + 4 mm up; far away, 6 cm higher; the hand is 1 cm above its middle.
    np.testing.assert_allclose(carried.position_3, [0.4, 0.0, 0.1])
    assert not carried.opened
    placed = (0.41, 0.0, 0.026, *LYING[3:])
    left = next_aim(plate_view(privileged((0.41, 0.0, 0.03), placed, gripped=True)))
    np.testing.assert_allclose(left.position_3, [0.41, 0.0, 0.126])
    assert left.opened


def test_actions_are_relative_to_the_last_target_and_in_the_environments_units() -> None:
    aim = Aim(position_3=np.array([0.3, 0.02, 0.2]), finger_yaw=np.pi / 2 + 0.1, opened=False)
    scaled = plate_view(privileged((0.3, 0.0, 0.2)))
    np.testing.assert_allclose(arm_action(scaled, aim), [0, 0.4, 0, 0, 0, 0.4, -1], atol=1e-6)
    physical = plate_view(privileged((0.3, 0.0, 0.9), units=(1.0, 1.0)))
    np.testing.assert_allclose(arm_action(physical, aim)[:3], [0, 0.0011, -0.04], atol=1e-4)


@pytest.mark.sim
@pytest.mark.parametrize("units", ["physical", "scaled"])
def test_it_puts_a_carrot_on_the_plate(units: str) -> None:
    pytest.importorskip("mani_skill")
    benchmark = replace(find_benchmark("ManiSkill-Plate25", action_units=units), cameras=())
    envs = make_vec(benchmark, 1, chunk=1, privileged=True, autoreset_mode="disabled", num_workers=0)
    try:
        (shown,) = demonstrate(envs, expert_class(benchmark), [(StartState(task_id=0, trial_id=0), 0)])
    finally:
        envs.close()
    assert shown.success
    assert np.abs(shown.action_TA).max() <= 1.0
