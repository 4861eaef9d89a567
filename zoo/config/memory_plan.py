"""Memory that a run takes of each rank, line by line: counted where it can be, else measured or allowed for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vla_gym.observation import MAX_INSTRUCTION_BYTES, ObservationLayout
from vla_gym.specs import Benchmark
from zoo.config.batch_plan import BatchPlan, benchmark_of, evaluated_benchmark
from zoo.config.policy_shape import PolicyShape, footprint, policy_shape
from zoo.config.run_config import RunConfig

if TYPE_CHECKING:  # brings torch
    from vla_policies.footprint import Footprint

GIB = 2**30
ROLES = ("env", "rollout", "actor")
"""Of a rank: it simulates, decides, learns."""
TOKEN_BYTES, FLOAT_BYTES, PER_DECISION_BYTES = 8, 4, 42
"""Of `zoo.rollout.buffer.ChunkRolloutBuffer`, whose docstring has the formula."""
ADAM_BYTES, HALF = 16, 2
"""Of a trained float32 parameter: itself, its gradient and Adam's two moments; of a number in half precision."""
ALLOWANCE, ALLOWANCE_BYTES = "allowance: CUDA context, cuBLAS workspaces, gaps between blocks", 2 * GIB
DRAWING_BYTES = GIB // 4
"""Of one process that draws on the GPU (EGL context, its buffers, textures): an allowance, not a count."""


@dataclass(frozen=True)
class WorkerBytes:
    """What a simulator worker holds, resident bytes."""

    first: float
    """With one slot."""
    model: float
    """For each further model: tasks may share one, and the slots that play it do."""
    slot: float
    """For each further slot of the same model."""


WORKER_BYTES: Mapping[str, WorkerBytes] = {
    "libero": WorkerBytes(2.2e9, 0.4e9, 0.01e9),
    "metaworld": WorkerBytes(0.55e9, 0.12e9, 0.04e9),
    "maniskill": WorkerBytes(0.9e9, 0.01e9, 0.01e9),
}
"""Extra -> bounds from measurements: see docs/libero.md; a worker of eight slots
held 1.12 GB for MetaWorld-MT10 and 0.91 GB for ManiSkill/PickCube, one of 32 slots 1.42 GB for MetaWorld/reach."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """What one process does, and with how many it shares."""

    roles: frozenset[str] = frozenset(ROLES)
    """Of `ROLES`."""
    num_learners: int = 1
    """Processes that learn together."""
    sharded: bool = False
    """Whether they shard what learns (FSDP2) instead of replicating it (DDP)."""
    passes: bool = True
    """Whether passes are counted too, which takes seconds."""


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


def drawing_needs(benchmark: Benchmark, num_workers: int) -> list[Need]:
    """Return the GPU memory of one rank's simulators that draw there."""
    if benchmark.extra is None or benchmark.extra not in WORKER_BYTES:
        return []
    count = max(1, num_workers)
    return [Need("device", f"allowance: {count} processes that draw pictures", count * DRAWING_BYTES)]


def simulator_needs(benchmark: Benchmark, num_envs: int, num_workers: int, what: str = "simulators") -> list[Need]:
    """Return `num_envs` simulators of one rank; nothing if they are a few arrays in the process itself."""
    if benchmark.extra is None or benchmark.extra not in WORKER_BYTES or benchmark.batched:
        return []
    workers = max(1, min(num_workers, num_envs))
    held = WORKER_BYTES[benchmark.extra]
    size = 0.0
    for number in range(workers):
        slots = (number + 1) * num_envs // workers - number * num_envs // workers
        models = min(slots, len(benchmark.tasks), benchmark.num_models or slots)
        size += held.first + (models - 1) * held.model + (slots - models) * held.slot
    return [Need("host", f"{num_envs} {what} in {workers} workers", int(size))]


def evaluation_needs(plan: BatchPlan, config: RunConfig, num_workers: int) -> list[Need]:
    """Return the simulators of one rank's evaluations, beside those that train."""
    num_ranks = max(1, config.num_envs // plan.envs_per_rank)
    num_envs = min(plan.envs_per_rank, -(-config.eval_episodes * config.evaluation.rounds // num_ranks))
    if not num_envs:
        return []
    return simulator_needs(evaluated_benchmark(config), num_envs, num_workers, "simulators of evaluations")


def policy_needs(plan: BatchPlan, config: RunConfig, rank: Rank) -> list[Need]:
    """Return weights, gradients, optimiser and passes of one rank; empty if the policy's shape is not known here."""
    shape = shape_of(config)
    if shape is None or not rank.roles & {"rollout", "actor"}:
        return []
    counted = footprint(shape)
    lines = weight_needs(counted, config, rank)
    if not rank.passes:
        return lines
    return [*lines, busiest(counted, plan, config, rank), Need("device", ALLOWANCE, ALLOWANCE_BYTES)]


def shape_of(config: RunConfig) -> PolicyShape | None:
    """Return the shape of the run's policy; None where it is not known here."""
    benchmark = benchmark_of(config)
    return policy_shape(config, observation_layout(config, benchmark), benchmark)


def trains_in_16_bits(config: RunConfig) -> bool:
    """Whether weights that the run trains are smaller than float32; False where its policy is not known here."""
    shape = shape_of(config)
    if shape is None:
        return False
    counted = footprint(shape)
    return counted.trained < counted.num_trained * 4


def weight_needs(counted: Footprint, config: RunConfig, rank: Rank) -> list[Need]:
    """Return what stays on the device from pass to pass; exact, but for kept features, which grow to their most."""
    kept = counted.backbone.kept_bytes
    lines = [
        Need("device", "weights, frozen", counted.frozen),
        Need("device", f"weights, trained: {counted.num_trained:,} numbers", counted.trained),
    ]
    if _copies_reference(config):
        lines.append(Need("device", "the reference policy's own weights", counted.trained))
        kept *= 2
    lines.append(Need("device", "kept features, at most", kept))
    if "actor" in rank.roles and not rank.sharded:
        lines.append(Need("device", "gradients", counted.trained))
        lines.append(Need("device", "Adam's two moments", 2 * counted.trained))
        if rank.num_learners > 1:
            lines.append(Need("device", "gradients on their way to other ranks (DDP)", counted.trained))
    if "actor" in rank.roles and rank.sharded:
        lines += sharded_needs(counted, rank.num_learners)
    return [line for line in lines if line.size]


def sharded_needs(counted: Footprint, num_ranks: int) -> list[Need]:
    """Return what the policy that learns takes of a rank under FSDP2, beside the whole one that acts.

    Masters, gradients and Adam's moments are float32. Blocks are gathered one at a time, the next one meanwhile; the
    rest of the network is whole from the first layer to the last gradient. A unit's gradients are collected in the
    type of the passes and reduced in float32.
    """
    frozen, trained = counted.frozen, counted.num_trained
    blocks = counted.block_sizes()
    rest, largest = trained - sum(blocks), max(blocks, default=0)
    gathered = (HALF + HALF) * rest + max(2 * (HALF + HALF) * largest + FLOAT_BYTES * largest, FLOAT_BYTES * rest)
    return [
        Need("device", f"shard of frozen weights, 1/{num_ranks}", -(-frozen // num_ranks)),
        Need("device", f"shard of masters, gradients, moments, 1/{num_ranks}", -(-trained * ADAM_BYTES // num_ranks)),
        Need("device", "gathered weights and gradients of blocks", gathered),
    ]


def busiest(counted: Footprint, plan: BatchPlan, config: RunConfig, rank: Rank) -> Need:
    """Return what passes hold at their peak: of acting, an update's passes, and the optimiser's step, the largest."""
    found = {}
    if "rollout" in rank.roles:
        found[f"acting for {plan.envs_per_stage}"] = counted.act(plan.envs_per_stage)
        if config.offload_idle and "actor" in rank.roles:
            moved = 3 * counted.trained
            found = {what: max(size - moved, 0) for what, size in found.items()}
    if "actor" in rank.roles:
        micro = plan.scored_at_once
        passes = counted.update(micro, accumulates=plan.batch_share > micro)
        found[f"an update's passes, {micro} decisions at once"] = passes
        step = counted.step()
        found["the optimiser's step"] = -(-step // rank.num_learners) if rank.sharded else step
    what = max(found, key=lambda name: found[name])
    others = "".join(f"; {name} {size / GIB:.2f}" for name, size in found.items() if name != what)
    return Need("device", f"{what} (GiB of others: {others[2:]})" if others else what, found[what])


def _copies_reference(config: RunConfig) -> bool:
    """Whether a second policy, on the frozen weights of the first, stays beside it for the KL term."""
    settings = config.algorithm
    return settings.kl_coef > 0 and settings.kl_reference != "adapter_off"


def needs(plan: BatchPlan, config: RunConfig, num_workers: int, rank: Rank | None = None) -> list[Need]:
    """Return all that one rank needs; by default one that has every role and shares with none."""
    rank, benchmark = rank or Rank(), benchmark_of(config)
    lines = policy_needs(plan, config, rank)
    if "rollout" in rank.roles or "actor" in rank.roles:
        lines += rollout_needs(plan, config, benchmark)
    if "env" in rank.roles:
        lines += simulator_needs(benchmark, plan.envs_per_rank, num_workers)
        if rank.passes:
            lines += drawing_needs(benchmark, num_workers)
    if "actor" in rank.roles:
        lines += evaluation_needs(plan, config, num_workers)
    return lines


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
