"""Our PPO against Stable-Baselines3's with the same `VLAPolicy`: `python -m benchmarks.sb3`.

Both train nano on Toy-Reach with the same environments, settings and seeds; ours takes the ratio of a whole chunk, as
Stable-Baselines3's does. Printed for each: success of the training episodes in each quarter of the run, as mean and
standard deviation over the seeds, and the seconds of an update of the same rollout, turn by turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback

import vla_gym
import zoo
from vla_policies import VLAPolicy

SETTINGS: dict[str, Any] = {
    "n_steps": 8,
    "batch_size": 128,
    "n_epochs": 2,
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "device": "cpu",
    "policy_kwargs": {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}},
}
"""Of Toy-Reach's recipe in `hyperparams/ppo.yml`."""
SIDES: dict[str, tuple[type, dict[str, Any]]] = {
    "ours": (zoo.PPO, {"logprob_level": "chunk"}),
    "stable-baselines3": (stable_baselines3.PPO, {}),
}
NUM_ENVS, CHUNK = 64, 4
QUARTERS, TURNS = 4, 20


class Successes(BaseCallback):
    """Collects the success of every training episode, in their order, and stops after a number of rollouts."""

    def __init__(self, rollouts: int) -> None:
        super().__init__()
        self.seen: list[bool] = []
        self._decisions = rollouts * SETTINGS["n_steps"]

    def _on_step(self) -> bool:
        self.seen += [bool(info["is_success"]) for info in self.locals["infos"] if "episode" in info]
        return self.n_calls < self._decisions


def make(side: str, seed: int, **more: Any) -> Any:
    """One side's algorithm."""
    algorithm, own = SIDES[side]
    envs = vla_gym.make_vec("Toy-Reach", NUM_ENVS, chunk=CHUNK, seed=seed).as_sb3()
    return algorithm(VLAPolicy, envs, seed=seed, **{**SETTINGS, **own, **more})


def update_seconds() -> dict[str, list[float]]:
    """Seconds of `TURNS` updates of each side, alternating: what the machine does besides meets both."""
    # A rate at which the policy stays that of the rollout.
    models = {side: make(side, 0, learning_rate=1e-9).learn(1) for side in SIDES}
    took: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(TURNS):
        for side, model in models.items():
            start = time.perf_counter()
            model.train()
            took[side].append(time.perf_counter() - start)
    return took


def run(side: str, seed: int, rollouts: int) -> list[float]:
    """Success in each quarter of a run's episodes."""
    successes = Successes(rollouts)
    make(side, seed).learn(10**9, callback=successes)
    return [float(part.mean()) for part in np.array_split(np.array(successes.seen), QUARTERS)]


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    seconds = update_seconds()
    print(f"Toy-Reach, {args.rollouts} rollouts, {args.seeds} seeds: success of training episodes by quarter")
    for side in SIDES:
        values = np.array([run(side, seed, args.rollouts) for seed in range(args.seeds)])
        spread = values.std(axis=0, ddof=1 if args.seeds > 1 else 0)
        shown = "  ".join(f"{mean:6.3f} ± {around:5.3f}" for mean, around in zip(values.mean(axis=0), spread))
        print(f"  {side:<18}{shown}   update {statistics.median(seconds[side]) * 1000:7.1f} ms")
    ratio = statistics.median(mine / theirs for mine, theirs in zip(seconds["ours"], seconds["stable-baselines3"]))
    print(f"  ours / stable-baselines3, seconds of an update: {ratio:.2f}")


if __name__ == "__main__":
    main()
