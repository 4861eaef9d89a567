"""`python -m vla_gym.adapters.plate25.download`: fetch the suite's published files. Nothing else ever downloads them.

Three sources: the objects, plates and tables (67 MB) and the table mesh from the Hugging Face Hub, the robot from
GitHub. Every file is checked against a checksum before it is put where `assets.find_assets` looks.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vla_gym.adapters.plate25.assets import ROBOT_FILE, VARIABLE
from vla_gym.errors import BadValue, VLAZooError
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
    """The command; a failure is one line and exit code 2."""
    parser = argparse.ArgumentParser(prog="vla_gym.adapters.plate25.download", description=__doc__)
    parser.add_argument(
        "--to", type=Path, help=f"folder (default: ${VARIABLE}, else plate25 in vla-zoo's cache folder)"
    )
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        download(args.to or default_folder())
    except VLAZooError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 2
    return 0


def default_folder() -> Path:
    """Return the folder that files are looked for in."""
    asked = os.environ.get(VARIABLE)
    return Path(asked).expanduser().absolute() if asked else cache_dir() / "plate25"


def download(root: Path, *, robot_url: str = ROBOT_URL, table_sha256: str = TABLE_SHA256) -> None:
    """Fetch everything into `root`, but not again the files that are there and right.

    Raises `BadValue` when a source cannot be reached or a checksum is wrong; no wrong file is left behind.
    """
    root.mkdir(parents=True, exist_ok=True)
    fetch_pack(root)
    fetch_table(root, sha256=table_sha256)
    fetch_robot(root, url=robot_url)
    log.info("done; set %s=%s if this is not the default folder", VARIABLE, root)


def fetch_pack(root: Path) -> None:
    """Fetch objects, plates and tables, each file compared with the Hub's own checksum."""
    from huggingface_hub import HfApi, snapshot_download

    log.info("%s -> %s", PACK_REPO, root / PACK_FOLDER)
    info = _request(lambda: HfApi().dataset_info(PACK_REPO, files_metadata=True), PACK_REPO)
    _request(
        lambda: snapshot_download(
            PACK_REPO,
            repo_type="dataset",
            revision=info.sha,
            allow_patterns=[f"{PACK_FOLDER}/*"],
            local_dir=root,
        ),
        PACK_REPO,
    )
    for file in info.siblings or ():
        if file.rfilename.startswith(f"{PACK_FOLDER}/"):
            _check_hub_file(root / file.rfilename, file)


def fetch_table(root: Path, *, sha256: str) -> None:
    """Fetch the table's mesh, out of ManiSkill's archive."""
    from huggingface_hub import hf_hub_download

    log.info("%s -> %s", TABLE_REPO, root / TABLE_MEMBERS)
    archive = Path(
        _request(lambda: hf_hub_download(TABLE_REPO, TABLE_ZIP, repo_type="dataset"), f"{TABLE_REPO}/{TABLE_ZIP}")
    )
    if _sha256(archive) != sha256:
        raise BadValue(f"{TABLE_ZIP} of {TABLE_REPO} has another checksum than ManiSkill 3.0.1 states; not used")
    unpack(archive, root, keep=TABLE_MEMBERS, strip=0)


def fetch_robot(root: Path, *, url: str) -> None:
    """Fetch the robot description and its meshes."""
    log.info("%s -> %s", url, root / "widowx")
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        archive = Path(scratch) / "robot.zip"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, archive.open("wb") as file:  # noqa: S310
                shutil.copyfileobj(answer, file)
        except (urllib.error.URLError, TimeoutError, OSError) as error:
            raise BadValue(f"could not fetch {url}: {error}") from error
        unpack(archive, Path(scratch) / "widowx", keep="", strip=1)
        urdf = Path(scratch) / "widowx" / ROBOT_FILE
        if not urdf.is_file() or _sha256(urdf) != ROBOT_URDF_SHA256:
            raise BadValue(f"{url} does not hold the {ROBOT_FILE} of v0.2.0; not used")
        shutil.rmtree(root / "widowx", ignore_errors=True)
        os.replace(Path(scratch) / "widowx", root / "widowx")


def unpack(archive: Path, root: Path, *, keep: str, strip: int) -> None:
    """Extract the members below `keep`, without their first `strip` folders; paths that lead elsewhere raise."""
    try:
        with zipfile.ZipFile(archive) as content:
            for member in content.infolist():
                parts = Path(member.filename).parts[strip:]
                if member.is_dir() or not parts or not member.filename.startswith(keep):
                    continue
                target = (root / Path(*parts)).resolve()
                if not target.is_relative_to(root.resolve()):
                    raise BadValue(f"{archive.name} holds '{member.filename}', which leads out of the folder")
                target.parent.mkdir(parents=True, exist_ok=True)
                with content.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
    except zipfile.BadZipFile as error:
        raise BadValue(f"{archive.name} is no zip archive: {error}") from error


def _check_hub_file(path: Path, file: Any) -> None:
    """Compare with the sha256 of large files, or with Git's own hash of small ones."""
    if not path.is_file():
        raise BadValue(f"{file.rfilename} of {PACK_REPO} did not arrive")
    data = path.read_bytes()
    if file.lfs is not None:
        right = hashlib.sha256(data).hexdigest() == file.lfs.sha256
    else:
        right = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == file.blob_id  # noqa: S324  Git's
    if not right:
        path.unlink()
        raise BadValue(f"{file.rfilename} of {PACK_REPO} arrived damaged and was deleted; run this again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _request(call: Callable[[], Any], source: str) -> Any:
    try:
        return call()
    except Exception as error:  # the client's errors have no common base
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadValue(f"could not fetch {source} from the Hugging Face Hub: {first}") from error


if __name__ == "__main__":
    sys.exit(main())
