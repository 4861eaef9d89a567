"""LIBERO's fast images against the full ones: `python -m experiments.libero_images`.

Two simulators of one process play the same actions from the same start states, one with full images and one with
fast ones. Printed are, per suite and camera, the peak signal-to-noise ratio of the fast images (all taken together,
worst image) and the processor time of both cameras' images, the least of some repetitions. `--worst FILE` keeps
the worst pair. One core: `LP_NUM_THREADS=1`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

CAMERAS = ("image", "wrist_image")
SUITES = ("LIBERO-Spatial", "LIBERO-Object", "LIBERO-Goal", "LIBERO-Long", "LIBERO-90")
DECISION = 8
"""Steps between two images."""


def squared_error(full: np.ndarray, fast: np.ndarray) -> float:
    """Mean squared difference of u8 images."""
    return float(((full.astype(float) - fast) ** 2).mean())


def psnr(error: float) -> float:
    """Peak signal-to-noise ratio of u8 images, dB, from their mean squared error; 99 where they are equal."""
    return 10 * np.log10(255**2 / error) if error else 99.0


def frames(env_id: str, task: int, size: int, decisions: int) -> Iterator[tuple[list[np.ndarray], list[float]]]:
    """Both cameras' images `[full, fast]` as `[camera, H, W, 3]`, and the processor seconds each pair took."""
    from vla_gym.adapters.libero.simulator import LiberoSimulator
    from vla_gym.adapters.libero.tasks import libero_benchmark
    from vla_gym.specs import StartState

    simulators = []
    for quality in ("full", "fast"):
        benchmark = libero_benchmark(env_id, render_quality=quality)
        simulators.append(LiberoSimulator(benchmark.tasks, size, CAMERAS, **benchmark.simulator_kwargs))
    rng = np.random.default_rng(task)
    for simulator in simulators:
        simulator.reset(StartState(task_id=task, trial_id=task % 50))
    for _ in range(decisions):
        direction = rng.uniform(-1, 1, 6)
        for _ in range(DECISION):
            action = np.append(direction + rng.uniform(-0.3, 0.3, 6), rng.choice([-1.0, 1.0]))
            for simulator in simulators:
                simulator.step(np.clip(action, -1, 1))
        images, took = [], []
        for simulator in simulators:
            begin = time.process_time()
            observation = simulator.observe()
            took.append(time.process_time() - begin)
            for _ in range(2):
                begin = time.process_time()
                simulator.observe()
                took[-1] = min(took[-1], time.process_time() - begin)
            images.append(np.stack([observation[camera] for camera in CAMERAS]))
        yield images, took
    for simulator in simulators:
        simulator.close()


def prepare() -> None:
    """Set what a worker of LIBERO has in its environment, before MuJoCo is imported."""
    from vla_gym.adapters.libero.tasks import libero_benchmark
    from vla_gym.workers.process_pool import worker_environment

    cores = max(1, os.cpu_count() or 1)
    os.environ.update(worker_environment(libero_benchmark(SUITES[0]), os.environ, worker=0, num_workers=cores))


def main() -> None:
    """Print a line per suite, camera and size, then of all suites."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--suites", nargs="+", default=SUITES)
    parser.add_argument("--tasks", type=int, default=5, help="tasks of each suite, evenly spread")
    parser.add_argument("--decisions", type=int, default=6)
    parser.add_argument("--worst", type=Path, help="PNG of the worst pair: full, fast")
    arguments = parser.parse_args()
    prepare()
    from vla_gym.adapters.libero.tasks import libero_benchmark

    print(f"{'suite':<16}{'size':>5}  {'PSNR dB (worst)':<34}{'ms of both cameras: full, fast, ratio':>40}")
    worst: tuple[float, np.ndarray | None] = (0.0, None)
    for size in arguments.sizes:
        of_suites = []
        for suite in arguments.suites:
            number = len(libero_benchmark(suite).tasks)
            errors: list[list[float]] = []
            seconds: list[list[float]] = []
            for task in np.linspace(0, number - 1, min(arguments.tasks, number)).astype(int):
                for (full, fast), took in frames(suite, int(task), size, arguments.decisions):
                    errors.append([squared_error(*pair) for pair in zip(full, fast, strict=True)])
                    seconds.append(took)
                    if max(errors[-1]) > worst[0]:
                        camera = int(np.argmax(errors[-1]))
                        worst = (max(errors[-1]), np.concatenate([full[camera], fast[camera]], axis=1))
            of_suites.append(np.mean(errors, axis=0))
            text = ", ".join(
                f"{camera} {psnr(all_of_them):.1f} ({psnr(most):.1f})"
                for camera, all_of_them, most in zip(CAMERAS, of_suites[-1], np.max(errors, axis=0), strict=True)
            )
            full_ms, fast_ms = np.mean(seconds, axis=0) * 1e3
            print(
                f"{suite:<16}{size:>5}  {text:<44}{full_ms:>8.1f}{fast_ms:>8.1f}{full_ms / fast_ms:>7.2f}", flush=True
            )
        print(
            f"{'all':<16}{size:>5}  "
            + ", ".join(f"{c} {psnr(e):.1f}" for c, e in zip(CAMERAS, np.mean(of_suites, axis=0), strict=True))
        )
    if arguments.worst and worst[1] is not None:
        from PIL import Image

        Image.fromarray(worst[1]).save(arguments.worst)
        print(f"{arguments.worst}: the worst pair, {psnr(worst[0]):.1f} dB")


if __name__ == "__main__":
    main()
