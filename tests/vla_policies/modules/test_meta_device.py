"""Bytes and work of a few operations, added up by hand."""

from __future__ import annotations

import torch
from torch.nn import functional

from vla_policies.modules.meta_device import META, Meter, OnMeta, fused_attention


def test_a_peak_is_of_what_lives_at_once():
    x = torch.empty(10, 10, device=META)
    meter = Meter((x,))
    with meter:
        assert meter.start() == 400
        y = x + 1  # 400 bytes more
        z = y * 2  # and 400 more
        del y, z
        w = x.t()  # a view: nothing
    assert (meter.now, meter.peak, meter.operations) == (400, 1200, 3)
    assert w.shape == (10, 10)


def test_work_is_counted_by_the_width_of_numbers():
    meter = Meter()
    with meter:
        for dtype in (torch.float32, torch.bfloat16):
            one, other = torch.empty(3, 5, dtype=dtype, device=META), torch.empty(5, 7, dtype=dtype, device=META)
            _ = one @ other
            _ = one @ other
    # Twice 2 x 3 x 5 x 7 each; the second time the shape is known.
    assert meter.flops == {4: 420.0, 2: 420.0}


def test_numbers_that_are_not_there_are_answered():
    mask = torch.ones(4, dtype=torch.bool, device=META)
    with Meter(scalar=9):
        assert bool(mask.all())
        assert int(mask.sum()) == 9


def test_attention_makes_no_matrix_of_all_pairs():
    length = 512
    heads = torch.empty(1, 2, length, 8, device=META, requires_grad=True)
    key = torch.empty(1, 1, length, 8, device=META)
    meter = Meter((heads, key))
    with fused_attention(), meter:
        held = meter.start()
        out = functional.scaled_dot_product_attention(heads, key, key, enable_gqa=True)
    # The output and one number per query and head; all pairs would be 2 MiB.
    assert out.shape == heads.shape
    assert meter.peak - held < 2 * length * (8 + 1) * 4 + 1024


def test_named_devices_are_overruled():
    with OnMeta():
        assert torch.empty(3, device="cpu").is_meta
