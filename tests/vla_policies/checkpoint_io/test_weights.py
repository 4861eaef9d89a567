from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from vla_gym.errors import BadValue
from vla_policies.checkpoint_io import folder as folder_files
from vla_policies.checkpoint_io import weights


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    weights.write_checkpoint(tmp_path, {}, two_layers())
    with pytest.raises(BadValue, match=r"missing '2\.bias', '2\.weight'"):
        weights.load_weights(tmp_path, nn.Sequential(*two_layers(), nn.Linear(1, 1)))
    with pytest.raises(BadValue, match=r"unexpected '1\.bias', '1\.weight'"):
        weights.load_weights(tmp_path, nn.Sequential(nn.Linear(2, 3)))
    with pytest.raises(BadValue, match=r"'1\.bias' is \(1,\), the model needs \(2,\)"):
        weights.load_weights(tmp_path, nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"lacks config\.json"):
        folder_files.read_config(tmp_path)
    (tmp_path / "best").mkdir()
    with pytest.raises(BadValue, match=r"Of a run, give '.*best'"):
        folder_files.read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(BadValue, match="must hold a JSON object, got list"):
        folder_files.read_config(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(BadValue, match="cannot be read as safetensors"):
        weights.read_tensors(tmp_path)


def test_a_pointer_of_git_lfs_is_told_from_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 15064000000\n")
    with pytest.raises(BadValue, match="pointer of Git LFS"):
        weights.read_safetensors(path)


def test_large_weights_go_into_shards_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {name: torch.full((8,), float(number)) for number, name in enumerate("abc")}
    # 8 float32 are 32 bytes: two tensors a file.
    monkeypatch.setattr(weights, "SHARD_BYTES", 64)
    weights.write_tensors(tmp_path, tensors)
    assert [path.name for path in folder_files.weight_files(tmp_path)] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    read = weights.read_tensors(tmp_path)
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)

    monkeypatch.setattr(weights, "SHARD_BYTES", 1000)
    weights.write_tensors(tmp_path, tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_an_index_stays_in_its_folder(tmp_path: Path) -> None:
    index = tmp_path / weights.INDEX_FILE
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(BadValue, match="lacks the shard"):
        folder_files.weight_files(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    with pytest.raises(BadValue, match="lacks the shard"):
        folder_files.weight_files(tmp_path)


def test_nothing_but_tensors_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "head.pt"
    torch.save({"module.weight": torch.ones(2)}, path)
    assert list(weights.read_pt(path)) == ["weight"]
    torch.save({"weight": Path("x")}, path)
    with pytest.raises(BadValue, match="cannot be read as tensors"):
        weights.read_pt(path)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(10**12),
        torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (10**12,), check_invariants=True),
        torch.empty(2, device="meta"),
    ],
    ids=["expanded", "sparse", "meta"],
)
def test_a_pt_file_holds_every_number_of_its_tensors(tensor: torch.Tensor, tmp_path: Path) -> None:
    # The sum of 10^12 numbers, all of them one of the file's, would take an hour.
    torch.save({"weight": tensor}, tmp_path / "head.pt")
    with pytest.raises(BadValue, match="'weight' as a sparse, quantized or expanded tensor"):
        weights.read_pt(tmp_path / "head.pt")


def test_a_packed_pt_file_is_not_unpacked(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(10**6)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "head.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry))
    assert (tmp_path / "head.pt").stat().st_size < 10**5
    with pytest.raises(BadValue, match="cannot be read as tensors: it is packed, 40"):
        weights.read_pt(tmp_path / "head.pt")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
def test_weights_of_another_kind_of_number_raise(dtype: torch.dtype) -> None:
    with pytest.raises(BadValue, match=f"'weight' holds {dtype}, the model needs torch.float32"):
        weights.check_tensors(Path("x"), {"weight": torch.ones(2).to(dtype)}, {"weight": torch.ones(2)})
    weights.check_tensors(Path("x"), {"weight": torch.ones(2).half()}, {"weight": torch.ones(2)})


def test_several_files_of_one_kind_raise(tmp_path: Path) -> None:
    assert folder_files.one_file(tmp_path, "head--*.pt") is None
    (tmp_path / "head--1.pt").touch()
    assert folder_files.one_file(tmp_path, "head--*.pt") == tmp_path / "head--1.pt"
    (tmp_path / "head--2.pt").touch()
    with pytest.raises(BadValue, match=r"has 2 files like head--\*\.pt: head--1\.pt, head--2\.pt"):
        folder_files.one_file(tmp_path, "head--*.pt")


def test_a_network_without_memory_is_filled_in_the_wanted_type(tmp_path: Path) -> None:
    with torch.device("meta"):
        layer = nn.Linear(2, 1)
    tensors = {"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([3.0])}
    dtypes = {"weight": torch.bfloat16, "bias": torch.float32}
    weights.fill(layer, tensors, tmp_path, dtypes.__getitem__)
    assert (layer.weight.dtype, layer.bias.dtype) == (torch.bfloat16, torch.float32)
    assert layer.weight.tolist() == [[1.0, 2.0]]
    with pytest.raises(BadValue, match="missing 'bias'; unexpected 'basi'"):
        weights.fill(layer, {"weight": tensors["weight"], "basi": tensors["bias"]}, tmp_path, dtypes.get)  # type: ignore[arg-type]


@pytest.mark.parametrize("read", [weights.read_safetensors, weights.read_pt])
def test_a_pipe_is_not_waited_for(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(BadValue, match="is no regular file, but a pipe"):
        read(tmp_path / "model.safetensors")
