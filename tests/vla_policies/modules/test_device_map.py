"""Where weights go and in which type."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vla_gym.errors import BadValue, UnknownName
from vla_gym.observation import encode_instruction
from vla_policies import VLAPolicy
from vla_policies.modules.device_map import dispatch, layer_devices, place
from vla_policies.openvla.policy import OpenVLABackbone

LAYERS = "language_model.model.layers"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small OpenVLA without statistics."""
    path = tmp_path_factory.mktemp("openvla")
    policy = VLAPolicy.from_pretrained("openvla", backbone_kwargs={"size": "tiny"}, device="cpu")
    policy.save_pretrained(path)
    return path


def network_of(folder: Path) -> torch.nn.Module:
    backbone = VLAPolicy.from_pretrained(folder, device="cpu").backbone
    assert isinstance(backbone, OpenVLABackbone)
    return backbone.network


def test_a_map_names_layers_and_the_last_stays_with_the_rest(folder: Path) -> None:
    network = network_of(folder)
    found = layer_devices(network, LAYERS, {"": "cpu", LAYERS: "cuda:1"})
    # Two layers: the second is the last.
    assert found == {
        "": torch.device("cpu"),
        f"{LAYERS}.0": torch.device("cuda:1"),
        f"{LAYERS}.1": torch.device("cpu"),
    }
    assert set(layer_devices(network, LAYERS, "cuda:3").values()) == {torch.device("cuda:3")}
    exact = layer_devices(network, LAYERS, {LAYERS: 2, f"{LAYERS}.0": 1, "": 0})
    assert exact[f"{LAYERS}.0"] == torch.device("cuda:1")


def test_wrong_maps_are_named(folder: Path) -> None:
    network = network_of(folder)
    with pytest.raises(UnknownName, match=r"no module in device_map 'language_model.layers'"):
        layer_devices(network, LAYERS, {"language_model.layers": "cpu"})
    with pytest.raises(BadValue, match="'cqu' is no device"):
        layer_devices(network, LAYERS, "cqu")


def test_what_flows_between_layers_is_moved_for_them(folder: Path) -> None:
    plain, spread = (VLAPolicy.from_pretrained(folder, device="cpu") for _ in range(2))
    network = spread.backbone.network
    plan = layer_devices(network, LAYERS, "cpu")
    dispatch(network, LAYERS, plan, force_hooks=True)
    assert hasattr(network.get_submodule(f"{LAYERS}.0"), "_hf_hook")
    obs = {key: space.sample()[None] for key, space in plain.observation_space.spaces.items()}  # type: ignore[attr-defined]
    obs["instruction"] = encode_instruction("reach the red block")[None]
    first, second = plain.act(obs, deterministic=True), spread.act(obs, deterministic=True)
    assert torch.equal(first.action_BKA, second.action_BKA)
    assert torch.equal(first.logprob_BKA, second.logprob_BKA)


def test_layers_on_disk_are_read_when_they_run(folder: Path, tmp_path: Path) -> None:
    device_map = {"": "cpu", f"{LAYERS}.0": "disk"}
    plain = VLAPolicy.from_pretrained(folder, device="cpu")
    spread = VLAPolicy.from_pretrained(folder, device_map=device_map, offload_folder=tmp_path / "offload")
    layers = spread.backbone.network.get_submodule(LAYERS)
    assert {p.device.type for p in layers[0].parameters()} == {"meta"}
    assert {p.device.type for p in layers[1].parameters()} == {"cpu"}
    obs = {key: space.sample()[None] for key, space in plain.observation_space.spaces.items()}  # type: ignore[attr-defined]
    obs["instruction"] = encode_instruction("reach the red block")[None]
    first, second = plain.act(obs, deterministic=True), spread.act(obs, deterministic=True)
    assert torch.equal(first.action_BKA, second.action_BKA)
    assert torch.equal(first.logprob_BKA, second.logprob_BKA)
    assert not any(p.requires_grad for p in layers[0].parameters())
    trained = {id(p) for group in spread.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in spread.parameters() if p.requires_grad}


def test_layers_without_memory_stay_shapes(folder: Path) -> None:
    network = network_of(folder)
    place(network, LAYERS, "meta")
    assert {p.device.type for p in network.parameters()} == {"meta"}


def test_what_the_disk_cannot_hold_is_said(folder: Path, tmp_path: Path) -> None:
    device_map = {"": "cpu", f"{LAYERS}.0": "disk"}
    with pytest.raises(BadValue, match="say in which folder: offload_folder"):
        VLAPolicy.from_pretrained(folder, device_map=device_map)
    with pytest.raises(BadValue, match="only layers may be on disk"):
        VLAPolicy.from_pretrained(folder, device_map="disk", offload_folder=tmp_path)
    with pytest.raises(BadValue, match="act but do not learn"):
        VLAPolicy.from_pretrained(
            folder, device_map=device_map, offload_folder=tmp_path, backbone_kwargs={"lora": {"rank": 2}}
        )
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(BadValue, match="is not empty"):
        VLAPolicy.from_pretrained(folder, device_map=device_map, offload_folder=tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_layers_on_the_cpu_beside_a_gpu_give_the_same_answers(folder: Path) -> None:
    plain = VLAPolicy.from_pretrained(folder, device="cuda", dtype="float32")
    spread = VLAPolicy.from_pretrained(folder, dtype="float32", device_map={"": 0, f"{LAYERS}.0": "cpu"})
    obs = {key: space.sample()[None] for key, space in plain.observation_space.spaces.items()}  # type: ignore[attr-defined]
    obs["instruction"] = encode_instruction("reach the red block")[None]
    first, second = plain.act(obs, deterministic=True), spread.act(obs, deterministic=True)
    torch.testing.assert_close(first.logprob_BKA, second.logprob_BKA, rtol=0.0, atol=1e-4)


def test_auto_takes_the_one_device_there_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    policy = VLAPolicy.from_pretrained(folder, device_map="auto")
    assert {parameter.device.type for parameter in policy.parameters()} == {"cpu"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16"])
def test_the_type_of_the_large_part_is_chosen(folder: Path, dtype: torch.dtype | str) -> None:
    policy = VLAPolicy.from_pretrained(folder, device="cpu", dtype=dtype)
    assert policy.backbone.network.projector.fc1.weight.dtype == torch.bfloat16
    assert policy.backbone.value_head.mlp[0].weight.dtype == torch.float32


def test_families_without_a_choice_say_so(tmp_path: Path, folder: Path) -> None:
    nano = VLAPolicy.from_pretrained("nano", device="cpu", backbone_kwargs={"size": "tiny"})
    nano.save_pretrained(tmp_path)
    with pytest.raises(BadValue, match="'nano' keeps its weights in float32"):
        VLAPolicy.from_pretrained(tmp_path, dtype="bfloat16", device="cpu")
    with pytest.raises(BadValue, match="'nano' fits one device"):
        VLAPolicy.from_pretrained(tmp_path, device_map="auto")
    with pytest.raises(BadValue, match="are for checkpoints; 'nano' is a family"):
        VLAPolicy.from_pretrained("nano", dtype="bfloat16", device="cpu")
    with pytest.raises(BadValue, match="dtype"):
        VLAPolicy.from_pretrained(folder, dtype="float8", device="cpu")
