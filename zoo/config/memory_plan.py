"""Memory that a run takes of each rank, line by line: counted where it can be, else measured."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vla_gym.observation import MAX_INSTRUCTION_BYTES, ObservationLayout
from vla_gym.specs import Benchmark
from zoo.config.batch_plan import BatchPlan, benchmark_of
from zoo.config.run_config import RunConfig

GIB = 2**30
TOKEN_BYTES, FLOAT_BYTES, PER_DECISION_BYTES = 8, 4, 34
"""Of `zoo.rollout.buffer.ChunkRolloutBuffer`, whose docstring has the formula."""
ADAM_BYTES = 16
"""Of a trained float32 parameter: itself, its gradient and Adam's two moments."""
WORKER_BYTES: Mapping[str, tuple[float, float]] = {
    "libero": (2.2e9, 0.4e9),
    "metaworld": (0.55e9, 0.12e9),
    "maniskill": (0.9e9, 0.01e9),
}
"""Extra -> resident bytes of a simulator worker with one slot, and of each further slot, as measured: see
docs/libero.md; a worker of eight slots held 1.12 GB for MetaWorld-MT10 and 0.91 GB for ManiSkill/PickCube."""


@dataclass(frozen=True)
class Need:
    """One entry of the sum."""

    where: Literal["device", "host"]
    """The policy's device, or the machine's memory. On a CPU both are the same."""
    what: str
    """In words."""
    size: int
    """Bytes, of one rank."""


def rollout_needs(plan: BatchPlan, config: RunConfig, benchmark: Benchmark) -> list[Need]:
    """Return the rollout buffer of one rank."""
    arrays = observation_layout(config, benchmark).arrays().values()
    observation = MAX_INSTRUCTION_BYTES + sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays)
    tokens = plan.chunk * benchmark.action_dim
    decision = observation + (TOKEN_BYTES + FLOAT_BYTES) * tokens + PER_DECISION_BYTES
    size = plan.decisions_per_env * plan.buffer_width * decision
    what = f"rollout buffer, {plan.decisions_per_env} x {plan.buffer_width} decisions of {decision:,} B"
    lines = [Need("host", what, size)]
    if config.algo_kwargs.get("resample_dead_groups"):
        # `zoo.rollout.group_collector` keeps a round of candidates beside it.
        what = f"rollout buffer of resampled groups, {plan.decisions_per_env} x {plan.envs_per_rank} decisions"
        lines.append(Need("host", what, plan.decisions_per_env * plan.envs_per_rank * decision))
    return lines


def observation_layout(config: RunConfig, benchmark: Benchmark) -> ObservationLayout:
    """Return the shape of one observation of the run."""
    options = config.env_options
    return ObservationLayout(
        cameras=tuple(name for name in benchmark.cameras if options.get("wrist_camera") or name != "wrist_image"),
        image_size=options.get("image_size") or benchmark.default_image_size,
        state_dim=benchmark.state_dim if options.get("state", True) else 0,
    )


def simulator_needs(plan: BatchPlan, benchmark: Benchmark, num_workers: int) -> list[Need]:
    """Return the simulators of one rank; nothing if they are a few arrays in the process itself."""
    if benchmark.extra is None or benchmark.extra not in WORKER_BYTES or benchmark.batched:
        return []
    workers = max(1, num_workers)
    first, further = WORKER_BYTES[benchmark.extra]
    size = workers * first + (plan.envs_per_rank - workers) * further
    return [Need("host", f"{plan.envs_per_rank} simulators in {workers} workers", int(size))]


def policy_needs(plan: BatchPlan, config: RunConfig, benchmark: Benchmark) -> list[Need]:
    """Return weights, gradients and optimiser of one rank, and an update's activations where they can be counted.

    Empty if the policy cannot be counted without its checkpoint.
    """
    options = dict(config.policy_kwargs.get("backbone_kwargs", {}))
    # A recipe names its start weights, and their family beside them.
    family = config.policy_kwargs.get("family", config.policy)
    if family in ("openvla", "openvla-oft") and "lora" in options:  # others are not counted
        images = 2 if config.env_options.get("wrist_camera") else 1
        return _openvla_needs(options.get("size", "7b"), options["lora"].get("rank", 32), plan.scored_at_once, images)
    if config.policy in ("nano", "nano-flow"):
        return _nano_needs(config, benchmark, options)
    return []


@functools.cache
def _openvla_needs(size: str, rank: int, micro_batch: int, images: int) -> list[Need]:
    from vla_policies.openvla.memory import budget

    lines = budget(size=size, rank=rank, micro_batch=micro_batch, images=images)
    return [Need("device", line.name, line.size) for line in lines]


def _nano_needs(config: RunConfig, benchmark: Benchmark, options: Mapping[str, Any]) -> list[Need]:
    from vla_policies.conventions import Conventions
    from vla_policies.loading import fresh_backbone

    layout = observation_layout(config, benchmark)
    wanted = Conventions(
        cameras=layout.cameras,
        image_size=layout.image_size,
        state_dim=layout.state_dim,
        chunk=config.chunk,
        action_dim=benchmark.action_dim,
    )
    parameters = fresh_backbone(config.policy, wanted, options).parameters()
    count = sum(parameter.numel() for parameter in parameters)
    what = f"{count:,} parameters, gradients, optimiser (what passes keep comes on top)"
    return [Need("device", what, ADAM_BYTES * count)]


def needs(plan: BatchPlan, config: RunConfig, num_workers: int) -> list[Need]:
    """Return all that one rank needs."""
    benchmark = benchmark_of(config)
    return [
        *policy_needs(plan, config, benchmark),
        *rollout_needs(plan, config, benchmark),
        *simulator_needs(plan, benchmark, num_workers),
    ]


def total(lines: Sequence[Need], where: str) -> int:
    """Return the bytes of one place."""
    return sum(line.size for line in lines if line.where == where)


def need_lines(lines: Sequence[Need]) -> list[str]:
    """Return a line for each, then the sums by place, in GiB, of one rank."""
    rows = [f"  {line.size / GIB:8.3f} GiB  {line.where:<6}  {line.what}" for line in lines]
    sums = [
        f"  {total(lines, where) / GIB:8.3f} GiB  {where:<6}  in all"
        for where in ("device", "host")
        if any(line.where == where for line in lines)
    ]
    return [*rows, *sums]
