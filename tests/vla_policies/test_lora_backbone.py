"""Adapters attached to layers; folders of adapters are in `tests/vla_policies/openvla/test_lora.py`."""

from __future__ import annotations

import torch
from torch import nn

from vla_policies.lora_backbone import attach, is_zero
from vla_policies.modules.lora_config import LoraSettings


def test_an_adapter_is_zero_until_it_is_trained():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert is_zero(module)
    attach(module, LoraSettings(rank=2), ("0", "1"))
    assert is_zero(module)
    with torch.no_grad():
        module[1].lora_B["default"].weight[0, 0] = 1e-8
    assert not is_zero(module)
