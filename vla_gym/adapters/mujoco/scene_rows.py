"""The geometries of a MuJoCo scene as rows of one array."""

from __future__ import annotations

import ctypes

import mujoco
import numpy as np

INTS = ("type", "dataid", "objtype", "objid", "category", "matid", "texcoord", "segid")
GEOM = np.dtype(
    [
        *((name, np.int32) for name in INTS),
        *(("size", np.float32, 3), ("pos", np.float32, 3), ("mat", np.float32, (3, 3)), ("rgba", np.float32, 4)),
        *((name, np.float32) for name in ("emission", "specular", "shininess", "reflectance")),
        ("label", "S100"),
        *(("camdist", np.float32), ("modelrbound", np.float32), ("transparent", np.uint8)),
    ],
    align=True,
)
"""mjvGeom of MuJoCo 3.3 (mjvisualize.h)."""


def scene_rows(scene: mujoco.MjvScene) -> np.ndarray:
    """Return all rows of a scene's geometries, `GEOM` `[maxgeom]`, in its own memory: valid while the scene lives.

    Raises:
        RuntimeError: if MuJoCo lays them out otherwise.
    """
    row, other = np.zeros(2, dtype=GEOM)
    ours = [row[name].ctypes.data for name in ("size", "pos", "mat", "rgba")] + [other["size"].ctypes.data]
    first, second = scene.geoms[0], scene.geoms[1]
    theirs = [getattr(first, name).ctypes.data for name in ("size", "pos", "mat", "rgba")] + [second.size.ctypes.data]
    if np.ptp(np.subtract(theirs, ours)):
        raise RuntimeError(f"MuJoCo {mujoco.__version__} lays mjvGeom out unlike 3.3")
    start = theirs[0] - 4 * len(INTS)
    memory = (ctypes.c_char * (scene.maxgeom * GEOM.itemsize)).from_address(start)
    return np.frombuffer(memory, dtype=GEOM)
