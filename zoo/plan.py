"""`python -m zoo.plan --env LIBERO-130 --policy openvla-oft --ranks 8 --gpu-memory 80`: what a run comes to, and fits.

Takes the flags of `zoo.train` and starts nothing, so the simulators need not be here; flags that say where results go
change nothing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence

from vla_gym.errors import BadValue
from zoo.cli.arguments import OneLineParser, number, processes
from zoo.cli.main import guarded
from zoo.cli.run_flags import check_services
from zoo.config.gym_packages import import_named_packages
from zoo.config.memory_choice import choose, nearest
from zoo.config.memory_plan import GIB, Rank, needs, shape_of, total, trains_in_16_bits
from zoo.config.policy_shape import check_network, check_quantization
from zoo.config.run_config import RunConfig
from zoo.distributed.placement import ALL, processes_named
from zoo.runs.lookup import ResumePoint
from zoo.train import parser as train_parser
from zoo.train import resolve_run
from zoo.training.run_plan import RunPlan, memory_lines, ranks

GPU_MEMORY = {"rtx3090": 24.0, "rtx4090": 24.0, "l40s": 45.0, "a100": 80.0, "h100": 79.6, "h200": 140.4}
"""Name for `--gpu` -> GiB that programs can have; A100 and H100 are those of 80 GB with SXM."""


def parser() -> OneLineParser:
    """The flags of `zoo.train`, and the machine."""
    p = train_parser("zoo.plan", "Say what a run of zoo.train comes to and whether it fits; start nothing.")
    p.add_argument(
        "--ranks", type=processes, metavar="W", help="processes, one GPU each (default: those of --placement, else 1)"
    )
    gibibytes = number(lambda size: 0 < size < math.inf, "a number of GiB above 0")
    p.add_argument("--gpu-memory", type=gibibytes, metavar="GIB", help="memory of one GPU, GiB")
    p.add_argument("--gpu", choices=GPU_MEMORY, help="a card, for --gpu-memory")
    p.add_argument("--host-memory", type=gibibytes, metavar="GIB", help="main memory that one rank may take, GiB")
    p.add_argument(
        "--fsdp", action="store_true", help="the ranks shard what learns (FSDP2); default: they replicate it"
    )
    return p


def plan_lines(config: RunConfig, resume: ResumePoint | None, args: argparse.Namespace) -> Iterator[str]:
    """Yield the arithmetic, the memory and what fits; a 7B policy is counted on the way, for a minute."""
    gpu_memory = args.gpu_memory or GPU_MEMORY.get(args.gpu)
    plan = RunPlan.resolve(config, args.ranks, accelerator=gpu_memory is not None)
    sharded = args.fsdp and args.ranks > 1
    if args.fsdp and not plan.placement.everywhere:
        raise BadValue("FSDP shards over all processes; leave out --placement or --fsdp")
    check_quantization(config, sharded=sharded)
    check_network(config)
    yield from plan.arithmetic(resume)
    yield from memory_lines(plan, sharded=sharded, passes=True)
    for where, size in (("device", gpu_memory), ("host", args.host_memory)):
        if size is not None:
            yield from fit_lines(plan, where, size, sharded=sharded)
    yield from refusal_lines(config, sharded=sharded)


def fit_lines(plan: RunPlan, where: str, size: float, *, sharded: bool = False) -> Iterator[str]:
    """Yield whether each kind of rank fits into `size` GiB of that place, and for a GPU with which settings."""
    for name, rank in ranks(plan, sharded=sharded):
        found = needs(plan.batch, plan.config, plan.num_workers, rank)
        needed = total(found, where) / GIB
        if not needed and where == "device" and rank.roles == {"env"}:
            continue
        unknown = where == "device" and rank.roles != {"env"} and shape_of(plan.config) is None
        if unknown or not needed:
            what = f"weights of '{plan.config.policy}' are not counted" if unknown else "nothing of it could be counted"
            yield f"fits         {where}: not known, {what}"
            continue
        whose = "each rank" if plan.placement.everywhere else name
        yield f"fits         {where}: {'yes' if needed <= size else 'NO'}, {needed:.1f} of {size:g} GiB of {whose}"
        if where == "device" and "actor" in rank.roles:
            yield from choice_lines(plan, rank, size, fits=needed <= size)


def choice_lines(plan: RunPlan, rank: Rank, size: float, *, fits: bool) -> list[str]:
    """Return the fastest settings of the same run that fit `size` GiB, or else the nearest run that does."""
    config, batch = plan.config, plan.batch
    best = choose(batch, config, plan.num_workers, rank, size * GIB)
    if best is not None:
        same = all(bool(config.backbone_kwargs.get(name)) == value for name, value in best.options.items())
        if same and best.micro_batch_size == batch.scored_at_once:
            return []
        which = "fastest that fits" if fits else "fits with   "
        return [f"             {which}: {best.flags} ({best.size / GIB:.1f} GiB)"]
    other = nearest(batch, config, plan.num_workers, rank, size * GIB)
    if other is None:
        return ["             not with any micro-batch: take a smaller policy or more memory"]
    words, choice = other
    return [
        f"             not with any micro-batch; it would with {words}: {choice.flags} ({choice.size / GIB:.1f} GiB)"
    ]


def refusal_lines(config: RunConfig, *, sharded: bool) -> list[str]:
    """Return that training would refuse to train weights in half precision, where it would."""
    if sharded or not trains_in_16_bits(config):
        return []
    return [
        "refused      weights that train in 16 bits: --ranks N --fsdp (FSDP2 keeps float32 masters), or begin with",
        '             -params "policy_kwargs:{backbone_kwargs: {dtype: float32}}" or lora: {rank: 32} there',
    ]


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
