"""Resets of environments that change scene, and the memory that scenes take: `python -m benchmarks.scenes`.

Every environment of LIBERO-130, dealt over a few workers, is reset to another task time and again, as rollouts of a
suite do. Printed are the first reset (which reads scenes from the cache; run it twice to fill that), the median of the
later ones, and the resident memory of all workers together.
"""

from __future__ import annotations

import argparse
import json
import statistics

import numpy as np

from benchmarks.harness import actions, processor_seconds, resident, seconds


def main() -> None:
    """Parse flags, measure, print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="LIBERO-130", help="environment id")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--image-size", type=int, default=128, help="pixels")
    parser.add_argument("--render-quality", default="fast", help="fast or full")
    parser.add_argument("--resets", type=int, default=8, help="resets of all environments after the first")
    args = parser.parse_args()

    import vla_gym

    envs = vla_gym.make_vec(
        args.env,
        num_envs=args.num_envs,
        num_workers=args.num_workers,
        chunk=8,
        image_size=args.image_size,
        wrist_camera=args.env.startswith("LIBERO"),
        render_quality=args.render_quality,
        autoreset_mode="disabled",
    )
    rng, num_tasks = np.random.default_rng(0), len(envs.benchmark.tasks)
    everyone = np.ones(args.num_envs, dtype=bool)
    chunk_NKA = actions(1, args.num_envs, envs.single_action_space.shape[-1])[0]

    def reset() -> None:
        tasks = rng.choice(num_tasks, args.num_envs, replace=num_tasks < args.num_envs)
        envs.reset(options={"reset_mask": everyone, "task_id": tasks, "trial_id": np.zeros(args.num_envs, int)})

    took, cpu, memory = [], [], []
    for _ in range(1 + args.resets):
        before = processor_seconds(envs.worker_pids)
        took.append(seconds(reset))
        cpu.append(processor_seconds(envs.worker_pids) - before)
        envs.step(chunk_NKA)
        memory.append(sum(map(resident, envs.worker_pids)))
    envs.close()
    later = took[len(took) // 2 :]
    figures = {
        "first reset, s": took[0],
        "reset of all, s": statistics.median(later),
        "reset of all, CPU s": statistics.median(cpu[len(took) // 2 :]),
        "resets, s": [round(second, 2) for second in took],
        "all workers, MB": [round(megabytes) for megabytes in memory],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
