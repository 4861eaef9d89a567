"""A checkpoint opened in 8 and 4 bits: planned bytes, ratios, adapters' gradients, saving, merging."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from vla_policies.footprint import Footprint
from vla_policies.modules.quantization import quantized_layers
from zoo.distributed.fsdp import check_learnable

Observe = Callable[[int], dict[str, Tensor]]
BOTH = pytest.mark.parametrize(
    ("family", "scheme"), [("openvla", "int8"), pytest.param("openvla-oft", "nf4", marks=pytest.mark.thorough)]
)


@pytest.fixture(autouse=True)
def library(request: pytest.FixtureRequest) -> None:
    if "nf4" in request.node.name:
        pytest.importorskip("bitsandbytes")


def open_policy(name: Path, family: str | None = None, **options: Any) -> VLAPolicy:
    torch.manual_seed(0)
    return VLAPolicy.from_pretrained(
        name, family=family, unnorm_key="bridge_orig", device="cpu", backbone_kwargs=options
    )


@BOTH
def test_a_quantised_base_trains_adapters_saves_and_goes_on(
    folder: Path, observe: Observe, tmp_path: Path, family: str, scheme: str
):
    policy, obs = open_policy(folder, family, quantization=scheme, lora={"rank": 4}), observe(1)
    for name, parameter in policy.backbone.named_parameters():
        if ".lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    sample = policy.act(obs)
    scored = policy.evaluate(obs, sample.record)
    assert torch.equal(scored.logprob_BKA, sample.logprob_BKA), "the ratio is exactly 1"

    policy.save_trained(tmp_path / "adapter")
    assert sorted(path.name for path in (tmp_path / "adapter").glob("*model*")) == ["adapter_model.safetensors"]
    settings = json.loads((tmp_path / "adapter" / "vla_zoo.json").read_text())["vla_zoo"]["settings"]
    assert settings["quantization"] == scheme
    again = open_policy(tmp_path / "adapter")
    assert quantized_layers(again.backbone).keys() == quantized_layers(policy.backbone).keys()
    noise = policy.act(obs, deterministic=True)
    assert torch.equal(again.act(obs, deterministic=True).logprob_BKA, noise.logprob_BKA)
    again.backbone.restore(tmp_path / "adapter")
    with pytest.raises(BadValue, match="quantization: null, and merge there"):
        again.merge_adapter()
    open_policy(tmp_path / "adapter", quantization=None).merge_adapter()

    policy.save_pretrained(tmp_path / "merged")
    merged = open_policy(tmp_path / "merged")
    assert not quantized_layers(merged.backbone), "what was rounded once is not rounded again"
    assert torch.allclose(merged.act(obs, deterministic=True).logprob_BKA, noise.logprob_BKA, atol=1e-4)


@BOTH
def test_planned_bytes_are_the_real_ones(family: str, scheme: str):
    options = {"size": "tiny", "quantization": scheme, "lora": {"rank": 4}, "dtype": "bfloat16"}
    policy = VLAPolicy.from_pretrained(family, backbone_kwargs=options, device="cpu")
    held = [*policy.backbone.parameters(), *policy.backbone.buffers()]
    trained = sum(p.nbytes for p in policy.backbone.parameters() if p.requires_grad)
    planned = Footprint(family, policy.conventions, options)
    assert (planned.frozen, planned.trained) == (sum(x.nbytes for x in held) - trained, trained)


def test_training_all_of_quantised_weights_is_refused(folder: Path):
    policy = open_policy(folder, "openvla-oft", quantization="int8")
    with pytest.raises(BadValue, match=r"quantised weights do not train; add an adapter"):
        check_learnable(policy)
