"""What the benchmarks share: sides measured in turn, each in a process of its own, compared by medians."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Figures = dict[str, float]
"""What a side measured: name with unit -> number; "steps/s" is among them."""


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def resident(pid: int) -> float:
    """Resident memory of a process in MB."""
    with open(f"/proc/{pid}/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def stay_on_one_core() -> None:
    """Keep this process and its children on one core: the "one core" side, for the scaling over cores."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def measure(module: str, arguments: Sequence[object], environment: Mapping[str, str]) -> Figures:
    """The figures that `python -m benchmarks.MODULE ARGUMENTS` prints as JSON in its last line."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def seconds_of_slots(module: str, arguments: Sequence[object], slots: int) -> list[float]:
    """Begin one process a slot, all together, with `--bare-slot SLOT`; the seconds that each prints last."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments), "--bare-slot"]
    children = [subprocess.Popen([*command, str(slot)], stdout=subprocess.PIPE, text=True) for slot in range(slots)]
    return [float(child.communicate()[0].split()[-1]) for child in children]


def step_by_step(envs: Any, action_DNKA: np.ndarray, resets: int) -> Figures:
    """Play every step of every chunk by itself on an `AsyncVectorEnv`, reset before, and close it."""
    took = [seconds(envs.reset) for _ in range(resets)]
    decisions, slots, chunk = action_DNKA.shape[:3]
    start = time.perf_counter()
    for action_NKA in action_DNKA:
        for step in range(chunk):
            envs.step(action_NKA[:, step])
    rate = decisions * slots * chunk / (time.perf_counter() - start)
    memory = max(resident(process.pid) for process in envs.processes)
    envs.close()
    return {"steps/s": rate, "reset s": statistics.median(took), "worker MB": memory}


def in_turn(sides: Sequence[str], rounds: int, measure_side: Callable[[str], Figures]) -> dict[str, Figures]:
    """Medians of every side's figures over rounds in which the sides take turns."""
    runs: dict[str, list[Figures]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            runs[side].append(measure_side(side))
    return {side: {key: statistics.median(run[key] for run in runs[side]) for key in runs[side][0]} for side in sides}


def print_sides(median: Mapping[str, Figures], chunk: int) -> None:
    """A line of figures per side, then the first side's rate over each other's."""
    for side, figures in median.items():
        shown = {"decisions/s": figures["steps/s"] / chunk, **figures}
        print(f"  {side:<11}" + "  ".join(f"{key} {value:8.3f}" for key, value in shown.items()))
    first, *others = median
    for side in others:
        print(f"  {first} / {side:<10} {median[first]['steps/s'] / median[side]['steps/s']:6.2f}")
