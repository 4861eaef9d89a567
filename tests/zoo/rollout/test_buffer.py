"""Written decisions come back, in their dtype; levels, masks and weights on decisions that are added up by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.zoo.rollout.steps import step
from zoo.algorithms.losses import entropies, weighted_loss
from zoo.rollout.advantages import constant_scale, even_scale, trajectory_scale
from zoo.rollout.buffer import ChunkRolloutBuffer, Step, elements_per_decision, importance_weight, to_level

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


TOKEN_BKA = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
EXECUTED_B = torch.tensor([2, 1])


@pytest.mark.parametrize(
    ("level", "own_level", "values"),
    [
        ("token", "token", [[1, 2, 3, 4], [5, 6, 0, 0]]),
        # Decision 0 holds 10 in four tokens, two steps, one chunk; decision 1 holds 11 in two, one, one.
        ("token", "chunk", [[10, 10, 10, 10], [11, 11, 0, 0]]),
        ("action", "token", [[2.5, 2.5], [5.5, 0]]),
        ("chunk", "token", [[2.5], [5.5]]),
        ("chunk", "action", [[5], [11]]),
        ("sequence", "token", [[2.5], [5.5]]),
        ("token", "sequence", [[2.5] * 4, [5.5, 5.5, 0, 0]]),
    ],
)
def test_entropies_have_a_level_of_their_own(level, own_level, values):
    assert entropies(TOKEN_BKA, EXECUTED_B, level, own_level).tolist() == values


def test_a_decision_of_which_nothing_ran_has_no_entropy():
    assert entropies(TOKEN_BKA, torch.tensor([0, 1]), "chunk", "token").tolist() == [[0], [5.5]]


@pytest.mark.parametrize(
    ("level", "values", "mask"),
    [
        ("token", [[1, 2, 3, 4], [5, 6, 0, 0]], [[True] * 4, [True, True, False, False]]),
        ("action", [[3, 7], [11, 0]], [[True, True], [True, False]]),
        ("chunk", [[10], [11]], [[True], [True]]),
        ("sequence", [[2.5], [5.5]], [[True], [True]]),
    ],
)
def test_levels_sum_what_was_executed(level, values, mask):
    level_BL, mask_BL = to_level(TOKEN_BKA, EXECUTED_B, level)
    assert level_BL.tolist() == values
    assert mask_BL.tolist() == mask
    assert elements_per_decision(EXECUTED_B, 2, level).tolist() == [sum(row) for row in mask]


def test_a_forbidden_token_of_an_unexecuted_step_does_no_harm():
    token_BKA = torch.tensor([[[-1.0], [-torch.inf]]])
    level_BL, _ = to_level(token_BKA, torch.tensor([1]), "chunk")
    assert level_BL.tolist() == [[-1.0]]


def test_even_scale_makes_the_loss_a_mean_over_elements():
    # Decisions of 3 and 1 elements: losses 1, 2, 3 and 6 have mean 3.
    loss_BL = torch.tensor([[1.0, 2.0, 3.0], [6.0, 9.0, 9.0]])
    mask_BL = torch.tensor([[True, True, True], [True, False, False]])
    scale = even_scale(mask_BL.sum(dim=1))
    assert weighted_loss(loss_BL, scale * mask_BL).item() == pytest.approx(3.0)


def test_trajectories_weigh_the_same_however_long():
    # Trajectory 0: decisions 0 and 1 with 1 + 2 elements; trajectory 7: decision 2 with 1 element.
    elements_M, trajectory_M = torch.tensor([1, 2, 1]), torch.tensor([0, 0, 7])
    scale_M = trajectory_scale(elements_M, trajectory_M)
    share_M = scale_M * elements_M / len(elements_M)
    assert share_M[:2].sum().item() == pytest.approx(1 / 2)
    assert share_M[2].item() == pytest.approx(1 / 2)
    # Losses 1 | 2, 3 | 10: trajectory means 2 and 10, of which the mean is 6.
    loss_BL = torch.tensor([[1.0, 0.0], [2.0, 3.0], [10.0, 0.0]])
    mask_BL = torch.tensor([[True, False], [True, True], [True, False]])
    assert weighted_loss(loss_BL, scale_M[:, None] * mask_BL).item() == pytest.approx(6.0)


def test_a_constant_divisor_lets_elements_count_alike_whatever_the_length():
    # Trajectory 0 has 3 + 3 elements, trajectory 1 two; a whole one would have 6.
    elements_M, trajectory_M = torch.tensor([3, 3, 2]), torch.tensor([0, 0, 1])
    scale = constant_scale(elements_M, trajectory_M, 6)
    # Mean over three decisions of the weighted sums = (6 + 2) / 6 over two trajectories.
    assert (scale * elements_M).sum() / 3 == pytest.approx((6 + 2) / 6 / 2)
    assert constant_scale(elements_M[:0], trajectory_M[:0], 6) == 0.0


def test_scales_are_those_of_all_ranks():
    def twice(values: torch.Tensor) -> torch.Tensor:
        """Another rank with the same numbers, and two elements more in its one decision."""
        return values * 2 + torch.tensor([0, 2])

    # 2 decisions with 3 + 5 elements; one trajectory each: 2 / (2 x 3).
    assert even_scale(torch.tensor([3]), twice) == pytest.approx(2 / 8)
    assert trajectory_scale(torch.tensor([3]), torch.tensor([0]), lambda total: total * 2).tolist() == pytest.approx(
        [1 / 3]
    )


def logs(*numbers: float) -> torch.Tensor:
    return torch.tensor([[math.log(number) for number in numbers]])


def test_weights_are_ratios_up_to_the_cap():
    # 0.3/0.2 = 1.5; 0.1/0.2 = 0.5; 0.5/0.2 = 2.5 is above 2; 0.39/0.2 = 1.95 is not.
    weight_BL = importance_weight(logs(0.3, 0.1, 0.5, 0.39), logs(0.2, 0.2, 0.2, 0.2))
    torch.testing.assert_close(weight_BL, torch.tensor([[1.5, 0.5, 0.0, 1.95]]))
