"""Meta-World's experts: the controllers' targets worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from zoo.experts.metaworld import GAIN, GripAim, arm_action, insert_peg, open_door, reach_ball

GOAL = (-0.3, 0.4, 0.15)
"""A door's: its hinge stands at (-0.185, 0.75)."""
SHUT, AJAR = (0.191, 0.643, 0.15), (-0.292, 0.374, 0.15)
"""Its handle; and after a quarter turn, clockwise seen from above."""
PEG, HOLE = (0.1, 0.6, 0.02), (-0.25, 0.5, 0.13)


def privileged(
    hand: tuple[float, float, float],
    thing: tuple[float, float, float],
    goal: tuple[float, float, float],
    opening: float = 1.0,
) -> np.ndarray:
    frame = np.concatenate([hand, [opening], thing, np.zeros(11)])
    return np.concatenate([frame, frame, goal])


def test_the_hand_stays_above_the_ball_by_its_fingers_length() -> None:
    aim = reach_ball(privileged((0.0, 0.6, 0.2), PEG, (0.05, 0.85, 0.1)))
    np.testing.assert_allclose(aim.position_3, [0.05, 0.85, 0.145])
    assert aim.effort == 0.0


def test_the_hand_goes_over_the_bar_before_it_comes_down_behind_it() -> None:
    before = open_door(privileged((0.0, 0.6, 0.2), SHUT, GOAL))
    np.testing.assert_allclose(before.position_3, [0.18, 0.675, 0.15 + 0.08], atol=1e-6)  # hinge + slot
    above = open_door(privileged((0.19, 0.68, 0.22), SHUT, GOAL))
    np.testing.assert_allclose(above.position_3, [0.18, 0.675, 0.15], atol=1e-6)
    assert (before.effort, above.effort) == (1.0, 1.0)


def test_behind_the_bar_it_pulls_along_the_arc_and_over_it_not_yet() -> None:
    pull = open_door(privileged((0.195, 0.68, 0.16), SHUT, GOAL))  # at (0.38, -0.07) from the hinge
    np.testing.assert_allclose(pull.position_3, [-0.185 + 0.345, 0.75 - 0.27, 0.15], atol=1e-6)
    too_high = open_door(privileged((0.195, 0.68, 0.22), SHUT, GOAL))
    assert too_high.position_3[1] > 0.67


def test_the_slot_turns_with_the_door() -> None:
    # A quarter turn clockwise takes (x, y) to (y, -x): the slot (0.365, -0.075) to (-0.075, -0.365).
    above = open_door(privileged((-0.26, 0.385, 0.25), AJAR, GOAL))
    np.testing.assert_allclose(above.position_3, [-0.26, 0.385, 0.15], atol=1e-6)
    # and the hand behind the bar at (0.365, -0.07) pulls towards (0.345, -0.27), so (-0.27, -0.345)
    pull = open_door(privileged((-0.255, 0.385, 0.15), AJAR, GOAL))
    np.testing.assert_allclose(pull.position_3, [-0.185 - 0.27, 0.75 - 0.345, 0.15], atol=1e-6)


def test_the_peg_is_fetched_from_above_with_open_fingers() -> None:
    far = insert_peg(privileged((0.0, 0.6, 0.2), PEG, HOLE))
    np.testing.assert_allclose(far.position_3, [0.07, 0.6, 0.04 + 0.1])
    assert far.effort == -1.0


@pytest.mark.parametrize(
    ("height", "beside", "opening", "effort"),
    [
        (0.15, 0.0, 1.0, -1.0),  # too high to begin
        (0.08, 0.0, 1.0, 1.0),  # narrows on the way down
        (0.08, 0.0, 0.45, -1.0),  # too narrow for the peg
        (0.08, 0.02, 1.0, -1.0),  # a finger would come down on the peg
        (0.02, 0.0, 0.45, 1.0),  # beside the peg
    ],
)
def test_fingers_on_the_way_down(height: float, beside: float, opening: float, effort: float) -> None:
    aim = insert_peg(privileged((0.07, 0.6 + beside, 0.04 + height), PEG, HOLE, opening))
    np.testing.assert_allclose(aim.position_3, [0.07, 0.6, 0.04])
    assert aim.effort == effort


def test_a_held_peg_goes_before_the_hole_and_once_in_line_into_it() -> None:
    hand = (0.07, 0.6, 0.05)
    aim = insert_peg(privileged(hand, PEG, HOLE, 0.3))
    # Its head, at (-0.03, 0.6, 0.01), is to go to 0.11 before the goal: by (-0.11, -0.1, 0.12).
    np.testing.assert_allclose(aim.position_3, np.add(hand, (-0.11, -0.1, 0.12)))
    in_line = (0.1, 0.51, 0.135)  # the head 0.01 and 0.005 off the goal
    hand = (0.07, 0.51, 0.165)
    aim = insert_peg(privileged(hand, in_line, HOLE, 0.3))
    np.testing.assert_allclose(aim.position_3, np.add(hand, (-0.22, -0.01, 0.005)))
    assert aim.effort == 1.0


def test_an_action_is_proportional_and_cut() -> None:
    aim = GripAim(position_3=np.array([1.0, 0.01, -1.0]), effort=-1.0)
    action = arm_action(np.zeros(39), aim)
    np.testing.assert_allclose(action, [1.0, GAIN * 0.01, -1.0, -1.0])
    assert action.dtype == np.float32
