"""Frozen weights in 8 and 4 bits: what rounding costs, and adapters over them against those over a dequantised copy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vla_gym.errors import BadValue
from vla_policies.lora_backbone import attach, merged_state
from vla_policies.modules import quantization
from vla_policies.modules.lora_config import LoraSettings
from vla_policies.modules.quantization import (
    Scheme,
    check_installed,
    dequantize,
    plain_state,
    quantize,
    quantize_layers,
)

SCHEMES: tuple[Scheme, ...] = ("int8", "nf4")


@pytest.fixture(autouse=True)
def library(request: pytest.FixtureRequest) -> None:
    if "nf4" in request.node.name:
        pytest.importorskip("bitsandbytes")


def test_int8_rounds_to_127_steps_a_row():
    weight = torch.tensor([[1.0, -0.5, 0.25], [0.0, 0.0, 0.0]])
    codes, scale = quantize(weight, "int8")
    # 1 / 127 a step: -0.5 is -63.5 of them, rounded to even, 0.25 is 31.75.
    assert codes.tolist() == [[127, -64, 32], [0, 0, 0]]
    assert torch.equal(scale, torch.tensor([1 / 127, 0.0]))
    got = dequantize(codes, scale, (2, 3), "int8", torch.float32)
    assert torch.allclose(got, weight, atol=0.5 / 127)


@pytest.mark.parametrize("shape", [(48, 176), (64, 128), (3, 11)])
def test_nf4_keeps_the_quantiles_of_qlora_whatever_the_rows_length(shape: tuple[int, int]):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    codes, scale = quantize(weight, "nf4")
    assert codes.numel() == -(-weight.numel() // 2)
    got = dequantize(codes, scale, shape, "nf4", torch.float32)
    # The widest gap between QLoRA's 16 levels is -1 to -0.6962, of the largest weight of the block.
    assert (got - weight).abs().max() <= 0.1520 * weight.abs().max()
    assert got.flatten()[0] == pytest.approx(float(weight.flatten()[0]), abs=0.16 * float(scale[0]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_adapters_have_the_gradients_they_have_over_the_dequantised_copy(scheme: Scheme):
    torch.manual_seed(0)
    quantised = nn.Sequential(nn.Linear(176, 64), nn.GELU(), nn.Linear(64, 48))
    quantize_layers(quantised, scheme, torch.float32)
    copy = nn.Sequential(nn.Linear(176, 64), nn.GELU(), nn.Linear(64, 48))
    copy.load_state_dict(plain_state(quantised))
    for network in (quantised, copy):
        torch.manual_seed(1)
        attach(network, LoraSettings(rank=4), ("0", "2"))
        for name, parameter in network.named_parameters():
            if ".lora_B" in name:
                nn.init.normal_(parameter, std=0.1)
    x = torch.randn(5, 176)
    outs = [network(x) for network in (quantised, copy)]
    assert torch.equal(*outs)
    for out in outs:
        out.square().mean().backward()
    pairs = zip(trained(quantised), trained(copy), strict=True)
    assert all((one.grad - other.grad).abs().max() <= 1e-5 for one, other in pairs)
    assert len(trained(quantised)) == 4
    # Merged, both are the same weights.
    merged = [merged_state(network) for network in (quantised, copy)]
    assert merged[0].keys() == merged[1].keys()
    assert all(torch.equal(merged[0][name], merged[1][name]) for name in merged[0])


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quantization, "find_spec", lambda name: None)
    check_installed("int8")
    with pytest.raises(BadValue, match=r"pip install bitsandbytes, or take quantization: int8"):
        check_installed("nf4")


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
