"""Every column of a rollout reaches exactly one learner, in its place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from zoo.distributed.columns import block, columns_of, overlap
from zoo.rollout.buffer import ChunkRolloutBuffer, Decision


def test_blocks_and_overlaps():
    assert [block(place, 3, 12) for place in range(3)] == [range(4), range(4, 8), range(8, 12)]
    # Two collectors of six slots, three learners of four.
    assert overlap(block(0, 2, 12), block(1, 3, 12)) == range(4, 6)
    assert overlap(block(1, 2, 12), block(1, 3, 12)) == range(6, 8)
    assert len(overlap(block(0, 2, 12), block(2, 3, 12))) == 0


def test_columns_follow_rounds():
    # Of slots 4..7, two rounds: slots 5 and 6 are columns 1, 2 of the first and 5, 6 of the second.
    assert columns_of(range(5, 7), range(4, 8), 2).tolist() == [1, 2, 5, 6]


def buffer(slots: int, rounds: int) -> ChunkRolloutBuffer:
    space = spaces.Dict({"image": spaces.Box(0, 255, (1,), np.uint8)})
    return ChunkRolloutBuffer(2, space, spaces.Box(-1, 1, (1, 1)), "cpu", n_envs=slots, rollouts=rounds)


def filled(held: range, rounds: int) -> ChunkRolloutBuffer:
    """Row t of slot s in round r: 100 r + 10 t + s everywhere."""
    one = buffer(len(held), rounds)
    for row in range(2):
        for number in range(rounds):
            value_n = np.array([100 * number + 10 * row + slot for slot in held])
            tensor_n = torch.from_numpy(value_n)
            decision = Decision(
                obs={"image": value_n[:, None].astype(np.uint8)},
                record={"token": tensor_n[:, None, None]},
                logprob_nKA=-tensor_n[:, None, None].float(),
                value_n=tensor_n.float(),
                reward_n=value_n,
                executed_n=np.ones(len(held), dtype=int),
                terminated_n=value_n % 2 == 0,
                truncated_n=value_n % 3 == 0,
                final_value_n=tensor_n.float(),
                step_reward_nK=value_n[:, None].astype(np.float32),
            )
            one.write(row, number * len(held) + np.arange(len(held)), decision)
    return one


@pytest.mark.parametrize(("collectors", "learners"), [(1, 2), (2, 3), (4, 1), (3, 3)])
def test_dealing_twice_is_as_if_the_learner_had_collected(collectors: int, learners: int):
    num_envs, rounds = 12, 2
    for learner in range(learners):
        wanted = block(learner, learners, num_envs)
        got = buffer(len(wanted), rounds)
        for collector in range(collectors):
            held = block(collector, collectors, num_envs)
            part = overlap(held, wanted)
            columns = columns_of(part, held, rounds)
            sent = {name: one[:, columns] for name, one in filled(held, rounds).collected().items()}
            got.write_columns(columns_of(part, wanted, rounds), sent)
        own = filled(wanted, rounds).collected()
        assert own.keys() == got.collected().keys()
        for name, one in got.collected().items():
            assert torch.equal(one, own[name]), name
