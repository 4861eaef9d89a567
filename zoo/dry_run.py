"""What `--dry-run` prints: the resolved run and its batch arithmetic."""

from __future__ import annotations

import yaml

from vla_gym.benchmarks import find_benchmark
from zoo.config import RunConfig, to_plain
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
    """Decisions, steps, minibatches and updates of the run, one line each."""
    tasks = find_benchmark(config.env).tasks
    decisions = config.num_envs * int(config.algo_kwargs["n_steps"])
    steps = decisions * config.chunk
    batch = min(int(config.algo_kwargs["batch_size"]), decisions)
    epochs = int(config.algo_kwargs["n_epochs"])
    minibatches = -(-decisions // batch)
    updates = -(-config.n_timesteps // steps)
    trials = sum(task.num_trials for task in tasks)
    return [
        f"environment  {config.env}: {len(tasks)} tasks, {trials} start states",
        f"decision     up to {config.chunk} simulator steps",
        f"rollout      {config.num_envs} envs x {config.algo_kwargs['n_steps']} decisions = {decisions} decisions, "
        f"at most {steps} simulator steps",
        f"update       {epochs} epochs x {minibatches} minibatches of {batch} = {epochs * minibatches} gradient steps",
        f"run          {config.n_timesteps} simulator steps: at least {updates} updates",
    ]
