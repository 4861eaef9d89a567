"""OpenVLA-OFT's own heads through the life of a checkpoint, and what its folders are opened as."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies import VLAPolicy

KEY = "libero_spatial"
STATE = {"use_state": True, "center_crop": False, "camera_resize": "bicubic"}
LORA = {"lora": {"rank": 4, "targets": ["q_proj"]}}
WAYS = pytest.mark.parametrize("way", [LORA, {}], ids=["adapter", "all weights"])

Observe = Callable[[int], dict[str, Tensor]]


def open_policy(folder: Path, **options: Any) -> VLAPolicy:
    return VLAPolicy.from_pretrained(folder, unnorm_key=KEY, device="cpu", backbone_kwargs=options)


def decide(policy: VLAPolicy, obs: dict[str, Tensor]) -> Tensor:
    sample = policy.act(obs, deterministic=True)
    return torch.cat([sample.action_BKA.flatten(), sample.logprob_BKA.flatten(), sample.value_B])


@pytest.fixture
def obs(observe: Observe) -> dict[str, Tensor]:
    return observe(0)


@WAYS
def test_a_trained_projector_is_saved_and_restored(
    folder: Path, obs: dict[str, Tensor], tmp_path: Path, way: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    policy = open_policy(folder, **STATE, **way)
    before = policy.backbone.proprio.fc1.weight.clone()
    for group in policy.optimizer.param_groups:
        group["lr"] = 0.05
    policy.evaluate(obs, policy.act(obs).record).logprob_BKA.sum().backward()
    policy.optimizer.step()
    trained = policy.backbone.proprio.fc1.weight
    assert not torch.equal(trained, before)
    policy.save_trained(tmp_path)
    opened = VLAPolicy.from_pretrained(tmp_path, device="cpu")
    assert torch.equal(opened.backbone.proprio.fc1.weight, trained)
    restored = open_policy(folder, **STATE, **way)
    held = dict(restored.named_parameters())
    restored.backbone.restore(tmp_path)
    for other in (opened, restored):
        assert torch.equal(decide(other, obs), decide(policy, obs))
    # In place: the optimiser still holds the very same tensors.
    assert all(parameter is held[name] for name, parameter in restored.named_parameters())


@WAYS
def test_a_changed_regression_head_is_saved_and_restored(
    folder: Path, obs: dict[str, Tensor], tmp_path: Path, way: dict[str, Any]
) -> None:
    options = {**STATE, "head": "l1", **way}
    policy = open_policy(folder, **options)
    with torch.no_grad():
        policy.backbone.regression.model.fc2.bias.fill_(0.25)
    policy.save_trained(tmp_path)
    restored = open_policy(folder, **options)
    restored.backbone.restore(tmp_path)
    for other in (VLAPolicy.from_pretrained(tmp_path, device="cpu"), restored):
        assert other.backbone.regression.model.fc2.bias.tolist() == [0.25] * 7
        assert torch.equal(decide(other, obs), decide(policy, obs))


def test_heads_of_ours_come_before_those_of_its_makers(folder: Path, tmp_path: Path) -> None:
    policy = open_policy(folder, **STATE)
    with torch.no_grad():
        policy.backbone.proprio.fc2.bias.fill_(0.5)
    policy.save_pretrained(tmp_path)
    official = folder / "proprio_projector--150000_checkpoint.pt"
    (tmp_path / official.name).write_bytes(official.read_bytes())
    opened = VLAPolicy.from_pretrained(tmp_path, device="cpu")
    assert opened.backbone.proprio.fc2.bias.unique().tolist() == [0.5]


def test_an_adapters_projector_must_fit(folder: Path, tmp_path: Path) -> None:
    open_policy(folder, **STATE, **LORA).save_trained(tmp_path)
    path = tmp_path / "proprio_projector.safetensors"
    tensors = load_file(path)
    save_file({name: tensor for name, tensor in tensors.items() if name != "fc1.bias"}, path)
    with pytest.raises(BadValue, match=r"proprio_projector\.safetensors.*missing 'fc1\.bias'"):
        VLAPolicy.from_pretrained(tmp_path, device="cpu")
