"""Ranks own whole groups, without overlap or loss."""

from __future__ import annotations

import pytest

from vla_gym.errors import BadValue
from zoo.config.run_config import RunConfig
from zoo.distributed.process_group import ProcessGroup
from zoo.distributed.shares import own_block, training_share


def config(num_envs: int, group_size: int = 1) -> RunConfig:
    return RunConfig(
        algo="grpo",
        env="Toy-Reach",
        policy="nano",
        n_timesteps=1,
        num_envs=num_envs,
        seed=0,
        env_options={"group_size": group_size},
    )


def test_groups_are_shared_out_in_order():
    shares = [training_share(config(24, 4), ProcessGroup(rank, 3)) for rank in range(3)]
    assert shares == [{"num_envs": 8, "group_offset": 2 * rank, "num_groups": 6} for rank in range(3)]


def test_a_group_is_never_cut():
    with pytest.raises(BadValue, match="Nearest allowed: --num-envs 8 or 16"):
        training_share(config(12, 4), ProcessGroup(0, 2))


@pytest.mark.parametrize(("count", "size"), [(10, 1), (10, 4), (3, 4)])
def test_every_start_state_is_evaluated_once(count: int, size: int):
    cells = [
        cell for rank in range(size) for cell in range(count)[own_block(count, ProcessGroup(rank, size))]
    ]
    assert cells == list(range(count))
