"""Needs of a run of OpenVLA-OFT-7B on LIBERO at 8, 64 and 512 GPUs, worked out from measured single-node figures:
`python -m benchmarks.on_paper`. Nothing is run; experiments/2026-11-on-paper.md has the table."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

STEPS_PER_CORE = 92.7 / 2
"""LIBERO control steps per second and core, images included, two slots on two cores:
experiments/2026-11-libero-rendering-speed.md."""
WORKER_GB, SLOT_GB = 2.2, 0.4
"""Memory of a simulator worker with one slot, and of each further slot, as first measured; docs/libero.md has less."""
BASE_PARAMETERS, LORA_PARAMETERS = 7_541_237_184, 110_828_288 + 2_163_456
"""Of the network, and of adapters of rank 32 with the critic: docs/models.md, Memory."""
LORA_BYTES, FULL_BYTES, REDUCED_BYTES = 4, 2, 4
"""Of a trained parameter on the wire: float32 adapters, bf16 full weights, and the float32 gradients of these."""
NODE = 8
"""GPUs of a node."""
DECISION_BYTES = 197_698
"""Of one decision in the rollout buffer, one camera: `python -m zoo.plan --env LIBERO-130 --policy openvla-oft`."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Sizes that grow with the GPUs; the defaults are those of hyperparams/ppo.yml, LIBERO/openvla-oft, on each GPU."""

    envs: int = 8
    """Environments of a GPU."""
    decisions: int = 64
    """Decisions of an environment in an update."""
    chunk: int = 8
    """Simulator steps of a decision."""
    minibatch: int = 64
    """Decisions of a minibatch, of a GPU."""
    rollout_seconds: float = 60.0
    """How long the simulators may take for an update's steps."""


@dataclass(frozen=True)
class Needs:
    """Of one update."""

    simulator_steps: int
    """On all GPUs."""
    cores: int
    """Simulator cores, so that a rollout's steps take no longer than allowed."""
    simulator_gb: float
    """Memory of the simulators, GB."""
    columns_gb: float
    """Rollouts on their way from rollout ranks to actor ranks, where these are others, GB."""
    sent_gb: float
    """Out of each GPU in rings, and into it, for gradients and, where these are sharded, weights, GB."""
    weights_gb: float
    """Out of each rank where half of the GPUs decide and half learn: one copy, in the ring of an NCCL broadcast, GB."""


def replicated_bytes(parameters: int, gpus: int, parameter_bytes: int = LORA_BYTES) -> float:
    """Return what a GPU sends for an optimiser step of data parallelism: its gradients, averaged in a ring."""
    return 2 * (gpus - 1) / gpus * parameters * parameter_bytes


def sharded_bytes(parameters: int, shards: int, replicas: int = 1) -> float:
    """Return what a GPU sends for an optimiser step of FSDP2, of HSDP with several `replicas`: weights gathered once,
    gradients summed to shards, shards averaged over the replicas."""
    among_shards = (shards - 1) / shards * parameters * (FULL_BYTES + REDUCED_BYTES)
    return among_shards + replicated_bytes(parameters, replicas, REDUCED_BYTES) / shards


def needs(gpus: int, recipe: Recipe, weights: int, step_bytes: float) -> Needs:
    """Counts for `gpus` GPUs that train `weights` bytes, of which each sends `step_bytes` for an optimiser step."""
    decisions = gpus * recipe.envs * recipe.decisions
    steps = decisions * recipe.chunk
    cores = math.ceil(steps / (STEPS_PER_CORE * recipe.rollout_seconds))
    slots = gpus * recipe.envs
    workers = min(cores, slots)
    optimizer_steps = math.ceil(recipe.envs * recipe.decisions / recipe.minibatch)
    return Needs(
        simulator_steps=steps,
        cores=cores,
        simulator_gb=workers * WORKER_GB + (slots - workers) * SLOT_GB,
        columns_gb=decisions * DECISION_BYTES / 1e9,
        sent_gb=optimizer_steps * step_bytes / 1e9,
        weights_gb=min(gpus // 2, 1) * weights / 1e9,
    )


def table(counts: tuple[int, ...], recipe: Recipe) -> list[str]:
    """A Markdown table."""
    lines = [
        "| GPUs | trained | simulator steps | simulator cores | their memory, GB | rollouts sent, GB "
        "| gradients and shards per GPU, GB | weights sent by a rank, GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for gpus in counts:
        lora, full = LORA_PARAMETERS * LORA_BYTES, BASE_PARAMETERS * FULL_BYTES
        for name, weights, sent in (
            ("LoRA 32", lora, replicated_bytes(LORA_PARAMETERS, gpus)),
            ("all, FSDP2", full, sharded_bytes(BASE_PARAMETERS, gpus)),
            ("all, HSDP", full, sharded_bytes(BASE_PARAMETERS, min(NODE, gpus), max(1, gpus // NODE))),
        ):
            one = needs(gpus, recipe, weights, sent)
            lines.append(
                f"| {gpus} | {name} | {one.simulator_steps:,} | {one.cores:,} | {one.simulator_gb:,.0f} "
                f"| {one.columns_gb:,.1f} | {one.sent_gb:,.1f} | {one.weights_gb:,.1f} |"
            )
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--rollout-seconds", type=float, default=Recipe.rollout_seconds)
    args = parser.parse_args()
    print("\n".join(table(tuple(args.gpus), Recipe(rollout_seconds=args.rollout_seconds))))


if __name__ == "__main__":
    main()
