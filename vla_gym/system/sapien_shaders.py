"""SAPIEN's `minimal` shaders without a look-up table of no effect: 7 s less before a process's first picture.

The table (a BRDF integral for environment maps) is computed when the first picture is taken: unnoticed on a GPU, but
6 to 7 s on a software Vulkan driver, in every worker. Scenes without an environment map multiply it by black,
so the pictures are equal bit for bit, which a test checks.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from vla_gym.system.cache import cache_dir, check_writable

STOCK = "minimal"
"""SAPIEN's own folder of these shaders."""
DECLARATION = "uniform sampler2D samplerBRDFLUT;"
LOOK_UP = "texture(samplerBRDFLUT, vec2(roughness, dotNV)).xy"
PICTURE_FORMATS = {
    "Color": "r8g8b8a8unorm",
    "ColorRaw": "r8g8b8a8unorm",
    "PositionSegmentation": "r16g16b16a16sint",
}
"""ManiSkill 3.0.1's settings for this shader pack (`mani_skill/render/shaders.py`)."""


def check_place(environ: Mapping[str, str]) -> None:
    """Raise `BadValue` if the cache has no shaders and cannot be written."""
    folder = cache_dir(environ) / "shaders"
    if not any(folder.glob("sapien-*")):
        check_writable(folder)


def use_light_shaders() -> None:
    """Make cameras built from now on in this process draw with `light_shaders`, in ManiSkill's formats."""
    import sapien

    sapien.render.set_camera_shader_dir(light_shaders())
    for name, layout in PICTURE_FORMATS.items():
        sapien.render.set_picture_format(name, layout)


def light_shaders(root: Path | None = None) -> str:
    """Folder for `sapien.render.set_camera_shader_dir`; written once per machine and SAPIEN version under `root`.

    Unexpected shaders (of another SAPIEN) are used as they are: the same pictures, only later.
    """
    import sapien

    stock = Path(sapien.__file__).parent / "vulkan_shader"
    folder = (cache_dir() if root is None else root) / "shaders" / f"sapien-{metadata.version('sapien')}"
    if not folder.is_dir() and not _write(stock, folder):
        return STOCK
    return str(folder / STOCK)


def without_table(source: str) -> str:
    """A shader's text without the declaration and the reading of the table."""
    lines = [line for line in source.splitlines() if DECLARATION not in line]
    return "\n".join(lines).replace(LOOK_UP, "vec2(0.0)") + "\n"


def _write(stock: Path, folder: Path) -> bool:
    """Copy the shaders to `folder` in one move, so that another worker never sees half of them."""
    with tempfile.TemporaryDirectory(dir=check_writable(folder.parent)) as scratch:
        for name in (STOCK, "common"):
            shutil.copytree(stock / name, Path(scratch) / "made" / name)
        for file in (Path(scratch) / "made" / STOCK).glob("*.frag"):
            text = without_table(file.read_text(encoding="utf-8"))
            if "samplerBRDFLUT" in text:
                return False
            file.write_text(text, encoding="utf-8")
        try:
            os.rename(Path(scratch) / "made", folder)
        except OSError:
            return folder.is_dir()  # another worker was first
    return True
