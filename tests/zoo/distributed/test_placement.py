"""Placements: what they mean, and what is said of those that do not add up."""

from __future__ import annotations

import pytest

from tests.zoo.stand_ins import toy_config
from vla_gym import BadValue
from vla_gym.errors import VLAZooError
from zoo.config.run_config import RunConfig
from zoo.distributed.placement import (
    Placement,
    block,
    check_same_kind,
    check_shares,
    check_staleness,
    overlap,
    parse_placement,
)
from zoo.distributed.process_group import ProcessGroup, own_block
from zoo.training.setup import training_share


def test_all_is_every_role_on_every_rank():
    everywhere = parse_placement("all", 4)
    assert everywhere == parse_placement("env=all,rollout=all,actor=0-3", 4)
    assert everywhere.everywhere
    assert not everywhere.remote_envs
    assert everywhere.weights_to == ()


@pytest.mark.parametrize(
    ("asked", "size", "former", "fits"),
    [
        ("all", 1, "all", True),
        ("env=0,rollout=0,actor=0", 1, "all", True),
        ("all", 1, "env=0,rollout=0,actor=0", True),
        ("all", 2, "env=0,rollout=0,actor=1", False),
        ("env=0,rollout=0,actor=1", 2, "all", False),
        ("env=0,rollout=0,actor=1", 2, "env=0-1,rollout=2,actor=3", True),
    ],
)
def test_a_run_goes_on_on_a_placement_of_its_kind(asked: str, size: int, former: str, fits: bool):
    placement = parse_placement(asked, size)
    if fits:
        check_same_kind(placement, asked, former)
    else:
        with pytest.raises(BadValue, match=rf"--placement {asked} cannot go on with a run of --placement {former}: "):
            check_same_kind(placement, asked, former)


def test_separate_roles():
    split = parse_placement("env=0-1,rollout=2,actor=3", 4)
    assert split == Placement(env=(0, 1), rollout=(2,), actor=(3,), size=4)
    assert (split.everywhere, split.remote_envs, split.weights_to) == (False, True, (2,))
    # The rollout rank's sub-environments: a half on each env rank, which serves it alone.
    assert split.servers_of(2) == ((0, 0), (1, 0))
    assert split.clients == 1


def test_hybrid_roles_and_lists_of_ranks():
    hybrid = parse_placement("env=0,1,rollout=2-3,actor=0-3", 4)
    assert (hybrid.env, hybrid.rollout, hybrid.actor) == ((0, 1), (2, 3), (0, 1, 2, 3))
    assert hybrid.weights_to == ()
    assert [hybrid.servers_of(rank) for rank in (2, 3)] == [((0, 0),), ((1, 0),)]


def test_one_env_rank_serves_several_rollout_ranks():
    few = parse_placement("env=0,rollout=1-2,actor=3", 4)
    assert [few.servers_of(rank) for rank in (1, 2)] == [((0, 0),), ((0, 1),)]
    assert few.clients == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("0-3", "env=0-1,rollout=2,actor=3, got '0-3'"),
        ("env=0,rollout=1", "lacks actor"),
        ("env=0,env=1,rollout=2,actor=3", "each role once"),
        ("env=1-0,rollout=2,actor=3", "'1-0'"),
        ("env=0,0,rollout=2,actor=3", "each once, got '0'"),
        ("env=0-1,rollout=2,actor=4", "names rank 4, but the run has 4 processes"),
        ("env=0,rollout=1,actor=2", "gives rank 3 of 4 nothing to do"),
        ("env=0-1,rollout=1-2,actor=3", "both on rank 1"),
        ("env=0-2,rollout=3,4,actor=5", "3 env ranks are not dealt evenly to 2 rollout ranks"),
        ("env=0,rolout=1,actor=2", "Did you mean 'rollout'"),
        ("env=all,rollout=all,actor=0-999999999999", "at most 65536 processes"),
    ],
)
def test_misfits_say_why(text: str, named: str):
    with pytest.raises(VLAZooError) as caught:
        parse_placement(text, 6 if "5" in text else 4)
    assert named in str(caught.value)


def test_shares_must_divide_for_every_role():
    split = parse_placement("env=0-1,rollout=2,actor=3-5", 6)
    check_shares(split, num_envs=12, num_stages=2, group_size=2)
    with pytest.raises(BadValue, match="Nearest allowed: --num-envs 6 or 12"):
        check_shares(split, num_envs=8, num_stages=1, group_size=2)


def test_staleness_needs_ranks_that_only_decide():
    check_staleness(parse_placement("env=0-1,rollout=2,actor=3", 4), 2, "ppo")
    check_staleness(parse_placement("all", 4), 0, "grpo")
    with pytest.raises(BadValue, match="is for ppo, got grpo"):
        check_staleness(parse_placement("env=0-1,rollout=2,actor=3", 4), 1, "grpo")
    with pytest.raises(BadValue, match="rank 2 doing both"):
        check_staleness(parse_placement("env=0-1,rollout=2-3,actor=0-3", 4), 1, "ppo")


def test_blocks_and_overlaps():
    assert [block(place, 3, 12) for place in range(3)] == [range(4), range(4, 8), range(8, 12)]
    # Two collectors of six sub-environments, three learners of four.
    assert overlap(block(0, 2, 12), block(1, 3, 12)) == range(4, 6)
    assert overlap(block(1, 2, 12), block(1, 3, 12)) == range(6, 8)
    assert len(overlap(block(0, 2, 12), block(2, 3, 12))) == 0


def config(num_envs: int, group_size: int = 1) -> RunConfig:
    return toy_config(algo="grpo", num_envs=num_envs, env_options={"group_size": group_size})


def test_groups_are_shared_out_in_order():
    shares = [training_share(config(24, 4), ProcessGroup(rank, 3)) for rank in range(3)]
    assert shares == [{"num_envs": 8, "group_offset": 2 * rank, "num_groups": 6} for rank in range(3)]


@pytest.mark.parametrize(("count", "size"), [(10, 1), (10, 4), (3, 4), (1, 8), (0, 2)])
def test_every_start_state_is_evaluated_once_and_the_first_by_the_rank_that_films(count: int, size: int):
    parts = [list(range(count))[own_block(count, ProcessGroup(rank, size))] for rank in range(size)]
    assert [cell for part in parts for cell in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert bool(parts[0]) == bool(count)
