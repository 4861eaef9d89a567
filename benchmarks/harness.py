"""Shared by the benchmarks: sides measured in turn, each in a process of its own, compared by medians."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vla_gym import VLAVectorEnv
from vla_gym.specs import Benchmark
from vla_gym.workers.process_pool import worker_environment

CHUNK = 8
"""Actions of a decision."""
ENVS_PER_WORKER = 8
"""Of the sides that are ours; the agents' recipes have 8 to 40 on two cores. With one, waiting takes a larger share."""
Figures = dict[str, float]
"""Figures of a side: name with unit -> number; "steps/s" is among them."""


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def resident(pid: int) -> float:
    """Resident memory of a process in MB."""
    with open(f"/proc/{pid}/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def processor_seconds(pids: Iterable[int]) -> float:
    """Processor time of these processes so far, all threads; children that have ended are left out."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as stream:
            user, system = stream.read().rpartition(")")[2].split()[11:13]
        total += int(user) + int(system)
    return total / os.sysconf("SC_CLK_TCK")


def stay_on_one_core() -> None:
    """Keep this process and its children on one core: the "one core" side, the same work for the scaling over cores."""
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
    decisions = max(2, decisions // CHUNK) if side == "usual" else decisions
    arguments = ["--side", side, "--decisions", decisions, "--slots", slots, *options]
    return measure(module, arguments, environment)


def measure_bare_slots(module: str, decisions: int, slots: int, options: Sequence[object]) -> Figures:
    """One process a slot, all begun together, which prints `wall_and_cpu` as JSON (`--bare-slot`)."""
    command = [sys.executable, "-m", f"benchmarks.{module}", "--decisions", str(decisions), *map(str, options)]
    children = [
        subprocess.Popen([*command, "--bare-slot", str(slot)], stdout=subprocess.PIPE, text=True)
        for slot in range(slots)
    ]
    took = [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]
    steps = decisions * CHUNK
    return {
        "steps/s": sum(steps / wall for wall, _ in took),
        "CPU ms/step": sum(cpu for _, cpu in took) / (steps * slots) * 1e3,
    }


def wall_and_cpu(action: Callable[[], object]) -> tuple[float, float]:
    """Wall time and this process's processor time of one call, seconds."""
    cpu = time.process_time()
    wall = seconds(action)
    return wall, time.process_time() - cpu


def play(envs: VLAVectorEnv, action_DNKA: np.ndarray) -> Figures:
    """Play chunks on our environments and close them; see `_figures`."""

    def all_steps() -> int:
        return sum(int(envs.step(action_NKA)[-1]["executed"].sum()) for action_NKA in action_DNKA)

    figures = _figures(all_steps, list(envs.worker_pids))
    envs.close()
    return figures


def step_by_step(envs: Any, action_DNKA: np.ndarray, resets: int) -> Figures:
    """Play every step of every chunk by itself on an `AsyncVectorEnv`, reset before, and close it; see `_figures`."""
    took = [seconds(envs.reset) for _ in range(resets)]
    decisions, slots = action_DNKA.shape[:2]

    def all_steps() -> int:
        for action_NKA in action_DNKA:
            for step in range(CHUNK):
                envs.step(action_NKA[:, step])
        return decisions * slots * CHUNK

    figures = _figures(all_steps, [process.pid for process in envs.processes])
    envs.close()
    return {**figures, "reset s": statistics.median(took)}


def _figures(play_all: Callable[[], int], workers: Sequence[int]) -> Figures:
    """Return the cost of a call that plays so many steps with these worker processes.

    Steps a second depend on what else the machine does. Processor time hardly does: that of a step, this process's
    share included, and how many cores the workers keep busy, which waiting for each other and for this process leave
    idle.
    """
    everyone = [os.getpid(), *workers]
    cpu, of_workers, start = processor_seconds(everyone), processor_seconds(workers), time.perf_counter()
    executed = play_all()
    wall = time.perf_counter() - start
    return {
        "steps/s": executed / wall,
        "CPU ms/step": (processor_seconds(everyone) - cpu) / executed * 1e3,
        "busy cores": (processor_seconds(workers) - of_workers) / wall,
        "worker MB": max(map(resident, workers)),
    }


def in_turn(sides: Sequence[str], rounds: int, run_side: Callable[[str], Figures]) -> dict[str, Figures]:
    """Medians of every side's figures over rounds in which the sides take turns."""
    runs: dict[str, list[Figures]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            runs[side].append(run_side(side))
    return {side: {key: statistics.median(run[key] for run in runs[side]) for key in runs[side][0]} for side in sides}


def print_sides(median: Mapping[str, Figures]) -> None:
    """A line of figures per side, then the first side's rate over each other's, and its steps of a CPU second."""
    for side, figures in median.items():
        shown = {"decisions/s": figures["steps/s"] / CHUNK, **figures}
        print(f"  {side:<11}" + "  ".join(f"{key} {value:8.3f}" for key, value in shown.items()))
    first, *others = median
    for side in others:
        rate = median[first]["steps/s"] / median[side]["steps/s"]
        cpu = median[side]["CPU ms/step"] / median[first]["CPU ms/step"]
        print(f"  {first} / {side:<10} {rate:6.2f}   by processor time {cpu:6.2f}")
