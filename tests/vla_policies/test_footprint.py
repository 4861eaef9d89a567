"""Counts on tensors without memory against real networks (weights) and against fake CPU tensors (passes)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_policies.devices import built_for
from vla_policies.footprint import META, Footprint, Meter, fused_attention
from vla_policies.loading import fresh_backbone
from vla_policies.modules.training import GroupScaledAdamW, parameter_groups
from vla_policies.registry import FAMILIES, family_class

TINY: Mapping[str, Mapping[str, Any]] = {
    "nano": {"size": "tiny"},
    "nano-flow": {"size": "tiny"},
    "openvla": {"size": "tiny", "lora": {"rank": 4}, "dtype": "float32"},
    "openvla-oft": {"size": "tiny", "dtype": "bfloat16", "lora": {"rank": 4}},
}


def tiny(family: str) -> dict[str, Any]:
    return dict(TINY.get(family, {"size": "tiny"}))


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_of_weights_and_optimiser_are_those_of_the_real_network(family: str):
    conventions, options = family_class(family).default_conventions, tiny(family)
    with built_for("cuda"):
        real = fresh_backbone(family, conventions, options)
    counted = Footprint(family, conventions, options)
    trained = [p for p in real.parameters() if p.requires_grad]
    assert counted.trained == size_of(trained)
    assert counted.frozen == size_of([*real.parameters(), *real.buffers()]) - size_of(trained)
    optimizer = GroupScaledAdamW(parameter_groups(real, real.value_parameters(), 1.0), lr=1e-3)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert counted.trained == size_of([p.grad for p in trained if p.grad is not None])
    moments = [x for state in optimizer.state.values() for x in state.values() if x.ndim]
    assert 2 * counted.trained == size_of(moments)


def test_recomputing_takes_less():
    conventions = family_class("openvla-oft").default_conventions
    options = {"size": "tiny", "lora": {"rank": 4}}
    kept, again = (Footprint("openvla-oft", conventions, {**options, "recompute": on}) for on in (False, True))
    assert again.update(8) < 0.6 * kept.update(8)
    assert (again.frozen, again.trained) == (kept.frozen, kept.trained)


def test_the_published_smolvla_is_counted_to_the_byte():
    counted = Footprint("smolvla", family_class("smolvla").default_conventions, {})
    # 500 tensors of the published checkpoint; the expert and the five small layers train, in float32, the rest stays in
    # bf16; the critic is 960 x 512 + 512, 512 x 256 + 256, 256 x 128 + 128, 128 x 1 + 1.
    expert, critic = 99_880_992, 492_032 + 131_328 + 32_896 + 129
    assert counted.frozen == 2 * (450_046_176 - expert)
    assert counted.trained == 4 * (expert + critic)
    # Of the expert's 16 layers every second one attends to the prefix by projections that run apart from `forward`.
    assert len([size for size in counted.block_sizes() if size]) == 8


def test_a_meter_counts_what_lives_at_once():
    x = torch.empty(10, 10, device=META)
    with Meter((x,)) as meter:
        y = x + 1  # 400 bytes more
        z = y * 2  # and 400 more
        del y, z
        w = x.t()  # a view: nothing
    assert (meter.held, meter.now, meter.peak) == (400, 400, 1200)
    assert w.shape == (10, 10)


def test_attention_makes_no_matrix_of_all_pairs():
    length = 512
    heads = torch.empty(1, 2, length, 8, device=META, requires_grad=True)
    key = torch.empty(1, 1, length, 8, device=META)
    with fused_attention(), Meter((heads, key)) as meter:
        functional.scaled_dot_product_attention(heads, key, key, enable_gqa=True)
    # The output and one number per query and head; all pairs would be 2 MiB.
    assert meter.peak - meter.held < 2 * length * (8 + 1) * 4 + 1024


def size_of(tensors: list[Tensor] | list[nn.Parameter]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
