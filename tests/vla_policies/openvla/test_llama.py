"""Reading at some places only equals reading everywhere."""

from __future__ import annotations

import pytest
import torch

from vla_policies.modules.training import checkpoint_fn, store_activations
from vla_policies.openvla.llama import Segment, build_llama, run_layers

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}


@pytest.mark.parametrize("key_value_heads", [4, 2])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("run_block", [store_activations, checkpoint_fn(recompute=True)])
def test_the_last_layer_at_some_places(key_value_heads: int, padded: bool, run_block) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": key_value_heads}
    model = build_llama({**SHAPE, **heads}).model
    x_BLD = torch.randn(3, 9, 32, requires_grad=True)
    real_BL = torch.arange(9) < torch.tensor([[9], [7], [5]]) if padded else torch.ones(3, 9, dtype=torch.bool)
    mask = real_BL[:, None, None] if padded else None
    segment = Segment(x_BLD, real_BL.cumsum(dim=1) - 1, mask)
    read_BS = torch.tensor([[8, 1, 4], [6, 0, 2], [4, 3, 0]])
    got_BSD = run_layers(model, segment, run_block, read_BS)
    want_BSD = run_layers(model, segment, store_activations).gather(1, read_BS[..., None].expand(-1, -1, 32))
    torch.testing.assert_close(got_BSD, want_BSD, rtol=0.0, atol=1e-6)
    gradients = [torch.autograd.grad(out.square().sum(), x_BLD)[0] for out in (got_BSD, want_BSD)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0.0, atol=1e-5)
