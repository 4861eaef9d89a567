from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.adapters.plate25.assets import Assets, find_assets, missing
from vla_gym.adapters.plate25.runs import MAIN, RUNS
from vla_gym.errors import MissingDependency

NOTHING = Assets(pack=None, robot=None, table=None)


def test_on_a_bare_machine_everything_is_missing() -> None:
    names = missing(NOTHING, MAIN["train"])
    # Robot, table mesh, 16 objects, 1 plate, 16 pictures.
    assert len(names) == 35
    assert names[:3] == ("robot widowx250s", "table mesh", "object carrot")
    assert len(missing(NOTHING, RUNS["MultiPlateTest"])) == 2 + 16 + 16 + 21
    assert "object onion" in missing(NOTHING, RUNS["MultiCarrotTest"])


def test_an_object_counts_only_with_both_files(tmp_path: Path) -> None:
    folder = tmp_path / "more_carrot" / "003_bread_1"
    folder.mkdir(parents=True)
    assets = Assets(pack=str(tmp_path), robot=None, table=None)
    (folder / "collision.obj").touch()
    assert assets.model("carrot", "003_bread_1") is None
    (folder / "textured.glb").touch()
    (folder / "textured.dae").touch()
    model = assets.model("carrot", "003_bread_1")
    assert model is not None
    assert (model.collision.name, model.visual.name) == ("collision.obj", "textured.dae")
    assert "object bread" not in missing(assets, MAIN["train"])


def test_where_files_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "own" / "carrot").mkdir(parents=True)
    robots = tmp_path / "ms" / "data" / "robots" / "widowx"
    robots.mkdir(parents=True)
    (robots / "wx250s.urdf").touch()
    found = find_assets({"MANISKILL_ASSET_DIR": str(tmp_path / "own"), "MS_ASSET_DIR": str(tmp_path / "ms")})
    assert found == Assets(pack=str(tmp_path / "own" / "carrot"), robot=str(robots / "wx250s.urdf"), table=None)
    (tmp_path / "cache" / "plate25" / "carrot").mkdir(parents=True)
    environ = {"VLA_ZOO_CACHE": str(tmp_path / "cache"), "MS_ASSET_DIR": str(tmp_path)}
    assert find_assets(environ).pack == str(tmp_path / "cache" / "plate25" / "carrot")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match=r"is no folder.*unset it.*plate25\.download"):
        find_assets({"MANISKILL_ASSET_DIR": str(tmp_path / "typo")})
