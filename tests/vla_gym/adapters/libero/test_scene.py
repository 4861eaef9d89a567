"""What an expert reads of a scene: boxes by hand on a two-body scene, and the way through a vector."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vla_gym.adapters.libero.scene import Scene, Solid

QUARTER_ABOUT_X = np.array([1.0, 1.0, 0.0, 0.0]) / math.sqrt(2)


def solid(seed: int) -> Solid:
    numbers = np.random.default_rng(seed).normal(size=Solid.SIZE)
    return Solid.from_vector(numbers)


def test_a_scene_survives_the_way_through_a_vector() -> None:
    scene = Scene(hand_3=np.arange(3.0), hand_quat_4=np.arange(4.0), thing=solid(0), target=solid(1))
    vector = scene.to_vector()
    assert vector.shape == (Scene.SIZE,) == (33,)
    again = Scene.from_vector(vector)
    np.testing.assert_array_equal(again.to_vector(), vector)
    np.testing.assert_array_equal(again.target.half_3, scene.target.half_3)


def test_top_and_bottom_of_a_box_that_lies_on_its_side() -> None:
    # Its middle is 2 cm along its own y axis, which points up; half of its 4 cm along y is above that.
    lying = Solid(
        origin_3=np.array([0.5, 0.0, 1.0]),
        quat_4=QUARTER_ABOUT_X,
        middle_3=np.array([0.01, 0.02, 0.0]),
        half_3=np.array([0.03, 0.04, 0.05]),
    )
    np.testing.assert_allclose(lying.centre_3, [0.51, 0.0, 1.02], atol=1e-12)
    assert lying.top == pytest.approx(1.06)
    assert lying.bottom == pytest.approx(0.98)


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


@pytest.mark.sim
def test_it_reads_boxes_around_what_collides() -> None:
    mujoco = pytest.importorskip("mujoco", reason="needs the libero extra")
    from vla_gym.adapters.libero.goals import Condition, read_scene
    from vla_gym.adapters.libero.osc import ArmIndex

    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    arm = ArmIndex(
        site=model.site("grip").id,
        hand_body=model.body("hand").id,
        qpos=(),
        qvel=(),
        actuators=(),
        gripper_qpos=(),
        gripper_actuators=(),
    )
    inside = Condition(
        kind="in_region", body=model.body("can").id, target=model.site("region").id, size=(0.1, 0.1, 0.05)
    )
    scene = read_scene(model, data, arm, (inside,))
    np.testing.assert_allclose(scene.hand_3, [0, 0, 1])
    # In its own frame: the first box reaches 0.1 in x and 0.2 in y; the second, turned, from -0.1 to 0.3 and 0.1.
    np.testing.assert_allclose(scene.thing.middle_3, [0.1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(scene.thing.half_3, [0.2, 0.2, 0.3])
    assert scene.thing.top == pytest.approx(3.2)  # its y axis points up
    np.testing.assert_allclose(scene.target.origin_3, [5, 0, 0.06])
    assert scene.target.top == pytest.approx(0.11)

    with pytest.raises(ValueError, match="no single placing"):
        read_scene(model, data, arm, (inside, inside))
    onto = Condition(kind="on_object", body=model.body("can").id, target=model.body("tray").id)
    assert read_scene(model, data, arm, (onto,)).target.top == pytest.approx(0.01)
