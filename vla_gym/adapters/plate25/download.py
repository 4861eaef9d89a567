"""`python -m vla_gym.adapters.plate25.download`: fetch the suite's published files. Nothing else ever downloads them.

Three sources: the objects, plates and tables (67 MB) and the table mesh from the Hugging Face Hub, the robot from
GitHub. They are put where `assets.find_assets` looks.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vla_gym.adapters.plate25.assets import ROBOT_FILE, VARIABLE
from vla_gym.errors import BadValue, VLAZooError, one_line
from vla_gym.reading import file_sha256, inside
from vla_gym.system.paths import cache_dir

PACK_REPO, PACK_FOLDER = "RLinf/maniskill_assets", "carrot"
TABLE_REPO, TABLE_ZIP = "haosulab/ManiSkill_bridge_v2_real2sim", "bridge_v2_real2sim_dataset.zip"
TABLE_SHA256 = "618512a205b4528cafecdad14b1788ed1130879f3064deb406516ed5b9c5ba92"
"""ManiSkill 3.0.1, `mani_skill/utils/assets/data.py`."""
TABLE_MEMBERS = "bridge_v2_real2sim_dataset/stages/"
ROBOT_URL = "https://github.com/haosulab/ManiSkill-WidowX250S/archive/refs/tags/v0.2.0.zip"
ROBOT_URDF_SHA256 = "1e8a73f270804dbcc32603d68a8fb5d34f57d109b30cc325ad89b36eecbb8506"
"""Of its robot description; GitHub gives no checksum of the archive."""
TIMEOUT = 60.0

log = logging.getLogger("vla_gym.plate25")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; a failure is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="vla_gym.adapters.plate25.download", description=__doc__)
    parser.add_argument(
        "--to", type=Path, help=f"folder (default: ${VARIABLE}, else plate25 in vla-zoo's cache folder)"
    )
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    asked = os.environ.get(VARIABLE)
    try:
        download(args.to or (Path(asked).expanduser().absolute() if asked else cache_dir() / "plate25"))
    except VLAZooError as error:
        sys.stderr.write(f"error: {one_line(str(error))}\n")
        return 2
    return 0


def download(root: Path, *, robot_url: str = ROBOT_URL, table_sha256: str = TABLE_SHA256) -> None:
    """Fetch everything into `root`, but not again the files that are there.

    Raises `BadValue` when a source cannot be reached or a checksum is wrong; no wrong file is left behind.
    """
    from huggingface_hub import hf_hub_download, snapshot_download

    root.mkdir(parents=True, exist_ok=True)
    log.info("%s -> %s", PACK_REPO, root / PACK_FOLDER)
    pattern = f"{PACK_FOLDER}/*"
    _request(PACK_REPO, snapshot_download, PACK_REPO, repo_type="dataset", allow_patterns=[pattern], local_dir=root)
    log.info("%s -> %s", TABLE_REPO, root / TABLE_MEMBERS)
    table = Path(_request(TABLE_REPO, hf_hub_download, TABLE_REPO, TABLE_ZIP, repo_type="dataset"))
    if file_sha256(table) != table_sha256:
        raise BadValue(f"{TABLE_ZIP} of {TABLE_REPO} has another checksum than ManiSkill 3.0.1 states; not used")
    unpack(table, root, keep=TABLE_MEMBERS, strip=0)
    log.info("%s -> %s", robot_url, root / "widowx")
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        archive, robot = Path(scratch) / "robot.zip", Path(scratch) / "widowx"
        _request(robot_url, _fetch, robot_url, archive)
        unpack(archive, robot, keep="", strip=1)
        if not (robot / ROBOT_FILE).is_file() or file_sha256(robot / ROBOT_FILE) != ROBOT_URDF_SHA256:
            raise BadValue(f"{robot_url} does not hold the {ROBOT_FILE} of v0.2.0; not used")
        shutil.rmtree(root / "widowx", ignore_errors=True)
        os.replace(robot, root / "widowx")
    log.info("done; set %s=%s if this is not the default folder", VARIABLE, root)


def unpack(archive: Path, root: Path, *, keep: str, strip: int) -> None:
    """Extract the members below `keep`, without their first `strip` folders; raise `BadValue` for paths elsewhere."""
    try:
        with zipfile.ZipFile(archive) as content:
            for member in content.infolist():
                parts = Path(member.filename).parts[strip:]
                if member.is_dir() or not parts or not member.filename.startswith(keep):
                    continue
                target = inside(root, "/".join(parts), archive.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                with content.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
    except zipfile.BadZipFile as error:
        raise BadValue(f"{archive.name} is no zip archive: {error}") from error


def _fetch(url: str, file: Path) -> None:
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, file.open("wb") as stream:  # noqa: S310
        shutil.copyfileobj(answer, stream)


def _request(source: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return call(*arguments, **options)
    except Exception as error:  # the clients' errors have no common base
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadValue(f"could not fetch {source}: {first}") from error


if __name__ == "__main__":
    sys.exit(main())
