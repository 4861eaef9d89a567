"""What reaches an image, straight and by way of a mirror, and which triangles cover a sample; by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mujoco", reason="needs the libero extra")
import mujoco

from vla_gym.adapters.mujoco import visibility
from vla_gym.adapters.mujoco.visibility import Lens, Mirror, Samples, Sight, covering_faces, keep_covering, mirrors

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


CENTRES = Samples(np.array([[0.5, 0.5]]), 1 / 256)
LENS = Lens(np.zeros(3), np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, -1]]), 4.0, 1.0, 0.01, 10.0, 8, CENTRES)
"""Looks along -z: 8 x 8 px that show 90 degrees, 4 px a metre at 1 m."""


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visibility, "_compiled", lambda: keep_covering)


def kept(
    *triangles: list[tuple[float, float]], lens: Lens = LENS, depth: float = 1.0, exact: bool = True
) -> list[int] | None:
    """Which triangles, corners in pixels of `LENS`, are kept when they lie at `depth` before it."""
    pixel_F32 = np.array(triangles)
    place_F32 = (pixel_F32 - 4) / 4 * depth
    vertex_V3 = np.concatenate([place_F32, np.full((len(triangles), 3, 1), -depth)], axis=2).reshape(-1, 3)
    face_F3 = np.arange(len(vertex_V3), dtype=np.uint32).reshape(-1, 3)
    mesh = vertex_V3.astype(np.float32), face_F3
    found_F = covering_faces(mesh, np.eye(3), np.zeros(3), lens, exact=exact)
    return None if found_F is None else found_F.tolist()


AROUND = [(2.3, 2.3), (2.9, 2.3), (2.5, 2.9)]
"""Around the middle of pixel (2, 2), counter-clockwise."""
BESIDE = [(2.6, 2.6), (2.9, 2.6), (2.7, 2.9)]
CORNER_CUT = [(2.3, 2.3), (2.7, 2.3), (2.3, 2.6)]
"""Its box has the middle; the edge from (2.7, 2.3) to (2.3, 2.6) leaves it outside: at u 2.5 it is at v 2.45."""


def test_only_what_covers_a_sample_is_kept() -> None:
    assert kept(AROUND, BESIDE, CORNER_CUT, AROUND) == [0, 3]


def test_a_mesh_partly_out_of_view_stays_whole() -> None:
    assert kept(AROUND, [(u + 5, v) for u, v in AROUND], BESIDE) == [0, 1]
    for out in ([(u + 5.2, v) for u, v in AROUND], [(u, v - 2.4) for u, v in AROUND]):
        assert kept(AROUND, out, BESIDE) is None
    assert kept(BESIDE, depth=0.015) is None  # GL clips up to 0.01
    assert kept(BESIDE, depth=6) is None  # and from 10


def test_of_a_mesh_partly_out_of_view_what_lies_outside_is_left_out_on_demand() -> None:
    across = [(7.3, 2.3), (9.9, 2.3), (7.5, 2.9)]
    for out in ([(u + 6, v) for u, v in AROUND], [(u - 3, v) for u, v in AROUND], [(u, v - 3) for u, v in AROUND]):
        assert kept(AROUND, out, BESIDE, across, exact=False) == [0, 3]
    assert kept(AROUND, BESIDE, depth=0.015, exact=False) == [0, 1]  # who knows
    assert kept(AROUND, AROUND[::-1], exact=False) == [0]


def test_a_mirror_shows_what_is_before_it_from_the_other_side() -> None:
    """A mirror at z = -3 that looks back at the camera: the lens behind it sees a triangle at z = -1 from 5 m away."""
    mirror = Mirror(np.array([0.0, 0, 1]), np.array([0.0, 0, -3]))
    lens = LENS.mirrored(mirror)
    np.testing.assert_allclose(lens.origin_3, [0, 0, -6])
    np.testing.assert_allclose(lens.axis_33, [[-1, 0, 0], [0, 1, 0], [0, 0, 1]])
    left_half = Lens(**{**vars(LENS), "samples": Samples(np.array([[0.2, 0.5]]), 1 / 256)}).mirrored(mirror)
    np.testing.assert_allclose(left_half.samples.point_S2, [[0.8, 0.5]])

    # Pixel u of LENS at 1 m is x = (u - 4) / 4, which the mirrored picture has at u' = 4 - 4 x / 5 = 4 - (u - 4) / 5.
    def seen(u: float, v: float) -> tuple[float, float]:
        return 4 - 5 * (u - 4), 4 + 5 * (v - 4)

    around, beside = ([seen(u, v) for u, v in triangle] for triangle in (AROUND, BESIDE))
    assert kept(around, around[::-1], beside, lens=lens) == [0]  # counter-clockwise from behind, where the lens is


def test_in_doubt_a_triangle_is_kept() -> None:
    nearly = [(2.5 + 1 / 300, 2.3), (2.9, 2.3), (2.5 + 1 / 300, 2.9)]  # 1/300 px beside the middle
    large_but_thin = [(0.6, 0.6), (3.4, 0.6), (3.4, 0.61)]
    assert kept(nearly, BESIDE, large_but_thin) == [0, 2]


def test_nothing_that_covers_a_sample_is_left_out() -> None:
    rng = np.random.default_rng(0)
    pattern_S2 = np.array([[0.375, 0.125], [0.875, 0.375], [0.125, 0.625], [0.625, 0.875]])
    lens = Lens(**{**vars(LENS), "samples": Samples(pattern_S2, 1 / 256)})
    triangle_F32 = rng.uniform(0.7, 7.3, (400, 1, 2)) + rng.uniform(-0.6, 0.6, (400, 3, 2))
    pixel_P2 = np.stack(np.meshgrid(np.arange(8), np.arange(8)), axis=-1).reshape(-1, 2)
    point_P2 = (pixel_P2[:, None] + pattern_S2).reshape(-1, 2)

    def side(first_F2: np.ndarray, second_F2: np.ndarray) -> np.ndarray:
        edge_F2, to_FP2 = second_F2 - first_F2, point_P2 - first_F2[:, None]
        return edge_F2[:, None, 0] * to_FP2[..., 1] - to_FP2[..., 0] * edge_F2[:, None, 1]

    corners = triangle_F32.swapaxes(0, 1)
    inside_FP = np.all([side(corners[n], corners[(n + 1) % 3]) > 0 for n in range(3)], axis=0)
    covers = set(np.flatnonzero(inside_FP.any(axis=1)).tolist())
    found = set(kept(*triangle_F32.tolist(), lens=lens) or [])
    assert covers <= found
    assert len(found) < len(covers) * 1.4 < 150  # of 400, half of which show their backs
