"""Micro-batches of a minibatch, and a step in its sub-environments' places."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.zoo.rollout.steps import step
from zoo.rollout.types import Minibatch, Scores


def minibatch(size: int) -> Minibatch:
    name_B = torch.arange(size, dtype=torch.float32)
    return Minibatch(
        obs={"image": name_B[:, None]},
        choice={"token": name_B},
        executed_B=None,
        old_logprob_BL=name_B[:, None],
        advantage_BL=name_B[:, None],
        return_BU=name_B[:, None],
        old_value_BU=name_B[:, None],
        mask_BL=None,
        weight_BL=None,
    )


@pytest.mark.parametrize(("size", "wanted"), [(None, [7]), (7, [7]), (3, [2, 2, 3]), (1, [1] * 7)])
def test_micro_batches_are_alike_in_size_and_hold_each_decision_once(size: int | None, wanted: list[int]) -> None:
    parts = list(minibatch(7).micro_batches(size))
    assert [len(part.batch) for part in parts] == wanted
    assert [part.last for part in parts] == [False] * (len(wanted) - 1) + [True]
    assert sum(part.weight for part in parts) == pytest.approx(1)
    assert [part.weight for part in parts] == pytest.approx([count / 7 for count in wanted])
    for values in (
        torch.cat([part.batch.choice["token"] for part in parts]),
        torch.cat([part.batch.obs["image"][:, 0] for part in parts]),
        torch.cat([part.batch.return_BU[:, 0] for part in parts]),
    ):
        assert values.tolist() == list(range(7))
    assert all(part.batch.mask_BL is None for part in parts)


def test_a_step_of_some_sub_environments_is_spread_over_all() -> None:
    one = torch.ones(2)
    taken = step(
        [1, 3],
        image=np.zeros((2, 1)),
        token=one[:, None, None].long(),
        logprob=one[:, None, None],
        value=one,
        reward=[5.0, 7.0],
        executed=[1, 1],
        terminated=[True, False],
        truncated=[False, False],
    )
    assert taken.done_n.tolist() == [True, False]
    assert taken.spread(taken.reward_n, 5).tolist() == [0, 5, 0, 7, 0]
    assert taken.spread(taken.done_n, 4).tolist() == [False, True, False, False]


def test_detached_scores_have_no_graph() -> None:
    value = torch.ones(1, 1, requires_grad=True)
    scores = Scores(value * 2, value * 3, value * 4)
    detached = scores.detached()
    assert scores.logprob_BL.requires_grad
    assert not detached.logprob_BL.requires_grad
    assert detached.value_BU.item() == 4
    assert detached.token_logprob_BW is None
