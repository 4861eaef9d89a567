"""The arithmetic of the 7B benchmark, on the tiny network and a CPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.openvla_7b import build, peak_tflops, rate, share_of_peak, update_flop
from benchmarks.openvla_oft import observations, update_ours
from vla_gym.errors import BadValue

CPU = torch.device("cpu")


def test_the_share_of_the_peak() -> None:
    # 10 TFLOP a sample, 3 samples a second: 30 of 120 TFLOP/s.
    assert share_of_peak(10e12, 3.0, 120.0) == pytest.approx(0.25)


def test_cards_are_known_by_name() -> None:
    assert peak_tflops("NVIDIA H100 80GB HBM3") == 989.0
    assert peak_tflops("NVIDIA A100-SXM4-80GB") == 312.0
    assert peak_tflops("NVIDIA L40S") == 362.0
    with pytest.raises(BadValue, match=r"the bf16 peak of 'Voodoo 2' is not known.*--peak-tflops"):
        peak_tflops("Voodoo 2")


def test_a_rate_leaves_out_the_first_turn() -> None:
    turns: list[int] = []
    assert rate(lambda: turns.append(1), 4, 0.0, lambda: None) > 0.0
    assert len(turns) == 2


def linear_flop(policy: object) -> int:
    """Of the frozen linear layers that all tokens of one decision pass, forward: 2 x in x out x tokens."""
    network = policy.backbone.network  # type: ignore[attr-defined]
    tower_tokens = {"featurizer": 16 + 5, "fused_featurizer": 16}
    total = 0
    for name, module in network.named_modules():
        if not isinstance(module, nn.Linear) or ".lora_" in name:
            continue
        blocks = len(network.vision_backbone.featurizer.blocks)
        if name.startswith("vision_backbone"):
            unused = f"blocks.{blocks - 1}." in name or "attn_pool" in name
            tokens = 0 if unused else tower_tokens[name.split(".")[1]]
        elif name.startswith("projector"):
            tokens = 16
        else:
            tokens = 0
        total += 2 * module.in_features * module.out_features * tokens
    return total


@pytest.mark.parametrize("family", ["openvla", "openvla-oft"])
def test_an_update_is_a_forward_and_a_backward_pass(family: str) -> None:
    policy, obs = build(family, "tiny", CPU, rank=1), observations(2)
    obs["image"] = obs["image"][:, ::4, ::4].copy()
    found = update_flop(policy, obs)
    # The towers and the projector, forward and back to their inputs, are a known part of it.
    assert found > 2 * linear_flop(policy) > 0
    # With frozen weights the way back is as long as the way there, but for adapters of rank 1.
    sample = policy.act(one := {key: value[:1] for key, value in obs.items()})
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        policy.evaluate(one, sample.record)
    assert found == pytest.approx(2 * counter.get_total_flops(), rel=0.15)
    assert policy.backbone.network.recompute
    # Twice the pictures' text and images: the same count, it is one decision's.
    assert update_flop(policy, {key: value[1:] for key, value in obs.items()}) == pytest.approx(found, rel=0.1)


def test_weights_are_bf16_and_what_trains_is_float32() -> None:
    policy, obs = build("openvla-oft", "tiny", CPU), observations(3)
    obs["image"] = obs["image"][:, ::4, ::4].copy()
    frozen = {one.dtype for name, one in policy.named_parameters() if ".lora_" not in name and not one.requires_grad}
    assert frozen == {torch.bfloat16}
    assert {one.dtype for one in policy.parameters() if one.requires_grad} == {torch.float32}
    before = [one.detach().clone() for one in policy.parameters() if one.requires_grad]
    update_ours(policy, obs, policy.act(obs), micro_batch=2)
    after = [one for one in policy.parameters() if one.requires_grad]
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.processes
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.openvla_7b"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == "error: this benchmark needs a CUDA device with about 24 GB; torch sees none\n"
    assert not done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_runs_on_a_gpu() -> None:
    policy, obs = build("openvla-oft", "100m", torch.device("cuda")), observations(8)
    sample = policy.act(obs)
    assert rate(lambda: update_ours(policy, obs, sample, 4), 8, 0.1, torch.cuda.synchronize) > 0.0
