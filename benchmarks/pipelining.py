"""What stepping in stages brings: `python -m benchmarks.pipelining [--libero]`.

First with stand-ins that only sleep: a simulator and a policy that both take the same time for N slots, in proportion
to how many of them they are given. Then, with `--libero`, LIBERO-Spatial and nano as they are, on this machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch

from benchmarks.sleeping_toy import sleeping_benchmark
from vla_gym import make_vec
from vla_gym.vector.sb3 import SB3VecEnv
from vla_policies.types import ActionSample
from zoo import PPO
from zoo.rollout.env_loop import staged_rows
from zoo.rollout.stats import PhaseClock

CHUNK = 2
ROUNDS = 3


class SleepingPolicy:
    """As much of an algorithm as collecting needs; deciding takes `seconds` for each slot."""

    def __init__(self, env: SB3VecEnv, seconds: float) -> None:
        self.clock = PhaseClock()
        self._seconds = seconds
        self._last_obs = env.reset()

    def decide(self, obs: Any, decision: int, slots: np.ndarray) -> ActionSample:
        """Stay where you are."""
        time.sleep(self._seconds * len(slots))
        zeros_BKA = torch.zeros(len(slots), CHUNK, 2)
        return ActionSample(zeros_BKA, zeros_BKA, torch.zeros(len(slots)))


def decisions_per_second(algorithm: Any, env: SB3VecEnv, rows: int) -> float:
    """Collect `rows` decisions of every slot after a warm-up of two."""
    for _ in staged_rows(algorithm, env, 2, renew=True):
        pass
    began = time.perf_counter()
    for _ in staged_rows(algorithm, env, rows, first_decision=2, renew=True):
        pass
    return rows * env.num_envs / (time.perf_counter() - began)


def sleeping(
    stages: int, *, num_envs: int = 8, workers: int = 2, seconds: float = 0.01, rows: int = 16
) -> float:
    """Decisions per second of the stand-ins; `seconds` is a simulator step's."""
    envs = make_vec(
        sleeping_benchmark(seconds=seconds),
        num_envs,
        chunk=CHUNK,
        num_workers=workers,
        pipeline_stages=stages,
    )
    try:
        env = envs.as_sb3()
        # The workers take seconds * CHUNK * (slots / workers) for a decision of some slots; so does the policy.
        return decisions_per_second(SleepingPolicy(env, seconds * CHUNK / workers), env, rows)
    finally:
        envs.close()


def libero(stages: int, *, num_envs: int = 4, rows: int = 24) -> float:
    """Decisions per second of LIBERO-Spatial, task 0, and nano, as `zoo.train` collects them."""
    envs = make_vec("LIBERO-Spatial/0", num_envs, chunk=8, image_size=128, pipeline_stages=stages)
    try:
        model = PPO("VLAPolicy", envs, n_steps=rows, batch_size=rows, seed=0, device="cpu")
        env: Any = model.env
        model._last_obs = env.reset()
        model.policy.set_training_mode(False)
        return decisions_per_second(model, env, rows)
    finally:
        envs.close()


def compare(name: str, side: Any, counts: tuple[int, ...], rounds: int) -> None:
    """Medians over rounds in which the numbers of stages take turns."""
    rates: dict[int, list[float]] = {stages: [] for stages in counts}
    for _ in range(rounds):
        for stages in counts:
            rates[stages].append(side(stages))
    first = statistics.median(rates[counts[0]])
    print(name)
    for stages, values in rates.items():
        rate = statistics.median(values)
        print(f"  {stages} stage{'s' if stages > 1 else ' '} {rate:8.1f} decisions/s   {rate / first:5.2f}")


def main() -> None:
    """Print decisions per second by number of stages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libero", action="store_true", help="also LIBERO-Spatial with nano")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    compare("sleeping simulator and policy, 8 slots, 2 workers", sleeping, (1, 2, 4), args.rounds)
    if args.libero:
        compare("LIBERO-Spatial/0 and nano, 4 slots", libero, (1, 2), args.rounds)


if __name__ == "__main__":
    main()
