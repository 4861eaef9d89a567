"""OpenVLA-7B with random weights on one GPU: `python -m benchmarks.openvla_7b`.

Decisions a second while acting with batches of 1, 8 and 32; samples a second, peak memory and share of the card's
bf16 peak of one PPO update of LoRA adapters with gradient checkpointing. The share counts the arithmetic that the
update is made of, forward and backward: what checkpointing computes again is not counted, so that it costs share.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.openvla_oft import LEARNING_RATE, observations, update_ours
from vla_gym.errors import BadValue, VLAZooError
from vla_policies import Conventions, VLAPolicy

FAMILIES = {"openvla": 1, "openvla-oft": 8}
"""Family -> actions per decision."""
BATCHES = (1, 8, 32)
PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0}
"""Part of a card's name -> dense bf16 arithmetic of its data sheet (the SXM version where there are several)."""


def build(family: str, size: str, device: torch.device, *, rank: int = 32) -> VLAPolicy:
    """Random weights in bf16, adapters and critic in float32."""
    torch.manual_seed(0)
    conventions = Conventions(cameras=("image",), image_size=224, state_dim=0, chunk=FAMILIES[family], action_dim=7)
    options = {"size": size, "dtype": "bfloat16", "lora": {"rank": rank}, "recompute": True}
    spaces = conventions.observation_space(), conventions.action_space()
    policy = VLAPolicy(*spaces, lambda _: LEARNING_RATE, backbone=family, backbone_kwargs=options)
    return policy.to(device)


def rate(turn: Callable[[], object], per_turn: int, seconds: float, wait: Callable[[], object]) -> float:
    """How many of `per_turn` a second, over turns that take `seconds` together, after one unmeasured turn."""
    turn()
    wait()
    turns, start = 0, time.perf_counter()
    while not turns or time.perf_counter() - start < seconds:
        turn()
        wait()
        turns += 1
    return per_turn * turns / (time.perf_counter() - start)


def update_flop(policy: VLAPolicy, obs: dict[str, Any]) -> float:
    """Floating-point operations of one decision's part in an update: one forward and one backward pass."""
    network: Any = policy.backbone.network
    kept, network.recompute = network.recompute, False
    one = {key: value[:1] for key, value in obs.items()}
    sample = policy.act(one)
    with FlopCounterMode(display=False) as counter:
        result = policy.evaluate(one, sample.record)
        (result.logprob_BKA.sum() + result.value_B.sum()).backward()
    policy.optimizer.zero_grad()
    network.recompute = kept
    return float(counter.get_total_flops())


def share_of_peak(flop: float, per_second: float, peak_tflops: float) -> float:
    """Of the card's arithmetic, what `per_second` samples of `flop` each make use of, 0 .. 1."""
    return flop * per_second / (peak_tflops * 1e12)


def peak_tflops(card: str) -> float:
    """Of a card by its name; raises where the table does not know it."""
    for part, peak in PEAK_TFLOPS.items():
        if part in card.replace("-", " ").split():
            return peak
    raise BadValue(f"the bf16 peak of '{card}' is not known, only that of {', '.join(PEAK_TFLOPS)}; give --peak-tflops")


def check_cuda() -> torch.device:
    """The GPU; raises where there is none."""
    if not torch.cuda.is_available():
        raise BadValue("this benchmark needs a CUDA device with about 24 GB; torch sees none")
    return torch.device("cuda")


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    device = check_cuda()
    card = torch.cuda.get_device_name(device)
    peak = peak_tflops(card) if arguments.peak_tflops is None else arguments.peak_tflops
    policy = build(arguments.family, "7b", device)
    parameters = sum(one.numel() for one in policy.backbone.parameters())
    print(f"{arguments.family}, {parameters / 1e9:.2f} billion parameters, bf16, LoRA 32, on {card}")
    for batch in BATCHES:
        obs = observations(batch)
        found = rate(lambda obs=obs: policy.act(obs), batch, arguments.seconds, torch.cuda.synchronize)  # type: ignore[misc]
        print(f"acting, batch {batch:>2}        {found:8.2f} decisions/s", flush=True)
    obs = observations(arguments.batch)
    flop, sample = update_flop(policy, obs), policy.act(obs)
    torch.cuda.reset_peak_memory_stats()
    found = rate(
        lambda: update_ours(policy, obs, sample, arguments.micro_batch),
        arguments.batch,
        arguments.seconds,
        torch.cuda.synchronize,
    )
    memory = torch.cuda.max_memory_allocated() / 2**30
    print(f"PPO update of {arguments.batch} in parts of {arguments.micro_batch}: {found:.2f} samples/s")
    print(f"peak memory {memory:.1f} GiB, {flop / 1e12:.2f} TFLOP a sample, ", end="")
    print(f"{share_of_peak(flop, found, peak):.0%} of {peak:.0f} TFLOP/s")


def main() -> int:
    """Entry point of `python -m benchmarks.openvla_7b`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, default="openvla-oft")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--batch", type=int, default=64, help="decisions of the update")
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--peak-tflops", type=float, help="dense bf16 peak of the card, if it is not known here")
    try:
        run(parser.parse_args())
    except VLAZooError as error:
        print(f"error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
