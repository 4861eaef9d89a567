"""What `--dry-run` prints: the resolved run and its batch arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml

from vla_gym.benchmarks import find_benchmark
from zoo.config import RunConfig, family_options, to_plain
from zoo.runs import ResumePoint


def dry_run_text(config: RunConfig, resume: ResumePoint | None) -> str:
    """The configuration as YAML, then what it means in decisions, simulator steps and updates."""
    lines = [yaml.safe_dump(to_plain(config), sort_keys=False).rstrip(), "", *arithmetic_lines(config)]
    if resume is not None:
        where = "in place" if resume.in_place else "in a new run folder"
        lines.append(f"resumes      from {resume.checkpoint} at {resume.step} simulator steps, {where}")
    lines.append("dry run      nothing was started or written")
    return "\n".join(lines)


def arithmetic_lines(config: RunConfig) -> list[str]:
    """Decisions, steps, minibatches and updates of the run, one line each; "at most" where episodes may end early."""
    tasks = find_benchmark(config.env, **family_options(config)).tasks
    trials = sum(task.num_trials for task in tasks)
    settings = config.algo_kwargs
    if config.algo == "grpo":
        rounds = int(settings.get("rollouts_per_update", 1))
        episodes = config.num_envs * rounds
        decisions = episodes * math.ceil(max(task.horizon for task in tasks) / config.chunk)
        steps = episodes * max(task.horizon for task in tasks)
        rollout = f"{episodes // config.group_size} groups of {config.group_size} episodes"
    else:
        per_env = int(settings.get("n_steps", 2048))
        decisions = config.num_envs * per_env
        steps = decisions * config.chunk
        rollout = f"{config.num_envs} envs x {per_env} decisions"
    batch = min(int(settings.get("batch_size", 64)), decisions)
    epochs = int(settings.get("n_epochs", 1))
    minibatches = -(-decisions // batch)
    return [
        f"environment  {config.env}: {len(tasks)} tasks, {trials} start states",
        f"decision     up to {config.chunk} simulator steps",
        f"rollout      {rollout}: at most {decisions} decisions, {steps} simulator steps",
        f"update       {epochs} epochs x at most {minibatches} minibatches of {batch} decisions{_portions(settings)}",
        f"run          {config.n_timesteps} simulator steps: at least {-(-config.n_timesteps // steps)} updates",
    ]


def _portions(settings: Mapping[str, Any]) -> str:
    size = settings.get("micro_batch_size")
    return f", {size} at a time" if size else ""
