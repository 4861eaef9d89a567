from __future__ import annotations

import pytest

pytestmark = pytest.mark.sim


def test_rows_are_the_scenes_geometries() -> None:
    import mujoco
    import numpy as np

    from vla_gym.adapters.mujoco.scene_rows import scene_rows

    model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><geom type="box" size=".1 .2 .3" pos="1 2 3" euler="10 20 30" rgba=".1 .2 .3 .4"/>
        <geom size=".5" pos="4 5 6"/></worldbody></mujoco>"""
    )
    data, scene = mujoco.MjData(model), mujoco.MjvScene(model, maxgeom=10)
    mujoco.mj_forward(model, data)
    everything = mujoco.mjtCatBit.mjCAT_ALL
    mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, mujoco.MjvCamera(), everything, scene)
    rows = scene_rows(scene)
    assert len(rows) == 10
    for name in ("type", "dataid", "objtype", "objid", "matid", "texcoord", "segid", "size", "pos", "mat", "rgba"):
        for row, geom in zip(rows, [scene.geoms[0], scene.geoms[1]], strict=False):
            np.testing.assert_array_equal(row[name], getattr(geom, name), err_msg=name)
    for name in ("emission", "specular", "shininess", "reflectance", "camdist", "modelrbound", "transparent"):
        assert rows[1][name] == getattr(scene.geoms[1], name), name
    rows[1]["pos"] = 7, 8, 9
    np.testing.assert_array_equal(scene.geoms[1].pos, [7, 8, 9])
