"""Our PPO against Stable-Baselines3's with plain MLP policies: `python -m benchmarks.sb3`.

Same environments, settings and seeds. Printed for each: mean return of the training episodes in each quarter of the
run, as mean and standard deviation over the seeds, and the seconds of an update of the same rollout, turn by turn.
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
from stable_baselines3.common.env_util import make_vec_env

import zoo

TASKS: dict[str, tuple[int, dict[str, Any]]] = {
    "CartPole-v1": (
        40_000,
        {"n_steps": 32, "batch_size": 256, "n_epochs": 10, "learning_rate": 1e-3, "gamma": 0.98},
    ),
    "Pendulum-v1": (
        80_000,
        {"n_steps": 256, "batch_size": 256, "n_epochs": 10, "learning_rate": 1e-3, "gamma": 0.9},
    ),
}
"""Environment -> steps, settings. Eight environments each."""
SIDES = {"ours": zoo.PPO, "stable-baselines3": stable_baselines3.PPO}
QUARTERS, TURNS = 4, 60


class Returns(BaseCallback):
    """Collects (steps taken, return) of every training episode."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        ended = (info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
        self.seen += [(self.num_timesteps, float(value)) for value in ended]
        return True


def make(side: str, task: str, seed: int) -> Any:
    """One side's algorithm."""
    envs, settings = make_vec_env(task, 8, seed=seed), TASKS[task][1]
    return SIDES[side]("MlpPolicy", envs, seed=seed, device="cpu", **settings)


def update_seconds(task: str) -> dict[str, list[float]]:
    """Seconds of `TURNS` updates of each side, alternating: what the machine does besides meets both."""
    models = {side: make(side, task, 0).learn(512) for side in SIDES}
    took: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(TURNS):
        for side, model in models.items():
            start = time.perf_counter()
            model.train()
            took[side].append(time.perf_counter() - start)
    return took


def run(side: str, task: str, seed: int) -> list[float]:
    """Mean return of each quarter of a run."""
    steps = TASKS[task][0]
    model = make(side, task, seed)
    returns = Returns()
    model.learn(steps, callback=returns)
    quarters: list[list[float]] = [[] for _ in range(QUARTERS)]
    for step, value in returns.seen:
        quarters[min(QUARTERS - 1, step * QUARTERS // (steps + 1))].append(value)
    return [statistics.fmean(values) for values in quarters]


def main() -> None:
    """Print a table per environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--env", choices=tuple(TASKS), nargs="+", default=list(TASKS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for task in args.env:
        curves: dict[str, list[list[float]]] = {side: [] for side in SIDES}
        seconds = update_seconds(task)
        for seed in range(args.seeds):
            for side in SIDES:
                curves[side].append(run(side, task, seed))
        print(f"{task}, {TASKS[task][0]} steps, {args.seeds} seeds: mean return of training episodes by quarter")
        for side in SIDES:
            values = np.array(curves[side])
            spread = values.std(axis=0, ddof=1 if args.seeds > 1 else 0)
            shown = "  ".join(f"{mean:8.1f} ±{around:6.1f}" for mean, around in zip(values.mean(axis=0), spread))
            print(f"  {side:<18}{shown}   update {statistics.median(seconds[side]) * 1000:7.1f} ms")
        ratio = statistics.median(mine / theirs for mine, theirs in zip(seconds["ours"], seconds["stable-baselines3"]))
        print(f"  ours / stable-baselines3, seconds of an update: {ratio:.2f}")


if __name__ == "__main__":
    main()
