"""LIBERO's expert: which part of a goal is next, its actions; drawers, knobs and dishes worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.zoo.experts.test_libero_placing import DOWN, block
from vla_gym.adapters.libero.scene import Hand, Moving, Placing, Scene
from vla_gym.rotations import axes_of
from vla_gym.specs import Task
from zoo.experts.libero import (
    LEAN,
    DraggingSkill,
    DrawerSkill,
    LiberoExpert,
    SkillStage,
    TurningSkill,
    is_dragged,
    next_part,
)
from zoo.experts.libero_placing import CLOSING, POINTING
from zoo.experts.motion import yaw_of

TASK = Task(name="put", instruction="put it", horizon=100, num_trials=1, suite="libero_object")


def scene(hand: tuple[float, float, float], *met: bool) -> Scene:
    """A 4 x 4 x 6 cm block at x = 10 cm that goes into a basket at y = 20 cm, once for each of `met`."""
    thing = block(0.1, 0.0, 0.03, (0.02, 0.02, 0.03))
    parts = [Placing(met=one, thing=thing, grip=thing, target=block(0.0, 0.2, 0.07, (0.06, 0.06, 0.07))) for one in met]
    return Scene(hand=Hand(point_3=np.array(hand), quat_4=DOWN), parts=tuple(parts))


def test_actions_are_ways_over_the_controllers_range() -> None:
    action = LiberoExpert(TASK).action(scene((0.1, 0.01, 0.132), False).to_vector())
    # 1 cm in -y and 2 cm down, in units of 5 cm; the hand is turned right; open.
    np.testing.assert_allclose(action, [0, -0.2, -0.4, 0, 0, 0, -1], atol=1e-6)
    assert action.dtype == np.float32
    assert np.abs(LiberoExpert(TASK).action(scene((2.0, 2.0, 2.0), False).to_vector())).max() == 1.0


@pytest.mark.parametrize(("met", "index"), [((False, False), 0), ((True, False), 1), ((False, True), 0), ((True,), 0)])
def test_the_first_part_that_does_not_hold_is_next(met: tuple[bool, ...], index: int) -> None:
    assert next_part(scene((0.0, 0.0, 0.3), *met)) == index


START = Hand(point_3=np.array([-0.2, 0.0, 1.2]), quat_4=DOWN)


def drawer(way: float, y: float = -0.1) -> Moving:
    """A drawer whose bar lies along x at y, standing out to -y; its joint's axis is +y."""
    return Moving(
        met=False,
        handle=block(0.0, y, 1.0, (0.04, 0.008, 0.008)),
        turns=False,
        axis_3=np.array([0.0, 1.0, 0.0]),
        anchor_3=np.array([0.0, 0.1, 1.0]),
        way=way,
    )


def played(skill: DrawerSkill | TurningSkill, part: Moving) -> tuple[list[SkillStage], Moving]:
    """The stages in a world in which the hand goes a third of what is asked and a drawer follows a hand at it."""
    hand, seen = START, []
    for _ in range(300):
        command = skill.command(hand, part)
        if command is None:
            return seen, part
        if skill.stage not in seen:
            seen.append(skill.stage)
        step_3 = np.clip(command.point_3 - hand.point_3, -0.05, 0.05) / 3
        near = np.linalg.norm(hand.point_3 - part.handle.centre_3) < 0.03
        if skill.stage is SkillStage.MOVE and command.closed and near:
            along = float(step_3 @ part.axis_3)
            moved = replace(part.handle, origin_3=part.handle.origin_3 + along * part.axis_3)
            part = replace(part, handle=moved, way=part.way - along)
        hand = Hand(point_3=hand.point_3 + step_3, quat_4=command.quat_4)
    raise AssertionError(seen)


@pytest.mark.parametrize("way", [-0.15, 0.12])
def test_a_drawer_is_moved_all_the_way_and_the_hand_goes_back(way: float) -> None:
    seen, part = played(DrawerSkill(), drawer(way))
    # Closed fingers have nothing to take or to let go.
    assert seen == [one for one in SkillStage if way < 0 or one not in (SkillStage.HOLD, SkillStage.LET_GO)]
    assert part.way * math.copysign(1.0, way) <= 0.0


def knob(way: float) -> Moving:
    """A knob whose ridge lies along x, 6 cm long; the fingers close along y."""
    ridge = block(0.0, 0.0, 0.9, (0.03, 0.01, 0.02))
    return Moving(met=False, handle=ridge, turns=True, axis_3=np.array([0.0, 0.0, 1.0]), anchor_3=np.zeros(3), way=way)


@pytest.mark.parametrize(("way", "yaw"), [(1.0, -math.pi / 2), (4.0, math.pi / 2), (-1.0, -math.pi / 2)])
def test_a_hand_is_put_on_a_knob_so_that_half_the_turn_is_near_to_where_it_is(way: float, yaw: float) -> None:
    # The hand stands at -90 degrees. A way of 4 rad from there ends 4 from it; from half a turn back, 0.9 from it.
    command = TurningSkill().command(START, knob(way))
    assert command is not None
    assert math.remainder(yaw_of(command.quat_4, CLOSING) - yaw, 2 * math.pi) == pytest.approx(0.0, abs=1e-6)


def door(way: float) -> Moving:
    """A door that turns about the z axis through the origin, held by an upright bar 24 cm away along -x, at 1 m."""
    bar = block(-0.24, 0.0, 1.0, (0.01, 0.01, 0.07))
    return Moving(met=False, handle=bar, turns=True, axis_3=np.array([0.0, 0.0, 1.0]), anchor_3=np.zeros(3), way=way)


@pytest.mark.parametrize(("way", "led"), [(-1.5, -0.35), (0.05, 0.15)])
def test_a_door_is_led_round_its_hinge_and_beyond_where_it_should_be(way: float, led: float) -> None:
    skill = TurningSkill()
    skill.stage = SkillStage.MOVE
    command = skill.command(Hand(point_3=np.array([-0.24, 0.0, 1.05]), quat_4=DOWN), door(way))
    assert command is not None
    # By 0.35 rad at most, else by the way and 0.1 more; 1.8 cm below the bar's top at 107 cm.
    np.testing.assert_allclose(command.point_3, [-0.24 * math.cos(led), -0.24 * math.sin(led), 1.052])


@pytest.mark.parametrize(("part", "forward"), [(knob(1.0), -1.0), (door(-1.0), 1.0)])
def test_a_hand_leans_back_at_a_knob_and_forward_at_a_door(part: Moving, forward: float) -> None:
    command = TurningSkill().command(START, part)
    assert command is not None
    x, _, z = axes_of(command.quat_4)[:, POINTING]
    np.testing.assert_allclose([x, z], [forward * math.sin(LEAN), -math.cos(LEAN)])


DISH = block(0.0, 0.0, 0.91, (0.1, 0.1, 0.01))
PART = Placing(met=False, thing=DISH, grip=DISH, target=block(0.0, 0.3, 0.9, (0.05, 0.05, 0.002)))


def test_flat_and_broad_things_are_dragged_along_the_table() -> None:
    assert is_dragged(PART)
    assert not is_dragged(replace(PART, thing=block(0.0, 0.0, 0.91, (0.03, 0.1, 0.01))))  # fits between the fingers
    assert not is_dragged(replace(PART, thing=block(0.0, 0.0, 0.95, (0.1, 0.1, 0.05))))
    assert not is_dragged(replace(PART, target=block(0.0, 0.3, 1.2, (0.05, 0.05, 0.002))))  # a shelf


def hand(*point: float) -> Hand:
    return Hand(point_3=np.array(point), quat_4=DOWN)


def test_fingers_come_down_inside_the_rim_and_lead_the_dish() -> None:
    skill = DraggingSkill()
    above = skill.command(hand(0.0, -0.2, 1.2), PART)
    assert above is not None
    # A fifth of the radius towards the target.
    np.testing.assert_allclose(above.point_3, [0.0, 0.02, 0.9 + 0.006 + 0.07])
    down = skill.command(hand(0.0, 0.02, 0.976), PART)
    assert down is not None
    np.testing.assert_allclose(down.point_3, [0.0, 0.02, 0.906])
    dragged = skill.command(hand(0.0, 0.02, 0.906), PART)
    assert dragged is not None
    np.testing.assert_allclose(dragged.point_3, [0.0, 0.1, 0.906])  # 8 cm ahead
    assert above.closed
    assert dragged.closed
    skill.command(hand(0.0, 0.1, 0.906), replace(PART, met=True))
    assert skill.stage is SkillStage.BACK


def test_fingers_that_the_dishs_floor_stops_have_come_down() -> None:
    skill = DraggingSkill()
    skill.command(hand(0.0, 0.02, 0.976), PART)
    skill.command(hand(0.015, 0.02, 0.918), PART)  # still 1.8 cm over the table
    assert skill.stage is SkillStage.REACH
    skill.command(hand(0.015, 0.02, 0.916), PART)
    assert skill.stage is SkillStage.MOVE
