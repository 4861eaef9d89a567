"""The fused layer against peft's own."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from vla_policies.modules.fused_lora import FusedLoraLinear, fuse


def adapted(**settings: object) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4, bias=False))
    config = LoraConfig(r=3, lora_alpha=6, target_modules=["0", "2"], init_lora_weights=False, **settings)
    inject_adapter_in_model(config, module)
    return module


def grads(module: nn.Module, x: Tensor) -> list[Tensor]:
    module.zero_grad()
    x = x.clone().requires_grad_()
    module(x).square().sum().backward()
    return [x.grad, *(one.grad for one in module.parameters() if one.requires_grad)]  # type: ignore[list-item]


@pytest.mark.parametrize("shape", [(7, 6), (2, 3, 6)])
def test_outputs_and_gradients_are_pefts(shape: tuple[int, ...]) -> None:
    peft = adapted()
    fused = copy.deepcopy(peft)
    fuse(fused)
    assert isinstance(fused[0], FusedLoraLinear)
    assert fused.state_dict().keys() == peft.state_dict().keys()
    x = torch.randn(shape)
    torch.testing.assert_close(fused(x), peft(x), rtol=0.0, atol=1e-6)
    got, want = grads(fused, x), grads(peft, x)
    # The input, and A and B of two layers.
    assert len(got) == 5
    for grad, wanted_grad in zip(got, want, strict=True):
        torch.testing.assert_close(grad, wanted_grad, rtol=1e-5, atol=1e-5)


def test_by_hand() -> None:
    layer = nn.Sequential(nn.Linear(1, 1))
    inject_adapter_in_model(LoraConfig(r=1, lora_alpha=2, target_modules=["0"]), layer)
    fuse(layer)
    with torch.no_grad():
        layer[0].base_layer.weight.fill_(3.0)
        layer[0].base_layer.bias.fill_(0.5)
        layer[0].lora_A["default"].weight.fill_(5.0)
        layer[0].lora_B["default"].weight.fill_(7.0)
    x = torch.tensor([[2.0]], requires_grad=True)
    out = layer(x)
    out.backward()
    # 2 x 3 + 0.5 + 2 (2 x 5 x 7); d/dx = 3 + 2 x 35; d/dA = 2 x 2 x 7; d/dB = 2 x 2 x 5.
    assert out.item() == 146.5
    assert x.grad.item() == 73.0  # type: ignore[union-attr]
    assert layer[0].lora_A["default"].weight.grad.item() == 28.0
    assert layer[0].lora_B["default"].weight.grad.item() == 20.0


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_in_mixed_precision_outputs_and_gradients_are_pefts(weights: torch.dtype) -> None:
    peft = adapted()
    for name, parameter in peft.named_parameters():
        if "lora" not in name:
            parameter.data = parameter.data.to(weights)
    fused = copy.deepcopy(peft)
    fuse(fused)
    x = torch.randn(7, 6).to(weights)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = fused(x), peft(x)
        assert got.dtype == want.dtype == torch.bfloat16
        # bfloat16 has 8 bits: neighbours are 2^-8 apart, and there are two layers.
        torch.testing.assert_close(got, want, rtol=2**-6, atol=2**-6)
        gradients, wanted = grads(fused, x), grads(peft, x)
    assert {grad.dtype for grad in gradients[1:]} == {torch.float32}
    for grad, other in zip(gradients, wanted, strict=True):
        # All of a gradient together; single numbers near zero are mostly rounding.
        assert (grad.float() - other.float()).norm() < 0.05 * other.float().norm()


def test_what_is_switched_off_merged_or_special_goes_pefts_way() -> None:
    module = adapted()
    x = torch.randn(3, 6)
    with_adapter = module(x)
    fuse(module)
    module[0].enable_adapters(False)
    module[2].enable_adapters(False)
    plain = module[2].get_base_layer()(torch.nn.functional.gelu(module[0].get_base_layer()(x)))
    torch.testing.assert_close(module(x), plain)
    module[0].enable_adapters(True)
    module[2].enable_adapters(True)
    module[0].merge()
    torch.testing.assert_close(module(x), with_adapter, rtol=0.0, atol=1e-5)
    for special in ({"use_dora": True}, {"lora_dropout": 0.5}):
        other = adapted(**special)
        fuse(other)
        assert not isinstance(other[0], FusedLoraLinear)
