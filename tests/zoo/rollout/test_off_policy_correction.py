"""The decoupled objective against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from zoo.rollout.off_policy_correction import importance_weight

from tests.zoo.rollout.steps import step
from zoo.rollout.buffer import ChunkRolloutBuffer


def logs(*numbers: float) -> torch.Tensor:
    return torch.tensor([[math.log(number) for number in numbers]])


def test_weights_are_ratios_up_to_the_cap():
    # 0.3/0.2 = 1.5; 0.1/0.2 = 0.5; 0.5/0.2 = 2.5 is above 2; 0.39/0.2 = 1.95 is not.
    weight_BL = importance_weight(logs(0.3, 0.1, 0.5, 0.39), logs(0.2, 0.2, 0.2, 0.2))
    torch.testing.assert_close(weight_BL, torch.tensor([[1.5, 0.5, 0.0, 1.95]]))


def test_fresh_decisions_weigh_exactly_one():
    logprob_BL = torch.randn(3, 5)
    assert torch.equal(importance_weight(logprob_BL, logprob_BL), torch.ones(3, 5))


def test_it_has_no_gradient_and_checks_shapes():
    proximal_BL = torch.zeros(1, 2, requires_grad=True)
    assert not importance_weight(proximal_BL, torch.zeros(1, 2)).requires_grad
    with pytest.raises(ValueError, match="one shape"):
        importance_weight(torch.zeros(1, 2), torch.zeros(1, 1))


def test_a_minibatch_of_old_decisions_has_weighted_advantages():
    space = spaces.Dict({"image": spaces.Box(0, 255, (1,), np.uint8)})
    buffer = ChunkRolloutBuffer(1, space, spaces.Box(-1, 1, (1, 1)), "cpu", n_envs=2)
    decision = step(
        [0, 1],
        image=np.zeros((2, 1), dtype=np.uint8),
        token=torch.zeros(2, 1, 1, dtype=torch.int64),
        logprob=torch.tensor([0.2, 0.4]).log()[:, None, None],
        value=torch.zeros(2),
        reward=[0, 0],
        executed=[1, 1],
    )
    buffer.reset()
    buffer.write(0, np.arange(2), decision)
    buffer.advantage_TN[0] = torch.tensor([10.0, -10.0])
    buffer.element_scale_TN[0] = 1.0
    buffer.keep_behaviour_logprobs()
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
