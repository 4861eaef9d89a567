"""One process answers itself; several, which tell each other, are started in `test_launched.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.zoo.stand_ins import toy_config
from vla_gym.errors import BadValue
from zoo.config.run_config import RunConfig
from zoo.distributed.process_group import (
    ProcessGroup,
    check_device,
    check_same,
    check_same_command,
    check_same_weights,
    frozen_sample,
    join,
    launched_processes,
)

CONFIG = toy_config(n_timesteps=8, num_envs=2, seed=1, algo_kwargs={"learning_rate": 0.001})


def test_moments_are_mean_and_unbiased_deviation():
    assert ProcessGroup().moments(torch.tensor([1.0, 2.0, 3.0])) == pytest.approx((2.0, 1.0))
    assert ProcessGroup().moments(torch.tensor([5.0])) == (5.0, 0.0)
    assert ProcessGroup().moments(torch.zeros(0)) == (0.0, 0.0)
    # Of equal numbers there is no spread, whatever float32 makes of them.
    assert ProcessGroup().moments(torch.full((1000,), 0.1))[1] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("environment", "processes"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "4"}, 4),
        ({"ACCELERATE_USE_CPU": "True"}, 1),
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1", "WORLD_SIZE": "2"}, 2),
        ({"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1"}, "--cpu"),
        ({"ACCELERATE_USE_DEEPSPEED": "true", "WORLD_SIZE": "2"}, "DeepSpeed"),
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, "gradient_accumulation_steps 4"),
        ({"ACCELERATE_MIXED_PRECISION": "fp8"}, "fp8"),
    ],
)
def test_what_a_launcher_may_ask_for(environment: dict[str, str], processes: int | str) -> None:
    if isinstance(processes, int):
        assert launched_processes(environment) == processes
    else:
        with pytest.raises(BadValue, match=processes):
            launched_processes(environment)


# Devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "precision", "present"),
    [("cpu", "highest", []), ("cuda", "high", []), ("auto", "high", []), ("cuda:1", "high", [torch.device("cuda", 1)])],
)
def test_a_run_on_cuda_multiplies_in_tf32_on_the_gpu_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, device: str, precision: str, present: list[torch.device]
) -> None:
    """Pinned memory, generators and libraries' kernels are of the present device, else the first one."""
    set_to, chosen = ["highest"], list[torch.device]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", set_to.append)
    check_device(device)
    assert (set_to, chosen) == (["highest"], [])
    join(device)
    assert (set_to[-1], chosen) == (precision, present)


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:77"])
def test_a_device_that_is_not_here_is_named(name: str) -> None:
    assert check_device("cpu") == torch.device("cpu")
    with pytest.raises(BadValue, match=f"'{name}'"):
        check_device(name)


# What ranks must have in common before they learn together ----------------------------------------------


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


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"algo_kwargs": {"learning_rate": 0.01}}, "algo_kwargs.learning_rate is 0.01 on rank 1, 0.001 on rank 0"),
        ({"algo_kwargs": {}}, "algo_kwargs.learning_rate is None on rank 1"),
        ({"num_envs": 4}, "num_envs is 4 on rank 1, 2 on rank 0"),
    ],
)
def test_another_setting_on_one_rank_is_named(other: dict[str, Any], message: str) -> None:
    told((CONFIG, None), (replace(CONFIG, seed=2, device="cpu", num_threads=3, env_options={"num_workers": 2}), None))
    with pytest.raises(BadValue, match=message):
        told((CONFIG, None), (replace(CONFIG, **other), None))


def test_other_checkpoints_and_facts_are_named() -> None:
    with pytest.raises(BadValue, match="checkpoint is 8 on rank 1, 16 on rank 0"):
        told((CONFIG, 16), (CONFIG, 8))
    with pytest.raises(BadValue, match="what the dataset holds is 'b' on rank 1, 'a' on rank 0"):
        check_same({"what the dataset holds": "b"}, Others([{"what the dataset holds": "a"}]))


def layer(seed: int, *, frozen: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(40, 40).requires_grad_(not frozen)


def test_other_frozen_weights_are_refused_and_other_trained_ones_are_not() -> None:
    check_same_weights(layer(0), Others([frozen_sample(layer(0)), None]))
    check_same_weights(None, Others([frozen_sample(layer(0))]))
    check_same_weights(layer(1, frozen=False), Others([frozen_sample(layer(0, frozen=False))]))
    with pytest.raises(BadValue, match="frozen weights"):
        check_same_weights(layer(1), Others([frozen_sample(layer(0))]))
    # A device may keep weights in more bits.
    narrow = layer(0).to(torch.bfloat16)
    assert frozen_sample(narrow) == frozen_sample(layer(0).to(torch.bfloat16).float())
