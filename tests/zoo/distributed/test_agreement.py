"""What ranks must have in common before they learn together; `Others` answers for those that are not here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.zoo.stand_ins import toy_config
from vla_gym.errors import BadValue
from zoo.config.run_config import RunConfig
from zoo.distributed.agreement import check_same, check_same_command, check_same_weights, frozen_sample
from zoo.distributed.process_group import ProcessGroup

CONFIG = toy_config(n_timesteps=8, num_envs=2, seed=1)


class Others(ProcessGroup):
    """Rank 0 of two; what it says is what rank 1 will hear, and the other way round."""

    def __init__(self, said: list[Any]) -> None:
        super().__init__(0, 2)
        self._said = said

    def all_gather_object(self, value: Any) -> list[Any]:
        self._said.append(value)
        return self._said


def told(*asked: tuple[RunConfig, int | None]) -> None:
    """Rank 1 hears the first, says the second."""
    said: list[Any] = []
    for config, step in asked:
        check_same_command(config, step, Others(said))


def test_one_process_agrees_with_itself() -> None:
    check_same_command(CONFIG, None, ProcessGroup())
    check_same_weights(nn.Linear(1, 1), ProcessGroup())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"algo_kwargs": {"learning_rate": 0.01}}, "algo_kwargs.learning_rate is 0.01 on rank 1, 0.001 on rank 0"),
        ({"algo_kwargs": {}}, "algo_kwargs.learning_rate is None on rank 1"),
        ({"num_envs": 4}, "num_envs is 4 on rank 1, 2 on rank 0: start all processes with the same command"),
    ],
)
def test_another_setting_on_one_rank_is_named(other: dict[str, Any], message: str) -> None:
    config = replace(CONFIG, algo_kwargs={"learning_rate": 0.001})
    told((config, None), (config, None))
    with pytest.raises(BadValue, match=message):
        told((config, None), (replace(config, **other), None))


def test_what_a_machine_may_have_of_its_own_is_no_difference() -> None:
    own = replace(CONFIG, seed=2, device="cpu", num_threads=3, env_options={"num_workers": 2})
    told((CONFIG, None), (own, None))


def test_ranks_that_found_another_checkpoint_are_refused() -> None:
    with pytest.raises(BadValue, match="checkpoint is 8 on rank 1, 16 on rank 0"):
        told((CONFIG, 16), (CONFIG, 8))


def test_other_facts_are_named() -> None:
    with pytest.raises(BadValue, match="what the dataset holds is 'b' on rank 1, 'a' on rank 0"):
        check_same({"what the dataset holds": "b"}, Others([{"what the dataset holds": "a"}]))


def layer(seed: int, *, frozen: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(40, 40).requires_grad_(not frozen)


def test_other_frozen_weights_are_refused_and_other_trained_ones_are_not() -> None:
    check_same_weights(layer(0), Others([frozen_sample(layer(0)), None]))
    check_same_weights(None, Others([frozen_sample(layer(0))]))
    check_same_weights(layer(1, frozen=False), Others([frozen_sample(layer(0, frozen=False))]))
    with pytest.raises(BadValue, match="frozen weights of the policy are not the same on all ranks"):
        check_same_weights(layer(1), Others([frozen_sample(layer(0))]))


def test_a_device_may_keep_weights_in_more_bits() -> None:
    narrow = layer(0).to(torch.bfloat16)
    assert frozen_sample(narrow) == frozen_sample(layer(0).to(torch.bfloat16).float())
