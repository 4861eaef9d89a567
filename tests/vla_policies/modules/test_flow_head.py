import math

import pytest
import torch

from vla_policies.modules.flow_head import NoiseHead


def test_first_noise_lies_in_the_middle_of_its_range() -> None:
    torch.manual_seed(0)
    head = NoiseHead(16, (8,), 3, (0.08, 0.16))
    std = head(torch.randn(5, 4, 16))
    torch.testing.assert_close(std, torch.full((5, 4, 3), math.sqrt(0.08 * 0.16)), rtol=0.01, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_leaves_the_noise_head_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head = NoiseHead(16, (8,), 3, (0.08, 0.16))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter))
    x = torch.randn(5, 4, 16).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        out = head(x)
    assert out.dtype == torch.float32
    assert torch.equal(out, head(x))
