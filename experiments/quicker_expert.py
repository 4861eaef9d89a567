"""Is it the expert? Imitation of a quicker one for door-lock than Meta-World's, on the test of `benchmarks.evidence`.

    python -m experiments.quicker_expert            # seeds 1 to 3, files under quicker-work/
    python -m experiments.quicker_expert 2          # one seed, 5 minutes of one core

Everything but the expert is as the trials' stage `sft`: 80 demonstrations, 2000 updates, 300 start states. Actions are
the nearest to the mean, where trials choose that on the validation split.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from zoo import collect, evaluate, sft
from zoo.experts import metaworld
from zoo.experts.metaworld import OPEN, GripAim

ENV = "MetaWorld/door-lock"
PRESS = np.array([-0.02, -0.02, 0.0])
"""From the lock to the hand that presses it."""
BESIDE, NEAR = 0.025, 0.12
"""Distances seen from above: beyond the one the hand misses the lock; within the other it must not come down to it."""
RISE, OVER, ALONG = np.array([0.0, -0.03, 0.1]), np.array([0.0, 0.0, 0.08]), np.array([-0.05, 0.0, -0.1])
"""Up and away from the lock, to above it, and the way of its lever."""
CLEAR = 0.05
"""Height over the lock at which the hand passes over it."""


def press_lock(privileged_P: np.ndarray) -> GripAim:
    """Over the lock, then with it, from float64 `[39]`, metres; Meta-World's own policy first goes up by 0.3 m."""
    hand_3, lock_3 = privileged_P[:3], privileged_P[4:7] + PRESS
    distance = float(np.linalg.norm(hand_3[:2] - lock_3[:2]))
    if distance <= BESIDE:
        return GripAim(position_3=lock_3 + ALONG, effort=OPEN)
    low = distance < NEAR and hand_3[2] < lock_3[2] + CLEAR
    return GripAim(position_3=hand_3 + RISE if low else lock_3 + OVER, effort=OPEN)


def main(seeds: list[int]) -> None:
    """Demonstrations, fine-tuning, and one test of each seed."""
    metaworld.AIMS["door-lock"] = press_lock
    for seed in seeds:
        folder = Path("quicker-work") / f"seed_{seed}"
        shown, policy = folder / "demonstrations", folder / "sft" / "MetaWorld-door-lock_1" / "best"
        run = ["--env", ENV, "--expert", "-n", "80", "--seed", str(2 * seed), "--noise", "0.1", "-o", str(shown)]
        collect.run(run)
        updates = ["-n", "2000", "--eval-episodes", "0", "--seed", str(seed), "--num-threads", "1"]
        sft.run(["--env", ENV, "--dataset", str(shown), "-f", str(folder), *updates])
        starts = ["--split", "test", "--eval-episodes", "300", "--num-envs", "16", "--num-threads", "1"]
        options = ["policy_kwargs:{greedy: mean}", "env_kwargs:{task_seed: 4000, sampled_starts: 300}"]
        result = ["-o", str(folder / "test.json")]
        evaluate.run(["--env", ENV, "-i", str(policy), *starts, *result, "-params", *options])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seeds", nargs="*", type=int, default=[1, 2, 3], metavar="SEED", help="default: 1 2 3")
    main(parser.parse_args().seeds)
