"""Settings that fit, on a network of two layers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.zoo.stand_ins import toy_config
from zoo.config.batch_plan import solve
from zoo.config.memory_choice import Choice, choose, nearest
from zoo.config.memory_plan import GIB, Rank, needs, total

CONFIG = toy_config(
    policy="openvla-oft",
    num_envs=4,
    env_options={"chunk": 4},
    policy_kwargs={"backbone_kwargs": {"size": "tiny", "lora": {"rank": 4}}},
    algo_kwargs={"n_steps": 8, "batch_size": 32},
)


def test_the_fastest_that_fits_is_taken():
    plan = solve(CONFIG)
    whole = total(needs(plan, CONFIG, 0, Rank()), "device")
    assert choose(plan, CONFIG, 0, Rank(), whole) == Choice(
        micro_batch_size=32, options={"recompute": False}, size=whole
    )
    smaller = choose(plan, CONFIG, 0, Rank(), whole - 1)
    assert smaller is not None
    assert smaller.size <= whole - 1
    assert (smaller.micro_batch_size, smaller.options) == (16, {"recompute": False})
    assert choose(plan, CONFIG, 0, Rank(), GIB) is None
    assert nearest(plan, CONFIG, 0, Rank(), GIB) is None


@pytest.mark.parametrize("adapted", [{}, {"lora": {"rank": 4}}])
def test_nothing_is_proposed_that_a_family_cannot_do(adapted: dict[str, object]):
    """SmolVLA keeps no weights in 8 or 4 bits: adapters, or nothing."""
    config = replace(CONFIG, policy="smolvla", policy_kwargs={"backbone_kwargs": {"size": "tiny", **adapted}})
    assert nearest(solve(config), config, 0, Rank(), 1) is None


def test_flags_are_those_of_the_command_line():
    choice = Choice(micro_batch_size=8, options={"lora": {"rank": 32}, "recompute": True}, size=0)
    assert choice.flags == (
        '-params micro_batch_size:8 "policy_kwargs:{backbone_kwargs: {lora: {rank: 32}, recompute: true}}"'
    )
