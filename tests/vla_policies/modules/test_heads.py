"""Critics and the noise head: published shapes, first outputs, float32 under autocast."""

from __future__ import annotations

import math

import torch
from torch import nn

from vla_policies.modules.heads import Critic, NoiseHead, ValueHead


def test_first_outputs_are_near_zero_or_in_the_middle() -> None:
    torch.manual_seed(0)
    head = ValueHead(4096)
    head.initialise()
    value_B1 = head(torch.randn(16, 4096))
    assert 0 < value_B1.std() < value_B1.abs().max() < 0.05
    value_B = Critic(1024, (512, 256, 128))(torch.randn(64, 1024).bfloat16())
    assert (value_B.shape, value_B.dtype) == ((64,), torch.float32)
    assert value_B.abs().max() < 0.1
    std = NoiseHead(16, (8,), 3, (0.08, 0.16))(torch.randn(5, 4, 16))
    torch.testing.assert_close(std, torch.full((5, 4, 3), math.sqrt(0.08 * 0.16)), rtol=0.01, atol=0)


def test_half_precision_passes_openvlas_critic_by() -> None:
    head = ValueHead(8)
    head.initialise()
    before = head.mlp[0].weight.clone()  # type: ignore[union-attr]
    module = nn.ModuleList([head, nn.Linear(8, 8)]).bfloat16()
    assert module[1].weight.dtype == torch.bfloat16
    assert torch.equal(head.mlp[0].weight, before)  # type: ignore[arg-type]
