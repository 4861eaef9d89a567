"""What reaches a picture, straight and by way of a mirror; numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mujoco", reason="needs the libero extra")
import mujoco

from vla_gym.adapters.mujoco.sight import Sight, into_world, mirrored, mirrors, through

pytestmark = pytest.mark.sim

SCENE = """<mujoco>
  <worldbody>
    <camera name="above" pos="0 0 3" fovy="90"/>
    <geom name="mirror" type="box" size="1 1 .1" pos="0 0 -.1" material="shiny"/>
    <geom name="beside" type="box" size=".5 .5 .5" pos="5 0 1"/>
    <geom name="seen" type="sphere" size=".5" pos="0 0 1"/>
    <geom name="behind" type="box" size=".5 .5 .5" pos="0 0 4"/>
    <geom name="too low" type="box" size=".5 .5 .5" pos="0 0 -2"/>
    <geom name="far above" type="box" size=".5 .5 .5" pos="4 0 6"/>
    {more}
  </worldbody>
  <asset><material name="shiny" reflectance=".5"/><material name="ghost" reflectance=".5" rgba="1 1 1 .5"/></asset>
  {light}
</mujoco>"""


def loaded(more: str = "", light: str = "") -> tuple[object, object]:
    text = SCENE.format(more=more + light, light="")
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def names(model: object, mask: np.ndarray) -> set[str]:
    return {model.geom(index).name for index in np.flatnonzero(mask)}  # type: ignore[attr-defined]


def test_a_box_is_seen_straight_or_in_the_mirror_or_not_at_all() -> None:
    model, data = loaded()
    seen = Sight(model, [0], shadows=True).seen(data, 0)
    # At 90 degrees the view is |x| <= 3 - z: 5 - 0.5 > 2.5 lies beyond it, and what is above the camera behind it.
    assert names(model, seen.direct_G) == {"mirror", "seen", "too low"}
    # The camera's image looks up from z = -3 through |x| <= 1 at z = 0: at height z it sees |x| <= 1 + z / 3. Of "far
    # above" that is 3.17 < 3.5, of "beside" 1.5 < 4.5; "too low" is under the mirror, "behind" in its middle.
    assert names(model, seen.mirrored_G) == {"seen", "behind"} | {"mirror"}
    assert seen.reflects


def test_what_no_mirror_shows() -> None:
    model, data = loaded()
    seen = Sight(model, [], shadows=True).seen(data, 0)
    assert not seen.mirrored_G.any()
    assert not seen.reflects
    data.cam_xpos[0, 2] = -3  # under the mirror, still looking down
    seen = Sight(model, [0], shadows=True).seen(data, 0)
    assert not seen.mirrored_G.any()
    assert not seen.reflects


def test_in_doubt_everything_is_seen() -> None:
    model, data = loaded(light='<light pos="0 0 4" castshadow="true"/>')
    assert Sight(model, [0], shadows=True).seen(data, 0).direct_G.all()
    assert not Sight(model, [0], shadows=False).seen(data, 0).direct_G.all()  # the shadows are not drawn
    data.cam_xpos[0, 2] = 1e-5  # on the mirror
    assert Sight(model, [0], shadows=False).seen(data, 0).mirrored_G.all()


def test_planes_are_endless_and_glass_from_behind() -> None:
    model, data = loaded('<geom name="floor" type="plane" size="1 1 1" pos="50 0 0" material="shiny"/>')
    floor = model.geom("floor").id  # type: ignore[attr-defined]
    sight = Sight(model, [floor, 0], shadows=False)
    assert sight.seen(data, 0).direct_G[floor]
    assert names(model, sight.seen(data, 0).mirrored_G) == {"floor"}  # so far away that nothing else is seen in it
    data.geom_xpos[floor, 2] = 9  # the camera is behind it: the box mirrors instead
    assert {"seen", "behind"} <= names(model, sight.seen(data, 0).mirrored_G)


def test_mirrors_are_opaque_planes_and_boxes_in_the_order_of_the_scene() -> None:
    model, data = loaded(
        '<geom type="box" size="1 1 1" material="ghost"/><geom type="sphere" size="1" material="shiny"/>'
        '<geom name="last" type="plane" size="1 1 1" material="shiny"/>'
    )
    scene = mujoco.MjvScene(model, maxgeom=20)
    view = mujoco.MjvCamera()
    view.type, view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, 0
    mujoco.mjv_updateScene(
        model, data, mujoco.MjvOption(), mujoco.MjvPerturb(), view, mujoco.mjtCatBit.mjCAT_ALL, scene
    )
    assert mirrors(scene) == [0, model.geom("last").id]  # type: ignore[attr-defined]


def test_the_pyramid_through_a_mirror() -> None:
    sides = through(np.array([1.0, 0.0, 2.0]), np.array([3.0, 0.0, 9.0]))
    # x from -3 to 3 at z = 0 and, seen from (1, 0, -2), from -5 to 4 at z = 1; a size of 0 is no limit.
    assert len(sides) == 3
    for point, inside in (
        ((3.9, 99, 1), True),
        ((4.1, 0, 1), False),
        ((-4.9, 0, 1), True),
        ((-5.1, 0, 1), False),
        ((0, 0, -0.1), False),
    ):
        assert (sides[:, :3] @ point + sides[:, 3] >= 0).all() == inside


def test_sides_in_other_frames() -> None:
    side = np.array([[1.0, 0.0, 0.0, -2.0]])  # x >= 2
    turned = into_world(side, np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), np.array([0.0, 5.0, 0.0]))
    np.testing.assert_allclose(turned, [[0, 1, 0, -7]])  # the frame's x is the world's y: y >= 5 + 2
    # In a mirror at x = 3 the point x has its image at 6 - x, which is >= 2 for x <= 4.
    image = mirrored(side, np.array([1.0, 0.0, 0.0]), np.array([3.0, 0.0, 0.0]))
    np.testing.assert_allclose(image, [[-1, 0, 0, 4]])
