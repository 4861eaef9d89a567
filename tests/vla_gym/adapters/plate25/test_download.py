"""The download from a file and a folder that stand for the web and the Hub."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from vla_gym.adapters.plate25 import download
from vla_gym.adapters.plate25.assets import Assets, find_assets
from vla_gym.errors import BadValue

FILES = {
    "carrot/more_carrot/003_bread_1/collision.obj": b"o bread",
    "carrot/more_carrot/003_bread_1/textured.glb": b"glTF" * 100,
}


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@dataclass
class Sources:
    """What the three sources hold."""

    robot: Path
    pack: dict[str, bytes]
    table: bytes

    def put_robot(self, urdf: bytes) -> None:
        data = zipped({"ManiSkill-WidowX250S-0.2.0/wx250s.urdf": urdf, "ManiSkill-WidowX250S-0.2.0/m/a.stl": b"x"})
        self.robot.write_bytes(data)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    table = zipped({f"{download.TABLE_MEMBERS}bridge_table_1_v1.glb": b"table", "bridge_v2_real2sim_dataset/big": b"-"})
    made = Sources(tmp_path / "robot.zip", dict(FILES), table)
    monkeypatch.setattr(download, "ROBOT_URDF_SHA256", hashlib.sha256(b"<robot/>").hexdigest())
    made.put_robot(b"<robot/>")

    def snapshot(repo: str, *, local_dir: Path, **_: Any) -> None:
        assert repo == download.PACK_REPO
        for name, data in made.pack.items():
            (Path(local_dir) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(local_dir) / name).write_bytes(data)

    def one_file(repo: str, name: str, **_: Any) -> str:
        assert (repo, name) == (download.TABLE_REPO, download.TABLE_ZIP)
        (tmp_path / name).write_bytes(made.table)
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", one_file)
    return made


def fetch(sources: Sources, root: Path) -> None:
    sha256 = hashlib.sha256(sources.table).hexdigest()
    download.download(root, robot_url=sources.robot.as_uri(), table_sha256=sha256)


def test_everything_arrives_where_it_is_looked_for(sources: Sources, tmp_path: Path) -> None:
    root = tmp_path / "assets"
    fetch(sources, root)
    fetch(sources, root)  # again: nothing is in the way
    assert find_assets({"MANISKILL_ASSET_DIR": str(root), "MS_ASSET_DIR": str(tmp_path)}) == Assets(
        pack=str(root / "carrot"),
        robot=str(root / "widowx" / "wx250s.urdf"),
        table=str(root / "bridge_v2_real2sim_dataset/stages/bridge_table_1_v1.glb"),
    )
    assert (root / "widowx" / "m" / "a.stl").read_bytes() == b"x"
    assert not (root / "bridge_v2_real2sim_dataset" / "big").exists()


def test_another_robot_is_not_used(sources: Sources, tmp_path: Path) -> None:
    sources.put_robot(b"<robot name='other'/>")
    with pytest.raises(BadValue, match=r"does not hold the wx250s\.urdf of v0\.2\.0"):
        fetch(sources, tmp_path / "assets")
    assert not (tmp_path / "assets" / "widowx").exists()


def test_an_archive_may_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    archive = tmp_path / "bad.zip"
    archive.write_bytes(zipped({"top/../../evil": b"x"}))
    with pytest.raises(BadValue, match="evil"):
        download.unpack(archive, tmp_path / "inside", keep="", strip=1)
    assert not (tmp_path / "evil").exists()
    archive.write_bytes(b"no zip")
    with pytest.raises(BadValue, match="is no zip archive"):
        download.unpack(archive, tmp_path / "inside", keep="", strip=1)
