"""What a policy folder says of its files, and what is refused where it does not hold."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.vla_policies.conftest import edit_json
from vla_gym.errors import BadValue, VLAZooError
from vla_policies import VLAPolicy
from vla_policies.checkpoint_io.manifest import (
    FORMER_FILE,
    MANIFEST_FILE,
    Manifest,
    check_manifest,
    extend_manifest,
    model_sha256,
    read_manifest,
    writing_manifest,
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    VLAPolicy.from_pretrained("nano", backbone_kwargs={"size": "tiny"}, device="cpu").save_pretrained(folder)
    return folder


def manifest_of(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    assert manifest is not None
    return manifest


def as_before(folder: Path) -> None:
    """Give a folder the certificate that earlier versions wrote, instead of its manifest."""
    manifest = manifest_of(folder)
    files = {name: {"sha256": value, "samples": "0" * 64} for name, value in manifest.files.items()}
    (folder / FORMER_FILE).write_text(json.dumps({"files": files, "base": manifest.base, "canary": [0.5, 1.0]}))
    (folder / MANIFEST_FILE).unlink()


def flip_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_folder_is_as_it_was_written(saved: Path) -> None:
    hashes = {name: sha256((saved / name).read_bytes()).hexdigest() for name in ("config.json", "model.safetensors")}
    assert manifest_of(saved) == Manifest(hashes)
    VLAPolicy.from_pretrained(saved, device="cpu")


@pytest.mark.parametrize("former", [False, True])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_change_is_named_and_opens_on_demand_alone(saved: Path, name: str, former: bool) -> None:
    if former:
        as_before(saved)
    VLAPolicy.from_pretrained(saved, device="cpu")
    if name == "config.json":
        edit_json(saved / name, lambda values: values["sampling"].update(temperature=1.1))
    else:
        flip_last_bit(saved / name)
    with pytest.raises(BadValue, match=f"{name} has other content .* verify: false"):
        VLAPolicy.from_pretrained(saved, device="cpu")
    VLAPolicy.from_pretrained(saved, device="cpu", verify=False)


@pytest.mark.parametrize("name", [MANIFEST_FILE, FORMER_FILE])
@pytest.mark.parametrize(
    "content", ["[]", '{"files": []}', '{"files": {"a": 1}}', '{"files": {"../a": {"sha256": 1}}}']
)
def test_a_damaged_manifest_is_an_error(saved: Path, name: str, content: str) -> None:
    (saved / MANIFEST_FILE).unlink()
    (saved / name).write_text(content)
    with pytest.raises(VLAZooError):
        VLAPolicy.from_pretrained(saved, device="cpu")


def test_only_what_was_written_is_listed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "weights").write_text("old")
    with writing_manifest(tmp_path):
        (tmp_path / "weights").write_text("new")
    assert set(manifest_of(tmp_path).files) == {"weights"}


def test_what_is_written_beside_listed_files_joins_them(tmp_path: Path) -> None:
    with writing_manifest(tmp_path):
        for name in ("weights", "gone", "notes"):
            (tmp_path / name).write_text(name)
    with writing_manifest(tmp_path, "a base"):
        (tmp_path / "adapter").write_text("adapter")
        (tmp_path / "gone").unlink()
    (tmp_path / "state").write_text("state")
    extend_manifest(tmp_path, ["state"])
    own = manifest_of(tmp_path)
    assert (list(own.files), own.base) == (["adapter", "notes", "state", "weights"], "a base")
    check_manifest(tmp_path, own)


@pytest.fixture
def adapter_and_base(tmp_path: Path, golden_root: Path) -> tuple[Path, Path]:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(golden_root / "openvla_oft_tiny", base)
    policy = open_adapter(base, unnorm_key="libero_spatial_no_noops", backbone_kwargs={"lora": {"rank": 2}})
    policy.save_adapter(adapter)
    return adapter, base


def open_adapter(folder: Path, **kwargs: Any) -> VLAPolicy:
    return VLAPolicy.from_pretrained(folder, family="openvla-oft", device="cpu", **kwargs)


@pytest.mark.parametrize("name", ["tokenizer.json", "dataset_statistics.json", "model.safetensors"])
def test_an_adapter_knows_its_base(adapter_and_base: tuple[Path, Path], name: str) -> None:
    adapter, base = adapter_and_base
    as_before(adapter)
    open_adapter(adapter)
    if name == "model.safetensors":
        flip_last_bit(base / name)
    else:
        (base / name).write_text((base / name).read_text() + "\n")
    with pytest.raises(BadValue, match="was trained on another model than"):
        open_adapter(adapter)
    open_adapter(adapter, verify=False)


def test_a_copy_of_the_base_is_the_base(adapter_and_base: tuple[Path, Path], tmp_path: Path) -> None:
    adapter, base = adapter_and_base
    copy = tmp_path / "elsewhere"
    shutil.copytree(base, copy)
    (copy / "README.md").write_text("a card")
    assert model_sha256(copy) == model_sha256(base)
    open_adapter(adapter, base=str(copy))
