"""A rollout of four decisions, of which one ran nothing, as minibatches; worked out by hand."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from zoo.algorithms.advantages import write_advantages, write_even_weights
from zoo.algorithms.rollout_data import ChunkRolloutData, PlainRolloutData

from tests.zoo.rollout.steps import step
from vla_policies.types import Evaluation
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.types import MicroBatch

CPU = torch.device("cpu")
CHUNK, DIMS = 2, 1


def chunk_data(**settings: Any) -> ChunkRolloutData:
    """The decision in row r of sub-environment n has value 10 * r + n; that of row 1, n = 1 ran nothing."""
    space = spaces.Box(0, 255, (1, 1, 3), np.uint8)
    buffer = ChunkRolloutBuffer(2, space, space, CPU, n_envs=2)
    for row, executed in enumerate(([2, 1], [2, 0])):
        value = 10.0 * row + torch.arange(2)
        made = step(
            [0, 1],
            image=np.zeros((2, 1, 1, 3), dtype=np.uint8),
            token=torch.zeros(2, CHUNK, DIMS, dtype=torch.int64),
            logprob=torch.full((2, CHUNK, DIMS), -1.0),
            value=value,
            reward=[0.0, 0.0],
            executed=executed,
        )
        buffer.write(row, np.arange(2), made)
    buffer.return_TN.copy_(buffer.value_TN + 1)
    write_advantages(buffer, torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    write_even_weights(buffer, "action", ProcessGroup())
    defaults = {"batch_size": 2, "micro_batch_size": None, "level": "action", "seed": 7, "num_envs": 2}
    return ChunkRolloutData(buffer=buffer, process_group=ProcessGroup(), device=CPU, **{**defaults, **settings})


def values_of(data: Any, epoch: int) -> list[list[float]]:
    """The values, which name decisions, by minibatch."""
    return [
        [value for micro_batch in minibatch for value in micro_batch.batch.old_value_BU[:, 0].tolist()]
        for minibatch in data.minibatches(epoch)
    ]


class Scores:
    """In place of a learner and of a reference: log-probability -0.5 everywhere."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def score(self, batch: Any, loss: None) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        self.sizes.append(len(batch))
        return torch.full((len(batch), CHUNK, DIMS), -0.5)

    def evaluate(self, obs: Any, record: Any) -> Evaluation:
        logprob_BKA = torch.full((len(record["token"]), CHUNK, DIMS), -0.5)
        return Evaluation(logprob_BKA, torch.zeros_like(logprob_BKA), torch.zeros(len(logprob_BKA)))


def test_a_pass_has_every_decision_that_ran_once():
    minibatches = values_of(chunk_data(), 0)
    assert sorted(len(minibatch) for minibatch in minibatches) == [1, 2]
    assert sorted(chain.from_iterable(minibatches)) == [0, 1, 10]


def test_the_order_follows_from_seed_and_pass():
    orders = {tuple(chain.from_iterable(values_of(chunk_data(), epoch))) for epoch in range(12)}
    assert len(orders) > 1
    assert values_of(chunk_data(), 3) == values_of(chunk_data(), 3)
    assert any(values_of(chunk_data(), epoch) != values_of(chunk_data(seed=8), epoch) for epoch in range(12))


def test_micro_batches_share_a_minibatch_out():
    (minibatch,) = chunk_data(batch_size=3, micro_batch_size=2).minibatches(0)
    micro_batches: list[MicroBatch] = list(minibatch)
    assert [len(micro_batch.batch) for micro_batch in micro_batches] == [2, 1]
    assert [micro_batch.weight for micro_batch in micro_batches] == pytest.approx([2 / 3, 1 / 3])
    assert [micro_batch.last for micro_batch in micro_batches] == [False, True]


def test_values_and_returns_are_of_decisions_that_ran():
    data = chunk_data()
    value, target = data.values_and_returns()
    assert (value.tolist(), target.tolist()) == ([0, 1, 10], [1, 2, 11])
    data.buffer.step_value_TNK = torch.arange(8.0).reshape(2, 2, CHUNK)
    data.buffer.step_return_TNK = data.buffer.step_value_TNK + 0.5
    value, target = data.values_and_returns()
    # Two steps ran of decisions (0, 0) and (1, 0), one of (0, 1).
    assert (value.tolist(), target.tolist()) == ([0, 1, 2, 4, 5], [0.5, 1.5, 2.5, 4.5, 5.5])


def test_log_probs_are_recomputed_in_the_updates_own_micro_batches():
    data, scores = chunk_data(batch_size=3, micro_batch_size=2), Scores()
    data.recompute_log_probs(scores, 0)
    assert scores.sizes == [2, 1]
    assert data.buffer.logprob_TNKA[:, :, 0, 0].tolist() == [[-0.5, -0.5], [-0.5, -1.0]]
    (minibatch,) = data.minibatches(0)
    advantages = torch.cat([micro_batch.batch.advantage_BL for micro_batch in minibatch]).flatten()
    assert sorted(advantages.tolist()) == [1, 2, 3]


def test_decisions_of_older_weights_are_weighted_by_both_log_probs():
    data = chunk_data(batch_size=3, off_policy=True)
    data.recompute_log_probs(Scores(), 0)
    (minibatch,) = data.minibatches(0)
    (micro_batch,) = minibatch
    batch = micro_batch.batch
    order = batch.old_value_BU[:, 0].tolist()
    # A step's weight is exp(-0.5 - -1); one that did not run has weight 1 and no loss.
    expected = {0.0: [1.0, 1.0], 1.0: [2.0, 2.0], 10.0: [3.0, 3.0]}
    weight = torch.where(batch.mask_BL, 0.5, 0.0).exp()
    torch.testing.assert_close(batch.advantage_BL, torch.tensor([expected[value] for value in order]) * weight)


def test_the_references_log_probs_come_with_every_minibatch():
    data = chunk_data(batch_size=3)
    data.compute_ref_log_probs(Scores())
    (minibatch,) = data.minibatches(0)
    (micro_batch,) = minibatch
    ref_logprob_BW, mask_BW = micro_batch.batch.ref_logprob_BW, micro_batch.batch.token_mask_BW
    assert mask_BW.sum() == 5
    assert ref_logprob_BW[mask_BW].tolist() == [-0.5] * 5
    assert ref_logprob_BW[~mask_BW].tolist() == [0.0]


def plain_data(**settings: Any) -> PlainRolloutData:
    space = spaces.Discrete(3)
    buffer = RolloutBuffer(4, spaces.Box(-1, 1, (1,)), space, "cpu", n_envs=1)
    for number in range(4):
        buffer.add(
            np.zeros((1, 1)),
            np.array([number % 3]),
            np.zeros(1),
            np.zeros(1),
            torch.tensor([float(number)]),
            torch.zeros(1),
        )
    buffer.advantages[:, 0] = [0, 2, 4, 6]
    buffer.returns[:, 0] = [1, 2, 3, 4]
    defaults = {"batch_size": 4, "micro_batch_size": None, "normalize_advantage": True}
    return PlainRolloutData(buffer=buffer, action_space=space, **{**defaults, **settings})


def test_a_rank_none_of_whose_decisions_count_has_the_references_log_probs_too() -> None:
    """It scores a decision of weight 0 while other ranks score theirs."""
    data = chunk_data()
    data.buffer.element_scale_TN.zero_()
    data.compute_ref_log_probs(Scores())  # type: ignore[arg-type]
    batch = data.buffer.minibatch(torch.zeros(1, dtype=torch.int64), "action", CPU)
    assert batch.ref_logprob_BW is not None
    assert batch.ref_logprob_BW.tolist() == [[0.0, 0.0]]


def test_plain_advantages_are_normalised_over_each_minibatch():
    ((micro_batch,),) = plain_data().minibatches(0)
    batch = micro_batch.batch
    # Mean 3, unbiased variance (9 + 1 + 1 + 9) / 3; advantage and value of a step go together.
    expected = (2 * batch.old_value_BU - 3) / (20 / 3) ** 0.5
    torch.testing.assert_close(batch.advantage_BL, expected)
    assert batch.choice.dtype == torch.int64
    assert batch.choice.shape == (4,)


def test_plain_advantages_may_stay_as_they_are():
    ((micro_batch,),) = plain_data(normalize_advantage=False).minibatches(0)
    assert sorted(micro_batch.batch.advantage_BL.flatten().tolist()) == [0, 2, 4, 6]


def test_plain_values_and_returns_are_the_buffers():
    value, target = plain_data().values_and_returns()
    assert (value.tolist(), target.tolist()) == ([0, 1, 2, 3], [1, 2, 3, 4])
