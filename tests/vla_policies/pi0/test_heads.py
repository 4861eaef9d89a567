import math

import pytest
import torch

from vla_policies.pi0.heads import Critic, NoiseHead, masked_mean


def test_the_critic_has_the_published_shape_and_first_values_near_zero() -> None:
    torch.manual_seed(0)
    critic = Critic(1024, (512, 256, 128))
    assert {name: tuple(p.shape) for name, p in critic.named_parameters() if name.endswith("weight")} == {
        "mlp.0.weight": (512, 1024),
        "mlp.2.weight": (256, 512),
        "mlp.4.weight": (128, 256),
        "mlp.6.weight": (1, 128),
    }
    value_B = critic(torch.randn(64, 1024).bfloat16())
    assert (value_B.shape, value_B.dtype) == ((64,), torch.float32)
    assert value_B.abs().max() < 0.1


def test_first_noise_lies_in_the_middle_of_its_range() -> None:
    torch.manual_seed(0)
    head = NoiseHead(16, (8,), 3, (0.08, 0.16))
    std = head(torch.randn(5, 4, 16))
    torch.testing.assert_close(std, torch.full((5, 4, 3), math.sqrt(0.08 * 0.16)), rtol=0.01, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_leaves_the_heads_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    critic, noise = Critic(16, (8,)), NoiseHead(16, (8,), 3, (0.08, 0.16))
    with torch.no_grad():
        for parameter in (*critic.parameters(), *noise.parameters()):
            parameter.add_(torch.randn_like(parameter))
    x_BHE = torch.randn(5, 4, 16).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        value_B, std_BHD = critic(x_BHE[:, 0]), noise(x_BHE)
    assert (value_B.dtype, std_BHD.dtype) == (torch.float32, torch.float32)
    assert torch.equal(value_B, critic(x_BHE[:, 0]))
    assert torch.equal(std_BHD, noise(x_BHE))


def test_masked_mean_by_hand() -> None:
    x = torch.tensor([[[2.0], [4.0], [100.0]]])
    assert masked_mean(x, torch.tensor([[True, True, False]])).tolist() == [[3.0]]
