import pytest
import torch
from torch import nn

from vla_policies.modules.mixed_precision import autocast_type, in_float32, without_autocast


def test_products_keep_their_types_inside() -> None:
    x = torch.ones(2, 2)
    assert autocast_type(x) is None
    with without_autocast(x):
        assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_type(x) == (x @ x).dtype == torch.bfloat16
        with without_autocast(x):
            assert autocast_type(x) is None
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16


def test_tensors_without_memory_have_no_autocast() -> None:
    x = torch.ones(2, 2, device="meta")
    assert autocast_type(x) is None
    with without_autocast(x):
        assert (x @ x).shape == (2, 2)


def test_layers_multiply_in_float32_whatever_their_weights_and_autocast() -> None:
    layers = nn.Sequential(nn.Linear(2, 1), nn.ReLU()).to(torch.bfloat16)
    with torch.no_grad():
        layers[0].weight.copy_(torch.tensor([[1.0, 2.0]]))
        layers[0].bias.fill_(0.5)
    # 1.001 + 2 x 1.002 + 0.5; in bfloat16 1.001 is 1.
    x = torch.tensor([[1.001, 1.002]])
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = in_float32(layers, x)
        assert y.dtype == torch.float32
        assert y.item() == pytest.approx(3.505, abs=1e-6)
