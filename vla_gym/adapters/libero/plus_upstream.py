"""Compile the tasks whose scenes are in LIBERO-Plus's archive, with LIBERO-Plus's own classes.

A program of its own beside `compile`: the import of those classes changes robosuite.
"""

from __future__ import annotations

import collections.abc
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

from vla_gym.adapters.libero.compile import compile_to
from vla_gym.adapters.libero.plus_tasks import IN_ARCHIVE, plus_archive, plus_folder
from vla_gym.system.child import do_work


def use_classes(archive: Path) -> None:
    """Have LIBERO's `ControlEnv` build LIBERO-Plus's scenes, from the files in `archive/assets`."""
    from libero.libero.envs import env_wrapper  # first: robots of the same names are LIBERO-Plus's afterwards

    envs = plus_folder() / "envs"
    for name, folder in (("liberoplus.liberoplus", envs.parent), ("liberoplus.liberoplus.envs", envs)):
        # Without their __init__, which want ImageMagick and write into the home folder.
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]
    vars(collections).update(Iterable=collections.abc.Iterable)  # of Python before 3.10
    from liberoplus.liberoplus.envs import bddl_base_domain, problems  # noqa: F401  the second fills the first's table

    for name, module in sys.modules.items():
        if name.startswith("liberoplus."):
            vars(module).update(absolute_path=archive, DIR_PATH=str(archive / "envs"))
    unturned = dict.fromkeys(("horizon_view", "vertical_view", "end_point_rot", "end_point_vertical", "init_state"), 0)
    vars(env_wrapper)["TASK_MAPPING"] = {
        name: partial(scene, scale_factor=1.0, **unturned) for name, scene in bddl_base_domain.TASK_MAPPING.items()
    }


def compile_scene(suite: str, task: str, path: str) -> None:
    """As `compile.compile_to`; a file that the archive's folder lacks ends the program with one line."""
    try:
        compile_to(suite, task, path)
    except (FileNotFoundError, ValueError) as error:  # of an XML; of a texture or mesh, which MuJoCo opens
        sys.exit(f"{error}; {task} {IN_ARCHIVE}")


if __name__ == "__main__":
    use_classes(plus_archive("a task"))
    do_work(compile_scene)
