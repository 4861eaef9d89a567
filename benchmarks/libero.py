"""Our LIBERO against LIBERO's own environments, in turn on the same cores: `python -m benchmarks.libero`.

Both play LIBERO-Spatial on two slots with two 256 px cameras. Upstream is `OffScreenRenderEnv` in LIBERO's
`SubprocVectorEnv`, stepped one action at a time; ours gets the same actions in chunks of 8. Each side runs in
a process of its own, alternating, so a drift of the machine's speed hits both; medians and ratios are printed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import time

import numpy as np

from benchmarks.harness import CHUNK, Figures, in_turn, measure, play, resident, seconds

SUITE = "LIBERO-Spatial"
SLOTS = 2
SIZE = 256
TASKS = (0, 1)
SETTLE = np.array([0.0] * 6 + [-1.0])


def actions(steps: int) -> np.ndarray:
    """Float32 `[steps, SLOTS, 7]`, small random motions."""
    rng = np.random.default_rng(0)
    return rng.uniform(-0.5, 0.5, (steps, SLOTS, 7)).astype(np.float32)


def measure_ours(steps: int) -> Figures:
    """Steps per second of all slots, seconds per reset of a slot, seconds per task switch, memory of a worker."""
    import vla_gym

    envs = vla_gym.make_vec(
        SUITE,
        num_envs=SLOTS,
        chunk=CHUNK,
        image_size=SIZE,
        wrist_camera=True,
        num_workers=SLOTS,
        autoreset_mode="disabled",
    )
    for task in (*TASKS, 2, 3, TASKS[0]):  # compiles what is not in the cache yet
        restart(envs, task)
    known = [seconds(lambda: restart(envs, TASKS[0])) for _ in range(5)]
    new = [seconds(functools.partial(restart, envs, TASKS[0], SLOTS * k)) for k in range(1, 6)]
    switch = [seconds(functools.partial(restart, envs, task)) for task in (2, 3, *TASKS)]
    chunks = actions(steps).reshape(-1, CHUNK, SLOTS, 7).swapaxes(1, 2)
    return {
        **play(envs, chunks),
        "reset to a known start state, s": statistics.median(known),
        "reset to a new start state, s": statistics.median(new),
        "task switch, s": statistics.median(switch),
    }


def restart(envs: object, task: int, first_trial: int = 0) -> None:
    """Begin a new episode of `task` in every slot, slot i from start state `first_trial` + i."""
    everyone = np.ones(SLOTS, dtype=bool)
    ids = np.full(SLOTS, task)
    envs.reset(options={"reset_mask": everyone, "task_id": ids, "trial_id": first_trial + np.arange(SLOTS)})  # type: ignore[attr-defined]


def measure_upstream(steps: int) -> Figures:
    """The same figures for LIBERO's own vector environment."""
    from libero.libero.envs import OffScreenRenderEnv, SubprocVectorEnv

    from vla_gym.adapters.libero.compile import bddl_file, start_states
    from vla_gym.adapters.libero.tasks import libero_benchmark

    tasks = libero_benchmark(SUITE).tasks

    def build(task: int) -> SubprocVectorEnv:
        path = str(bddl_file(tasks[task].suite, tasks[task].name))
        arguments = {"bddl_file_name": path, "camera_heights": SIZE, "camera_widths": SIZE}
        envs = SubprocVectorEnv([lambda: OffScreenRenderEnv(**arguments) for _ in range(SLOTS)])
        envs.seed(0)
        return envs

    def begin(envs: SubprocVectorEnv, task: int) -> None:
        envs.reset()
        envs.set_init_state(start_states(tasks[task].suite, tasks[task].name)[:SLOTS])
        for _ in range(10):
            envs.step(np.tile(SETTLE, (SLOTS, 1)))

    envs = build(TASKS[0])
    begin(envs, TASKS[0])
    same = [seconds(lambda: begin(envs, TASKS[0])) for _ in range(2)]
    start = time.perf_counter()
    envs.close()
    envs = build(TASKS[1])
    begin(envs, TASKS[1])
    switch = time.perf_counter() - start
    start = time.perf_counter()
    for action in actions(steps):
        envs.step(action)
    rate = steps * SLOTS / (time.perf_counter() - start)
    memory = max(resident(int(pid)) for pid in children())
    envs.close()
    reset = statistics.median(same)  # whether it has played the state before makes no difference to it
    return {
        "steps/s": rate,
        "reset to a known start state, s": reset,
        "reset to a new start state, s": reset,
        "task switch, s": switch,
        "worker MB": memory,
    }


def children() -> list[str]:
    """Process ids of this process's children."""
    with open(f"/proc/self/task/{os.getpid()}/children") as stream:
        return stream.read().split()


SIDES = {"ours": (measure_ours, 400), "upstream": (measure_upstream, 48)}


def run_side(side: str) -> Figures:
    """Measure one side in a fresh process with the environment variables a worker gets."""
    from vla_gym.adapters.libero.tasks import libero_benchmark
    from vla_gym.workers.process_pool import worker_environment

    environment = worker_environment(libero_benchmark(SUITE), os.environ, worker=0, num_workers=SLOTS)
    return measure("libero", ["--side", side], environment)


def main() -> None:
    """Alternate the sides and print medians with ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES)
    arguments = parser.parse_args()
    if arguments.side:
        measure_side, steps = SIDES[arguments.side]
        print(json.dumps(measure_side(steps)))
        return
    print(f"{SUITE}, {SLOTS} slots, chunk {CHUNK}, two {SIZE} px cameras, {os.cpu_count()} cores; medians of")
    print(f"{arguments.rounds} alternating rounds. Steps are control steps of both slots together.")
    median = in_turn(list(SIDES), arguments.rounds, run_side)
    print(f"\n{'':<34}{'ours':>10}{'upstream':>10}{'ratio':>8}")
    for figure, theirs in median["upstream"].items():
        ours = median["ours"][figure]
        ratio = ours / theirs if figure == "steps/s" else theirs / ours
        print(f"{figure:<34}{ours:>10.3f}{theirs:>10.3f}{ratio:>7.1f}x")


if __name__ == "__main__":
    main()
