"""The decoupled objective against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from zoo.rollout.buffer import ChunkRolloutBuffer, Decision
from zoo.rollout.staleness import behaviour_weight


def logs(*numbers: float) -> torch.Tensor:
    return torch.tensor([[math.log(one) for one in numbers]])


def test_weights_are_ratios_up_to_the_cap():
    # 0.3/0.2 = 1.5; 0.1/0.2 = 0.5; 0.5/0.2 = 2.5 is above 2; 0.4/0.2 = 2 is not.
    weight_BL = behaviour_weight(logs(0.3, 0.1, 0.5, 0.4), logs(0.2, 0.2, 0.2, 0.2), cap=2.0 + 1e-6)
    torch.testing.assert_close(weight_BL, torch.tensor([[1.5, 0.5, 0.0, 2.0]]))


def test_fresh_decisions_weigh_exactly_one():
    logprob_BL = torch.randn(3, 5)
    assert torch.equal(behaviour_weight(logprob_BL, logprob_BL), torch.ones(3, 5))


def test_it_has_no_gradient_and_checks_shapes():
    proximal_BL = torch.zeros(1, 2, requires_grad=True)
    assert not behaviour_weight(proximal_BL, torch.zeros(1, 2)).requires_grad
    with pytest.raises(ValueError, match="one shape"):
        behaviour_weight(torch.zeros(1, 2), torch.zeros(1, 1))


def test_a_minibatch_of_old_decisions_has_weighted_advantages():
    space = spaces.Dict({"image": spaces.Box(0, 255, (1,), np.uint8)})
    buffer = ChunkRolloutBuffer(1, space, spaces.Box(-1, 1, (1, 1)), "cpu", n_envs=2)
    zeros_n = np.zeros(2)
    decision = Decision(
        obs={"image": np.zeros((2, 1), dtype=np.uint8)},
        record={"token": torch.zeros(2, 1, 1, dtype=torch.int64)},
        logprob_nKA=torch.tensor([0.2, 0.4]).log()[:, None, None],
        value_n=torch.zeros(2),
        reward_n=zeros_n,
        executed_n=np.ones(2, dtype=int),
        terminated_n=zeros_n > 0,
        truncated_n=zeros_n > 0,
        final_value_n=torch.zeros(2),
    )
    buffer.reset()
    buffer.write(0, np.arange(2), decision)
    buffer.advantage_TN[0] = torch.tensor([10.0, -10.0])
    buffer.element_scale_TN[0] = 1.0
    buffer.keep_behaviour()
    # The present weights give the tokens 0.3 and 0.1: weights 1.5 and 0.25.
    buffer.replace_logprobs(torch.arange(2), torch.tensor([0.3, 0.1]).log()[:, None, None])
    batch = buffer.minibatch(torch.arange(2), "token", torch.device("cpu"))
    torch.testing.assert_close(batch.old_logprob_BL.exp().flatten(), torch.tensor([0.3, 0.1]))
    torch.testing.assert_close(batch.advantage_BL.flatten(), torch.tensor([15.0, -2.5]))
    buffer.reset()
    buffer.write(0, np.arange(2), decision)
    buffer.advantage_TN[0] = torch.tensor([10.0, -10.0])
    fresh = buffer.minibatch(torch.arange(2), "token", torch.device("cpu"))
    assert fresh.advantage_BL.flatten().tolist() == [10.0, -10.0]
