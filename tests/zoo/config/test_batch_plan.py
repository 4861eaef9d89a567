"""Batch arithmetic, worked out by hand, and what misfits are told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.zoo.stand_ins import toy_config
from vla_gym import BadValue
from zoo.config.batch_plan import check_dealing, check_division, choose_stages, solve
from zoo.config.run_config import RunConfig


def config(algo: str = "ppo", num_envs: int = 32, *, group_size: int = 1, **settings: Any) -> RunConfig:
    return toy_config(
        algo=algo,
        n_timesteps=1000,
        num_envs=num_envs,
        env_options={"chunk": 8, "group_size": group_size},
        algo_kwargs=settings,
    )


def test_ppo_on_four_ranks_in_two_stages():
    plan = solve(config(n_steps=10, batch_size=100, n_epochs=3), num_ranks=4, num_stages=2)
    # 32 envs = 4 ranks x 8 = 4 x 2 stages x 4; 320 decisions of 8 steps; minibatches of 100: 3 and a rest.
    assert (plan.envs_per_rank, plan.envs_per_stage, plan.buffer_width) == (8, 4, 8)
    assert (plan.decisions, plan.simulator_steps, plan.minibatches) == (320, 2560, 4)
    # 25 decisions of a minibatch on each rank, all at once.
    assert plan.scored_at_once == 25


def test_micro_batches_are_of_a_ranks_share():
    plan = solve(config(n_steps=10, batch_size=100, micro_batch_size=8), num_ranks=4)
    assert plan.scored_at_once == 8


def test_grpo_counts_rounds_and_the_horizon():
    plan = solve(config("grpo", group_size=4, rollouts_per_update=3, batch_size=64), num_ranks=2)
    # Toy-Reach: 12 steps = 2 chunks of at most 8; 32 envs x 3 rounds x 2 decisions, 96 episodes x 12 steps.
    assert (plan.decisions_per_env, plan.buffer_width) == (2, 48)
    assert (plan.decisions, plan.simulator_steps) == (192, 1152)


def test_a_minibatch_is_at_most_the_rollout():
    assert solve(config(num_envs=4, n_steps=2, batch_size=64)).batch_size == 8


@pytest.mark.parametrize(
    ("numbers", "nearest"), [((60, 8, 1, 1), "56 or 64"), ((24, 4, 4, 1), "16 or 32"), ((4, 2, 1, 4), "8")]
)
def test_misfits_name_the_nearest_numbers(numbers: tuple[int, int, int, int], nearest: str):
    num_envs, ranks, stages, group = numbers
    with pytest.raises(BadValue, match=f"--num-envs {nearest} for"):
        check_division(num_envs, num_ranks=ranks, num_stages=stages, group_size=group)
    check_division(2 * ranks * stages * group, num_ranks=ranks, num_stages=stages, group_size=group)


def test_frames_are_dealt_evenly():
    with pytest.raises(BadValue, match="--batch-size 8 or 12 for"):
        check_dealing(10, 4)
    check_dealing(8, 4)


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ({}, 2),
        ({"asked": 1}, 1),
        ({"asked": 3}, 3),
        ({"accelerator": False}, 1),  # policy and simulators want the same cores
        ({"num_workers": 0}, 1),  # nobody else simulates
        ({"num_workers": 8}, 2),  # half of the workers simulate while the policy decides for the others
        ({"group_size": 8}, 1),  # a group would be cut
    ],
)
def test_auto_takes_two_stages_where_they_help(changes: dict[str, Any], stages: int):
    usual: dict[str, Any] = {"asked": "auto", "num_envs": 8, "group_size": 4, "num_workers": 4, "accelerator": True}
    assert choose_stages(**{**usual, **changes}) == stages
