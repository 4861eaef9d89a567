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

from vla_gym import VLAVectorEnv
from vla_gym.specs import Benchmark
from vla_gym.workers.environment import worker_environment

CHUNK = 8
"""Actions of a decision."""
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


def actions(decisions: int, slots: int, dims: int) -> np.ndarray:
    """Float32 `[decisions, slots, CHUNK, dims]`, motions too small to solve a task."""
    rng = np.random.default_rng(0)
    return rng.uniform(-0.3, 0.3, (decisions, slots, CHUNK, dims)).astype(np.float32)


def measure(module: str, arguments: Sequence[object], environment: Mapping[str, str]) -> Figures:
    """The figures that `python -m benchmarks.MODULE ARGUMENTS` prints as JSON in its last line."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure_side(
    module: str, side: str, benchmark: Benchmark, decisions: int, slots: int, options: Sequence[object]
) -> Figures:
    """`measure` one side with the environment variables our workers get."""
    # The same share of the cores for a worker on every side, the single one included.
    environment = worker_environment(benchmark, os.environ, worker=0, num_workers=slots)
    slots = 1 if side == "one core" else slots
    decisions = max(2, decisions // CHUNK) if side == "usual" else decisions
    arguments = ["--side", side, "--decisions", decisions, "--slots", slots, *options]
    return measure(module, arguments, environment)


def measure_bare_slots(module: str, decisions: int, slots: int, options: Sequence[object]) -> Figures:
    """One process a slot, all begun together, which prints its seconds (`--bare-slot`); their rates are summed."""
    command = [sys.executable, "-m", f"benchmarks.{module}", "--decisions", str(decisions), *map(str, options)]
    children = [
        subprocess.Popen([*command, "--bare-slot", str(slot)], stdout=subprocess.PIPE, text=True)
        for slot in range(slots)
    ]
    took = [float(child.communicate()[0].split()[-1]) for child in children]
    return {"steps/s": sum(decisions * CHUNK / each for each in took)}


def play(envs: VLAVectorEnv, action_DNKA: np.ndarray) -> Figures:
    """Play chunks on our environments and close them: the rate of all slots, the memory of a worker."""
    start, executed = time.perf_counter(), 0
    for action_NKA in action_DNKA:
        *_, infos = envs.step(action_NKA)
        executed += int(infos["executed"].sum())
    rate = executed / (time.perf_counter() - start)
    memory = max(resident(pid) for pid in envs.worker_pids)
    envs.close()
    return {"steps/s": rate, "worker MB": memory}


def step_by_step(envs: Any, action_DNKA: np.ndarray, resets: int) -> Figures:
    """Play every step of every chunk by itself on an `AsyncVectorEnv`, reset before, and close it."""
    took = [seconds(envs.reset) for _ in range(resets)]
    decisions, slots = action_DNKA.shape[:2]
    start = time.perf_counter()
    for action_NKA in action_DNKA:
        for step in range(CHUNK):
            envs.step(action_NKA[:, step])
    rate = decisions * slots * CHUNK / (time.perf_counter() - start)
    memory = max(resident(process.pid) for process in envs.processes)
    envs.close()
    return {"steps/s": rate, "reset s": statistics.median(took), "worker MB": memory}


def in_turn(sides: Sequence[str], rounds: int, run_side: Callable[[str], Figures]) -> dict[str, Figures]:
    """Medians of every side's figures over rounds in which the sides take turns."""
    runs: dict[str, list[Figures]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            runs[side].append(run_side(side))
    return {side: {key: statistics.median(run[key] for run in runs[side]) for key in runs[side][0]} for side in sides}


def print_sides(median: Mapping[str, Figures]) -> None:
    """A line of figures per side, then the first side's rate over each other's."""
    for side, figures in median.items():
        shown = {"decisions/s": figures["steps/s"] / CHUNK, **figures}
        print(f"  {side:<11}" + "  ".join(f"{key} {value:8.3f}" for key, value in shown.items()))
    first, *others = median
    for side in others:
        print(f"  {first} / {side:<10} {median[first]['steps/s'] / median[side]['steps/s']:6.2f}")
