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
