"""The order of an update, which every rank works out alike, and a small rollout as minibatches, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.zoo.rollout.steps import step
from zoo.distributed.process_group import ProcessGroup
from zoo.rollout.advantages import write_loss_weights
from zoo.rollout.buffer import ChunkRolloutBuffer
from zoo.rollout.minibatches import MicroBatch, RolloutData, env_order, even_order, minibatch_shards, split_evenly

ROWS, COLUMNS = 6, 8


def selected() -> torch.Tensor:
    """Column c takes part in its first 6 - c % 4 rows."""
    return torch.arange(ROWS)[:, None] < ROWS - torch.arange(COLUMNS) % 4


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("count", "sizes"), [(10, [5, 5]), (11, [4, 4, 3]), (3, [3]), (0, [])])
def test_parts_are_nearly_equal(count: int, sizes: list[int]):
    assert [len(part) for part in split_evenly(torch.arange(count), 5)] == sizes


def test_the_order_has_every_decision_once_and_another_one_next_time():
    generator = rng()
    first, second = even_order(selected(), generator), even_order(selected(), generator)
    assert sorted(first.tolist()) == torch.nonzero(selected().flatten())[:, 0].tolist()
    assert first.tolist() != second.tolist()
    assert even_order(selected(), rng()).tolist() == first.tolist()


def test_a_stretch_of_the_order_holds_every_columns_share():
    # A third of the decisions: 2 of the columns with 6, 5/3 of those with 5, 4/3 and 1; at most one off.
    third = even_order(selected(), rng())[: int(selected().sum()) // 3]
    counts = torch.bincount(third % COLUMNS, minlength=COLUMNS)
    assert (counts - selected().sum(dim=0) / 3).abs().max() <= 1


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_masked_places_count_in_minibatches_of_one_size(num_ranks: int):
    """36 of the 48 places are selected: six minibatches of eight places, of which six are scored on average."""
    ranks = [{"rank": rank, "num_ranks": num_ranks, "num_envs": 8 // num_ranks} for rank in range(num_ranks)]
    found = [list(minibatch_shards(selected(), 8, rng(), masked=True, **place)) for place in ranks]
    assert len(found[0]) == 6
    parts = [part for shards in found for shard in shards for part in shard]
    assert sum(len(index_B) for index_B, _ in parts) == 36
    # Shares of the gradient are of eight places each: together 36 / 8 minibatches' worth.
    assert [weight for _, weight in parts] == [len(index_B) / 8 * num_ranks for index_B, _ in parts]
    whole = minibatch_shards(selected(), 8, rng(), num_envs=8)
    assert [len(index_B) for shard in whole for index_B, _ in shard] == [8, 7, 7, 7, 7]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_ranks_share_out_the_very_same_minibatches(num_ranks: int):
    """Two rounds of four sub-environments; buffers hold (rank, round, env), names are (round, rank, env)."""
    num_envs = 4 // num_ranks
    name_TC = torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    own = [  # what each rank's buffer would hold
        name_TC.reshape(ROWS, 2, num_ranks, num_envs)[:, :, rank].reshape(ROWS, -1) for rank in range(num_ranks)
    ]
    by_rank_TC = torch.cat(own, dim=1)
    assert by_rank_TC[:, env_order(COLUMNS, num_envs, num_ranks)].equal(name_TC)
    selected_TC = selected().flatten()[by_rank_TC]
    expected = [set(index_B.tolist()) for ((index_B, _),) in minibatch_shards(selected(), 7, rng(3), num_envs=4)]
    found: list[set[int]] = [set() for _ in expected]
    for rank in range(num_ranks):
        shards = minibatch_shards(selected_TC, 7, rng(3), num_envs=num_envs, rank=rank, num_ranks=num_ranks)
        for names, ((index_B, _),) in zip(found, shards, strict=True):
            names.update(own[rank].flatten()[index_B].tolist())
    assert found == expected


def test_ranks_have_as_many_parts_and_their_shares_add_up():
    ranks = [{"rank": rank, "num_ranks": 2, "num_envs": 4, "micro_batch_size": 2} for rank in range(2)]
    found = [list(minibatch_shards(selected(), 7, rng(), **place)) for place in ranks]
    for first, second in zip(*found, strict=True):
        most = max(sum(len(index_B) for index_B, _ in parts) for parts in (first, second))
        assert len(first) == len(second) == -(-most // 2)
        assert max(len(index_B) for index_B, _ in [*first, *second]) <= 2
        # The mean over the two ranks of their shares is the whole minibatch.
        assert sum(weight for _, weight in [*first, *second]) / 2 == pytest.approx(1.0)


# A rollout of four decisions, of which one ran nothing ------------------------------------------------

CPU = torch.device("cpu")
CHUNK, DIMS = 2, 1


def chunk_data(**settings: Any) -> RolloutData:
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
    buffer.write_advantages(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    write_loss_weights(buffer, buffer.executed_TN > 0, "action", "decision", ProcessGroup())
    defaults = {"batch_size": 2, "micro_batch_size": None, "level": "action", "seed": 7, "num_envs": 2}
    return RolloutData(buffer=buffer, process_group=ProcessGroup(), device=CPU, **{**defaults, **settings})


def half(batch: Any) -> torch.Tensor:
    """In place of a learner and of a reference: log-probability -0.5 everywhere."""
    assert not torch.is_grad_enabled()
    return torch.full((len(batch.executed_B), CHUNK, DIMS), -0.5)


def test_micro_batches_share_a_minibatch_out():
    (minibatch,) = chunk_data(batch_size=3, micro_batch_size=2).minibatches(0)
    micro_batches: list[MicroBatch] = list(minibatch)
    assert [len(micro_batch.batch.executed_B) for micro_batch in micro_batches] == [2, 1]
    assert [micro_batch.weight for micro_batch in micro_batches] == pytest.approx([2 / 3, 1 / 3])
    assert [micro_batch.last for micro_batch in micro_batches] == [False, True]


def test_values_and_returns_are_of_decisions_that_ran():
    data = chunk_data()
    value, target = data.buffer.values_and_returns()
    assert (value.tolist(), target.tolist()) == ([0, 1, 10], [1, 2, 11])
    data.buffer.step_value_TNK = torch.arange(8.0).reshape(2, 2, CHUNK)
    data.buffer.step_return_TNK = data.buffer.step_value_TNK + 0.5
    value, target = data.buffer.values_and_returns()
    # Two steps ran of decisions (0, 0) and (1, 0), one of (0, 1).
    assert (value.tolist(), target.tolist()) == ([0, 1, 2, 4, 5], [0.5, 1.5, 2.5, 4.5, 5.5])


def test_decisions_of_older_weights_are_weighted_by_both_log_probs():
    data = chunk_data(batch_size=3)
    data.buffer.behaviour_logprob_TNKA = data.buffer.logprob_TNKA.clone()
    data.recompute_log_probs(half, 0)
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
    data.compute_ref_log_probs(half)
    (minibatch,) = data.minibatches(0)
    (micro_batch,) = minibatch
    ref_logprob_BW, mask_BW = micro_batch.batch.ref_logprob_BW, micro_batch.batch.token_mask_BW
    assert mask_BW.sum() == 5
    assert ref_logprob_BW[mask_BW].tolist() == [-0.5] * 5
    assert ref_logprob_BW[~mask_BW].tolist() == [0.0]
