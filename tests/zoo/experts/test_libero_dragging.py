"""Dragging: what is dragged, and where the fingers go, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.zoo.experts.test_libero_placing import DOWN, block
from vla_gym.adapters.libero.scene import Hand, Placing
from zoo.experts.libero_dragging import DraggingSkill, Stage, is_dragged

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
    assert skill.stage is Stage.RETREAT


def test_fingers_that_the_dishs_floor_stops_have_come_down() -> None:
    skill = DraggingSkill()
    skill.command(hand(0.0, 0.02, 0.976), PART)
    skill.command(hand(0.015, 0.02, 0.918), PART)  # still 1.8 cm over the table
    assert skill.stage is Stage.DESCEND
    skill.command(hand(0.015, 0.02, 0.916), PART)
    assert skill.stage is Stage.DRAG


def test_fingers_do_not_follow_a_dish_that_tips() -> None:
    skill = DraggingSkill()
    skill.command(hand(0.0, 0.02, 0.976), PART)
    tipped = skill.command(hand(0.0, 0.02, 0.906), replace(PART, thing=block(0.0, 0.0, 0.89, (0.1, 0.1, 0.01))))
    assert tipped is not None
    np.testing.assert_allclose(tipped.point_3[2], 0.906)
