"""What a policy folder says of itself, and what is refused where it does not hold."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vla_gym.errors import BadValue, VLAZooError
from vla_policies import VLAPolicy
from vla_policies.checkpoint_io import certificate
from vla_policies.checkpoint_io.certificate import (
    CERTIFICATE_FILE,
    certified,
    check_certificate,
    fingerprint,
    read_certificate,
    recertified,
    samples_sha256,
)

NANO = {"size": "tiny"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    VLAPolicy.from_pretrained("nano", backbone_kwargs=NANO, device="cpu").save_pretrained(folder)
    return folder


def edited(path: Path, change: Callable[[dict], None]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def flip_last_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_folder_is_as_it_was_written(saved: Path) -> None:
    own = read_certificate(saved)
    assert own is not None
    assert set(own.files) == {"config.json", "model.safetensors"}
    assert own.base is None
    VLAPolicy.from_pretrained(saved, device="cpu")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_one_flipped_bit_is_named_and_opens_on_demand_alone(saved: Path, name: str) -> None:
    if name == "config.json":
        edited(saved / name, lambda values: values["sampling"].update(temperature=1.1))
    else:
        flip_last_bit(saved / name)
    with pytest.raises(BadValue, match=f"{name} has other content .* verify: false"):
        VLAPolicy.from_pretrained(saved, device="cpu")
    VLAPolicy.from_pretrained(saved, device="cpu", verify=False)


def test_other_weights_of_the_same_shapes_are_not_these(saved: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    VLAPolicy.from_pretrained("nano", backbone_kwargs=NANO, device="cpu").save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", saved)
    with pytest.raises(BadValue, match=r"model\.safetensors has other content"):
        VLAPolicy.from_pretrained(saved, device="cpu")


def test_a_file_that_is_gone_is_named(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(BadValue, match=r"lacks model\.safetensors, which certificate\.json lists"):
        check_certificate(saved)


def test_a_folder_of_the_first_version_is_noted_once(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    (saved / CERTIFICATE_FILE).unlink()
    with caplog.at_level(logging.INFO):
        VLAPolicy.from_pretrained(saved, device="cpu")
    assert [record.message for record in caplog.records if "cannot be verified" in record.message] == [
        f"policy {saved} is of an older version: without certificate.json it cannot be verified"
    ]


@pytest.mark.parametrize(
    "content",
    ["[]", '{"files": {}, "more": 1}', '{"files": {"a": "x"}}', '{"files": {"../a": {"sha256": "x", "samples": "y"}}}'],
)
def test_a_damaged_certificate_is_an_error(saved: Path, content: str) -> None:
    (saved / CERTIFICATE_FILE).write_text(content)
    with pytest.raises(VLAZooError, match=r"certificate\.json"):
        VLAPolicy.from_pretrained(saved, device="cpu")


def test_only_what_was_written_is_certified(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "weights").write_text("old")
    with certified(tmp_path):
        (tmp_path / "weights").write_text("new")
    own = read_certificate(tmp_path)
    assert own is not None
    assert set(own.files) == {"weights"}
    (tmp_path / "notes.txt").write_text("changed")
    check_certificate(tmp_path)


def test_what_is_written_beside_certified_files_joins_them(tmp_path: Path) -> None:
    with certified(tmp_path):
        for name in ("weights", "gone", "notes"):
            (tmp_path / name).write_text(name)
    with certified(tmp_path, "a base", (1.0,)):
        (tmp_path / "adapter").write_text("adapter")
        (tmp_path / "gone").unlink()
    own = read_certificate(tmp_path)
    assert own is not None
    assert list(own.files) == ["adapter", "notes", "weights"]
    assert (own.base, own.canary) == ("a base", (1.0,))
    check_certificate(tmp_path)


def test_of_large_files_samples_are_read_unless_all_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    with certified(tmp_path):
        path.write_bytes(bytes(2**20))
    monkeypatch.setattr(certificate, "WHOLE_BYTES", 2**19)
    monkeypatch.setattr(certificate, "_SAMPLE_BYTES", 2**10)
    with certified(tmp_path):
        path.write_bytes(bytes(2**20))
    # 64 samples of 1 KiB begin at multiples of 16,627; byte 8,000 is in none of them.
    data = bytearray(2**20)
    data[8_000] = 1
    path.write_bytes(data)
    check_certificate(tmp_path)
    with pytest.raises(BadValue, match="other content"):
        check_certificate(tmp_path, whole=True)
    path.write_bytes(bytes(2**21))
    monkeypatch.setattr(certificate, "file_sha256", lambda path: pytest.fail("another size is told by the samples"))
    with pytest.raises(BadValue, match="other content"):
        check_certificate(tmp_path, whole=True)
    data[16_627] = 1
    path.write_bytes(data)
    with pytest.raises(BadValue, match="other content"):
        check_certificate(tmp_path)


def test_samples_tell_sizes_and_small_files_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    seen = set()
    for content in (b"", b"\0", b"\0\0", b"\1\0"):
        path.write_bytes(content)
        seen.add(samples_sha256(path))
    assert len(seen) == 4


@pytest.fixture
def adapter_and_base(tmp_path: Path, golden_root: Path) -> tuple[Path, Path]:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(golden_root / "openvla_oft_tiny", base)
    policy = open_adapter(base, unnorm_key="libero_spatial_no_noops", backbone_kwargs={"lora": {"rank": 2}})
    policy.save_adapter(adapter)
    return adapter, base


def open_adapter(folder: Path, **kwargs: Any) -> VLAPolicy:
    return VLAPolicy.from_pretrained(folder, family="openvla-oft", device="cpu", **kwargs)


def swap_two_words(base: Path) -> None:
    def change(values: dict) -> None:
        words = values["model"]["vocab"]
        first, second = list(words)[10:12]
        words[first], words[second] = words[second], words[first]

    edited(base / "tokenizer.json", change)


def triple_statistics(base: Path) -> None:
    def change(values: dict) -> None:
        for data_set in values.values():
            data_set["action"]["q99"] = [3 * value for value in data_set["action"]["q99"]]

    edited(base / "dataset_statistics.json", change)


@pytest.mark.parametrize(
    "damage", [swap_two_words, triple_statistics, lambda base: flip_last_bit(next(base.glob("*.safetensors")))]
)
def test_an_adapter_knows_its_base(adapter_and_base: tuple[Path, Path], damage: Callable[[Path], None]) -> None:
    adapter, base = adapter_and_base
    open_adapter(adapter)
    damage(base)
    with pytest.raises(BadValue, match="was trained on another model than"):
        open_adapter(adapter)
    open_adapter(adapter, verify=False)


def test_a_copy_of_the_base_is_the_base(adapter_and_base: tuple[Path, Path], tmp_path: Path) -> None:
    adapter, base = adapter_and_base
    copy = tmp_path / "elsewhere"
    shutil.copytree(base, copy)
    (copy / "README.md").write_text("a card")
    assert fingerprint(copy) == fingerprint(base)
    open_adapter(adapter, base=str(copy))


def test_a_file_that_takes_the_place_of_another_is_certified(saved: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.json"
    changed.write_text("{}")
    own = recertified(saved, {"config.json": changed})
    before = read_certificate(saved)
    assert before is not None
    assert own.files["model.safetensors"] == before.files["model.safetensors"]
    assert own.files["config.json"] != before.files["config.json"]
