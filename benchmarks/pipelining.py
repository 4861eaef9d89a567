"""Gain of stepping in stages: `python -m benchmarks.pipelining [--libero]`.

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
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.sleeping_toy import sleeping_batch, sleeping_benchmark
from vla_gym import make_vec
from vla_policies.actions.noise import SlotNoise
from vla_policies.types import ActionSample
from zoo import PPO
from zoo.rollout.buffer import Observation
from zoo.rollout.env_loop import Act, EnvLoop, sb3_view
from zoo.rollout.stats import PhaseClock

CHUNK = 2
ROUNDS = 3


def sleeping_act(seconds: float) -> Act:
    """A decision that takes `seconds` for each sub-environment, and moves nothing."""

    def act(obs: Observation, decision: int, env_n: np.ndarray) -> ActionSample:
        time.sleep(seconds * len(env_n))
        zeros_BKA = torch.zeros(len(env_n), CHUNK, 2)
        return ActionSample(zeros_BKA, zeros_BKA, torch.zeros(len(env_n)))

    return act


def decisions_per_second(env: VecEnv, act: Act, rows: int) -> float:
    """Collect `rows` decisions of every sub-environment after a warm-up of two."""
    obs: Any = env.reset()
    loop = EnvLoop(sb3_view(env), obs, act, PhaseClock())
    for _ in loop.steps(2):
        pass
    began = time.perf_counter()
    for _ in loop.steps(rows, first_decision=2):
        pass
    return rows * env.num_envs / (time.perf_counter() - began)


def sleeping(stages: int, *, num_envs: int = 8, workers: int = 2, seconds: float = 0.01, rows: int = 16) -> float:
    """Decisions per second of the stand-ins; `seconds` is a simulator step's."""
    envs = make_vec(
        sleeping_benchmark(seconds=seconds),
        num_envs,
        chunk=CHUNK,
        num_workers=workers,
        pipeline_stages=stages,
    )
    try:
        # The workers take seconds * CHUNK * (n / workers) for a decision of n sub-environments; so does the policy.
        return decisions_per_second(envs.as_sb3(), sleeping_act(seconds * CHUNK / workers), rows)
    finally:
        envs.close()


def sleeping_physics(stages: int, *, num_envs: int = 8, seconds: float = 0.005, rows: int = 16) -> float:
    """The same of physics that move all slots of a stage at once, in this process."""
    envs = make_vec(sleeping_batch(seconds=seconds), num_envs, chunk=CHUNK, num_workers=0, pipeline_stages=stages)
    try:
        return decisions_per_second(envs.as_sb3(), sleeping_act(seconds * CHUNK), rows)
    finally:
        envs.close()


def libero(stages: int, *, num_envs: int = 4, rows: int = 24) -> float:
    """Decisions per second of LIBERO-Spatial, task 0, and nano, as `zoo.train` collects them."""
    envs = make_vec("LIBERO-Spatial/0", num_envs, chunk=8, image_size=128, pipeline_stages=stages)
    try:
        model = PPO("VLAPolicy", envs, n_steps=rows, batch_size=rows, seed=0, device="cpu")
        policy: Any = model.policy
        policy.set_training_mode(False)

        def act(obs: Observation, decision: int, env_n: np.ndarray) -> ActionSample:
            sample: ActionSample = policy.act(obs, noise=SlotNoise(0, (0, decision), env_n))
            return sample

        return decisions_per_second(envs.as_sb3(), act, rows)
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
    compare("sleeping GPU physics and policy, 8 slots", sleeping_physics, (1, 2), args.rounds)
    if args.libero:
        compare("LIBERO-Spatial/0 and nano, 4 slots", libero, (1, 2), args.rounds)


if __name__ == "__main__":
    main()
