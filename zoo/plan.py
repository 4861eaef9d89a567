"""`python -m zoo.plan --env LIBERO-130 --policy openvla-oft --ranks 8 --gpu-memory 80`: what a run comes to, and fits.

Takes the flags of `zoo.train` and starts nothing, so the simulators need not be here; flags that say where results go
change nothing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace

from zoo.cli.arguments import OneLineParser, number, processes
from zoo.cli.main import guarded
from zoo.cli.run_flags import check_services
from zoo.config.batch_plan import BatchPlan
from zoo.config.gym_packages import import_named_packages
from zoo.config.memory_plan import GIB, needs, total
from zoo.config.run_config import RunConfig
from zoo.runs.lookup import ResumePoint
from zoo.train import parser as train_parser
from zoo.train import resolve_run
from zoo.training.run_plan import RunPlan


def parser() -> OneLineParser:
    """The flags of `zoo.train`, and the machine."""
    p = train_parser("zoo.plan", "Say what a run of zoo.train comes to and whether it fits; start nothing.")
    p.add_argument("--ranks", type=processes, default=1, metavar="W", help="processes, one GPU each (default: 1)")
    gibibytes = number(lambda size: 0 < size < math.inf, "a number of GiB above 0")
    p.add_argument("--gpu-memory", type=gibibytes, metavar="GIB", help="memory of one GPU, GiB")
    p.add_argument("--host-memory", type=gibibytes, metavar="GIB", help="main memory that one rank may take, GiB")
    return p


def plan_lines(config: RunConfig, resume: ResumePoint | None, args: argparse.Namespace) -> list[str]:
    """Return the arithmetic, the memory, and what fits."""
    plan = RunPlan.resolve(config, args.ranks, accelerator=args.gpu_memory is not None)
    lines = plan.lines(resume)
    for where, size in (("device", args.gpu_memory), ("host", args.host_memory)):
        if size is not None:
            lines += fit_lines(plan, where, size)
    return lines


def fit_lines(plan: RunPlan, where: str, size: float) -> list[str]:
    """Return whether one rank fits into `size` GiB of that place; for a GPU, the largest micro-batch that does."""
    needed = total(needs(plan.batch, plan.config, plan.num_workers), where) / GIB
    if not needed:
        return [f"fits         {where}: not known, nothing of it could be counted"]
    lines = [f"fits         {where}: {'yes' if needed <= size else 'NO'}, {needed:.1f} of {size:g} GiB of each rank"]
    if where == "device":
        best = largest_micro_batch(plan.config, plan.batch, size * GIB)
        changes = best is not None and best != plan.batch.scored_at_once
        if best is None:
            lines.append("             not with any micro-batch: take a smaller policy or more memory")
        elif changes:
            lines.append(f"             largest micro-batch that fits: -params micro_batch_size:{best}")
    return lines


def largest_micro_batch(config: RunConfig, plan: BatchPlan, size: float) -> int | None:
    """Return the largest power of two, at most a rank's share of a minibatch, that fits `size` bytes, or None.

    The share itself where passes are not counted, so that memory does not depend on it.
    """
    share = -(-plan.batch_size // plan.num_learners)
    candidates = [share, *(2**power for power in range(share.bit_length() - 1, -1, -1) if 2**power < share)]
    for micro in candidates:
        smaller = replace(plan, micro_batch_size=micro)
        if total(needs(smaller, config, 0), "device") <= size:
            return micro
    return None


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    import_named_packages(args)
    check_services(args)
    print("\n".join(plan_lines(*resolve_run(args), args)))
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
