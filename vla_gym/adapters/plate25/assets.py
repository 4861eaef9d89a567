"""The published meshes and images on this machine, and which of them are missing.

Looked for in `$MANISKILL_ASSET_DIR` (RLinf's variable; the folder that holds `carrot/`), else in
`$VLA_ZOO_CACHE/plate25`, where `python -m vla_gym.adapters.plate25.download` puts them. The robot and the table mesh
are also looked for where ManiSkill keeps them (`$MS_ASSET_DIR/data`). Nothing is downloaded from here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vla_gym.adapters.plate25.catalogue import OBJECTS, PLATES, TABLES
from vla_gym.adapters.plate25.runs import Run
from vla_gym.errors import MissingDependency
from vla_gym.system.paths import cache_dir

VARIABLE = "MANISKILL_ASSET_DIR"
DOWNLOAD = "python -m vla_gym.adapters.plate25.download"
ROBOT_FILE = "wx250s.urdf"
STAND_IN_ARM = Path(__file__).with_name("stand_in_arm.urdf")
"""Boxes with the published joints and masses, for a machine without the robot's meshes."""
TABLE_FILE = "bridge_v2_real2sim_dataset/stages/bridge_table_1_v1.glb"
VISUALS = ("textured.obj", "textured.dae", "textured.glb")
"""Published file names of an object's look; the first that exists is taken, as upstream does."""


@dataclass(frozen=True)
class Model:
    """Files of one object or plate."""

    collision: Path
    """Convex pieces."""
    visual: Path


@dataclass(frozen=True)
class Assets:
    """Folders found on this machine; None where a stand-in takes their place."""

    pack: str | None
    """Holds `more_carrot`, `more_plate` and `more_table`."""
    robot: str | None
    """The URDF."""
    table: str | None
    """The table's mesh."""

    def model(self, kind: str, folder: str) -> Model | None:
        """Return the files of one object ("carrot") or plate ("plate"), or None."""
        if self.pack is None:
            return None
        place = Path(self.pack) / f"more_{kind}" / folder
        visual = next((place / name for name in VISUALS if (place / name).is_file()), None)
        collision = place / "collision.obj"
        return Model(collision, visual) if visual is not None and collision.is_file() else None

    def image(self, kind: str, name: str) -> Path | None:
        """Return one of the tables' "imgs" or "textures", or None."""
        if self.pack is None:
            return None
        file = Path(self.pack) / "more_table" / kind / name
        return file if file.is_file() else None


def find_assets(environ: Mapping[str, str] | None = None) -> Assets:
    """Return the files on this machine; raise `MissingDependency` when `$MANISKILL_ASSET_DIR` is no folder."""
    environ = os.environ if environ is None else environ
    asked = environ.get(VARIABLE)
    root = Path(asked).expanduser().absolute() if asked else cache_dir(environ) / "plate25"
    if asked and not root.is_dir():
        raise MissingDependency(
            f"{VARIABLE}={asked} is no folder. It must hold carrot/; unset it for stand-ins, "
            f"or fetch the published files with: {DOWNLOAD}"
        )
    shared = Path(environ.get("MS_ASSET_DIR", "~/.maniskill")).expanduser() / "data"
    return Assets(
        pack=_first([root / "carrot"]),
        robot=_first([root / "widowx" / ROBOT_FILE, shared / "robots/widowx" / ROBOT_FILE]),
        table=_first([root / TABLE_FILE, shared / "tasks" / TABLE_FILE]),
    )


def missing(assets: Assets, run: Run) -> tuple[str, ...]:
    """Return the names of the run's stand-ins: things shown or touched that have no published file here."""
    objects, plates = [OBJECTS[i] for i in _ids(run, "object")], [PLATES[i] for i in _ids(run, "plate")]
    tables, textures = ([TABLES[i] for i in _ids(run, digit)] for digit in ("table", "texture"))
    found = {
        "robot widowx250s": assets.robot,
        "table mesh": assets.table,
        **{f"object {thing.name}": assets.model("carrot", thing.folder) for thing in objects},
        **{f"plate {thing.name}": assets.model("plate", thing.folder) for thing in plates},
        **{f"picture {table.image}": assets.image("imgs", table.image) for table in tables},
        **{f"texture {table.texture}": assets.image("textures", table.texture) for table in textures},
    }
    return tuple(name for name, file in found.items() if file is None)


def _ids(run: Run, digit: str) -> Iterable[int]:
    """Ids that a digit counts, and the second ones of their kind."""
    if digit == run.second == "plate":
        first = next(start for name, _, start in run.digits if name == "plate")
        return range(first, len(PLATES))
    return next((range(start, start + count) for name, count, start in run.digits if name == digit), ())


def _first(candidates: list[Path]) -> str | None:
    return next((str(path) for path in candidates if path.exists()), None)
