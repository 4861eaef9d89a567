"""FSDP2 on two processes makes the update one process makes, and what it saves opens on any number of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.zoo.launching import TOY, finish, first_checkpoint, only_run, same_tensors, start, updates
from vla_gym.errors import BadValue
from zoo.sharding import hand_over, learning_copy, sharding_asked, sharding_settings

FSDP = "one_node_fsdp2.yaml"
RUN = (
    *TOY,
    "--policy",
    "openvla-oft",
    "--seed",
    "1",
    "-n",
    "90",
    "--save-freq",
    "30",
    "--eval-episodes",
    "0",
)
PARAMS = ("num_envs:4", "n_steps:2", "batch_size:4", "n_epochs:2", "learning_rate:1e-4", "micro_batch_size:1")
POLICY = "policy_kwargs:{backbone_kwargs: {size: tiny}}"


def train(processes: int, folder: Path, *params: str, config: str = FSDP, precision: str = "no") -> Path:
    arguments = [*RUN, "-f", str(folder), "-params", *PARAMS, POLICY, *params]
    finish(start(processes, arguments, config=config, precision=precision))
    return only_run(folder)


def same_updates(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> None:
    """To 1e-4, but for explained variances, which divide by next to nothing here."""
    for left, right in zip(ours, theirs, strict=True):
        for key in (key for key in left if "explained" not in key):
            assert left[key] == pytest.approx(right[key], rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_two_ranks_with_parts_make_the_update_of_one_with_all(tmp_path: Path) -> None:
    alone, parted = train(1, tmp_path / "alone"), train(2, tmp_path / "parted")
    same_updates(updates(alone), updates(parted))
    ours, theirs = first_checkpoint(alone), first_checkpoint(parted)
    assert ours.name == theirs.name
    for file in ("model.safetensors", "optimizer.safetensors"):
        same_tensors(ours, theirs, file, 1e-4)
    for processes in (1, 4):
        folder = tmp_path / str(processes)
        finish(start(processes, ["-i", str(theirs), "-f", str(folder)], config=FSDP))
        same_updates(updates(only_run(folder)), updates(alone)[1:])


@pytest.mark.slow
@pytest.mark.parametrize("config", [FSDP, pytest.param("cpu.yaml", marks=pytest.mark.thorough)])
def test_a_critic_warms_up_alone_on_two_ranks_as_on_one(config: str, tmp_path: Path) -> None:
    """Most parameters have no gradient then, and nobody may wait for one."""
    alone, two = (
        train(processes, tmp_path / str(processes), "critic_warmup_updates:1", config=config)
        for processes in (1, 2)
    )
    same_updates(updates(alone), updates(two))


@pytest.mark.slow
@pytest.mark.parametrize("config", [FSDP, pytest.param("cpu.yaml", marks=pytest.mark.thorough)])
def test_in_mixed_precision_ratios_begin_at_one(config: str, tmp_path: Path) -> None:
    rows = updates(train(2, tmp_path, config=config, precision="bf16"))
    assert len(rows) >= 2
    assert all(row["train/actor/ratio_first_gap"] == 0.0 for row in rows)


def test_it_is_the_launchers_configuration_that_asks() -> None:
    assert not sharding_asked({})
    assert sharding_asked({"ACCELERATE_USE_FSDP": "true"})


def test_settings_come_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FSDP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FSDP_VERSION", "2")
    assert sharding_settings("no")["mp_policy"].param_dtype is None
    assert "offload_policy" not in sharding_settings("no")
    assert sharding_settings("bf16")["mp_policy"].param_dtype is torch.bfloat16
    monkeypatch.setenv("FSDP_OFFLOAD_PARAMS", "true")
    assert "offload_policy" in sharding_settings("no")
    monkeypatch.setenv("FSDP_ACTIVATION_CHECKPOINTING", "true")
    with pytest.raises(BadValue, match="recompute: true"):
        sharding_settings("no")
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(BadValue, match="fsdp_version: 2"):
        sharding_settings("no")


def test_the_learning_policy_hands_its_trained_weights_over() -> None:
    acting = nn.Linear(2, 1)
    acting.bias.requires_grad_(False)
    acting.optimizer = torch.optim.SGD([acting.weight], lr=1.0)
    learning = learning_copy(acting)
    assert acting.optimizer is learning.optimizer
    before = acting.weight.detach().clone()
    learning.weight.sum().backward()
    learning.optimizer.step()
    assert torch.equal(acting.weight, before)
    hand_over(learning, acting)
    torch.testing.assert_close(acting.weight.detach(), before - 1.0)
