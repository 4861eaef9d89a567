"""One rank of two that compare a forward and backward pass of every family, sharded, with the whole policy's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

import vla_gym
from vla_policies import VLAPolicy
from vla_policies.modules.training import units
from zoo.distributed.fsdp import learning_copy, shard, whole
from zoo.distributed.process_group import join

OPENVLA = {"size": "tiny"}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "nano": ("nano", 4, {"size": "small"}),
    "nano-flow": ("nano-flow", 4, {"size": "small"}),
    "openvla": ("openvla", 1, OPENVLA),
    "openvla, recompute": ("openvla", 1, {**OPENVLA, "recompute": True}),
    "openvla-oft": ("openvla-oft", 4, OPENVLA),
    "openvla-oft, recompute": ("openvla-oft", 4, {**OPENVLA, "recompute": True}),
    "pi0": ("pi0", 4, {**OPENVLA, "train_expert_only": False}),
    "pi05": ("pi05", 4, {**OPENVLA, "train_expert_only": False, "recompute_activations": True}),
    "smolvla": ("smolvla", 4, {**OPENVLA, "train_expert_only": False}),
}


class Scorer(nn.Module):
    """A number that depends on all that a policy computes."""

    def __init__(self, policy: VLAPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Any, record: Any) -> torch.Tensor:
        """Log-probabilities and values, added up."""
        found = self.policy.evaluate(obs, record)
        return found.logprob_BKA.square().sum() + found.value_B.square().sum()


def compare(family: str, chunk: int, options: dict[str, Any], mesh: Any) -> dict[str, float]:
    """Worst differences of loss and gradients, and the sizes of the sharded units."""
    torch.manual_seed(0)
    envs = vla_gym.make_vec("Toy-Reach", num_envs=2, chunk=chunk, seed=0).as_sb3()
    policy = VLAPolicy(
        envs.observation_space, envs.action_space, lambda _: 1e-3, backbone=family, backbone_kwargs=options
    )
    obs: Any = envs.reset()
    envs.close()
    policy.set_training_mode(False)
    with torch.no_grad():
        record = policy.act(obs).record
    loss = Scorer(policy)(obs, record)
    loss.backward()
    expected = {name: parameter.grad for name, parameter in policy.named_parameters()}
    policy.zero_grad(set_to_none=True)
    memory = {parameter.data_ptr() for parameter in policy.parameters()}

    scorer = Scorer(learning_copy(policy))
    assert {parameter.data_ptr() for parameter in scorer.parameters()} == memory, "copied"
    shard(scorer, scorer.policy.optimizer, mesh, mp_policy=MixedPrecisionPolicy())
    sharded_loss = scorer(obs, record)
    sharded_loss.backward()
    worst = 0.0
    for name, parameter in scorer.policy.named_parameters():
        gradient, wanted = parameter.grad, expected[name]
        if wanted is None or gradient is None:
            assert wanted is None or not wanted.any(), name
            continue
        worst = max(worst, float((whole(gradient) - wanted).abs().max()) / max(1.0, float(wanted.abs().max())))
    groups = [part._get_fsdp_state()._fsdp_param_group for part in units(scorer)]  # type: ignore[operator]
    sizes = [sum(one.sharded_param.numel() for one in group.fsdp_params) for group in groups]
    return {
        "loss": float((sharded_loss - loss).detach().abs()) / max(1.0, float(loss.detach().abs())),
        "gradient": worst,
        "units": len(sizes),
        "largest": max(sizes),
        "all": sum(sizes),
    }


def compare_all(names: Sequence[str], out: Path) -> None:
    """Write a JSON object: one of `CASES` -> what was found."""
    group, _ = join("cpu")
    mesh = init_device_mesh("cpu", (group.size,))
    found = {name: compare(*CASES[name], mesh) for name in names}
    if group.is_first:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()
