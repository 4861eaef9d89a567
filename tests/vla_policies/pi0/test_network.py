import torch

from vla_policies.pi0.config import tiny_config
from vla_policies.pi0.network import Pi0Network


def test_the_state_is_a_token_of_pi0s_suffix_and_time_a_condition_of_pi05s() -> None:
    x_BHD, time_B, state_BS = torch.zeros(2, 10, 32), torch.ones(2), torch.zeros(2, 32)
    tokens, condition = Pi0Network(tiny_config("pi0").network, adaptive=False).embed_suffix(x_BHD, time_B, state_BS)
    assert (tokens.shape, condition) == ((2, 11, 48), None)
    tokens, condition = Pi0Network(tiny_config("pi05").network, adaptive=True).embed_suffix(x_BHD, time_B, None)
    assert condition is not None
    assert (tokens.shape, condition.shape) == ((2, 10, 48), (2, 48))
