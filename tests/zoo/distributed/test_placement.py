"""Placements: what they mean, and what is said of those that do not add up."""

from __future__ import annotations

import pytest

from vla_gym import BadValue, UnknownName
from zoo.distributed.placement import Placement, check_shares, check_staleness, parse_placement


def test_all_is_every_role_on_every_rank():
    everywhere = parse_placement("all", 4)
    assert everywhere == parse_placement("env=all,rollout=all,actor=0-3", 4)
    assert everywhere.everywhere
    assert not everywhere.remote_envs
    assert everywhere.weights_to == ()


def test_separate_roles():
    split = parse_placement("env=0-1,rollout=2,actor=3", 4)
    assert split == Placement(env=(0, 1), rollout=(2,), actor=(3,), size=4)
    assert (split.everywhere, split.remote_envs, split.weights_to) == (False, True, (2,))
    # The rollout rank's slots: a half on each env rank, which serves it alone.
    assert split.servers_of(2) == ((0, 0), (1, 0))
    assert split.clients_of(0) == 1


def test_hybrid_roles_and_lists_of_ranks():
    hybrid = parse_placement("env=0,1,rollout=2-3,actor=0-3", 4)
    assert (hybrid.env, hybrid.rollout, hybrid.actor) == ((0, 1), (2, 3), (0, 1, 2, 3))
    assert hybrid.weights_to == ()
    assert [hybrid.servers_of(rank) for rank in (2, 3)] == [((0, 0),), ((1, 0),)]


def test_one_env_rank_serves_several_rollout_ranks():
    few = parse_placement("env=0,rollout=1-2,actor=3", 4)
    assert [few.servers_of(rank) for rank in (1, 2)] == [((0, 0),), ((0, 1),)]
    assert few.clients_of(0) == 2


def test_weights_are_passed_on_by_a_binary_tree():
    wide = parse_placement("env=0-4,rollout=0-4,actor=5", 6)
    # Nodes: 5; 0 and 1 below it; 2 and 3 below 0; 4 below 1.
    assert [wide.relay(rank) for rank in (5, 0, 1)] == [(None, (0, 1)), (5, (2, 3)), (5, (4,))]
    assert [wide.relay(rank) for rank in (2, 3, 4)] == [(0, ()), (0, ()), (1, ())]
    # Who learns has its weights already.
    assert parse_placement("all", 2).relay(1) == (None, ())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0-3", "must be 'all' or like env=0-1,rollout=2,actor=3, got '0-3'"),
        ("env=0,rollout=1", "lacks actor"),
        ("env=0,env=1,rollout=2,actor=3", "names env twice"),
        ("env=0-1,rollout=two,actor=3", "must be ranks such as 3, 0-3 or all, got 'two'"),
        ("env=1-0,rollout=2,actor=3", "1-0 goes backwards; write 0-1"),
        ("env=0,0,rollout=2,actor=3", "names a rank twice"),
        ("env=0-1,rollout=2,actor=4", "names rank 4, but the run has 4 processes, ranks 0-3"),
        ("env=0,rollout=1,actor=2", "gives rank 3 of 4 nothing to do"),
        ("env=0-1,rollout=1-2,actor=3", "must be the same or share none, got both on rank 1"),
        ("env=0-2,rollout=3,4,actor=5", "3 env ranks are not dealt evenly to 2 rollout ranks"),
    ],
)
def test_misfits_say_why(text: str, says: str):
    with pytest.raises(BadValue) as caught:
        parse_placement(text, 6 if "5" in text else 4)
    assert says in str(caught.value)


def test_a_single_process_is_told_how_to_start_more():
    with pytest.raises(BadValue, match=r"has 1 process\. Start it with: accelerate launch --num_processes 4"):
        parse_placement("env=0-1,rollout=2,actor=3", 1)


def test_an_unknown_role_has_a_nearest_name():
    with pytest.raises(UnknownName, match="Did you mean 'rollout'"):
        parse_placement("env=0,rolout=1,actor=2", 3)


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
