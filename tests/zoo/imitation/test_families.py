"""`zoo.sft` from a checkpoint of every family of ours, on a dataset that `zoo.collect` made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vla_policies import VLAPolicy
from zoo import collect, sft
from zoo.demonstrations.lerobot_reader import read_dataset
from zoo.imitation.frames import frames_of
from zoo.imitation.loss import imitation_loss

pytestmark = pytest.mark.processes

pytest.importorskip("pyarrow")
LORA = {"lora": {"rank": 4}}
FAMILIES = [
    pytest.param("openvla", LORA, id="openvla", marks=pytest.mark.thorough),
    pytest.param("openvla-oft", LORA, id="openvla-oft"),
    pytest.param("pi0", {}, id="pi0"),
    pytest.param("pi05", {"train_expert_only": False}, id="pi05", marks=pytest.mark.thorough),
]


def collect_demos(folder: Path) -> Path:
    """Three episodes of a policy that knows nothing."""
    flags = ["--env", "Toy-Reach", "--policy", "nano", "--stochastic", "--device", "cpu", "--keep-failures"]
    assert collect.run([*flags, "-n", "3", "--num-envs", "1", "-o", str(folder)]) == 0
    return folder


def base(family: str, folder: Path) -> Path:
    """A small checkpoint of a family for Toy-Reach, as somebody may have published it."""
    import vla_gym

    torch.manual_seed(0)
    envs = vla_gym.make_vec("Toy-Reach", num_envs=1, chunk=1 if family == "openvla" else 4).as_sb3()
    policy = VLAPolicy(
        envs.observation_space, envs.action_space, lambda _: 1e-3, backbone=family, backbone_kwargs={"size": "tiny"}
    )
    envs.close()
    policy.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_a_checkpoint_learns_and_what_it_learned_opens_again(
    family: str, options: dict[str, Any], demos: Path, cwd: Path
) -> None:
    chunk = 1 if family == "openvla" else 4
    settings = [f"chunk:{chunk}", "policy_kwargs:" + json.dumps({"backbone_kwargs": options})]
    flags = ["--env", "Toy-Reach", "--dataset", str(demos), "--policy", str(base(family, cwd / "base"))]
    size = ["-n", "15", "--batch-size", "16", "--micro-batch-size", "8", "--learning-rate", "1e-2"]
    shared = ["--eval-episodes", "0", "--seed", "0", "--device", "cpu", "-params", *settings]
    assert sft.run([*flags, *size, *shared]) == 0
    run = Path("logs/sft/Toy-Reach_1")
    assert (run / "best" / "adapter_model.safetensors").is_file() == bool(options.get("lora"))
    frames, found = frames_of(read_dataset(demos), chunk), []
    for folder in (cwd / "base", run / "best"):
        policy = VLAPolicy.from_pretrained(folder, device="cpu")
        assert policy.backbone.family == family
        torch.manual_seed(1)  # flow matching's draws
        found.append(imitation_loss(policy, frames).item())
    assert found[1] < 0.95 * found[0]
