"""Written decisions come back, in their dtype."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from tests.zoo.rollout.steps import step
from zoo.rollout.buffer import ChunkRolloutBuffer, Step

CPU = torch.device("cpu")
CHUNK, DIMS = 2, 3


def decision(envs: list[int], row: int) -> Step:
    """Numbers that name their env and row: value = 10 * row + env, image filled with it."""
    name = torch.tensor([10.0 * row + env for env in envs])
    token_nKA = name.long()[:, None, None].expand(-1, CHUNK, DIMS) + torch.arange(DIMS)
    return step(
        envs,
        image=np.stack([np.full((4, 4, 3), 10 * row + env, dtype=np.uint8) for env in envs]),
        token=token_nKA,
        logprob=-name[:, None, None].expand(-1, CHUNK, DIMS),
        value=name,
        reward=np.ones(len(envs)),
        executed=[1 + env % 2 for env in envs],
    )


def make(rows: int = 3, envs: int = 4, rollouts: int = 1) -> ChunkRolloutBuffer:
    space = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    return ChunkRolloutBuffer(rows, space, space, CPU, n_envs=envs, rollouts=rollouts)


def filled() -> ChunkRolloutBuffer:
    buffer = make()
    for row in range(3):
        buffer.write(row, np.arange(4), decision([0, 1, 2, 3], row))
    return buffer


def test_a_minibatch_holds_what_was_decided():
    buffer = filled()
    buffer.element_scale_TN.fill_(1.0)
    buffer.element_scale_TN[1, 2] = 0.0
    buffer.advantage_TN.copy_(buffer.value_TN + 0.5)
    assert buffer.selected().sum() == 11
    seen = []
    for index_B in buffer.selected_indices().split(4):
        batch = buffer.minibatch(index_B, "token", CPU)
        name_B = batch.old_value_BU[:, 0]
        assert (batch.obs["image"][:, 0, 0, 0] == name_B).all()
        assert (batch.choice["token"][:, 0, 0] == name_B).all()
        assert (batch.advantage_BL[:, 0] == name_B + 0.5).all()
        assert (batch.executed_B == 1 + name_B.long() % 10 % 2).all()
        assert (batch.mask_BL.sum(dim=1) == batch.executed_B * DIMS).all()
        assert (batch.old_logprob_BL == -name_B[:, None] * batch.mask_BL).all()
        seen += name_B.tolist()
    assert sorted(seen) == sorted(set(range(4)) | {10, 11, 13} | {20, 21, 22, 23})


def test_reset_forgets_the_rollout_but_keeps_the_memory():
    buffer = filled()
    before = buffer.obs["image"].data_ptr()
    buffer.reset()
    assert buffer.executed_TN.sum() == 0
    assert buffer.reward_TN.sum() == 0
    buffer.write(0, np.arange(4), decision([0, 1, 2, 3], 0))
    assert buffer.obs["image"].data_ptr() == before


def test_logprobs_can_be_replaced():
    buffer = filled()
    buffer.element_scale_TN.fill_(1.0)
    buffer.replace_logprobs(torch.tensor([5]), torch.full((1, CHUNK, DIMS), -77.0))
    assert (buffer.logprob_TNKA[1, 1] == -77.0).all()
    assert (buffer.logprob_TNKA[1, 2] == -12.0).all()


def test_memory_is_what_the_docstring_says():
    buffer = filled()
    whole = [
        *buffer.obs.values(),
        *buffer.record.values(),
        buffer.logprob_TNKA,
        buffer.reward_TN,
        buffer.value_TN,
        buffer.final_value_TN,
        buffer.advantage_TN,
        buffer.return_TN,
        buffer.element_scale_TN,
        buffer.executed_TN,
        buffer.task_TN,
        buffer.terminated_TN,
        buffer.truncated_TN,
    ]
    observation, record = 4 * 4 * 3, 8 * CHUNK * DIMS
    assert sum(tensor.nbytes for tensor in whole) == 3 * 4 * (observation + record + 4 * CHUNK * DIMS + 42)


def test_columns_of_another_buffer_come_over_with_everything():
    buffer, other = filled(), make().like(2)
    for row in range(3):
        other.write(row, np.arange(2), decision([7, 8], row))
    buffer.take_columns(slice(1, 3), other, slice(0, 2))
    assert buffer.value_TN.tolist() == [[0, 7, 8, 3], [10, 17, 18, 13], [20, 27, 28, 23]]
    assert (buffer.obs["image"][:, 1:3, 0, 0, 0] == buffer.value_TN[:, 1:3]).all()
    assert (buffer.record["token"][:, 1:3, 0, 0] == buffer.value_TN[:, 1:3]).all()
    assert (buffer.logprob_TNKA[:, 1:3, 0, 0] == -buffer.value_TN[:, 1:3]).all()
    assert buffer.executed_TN[0].tolist() == [1, 2, 1, 2]
