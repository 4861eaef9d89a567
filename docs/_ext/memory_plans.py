"""The plans of docs/memory.md: `python docs/_ext/memory_plans.py` writes them anew; it counts for some minutes.

Every recipe for a network of billions, on its share of a machine: as it stands, and what fits 24, 48 and 80 GiB.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from tables import code, table

from zoo.cli.run_flags import resolve_new_run
from zoo.config.batch_plan import BatchPlan
from zoo.config.memory_choice import choose, nearest
from zoo.config.memory_plan import GIB, Rank, needs, shape_of, total
from zoo.config.policy_shape import footprint
from zoo.config.run_config import RunConfig
from zoo.train import parser
from zoo.training.run_plan import RunPlan

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "memory.md"
MARK = "<!-- plans -->"
SIZES = (24, 48, 80)
SMALL = ("nano", "nano-flow")
"""Families that fit anywhere."""
INSTANCES = {
    "LIBERO": "LIBERO-130",
    "MetaWorld": "MetaWorld-MT50",
    "ManiSkill": "ManiSkill/PickCube",
    "default": "Toy-Reach",
}
"""Of recipes that stand for several environments, the one that is planned."""
WORKERS = 2
"""Most processes that draw pictures, whatever the cores of the machine that counts."""
MANY = 64
"""Environments from which on a recipe is of the published size, for 8 GPUs."""


@dataclass(frozen=True)
class Planned:
    """A recipe's run on its ranks."""

    config: RunConfig
    plan: BatchPlan
    workers: int
    rank: Rank


def recipes() -> Iterator[tuple[str, str]]:
    """Yield (algorithm, key) of every recipe for a large network."""
    for algo in ("ppo", "grpo"):
        keys = list(yaml.safe_load((ROOT / "hyperparams" / f"{algo}.yml").read_text(encoding="utf-8")))
        for key in keys:
            env, _, family = key.rpartition("/")
            # Where the planned environment has a recipe of its own, that is what runs.
            if family not in SMALL and not (env == "default" and f"{INSTANCES[env]}/{family}" in keys):
                yield algo, key


def planned(algo: str, key: str) -> Planned:
    """Return the run that a recipe's key stands for."""
    env, _, family = key.rpartition("/")
    args = parser().parse(["--algo", algo, "--env", INSTANCES.get(env, env), "--policy", family])
    config = resolve_new_run(args)
    shape = shape_of(config)
    if shape is None:
        raise ValueError(f"the shape of {key} is not known")
    half = footprint(shape).weights.trained < 4 * footprint(shape).num_trained
    small = (config.policy_kwargs.get("backbone_kwargs") or {}).get("size") == "tiny"
    ranks = 8 if (config.num_envs >= MANY and not small) or half else 1
    plan = RunPlan.resolve(config, ranks, accelerator=True)
    return Planned(config, plan.batch, min(plan.num_workers, WORKERS), Rank(num_learners=ranks, sharded=half))


def row(algo: str, key: str) -> tuple[str, ...]:
    """Return a recipe's line: its ranks, what it takes, and what fits."""
    run = planned(algo, key)
    how = "FSDP2" if run.rank.sharded else "DDP" if run.rank.num_learners > 1 else "one"
    whole = counted(run)
    return (
        code(key),
        f"{run.rank.num_learners} ({how})",
        f"{whole / GIB:.1f}",
        *(fitting(run, size) for size in SIZES),
    )


def counted(run: Planned) -> int:
    """Bytes of the GPU as the recipe stands."""
    return total(needs(run.plan, run.config, run.workers, run.rank), "device")


def fitting(run: Planned, size: int) -> str:
    """Return the settings that fit, shortly."""
    best = choose(run.plan, run.config, run.workers, run.rank, size * GIB)
    if best is not None:
        again = ", recompute" if any(best.options.values()) else ""
        return f"{best.micro_batch_size} at once{again}: {best.size / GIB:.1f}"
    other = nearest(run.plan, run.config, run.workers, run.rank, size * GIB)
    if other is None:
        return "no"
    words, choice = other
    return f"no; with {words}, {choice.micro_batch_size} at once: {choice.size / GIB:.1f}"


def text() -> str:
    """Return both tables; recipes of the same run share a line."""
    parts = []
    for algo in ("ppo", "grpo"):
        rows: dict[tuple[str, ...], list[str]] = {}
        for one, key in recipes():
            if one == algo:
                name, *rest = row(algo, key)
                rows.setdefault(tuple(rest), []).append(name)
                print(name, rest, file=sys.stderr, flush=True)  # noqa: T201 - progress
        lines = [(", ".join(names), *rest) for rest, names in rows.items()]
        head = ("recipe", "ranks", "GiB as it stands", *(f"{size} GiB" for size in SIZES))
        parts += [f"### {algo.upper()}\n", table(head, lines)]
    return "\n".join(parts)


def main() -> None:
    """Write the page's last part."""
    page = PAGE.read_text(encoding="utf-8")
    before = page[: page.index(MARK) + len(MARK)]
    PAGE.write_text(f"{before}\n\n{text()}", encoding="utf-8")


if __name__ == "__main__":
    main()
