"""GL textures that several MuJoCo scenes of a process share.

Scenes of a benchmark are dressed in the same few large textures (4096 px floors and bowls), and uploading them
with their mipmaps is most of the cost of opening a scene: 0.3-0.5 s, and 90 MB each in GL. They are known by the
file of their pixels, uploaded once, and freed with the last scene that shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from vla_gym.adapters.mujoco.model_store import read_piece, texture_pixels

Key = tuple[Path, int, int, int]
"""File of the pixels, type, width, height."""


@dataclass
class _Texture:
    name: int
    """GL's number of the texture."""
    num_users: int = 0


class SharedTextures:
    """The large textures of one process's GL context."""

    def __init__(self) -> None:
        self._shared: dict[Key, _Texture] = {}

    def upload(self, model: mujoco.MjModel, files: Mapping[int, Path]) -> tuple[mujoco.MjrContext, dict[int, Key]]:
        """Return GL resources of `model`, and its textures that are shared; a GL context must be current.

        Args:
            model: textures named in `files` may be black in it; those uploaded now are painted in place.
            files: texture id -> file of its pixels.

        Raises:
            FileNotFoundError: if a file is gone or damaged.
        """
        keys = {tex: self._key(model, tex, file) for tex, file in files.items()}
        known = [tex for tex, key in keys.items() if key in self._shared]
        for tex in keys.keys() - set(known):
            pixels = texture_pixels(model, tex)
            pixels[:] = np.frombuffer(read_piece(files[tex], pixels.size), dtype=np.uint8)
        width, height = model.tex_width.copy(), model.tex_height.copy()
        model.tex_width[known] = model.tex_height[known] = 1  # a placeholder costs nothing to upload
        resources = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        model.tex_width[:], model.tex_height[:] = width, height
        for tex, key in keys.items():
            own = int(resources.texture[tex])
            shared = self._shared.setdefault(key, _Texture(own))
            if shared.name != own:
                _delete(own)
            resources.texture[tex] = shared.name
            shared.num_users += 1
        return resources, keys

    def release(self, resources: mujoco.MjrContext, keys: Mapping[int, Key]) -> None:
        """Take the shared textures, as of `upload`, out of `resources` before these are freed."""
        for tex, key in keys.items():
            resources.texture[tex] = 0  # freeing texture 0 does nothing
            self._shared[key].num_users -= 1
            if not self._shared[key].num_users:
                _delete(self._shared.pop(key).name)

    def __len__(self) -> int:
        return len(self._shared)

    @staticmethod
    def _key(model: mujoco.MjModel, tex: int, file: Path) -> Key:
        return file, int(model.tex_type[tex]), int(model.tex_width[tex]), int(model.tex_height[tex])


TEXTURES = SharedTextures()


def _delete(name: int) -> None:
    from OpenGL import GL  # reads PYOPENGL_PLATFORM when imported

    GL.glDeleteTextures([name])
