"""What drawing start states by learnability brings GRPO and PPO on a toy of many difficulties, over seeds.

    python -m benchmarks.start_sampling --seeds 3 --steps 40000

`Mixed-Toy` has Toy-Reach's three tasks three times: as they are; solved by the first move (`solved`); and never solved
(`hopeless`). Uniform draws spend two thirds of the episodes where nothing can be learnt, which is what a suite of many
tasks does to a policy that has learnt some of them. `--env Toy-Reach` is the other extreme, where tasks are alike.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np
from stable_baselines3.common.logger import KVWriter, Logger

from vla_gym import make_vec
from vla_gym.adapters.toy import ToyReach, toy_benchmark
from vla_gym.simulator import SimStep
from vla_gym.specs import Benchmark, StartState, Task
from zoo import GRPO, PPO
from zoo.evaluation.evaluator import choose_start_states, evaluate

LEVELS = ("reach", "solved", "hopeless")
SHARED: dict[str, Any] = {
    "batch_size": 128,
    "n_epochs": 2,
    "learning_rate": 1e-3,
    "max_grad_norm": 0.5,
    "device": "cpu",
    "policy_kwargs": {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}},
}
"""The recipes of Toy-Reach, at their first learning rate."""


class MixedToy(ToyReach):
    """Toy-Reach whose tasks are named `LEVEL_COLOUR`."""

    def __init__(self, tasks: tuple[Task, ...], *args: Any, **kwargs: Any) -> None:
        parts = [task.name.split("_") for task in tasks]
        super().__init__(
            tuple(dataclasses.replace(task, name=part[1]) for task, part in zip(tasks, parts, strict=True)),
            *args,
            **kwargs,
        )
        self._levels = [part[0] for part in parts]
        self._level = ""

    def reset(self, start: StartState) -> str:
        """See `vla_gym.simulator.Simulator.reset`."""
        self._level = self._levels[start.task_id]
        return f"{self._level}{super().reset(start)}"

    def step(self, action_A: np.ndarray) -> SimStep:
        """See `vla_gym.simulator.Simulator.step`."""
        step = super().step(action_A)
        success = {"reach": step.success, "solved": True, "hopeless": False}[self._level]
        return SimStep(reward=float(success), success=success, terminated=step.terminated or success)


def mixed_benchmark(env_id: str = "Mixed-Toy", *, split: str = "train") -> Benchmark:
    """Describe `Mixed-Toy`: nine tasks of 50 start states."""
    toy = toy_benchmark(env_id, split=split)
    tasks = tuple(
        dataclasses.replace(task, name=task.name.replace("reach", level), instruction=f"{level}: {task.instruction}")
        for level in LEVELS
        for task in toy.tasks
    )
    return dataclasses.replace(toy, tasks=tasks, simulator="benchmarks.start_sampling:MixedToy")


BENCHMARKS = {"Mixed-Toy": mixed_benchmark, "Toy-Reach": toy_benchmark}


class _Rows(KVWriter):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self.rows.append(dict(key_values))

    def close(self) -> None:
        """Nothing is open."""


def success(policy: Any, env_id: str) -> float:
    """Deterministic success on the reaching tasks, 150 start states of split "test"."""
    benchmark = BENCHMARKS[env_id](env_id, split="test")
    starts = [start for start in choose_start_states(benchmark.tasks, None) if start.task_id < 3]
    envs = make_vec(benchmark, 50, chunk=4, autoreset_mode="disabled")
    return mean(episode.success_once for episode in evaluate(policy, envs, starts))


def run(algo: str, env_id: str, sampling: str, seed: int, steps: int, evaluations: int) -> dict[str, Any]:
    """Train; success after each of `evaluations` equal parts, and means over the updates."""
    envs = make_vec(BENCHMARKS[env_id](env_id), 64, chunk=4, group_size=8 if algo == "grpo" else 1, seed=seed)
    settings: dict[str, Any] = {**SHARED, "seed": seed, "start_sampling": sampling}
    if algo == "grpo":
        model: GRPO | PPO = GRPO("VLAPolicy", envs, max_barren_episodes=0, **settings)
    else:
        model = PPO("VLAPolicy", envs, n_steps=8, gamma=0.95, logprob_level="token", **settings)
    rows = _Rows()
    model.set_logger(Logger(None, [rows]))
    curve = []
    for part in range(1, evaluations + 1):
        model.learn(steps * part // evaluations - model.num_timesteps, reset_num_timesteps=False)
        curve.append(success(model.policy, env_id))
    envs.close()
    dead = [row["rollout/groups_dead"] / row["rollout/groups"] for row in rows.rows if "rollout/groups" in row]
    tasks = [row["rollout/effective_tasks"] for row in rows.rows if "rollout/effective_tasks" in row]
    return {
        "curve": curve,
        "dead": mean(dead) if dead else None,
        "tasks": mean(tasks) if tasks else len(envs.benchmark.tasks),
    }


def line(algo: str, sampling: str, runs: Sequence[dict[str, Any]]) -> str:
    """One row of the table, over seeds."""
    dead = "" if runs[0]["dead"] is None else f"{mean(one['dead'] for one in runs):.3f}"
    curve = np.array([one["curve"] for one in runs])
    cells = [f"{column.mean():.3f} ({column.min():.3f} to {column.max():.3f})" for column in curve.T]
    return f"| {algo} | {sampling} | {dead} | {mean(one['tasks'] for one in runs):.1f} | {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Train all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="Mixed-Toy", choices=BENCHMARKS)
    parser.add_argument("--algo", nargs="+", default=["grpo", "ppo"], choices=["grpo", "ppo"])
    parser.add_argument("--steps", type=int, default=40_000, help="simulator steps of each run")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each, from 0")
    parser.add_argument("--evaluations", type=int, default=4, help="of each run, evenly spaced")
    args = parser.parse_args(argv)
    columns = [f"success after {args.steps * part // args.evaluations}" for part in range(1, args.evaluations + 1)]
    print(f"| algorithm | start_sampling | dead groups | effective tasks | {' | '.join(columns)} |")
    print("|---" * (4 + args.evaluations) + "|")
    for algo in args.algo:
        for sampling in ("uniform", "learnability"):
            runs = [run(algo, args.env, sampling, seed, args.steps, args.evaluations) for seed in range(args.seeds)]
            print(line(algo, sampling, runs), flush=True)


if __name__ == "__main__":
    main()
