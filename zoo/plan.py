"""`vla-zoo plan --env LIBERO-130 --policy openvla-oft --ranks 8 --gpu-memory 80`: what a run comes to, and fits.

Takes the flags of `vla-zoo train` and starts nothing, so the simulators need not be here; flags that say where results
go change nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from vla_policies.resolver import PolicyRef
from zoo.cli.arguments import OneLineParser, positive, processes
from zoo.cli.main import guarded
from zoo.cli.run_flags import check_services
from zoo.config.gym_packages import import_named_packages
from zoo.config.hyperparams import deep_merge
from zoo.config.memory_plan import (
    GIB,
    GPU_MEMORY,
    Rank,
    check_quantization,
    fastest_fit,
    needs,
    policy_footprint,
    total,
    trains_in_16_bits,
)
from zoo.config.run_config import RunConfig
from zoo.config.settings import yaml_line
from zoo.distributed.placement import ALL, processes_named
from zoo.runs.evaluations import policy_line
from zoo.runs.lookup import ResumePoint
from zoo.train import parser as train_parser
from zoo.train import resolve_run
from zoo.training.run_plan import RunPlan, arithmetic_lines, memory_lines, ranks


def parser() -> OneLineParser:
    """The flags of `vla-zoo train`, and the machine."""
    p = train_parser("vla-zoo plan", "Say what a run of vla-zoo train comes to and whether it fits; start nothing.")
    p.add_argument(
        "--ranks", type=processes, metavar="W", help="processes, one GPU each (default: those of --placement, else 1)"
    )
    p.add_argument("--gpu-memory", type=positive, metavar="GIB", help="memory of one GPU, GiB")
    p.add_argument("--gpu", choices=GPU_MEMORY, help="a card, for --gpu-memory")
    p.add_argument("--host-memory", type=positive, metavar="GIB", help="main memory that one rank may take, GiB")
    p.add_argument(
        "--fsdp", action="store_true", help="the ranks shard what learns (FSDP2); default: they replicate it"
    )
    return p


def plan_lines(
    config: RunConfig, policy: PolicyRef | None, resume: ResumePoint | None, args: argparse.Namespace
) -> Iterator[str]:
    """Yield the arithmetic, the memory and what fits; a 7B policy is counted on the way, for a minute."""
    gpu_memory = args.gpu_memory or GPU_MEMORY.get(args.gpu)
    plan = RunPlan.resolve(config, args.ranks, policy).with_stages(accelerator=gpu_memory is not None)
    sharded = args.fsdp and args.ranks > 1
    check_quantization(config)
    if policy is not None:
        from zoo.training.start_weights import check_fit, start_record

        if policy.folder is not None:
            check_fit(config, policy)
        yield policy_line(start_record(config, policy))
    choice = None if gpu_memory is None else plan.chosen(gpu_memory * GIB, sharded=sharded)
    if choice is not None:
        kwargs = deep_merge(config.policy_kwargs, {"backbone_kwargs": choice.options})
        batch = replace(plan.batch, micro_batch_size=choice.micro_batch_size)
        plan = replace(plan, config=replace(config, policy_kwargs=kwargs), batch=batch)
    yield from arithmetic_lines(plan, resume)
    if choice is not None:
        yield f"chosen       by the GPU's memory: {choice.words()}"
    yield from memory_lines(plan, sharded=sharded, passes=True)
    for where, size in (("device", gpu_memory), ("host", args.host_memory)):
        if size is not None:
            yield from fit_lines(plan, where, size, sharded=sharded)
    if not sharded and trains_in_16_bits(config, policy):
        yield "refused      weights that train in 16 bits: --ranks N --fsdp (FSDP2 keeps float32 masters), or take"
        yield '             -params "policy_kwargs:{backbone_kwargs: {dtype: float32}}" or lora: {rank: 32} there'


def fit_lines(plan: RunPlan, where: str, size: float, *, sharded: bool = False) -> Iterator[str]:
    """Yield whether each kind of rank fits into `size` GiB of that place, and for a GPU with which settings."""
    for name, rank in ranks(plan, sharded=sharded):
        needed = total(needs(plan.batch, plan.config, plan.num_workers, rank, plan.policy), where) / GIB
        simulates_alone = rank.roles == {"env"}
        if where == "device" and simulates_alone and not needed:
            continue
        if where == "device" and not simulates_alone and policy_footprint(plan.config, plan.policy) is None:
            yield f"fits         device: not known, weights of '{plan.config.policy}' are not counted"
            continue
        whose = "each rank" if plan.placement.everywhere else name
        yield f"fits         {where}: {'yes' if needed <= size else 'NO'}, {needed:.1f} of {size:g} GiB of {whose}"
        if where == "device" and "actor" in rank.roles and needed > size:
            yield from fastest_lines(plan, rank, size)


def fastest_lines(plan: RunPlan, rank: Rank, size: float) -> list[str]:
    """Return the fastest settings of the same run that fit `size` GiB, unless the run has them."""
    best = fastest_fit(plan.batch, plan.config, plan.num_workers, rank, size * GIB, plan.policy)
    if best is None:
        return ["             not with any micro-batch: take LoRA, quantization, a smaller policy or more memory"]
    given = plan.config.backbone_kwargs
    same = all(bool(given.get(name)) == value for name, value in best.options.items())
    if same and best.micro_batch_size == plan.batch.scored_at_once:
        return []
    kwargs = f' "policy_kwargs:{yaml_line({"backbone_kwargs": dict(best.options)})}"' if best.options else ""
    flags = f"-params micro_batch_size:{best.micro_batch_size}{kwargs}"
    return [f"             fits with: {flags} ({best.size / GIB:.1f} GiB)"]


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    if args.ranks is None:
        args.ranks = processes_named(args.placement or ALL)
    import_named_packages(args)
    check_services(args)
    for line in plan_lines(*resolve_run(args), args):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
