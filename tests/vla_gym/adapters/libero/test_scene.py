"""What an expert reads of a scene: boxes by hand on a two-body scene."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vla_gym.adapters.libero.scene import Moving, Placing

SCENE = """
<mujoco>
  <worldbody>
    <site name="grip" pos="0 0 1"/>
    <body name="hand" pos="0 0 1.1"><geom size=".01"/></body>
    <body name="can" pos="1 2 3" quat="0.7071067811865476 0.7071067811865476 0 0"><freejoint/>
      <geom type="box" size=".1 .2 .3"/>
      <geom type="box" size=".1 .2 .3" pos=".1 0 0" quat="0.7071067811865476 0 0 0.7071067811865476"/>
      <geom type="box" size="9 9 9" contype="0" conaffinity="0"/></body>
    <body name="tray" pos="5 0 0"><geom type="box" size=".2 .2 .01"/>
      <site name="region" type="box" size=".1 .1 .05" pos="0 0 .06"/></body>
  </worldbody>
</mujoco>
"""


def loaded(xml: str, **qpos: float) -> Any:
    """A model, its data with joints (by name of their bodies) moved, and `read_scene` of it: site and body 0 and 1."""
    mujoco = pytest.importorskip("mujoco", reason="needs the libero extra")
    from vla_gym.adapters.libero.goals import read_scene
    from vla_gym.adapters.libero.osc import ArmIndex

    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    for body, value in qpos.items():
        data.qpos[model.jnt_qposadr[model.body(body).jntadr[0]]] = value
    mujoco.mj_forward(model, data)
    arm = ArmIndex(site=0, hand_body=1, qpos=(), qvel=(), actuators=(), gripper_qpos=(), gripper_actuators=())
    return model, lambda *goal: read_scene(model, data, arm, goal)


@pytest.mark.sim
def test_it_reads_boxes_around_what_collides() -> None:
    model, read = loaded(SCENE)
    from vla_gym.adapters.libero.goals import Condition

    inside = Condition(
        kind="in_region", body=model.body("can").id, target=model.site("region").id, size=(0.1, 0.1, 0.05)
    )
    scene = read(inside)
    np.testing.assert_allclose(scene.hand.point_3, [0, 0, 1])
    (part,) = scene.parts
    assert isinstance(part, Placing)
    assert not part.met
    # In its own frame: the first box reaches 0.1 in x and 0.2 in y; the second, turned, from -0.1 to 0.3 and 0.1.
    np.testing.assert_allclose(part.thing.middle_3, [0.1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(part.thing.half_3, [0.2, 0.2, 0.3])
    assert part.thing.top == pytest.approx(3.2)  # its y axis points up
    np.testing.assert_allclose(part.thing.extents_3, [0.2, 0.3, 0.2], atol=1e-12)
    np.testing.assert_allclose(part.target.origin_3, [5, 0, 0.06])
    assert part.target.top == pytest.approx(0.11)
    onto = Condition(kind="on_object", body=model.body("can").id, target=model.body("tray").id)
    (part,) = read(onto).parts
    assert isinstance(part, Placing)
    assert part.target.top == pytest.approx(0.01)


DRAWER = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <site name="grip"/><body name="hand"><geom size=".01"/></body>
    <body name="bowl" pos="3 0 0"><freejoint/><geom size=".04"/></body>
    <body name="drawer" pos="0 1 2"><joint type="slide" axis="0 1 0" range="-0.2 0.01"/>
      <geom type="box" size=".1 .1 .05"/><geom type="box" size=".04 .008 .008" pos="0 -.13 0"/>
      <site name="inside" type="box" size=".1 .1 .05"/></body>
    <body name="knob" pos="1 0 0"><joint type="hinge" axis="0 0 1" range="0 2"/>
      <geom type="box" size=".03 .03 .01"/><geom type="box" size=".03 .01 .02" pos=".01 0 .03"/></body>
  </worldbody>
</mujoco>
"""


@pytest.mark.sim
def test_a_drawer_is_opened_before_and_closed_after_something_goes_in() -> None:
    model, read = loaded(DRAWER, drawer=-0.1)
    from vla_gym.adapters.libero.goals import Condition, in_order

    drawer, knob = (int(model.jnt_qposadr[joint]) for joint in (1, 2))
    put = Condition(kind="in_region", body=model.body("bowl").id, target=model.site("inside").id, size=(0.1, 0.1, 0.05))
    shut = Condition(kind="joint", qpos=(drawer,), compare=">", threshold=-0.005, every=True)
    on = Condition(kind="joint", qpos=(knob,), compare=">=", threshold=0.5)
    opened = Condition(kind="joint", qpos=(drawer,), compare="<", threshold=0.75 * -0.2)
    assert in_order((shut, put), model) == [opened, put, shut]  # out by three quarters of its 0.2
    assert in_order((put, on), model) == [on, opened, put]
    assert in_order((shut, on), model) == [shut, on]  # nothing goes in

    pulled, turned = read(opened, on).parts
    assert isinstance(pulled, Moving)
    assert isinstance(turned, Moving)
    # The bar, which stands out to the side where it opens; halfway from -0.15 to the end, -0.2, from -0.1.
    np.testing.assert_allclose(pulled.handle.centre_3, [0, 0.77, 2])
    assert pulled.way == pytest.approx(-0.075)
    assert (pulled.turns, pulled.met) == (False, False)
    # The ridge on top; halfway from 0.5 to 2.
    np.testing.assert_allclose(turned.handle.centre_3, [1.01, 0, 0.03])
    assert turned.way == pytest.approx(1.25)
    assert turned.turns


DOOR = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <site name="grip"/><body name="hand"><geom size=".01"/></body>
    <body name="door" pos="0 1 2"><joint type="hinge" axis="0 0 1" range="-2 0"/>
      <geom type="box" size=".13 .012 .09" pos="-.13 .013 0"/>
      <geom type="capsule" size=".01 .06" pos="-.24 .054 0" contype="0"/></body>
  </worldbody>
</mujoco>
"""


@pytest.mark.sim
@pytest.mark.parametrize("opened", [0.0, -0.4, -1.5])
def test_a_door_is_held_by_what_stands_out_on_the_side_to_which_it_opens(opened: float) -> None:
    _, read = loaded(DOOR, door=opened)
    from vla_gym.adapters.libero.goals import Condition

    (door,) = read(Condition(kind="joint", qpos=(0,), compare="<", threshold=-1.6)).parts
    assert isinstance(door, Moving)
    # The bar, which others bump into although it bumps into nobody by itself; it turns with the door.
    cosine, sine = np.cos(opened), np.sin(opened)
    np.testing.assert_allclose(
        door.handle.centre_3, [-0.24 * cosine - 0.054 * sine, 1 - 0.24 * sine + 0.054 * cosine, 2], atol=1e-12
    )
    assert door.way == pytest.approx(-1.8 - opened)
