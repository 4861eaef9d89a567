"""A rollout in the buffer goes over every decision once a pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

from tests.zoo.rollout.steps import step
from zoo.algorithms.rollout_data import ChunkRolloutData, PlainRolloutData
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.buffer import ChunkRolloutBuffer

CPU = torch.device("cpu")


def chunk_data(batch_size: int, micro_batch_size: int | None = None) -> ChunkRolloutData:
    """Three decisions of two sub-environments; value = 10 x decision + sub-environment."""
    space = spaces.Box(0, 255, (1,), np.uint8)
    buffer = ChunkRolloutBuffer(3, space, space, CPU, n_envs=2)
    for row in range(3):
        name = torch.tensor([10.0 * row, 10.0 * row + 1])
        taken = step(
            [0, 1],
            image=np.zeros((2, 1), dtype=np.uint8),
            token=name.long()[:, None, None],
            logprob=-name[:, None, None],
            value=name,
            reward=[0, 0],
            executed=[1, 1],
        )
        buffer.write(row, np.arange(2), taken)
    buffer.element_scale_TN.fill_(1.0)
    buffer.return_TN.copy_(buffer.value_TN + 1)
    return ChunkRolloutData(
        buffer=buffer,
        process_group=ProcessGroup(),
        num_envs=2,
        batch_size=batch_size,
        micro_batch_size=micro_batch_size,
        level="token",
        seed=3,
        device=CPU,
    )


def order(data: ChunkRolloutData, epoch: int) -> list[float]:
    return [
        value
        for micro_batches in data.minibatches(epoch)
        for part in micro_batches
        for value in part.batch.old_value_BU[:, 0].tolist()
    ]


def test_a_pass_holds_each_decision_once_in_an_order_of_its_own() -> None:
    data = chunk_data(batch_size=4)
    assert sorted(order(data, 0)) == [0, 1, 10, 11, 20, 21]
    assert order(data, 0) == order(chunk_data(batch_size=4), 0)
    assert any(order(data, 0) != order(data, epoch) for epoch in range(1, 5))


def test_the_last_micro_batch_of_a_minibatch_takes_the_step() -> None:
    data = chunk_data(batch_size=6, micro_batch_size=2)
    (parts,) = [list(micro_batches) for micro_batches in data.minibatches(0)]
    assert [part.last for part in parts] == [False, False, True]
    assert sum(part.weight for part in parts) == pytest.approx(1)


def test_values_and_their_targets_are_those_of_executed_decisions() -> None:
    data = chunk_data(batch_size=6)
    data.buffer.executed_TN[2, 1] = 0
    values, returns = data.values_and_returns()
    assert values.tolist() == [0, 1, 10, 11, 20]
    assert torch.equal(returns, values + 1)


@pytest.mark.parametrize("normalize", [True, False])
def test_plain_advantages_are_normalised_over_a_minibatch(normalize: bool) -> None:
    box = spaces.Box(-1, 1, (1,), np.float32)
    buffer = RolloutBuffer(4, box, box, device="cpu", n_envs=1)
    for number in range(4):
        row = np.zeros((1, 1), dtype=np.float32)
        buffer.add(row, row, np.zeros(1), np.zeros(1), torch.zeros(1), torch.zeros(1))
        buffer.advantages[number] = number
    data = PlainRolloutData(
        buffer=buffer,
        action_space=box,
        batch_size=4,
        micro_batch_size=None,
        normalize_advantage=normalize,
    )
    ((part,),) = [list(micro_batches) for micro_batches in data.minibatches(0)]
    found = sorted(part.batch.advantage_BL[:, 0].tolist())
    # 0, 1, 2, 3: mean 1.5, standard deviation sqrt(5 / 3) = 1.290994.
    wanted = [-1.161895, -0.387298, 0.387298, 1.161895] if normalize else [0, 1, 2, 3]
    assert found == pytest.approx(wanted, abs=1e-5)
