from __future__ import annotations

import torch

from vla_policies.openvla.oft import RegressionHead, ResidualBlock


def test_a_block_adds_to_its_input() -> None:
    block = ResidualBlock(3)
    torch.nn.init.zeros_(block.ffn[1].weight)
    torch.nn.init.constant_(block.ffn[1].bias, -1.0)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    # ReLU(-1) = 0: nothing is added.
    assert torch.equal(block(x), x)
    torch.nn.init.constant_(block.ffn[1].bias, 2.0)
    assert torch.equal(block(x), x + 2)


def test_a_chunk_step_depends_on_its_own_hidden_states_alone() -> None:
    torch.manual_seed(0)
    head = RegressionHead(width=4, action_dim=2)
    hidden_BSD = torch.randn(1, 6, 4)
    before_KA = head(hidden_BSD)[0]
    assert before_KA.shape == (3, 2)
    hidden_BSD[0, 2] += 1  # the first of the second step's two slots
    after_KA = head(hidden_BSD)[0]
    assert (before_KA != after_KA).any(1).tolist() == [False, True, False]
