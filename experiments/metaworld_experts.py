"""Success of Meta-World's experts in our environments: `python -m experiments.metaworld_experts [TASK ...]`.

Every start state of every task (MT10's by default) once, with the longest horizon; without images. Printed is
the share solved within the horizons of each protocol.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from vla_gym import find_benchmark, make_vec
from vla_gym.adapters.metaworld.tasks import MT10, PROTOCOLS
from zoo.demonstrations.recorder import all_attempts, demonstrate
from zoo.experts import expert_class

WIDTH = 10
"""Episodes side by side."""


def solved_after(task: str) -> np.ndarray:
    """Steps until solved from each start state, `[50]`; infinity where the longest protocol was too short."""
    benchmark = replace(find_benchmark(f"MetaWorld/{task}", protocol="lerobot"), cameras=())
    envs = make_vec(benchmark, WIDTH, chunk=1, privileged=True, autoreset_mode="disabled", num_workers=0)
    cells = all_attempts(benchmark.tasks, 1)
    try:
        shown = [
            one
            for begin in range(0, len(cells), WIDTH)
            for one in demonstrate(envs, expert_class(benchmark), cells[begin : begin + WIDTH])
        ]
    finally:
        envs.close()
    return np.array([one.length if one.success else np.inf for one in shown])


def main(tasks: list[str]) -> None:
    """Print one row per task."""
    horizons = sorted({rules.horizon for rules in PROTOCOLS.values()})
    print("task".ljust(24), *(f"{f'<= {horizon}':>8}" for horizon in horizons), f"{'median':>8} {'slowest':>8}")
    for task in tasks:
        steps = solved_after(task)
        shares = (f"{np.mean(steps <= horizon):>8.0%}" for horizon in horizons)
        print(task.ljust(24), *shares, f"{np.median(steps):>8.0f} {steps.max():>8.0f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(MT10), metavar="TASK", help="default: MT10's")
    main(parser.parse_args().tasks)
