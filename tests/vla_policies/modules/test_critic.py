import pytest
import torch

from vla_policies.modules.critic import Critic


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_leaves_the_critic_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head = Critic(16, (8,))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter))
    x = torch.randn(5, 16).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        out = head(x)
    assert out.dtype == torch.float32
    assert torch.equal(out, head(x))
