"""A round mesh for tests of simplified meshes."""

from __future__ import annotations

import numpy as np

from vla_gym.adapters.mujoco.simple_meshes import Corners


def sphere(rings: int) -> Corners:
    """A unit sphere of 4 rings^2 triangles; the texture's u is x, so that looked-up values can be checked."""
    turns, heights = np.meshgrid(np.linspace(0, 2 * np.pi, 2 * rings + 1), np.linspace(0, np.pi, rings + 1))
    grid = np.stack([np.sin(heights) * np.cos(turns), np.sin(heights) * np.sin(turns), np.cos(heights)], axis=-1)
    a, b, c, d = grid[:-1, :-1], grid[1:, :-1], grid[1:, 1:], grid[:-1, 1:]
    vertex_C3 = np.concatenate([np.stack([a, b, c], axis=2), np.stack([a, c, d], axis=2)]).reshape(-1, 3)
    vertex_C3 = np.where(np.abs(vertex_C3) < 1e-9, 0.0, vertex_C3).astype(np.float32)
    return Corners(vertex_C3, vertex_C3, vertex_C3[:, :2].copy())
