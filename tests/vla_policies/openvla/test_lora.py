"""LoRA adapters: attach, train, save alone, load by us and by plain peft, merge."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.vla_policies.conftest import edit_json
from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from vla_policies.checkpoint_io.manifest import MANIFEST_FILE
from vla_policies.loading import load_checkpoint
from vla_policies.lora_backbone import linear_rows
from vla_policies.model_folder import Request
from vla_policies.resolver import open_folder

Observe = Callable[[int], dict[str, Tensor]]
LORA = {"lora": {"rank": 4}}


def open_policy(name: Path, **kwargs: Any) -> VLAPolicy:
    kwargs.setdefault("unnorm_key", "bridge_orig")
    return VLAPolicy.from_pretrained(name, device="cpu", **kwargs)


def train_a_step(policy: VLAPolicy, obs: dict[str, Tensor]) -> None:
    for group in policy.optimizer.param_groups:
        group["lr"] = 0.05
    result = policy.evaluate(obs, policy.act(obs).record)
    (result.logprob_BKA.sum() + (result.value_B - 1.0).square().sum()).backward()
    policy.optimizer.step()
    policy.optimizer.zero_grad()


def logits(policy: VLAPolicy, obs: dict[str, Tensor]) -> Tensor:
    sample = policy.act(obs, deterministic=True)
    return torch.cat([sample.logprob_BKA.flatten(), sample.value_B])


@pytest.fixture
def trained(folder: Path, observe: Observe, request: pytest.FixtureRequest) -> VLAPolicy:
    torch.manual_seed(0)
    policy = open_policy(folder, family=request.param, backbone_kwargs=LORA)
    train_a_step(policy, observe(1))
    train_a_step(policy, observe(1))
    return policy


@pytest.mark.parametrize("trained", ["openvla", pytest.param("openvla-oft", marks=pytest.mark.thorough)], indirect=True)
def test_plain_peft_loads_the_adapter(trained: VLAPolicy, folder: Path, observe: Observe, tmp_path: Path) -> None:
    trained.save_adapter(tmp_path)
    request = Request(family=trained.backbone.family, unnorm_key="bridge_orig")
    network = load_checkpoint(open_folder(folder, request))[0].network
    pixels = trained.prepare(observe(0)).pixels_BMCHW
    before = network.encode_images(pixels)
    peft.PeftModel.from_pretrained(network, str(tmp_path))
    with torch.no_grad():
        assert torch.equal(network.encode_images(pixels), trained.backbone.network.encode_images(pixels))
        assert not torch.equal(network.encode_images(pixels), before)


def made_elsewhere(base: Path, folder: Path, **settings: Any) -> None:
    """Write an adapter with random weights by peft itself."""
    torch.manual_seed(0)
    network = load_checkpoint(open_folder(base, Request(unnorm_key="bridge_orig")))[0].network
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft wonders about output layers outside of transformers
        peft.get_peft_model(network, peft.LoraConfig(init_lora_weights=False, **settings)).save_pretrained(folder)
    edit_json(folder / "adapter_config.json", base_model_name_or_path=str(base))


def test_an_adapter_made_elsewhere_is_read(folder: Path, observe: Observe, tmp_path: Path) -> None:
    made_elsewhere(folder, tmp_path, r=2, lora_alpha=2, target_modules=["q_proj", "v_proj", "lm_head"])
    # Of a model of transformers it also writes the adapted output layer itself.
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    output = load_file(folder / "model.safetensors")["language_model.lm_head.weight"].clone()
    tensors["base_model.model.language_model.lm_head.base_layer.weight"] = output
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    policy = open_policy(tmp_path)
    assert policy.backbone.config.unnorm_key == "bridge_orig"
    plain = open_policy(folder)
    assert not torch.allclose(logits(policy, observe(0))[:7], logits(plain, observe(0))[:7], atol=1e-3)
    hidden = torch.randn(3, 64)
    whole = policy.backbone.network.language_model.lm_head(hidden)
    torch.testing.assert_close(
        linear_rows(policy.backbone.network.language_model.lm_head, hidden, 31744, 256), whole[:, 31744:32000]
    )


def test_broken_adapters_are_named(folder: Path, tmp_path: Path) -> None:
    open_policy(folder, backbone_kwargs=LORA).save_adapter(tmp_path)
    (tmp_path / MANIFEST_FILE).unlink()
    weights = tmp_path / "adapter_model.safetensors"
    tensors = load_file(weights)
    name = next(iter(tensors))
    save_file({key: value for key, value in tensors.items() if key != name}, weights)
    with pytest.raises(BadValue, match=f"missing '{name}'"):
        VLAPolicy.from_pretrained(tmp_path)
    weights.unlink()
    with pytest.raises(BadValue, match=r"lacks adapter_model\.safetensors"):
        VLAPolicy.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    for change, message in (
        ({"base_model_name_or_path": "/no/such/base"}, "'/no/such/base'.* policy_kwargs base"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path"),
        ({"peft_type": "IA3"}, "peft_type"),
    ):
        (tmp_path / "adapter_config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(BadValue, match=message):
            VLAPolicy.from_pretrained(tmp_path)


def test_what_has_no_adapter_says_so(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="has no LoRA adapter to save"):
        open_policy(folder).save_adapter(tmp_path)
    with pytest.raises(BadValue, match="finds nothing to attach to"):
        open_policy(folder, backbone_kwargs={"lora": {"targets": ["nothing"]}})
    fresh = VLAPolicy.from_pretrained("openvla", backbone_kwargs={"size": "tiny", **LORA}, device="cpu")
    with pytest.raises(BadValue, match="fresh weights have no name"):
        fresh.save_adapter(tmp_path)


def high(policy: VLAPolicy) -> list[float]:
    """The numbers that +1 stands for."""
    return policy.backbone.processor.action_normaliser.high_A.tolist()


@pytest.mark.parametrize("key", ["bridge_orig", pytest.param("my_data", marks=pytest.mark.thorough)])
def test_an_adapter_s_own_statistics_go_over_its_base_s(folder: Path, tmp_path: Path, key: str) -> None:
    policy = open_policy(folder, backbone_kwargs=LORA)
    policy.save_adapter(tmp_path / "peft")
    for path in (tmp_path / "peft").iterdir():
        if path.name not in ("adapter_config.json", "adapter_model.safetensors"):
            path.unlink()
    entry = json.loads((folder / "dataset_statistics.json").read_text())["bridge_orig"]
    entry["action"]["q99"] = [10.0 * number for number in entry["action"]["q99"]]
    (tmp_path / "peft" / "dataset_statistics.json").write_text(json.dumps({key: entry}))
    opened = open_policy(tmp_path / "peft", unnorm_key=None)
    assert high(opened) == entry["action"]["q99"]
    for name, save in (("adapter", opened.save_trained), ("whole", opened.save_pretrained)):
        save(tmp_path / name)
        assert high(open_policy(tmp_path / name, unnorm_key=None)) == entry["action"]["q99"]


def test_stable_baselines3_cannot_save_an_adapter_of_many_ranks(folder: Path, observe: Observe, tmp_path: Path) -> None:
    made_elsewhere(folder, tmp_path, r=4, target_modules=["q_proj", "v_proj"], rank_pattern={"q_proj": 2})
    policy = open_policy(tmp_path)
    with pytest.raises(BadValue, match="use save_trained, or merge_adapter before save"):
        policy.save(tmp_path / "policy.zip")
    policy.save_trained(tmp_path / "adapter")
    again = VLAPolicy.from_pretrained(tmp_path / "adapter", device="cpu")
    assert torch.equal(logits(again, observe(0)), logits(policy, observe(0)))
