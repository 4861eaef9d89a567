"""What a run says before it starts, and `--dry-run` alone: the resolved run, its batch arithmetic, its memory."""

from __future__ import annotations

import os

import yaml

from vla_gym.workers.environment import check_installed, num_cores
from zoo.config.algorithm_configs import PPOConfig
from zoo.config.batch_plan import BatchPlan, benchmark_of, choose_stages, solve
from zoo.config.memory_plan import need_lines, needs
from zoo.config.run_config import RunConfig, to_plain
from zoo.distributed.placement import ALL, check_shares, check_staleness, parse_placement
from zoo.runs.lookup import ResumePoint


def dry_run_text(config: RunConfig, resume: ResumePoint | None) -> str:
    """The configuration as YAML, then what it means in decisions, simulator steps and updates."""
    plan = plan_of(config)
    lines = [yaml.safe_dump(to_plain(config), sort_keys=False).rstrip(), "", *arithmetic_lines(config, plan)]
    return "\n".join([*lines, *resume_lines(resume), "dry run      nothing was started or written"])


def resume_lines(resume: ResumePoint | None) -> list[str]:
    """From where the run goes on, and into which folder; nothing of a fresh run."""
    if resume is None:
        return []
    where = "in place" if resume.in_place else "in a new run folder"
    return [f"resumes      from {resume.checkpoint} at {resume.step} simulator steps, {where}"]


def check_startable(config: RunConfig) -> None:
    """Raise for what this process of the run would refuse before its simulators start, or for want of them."""
    placement = parse_placement(config.placement, int(os.environ.get("WORLD_SIZE", "1")))
    rank = int(os.environ.get("RANK", "0"))
    if rank in placement.env or (config.eval_episodes and rank in placement.actor):
        check_installed(benchmark_of(config))

    from zoo.distributed.process_group import check_device

    check_device(config.device)
    settings = config.algorithm
    if isinstance(settings, PPOConfig):
        from zoo.algorithms.advantages import check_levels

        check_levels(settings.reward_level, settings.value_level, settings.logprob_level)


def plan_of(config: RunConfig, num_ranks: int | None = None, *, accelerator: bool = False) -> BatchPlan:
    """The run's arithmetic on the processes that a launcher has started, or on `num_ranks`.

    Raises `BadValue` with the nearest numbers when it does not work out.
    """
    size = int(os.environ.get("WORLD_SIZE", "1")) if num_ranks is None else num_ranks
    placement = parse_placement(config.placement, size)
    check_staleness(placement, config.max_staleness, config.algo)
    ranks = len(placement.rollout)
    stages = choose_stages(
        config.pipeline_stages,
        num_envs=config.num_envs // ranks,
        group_size=config.group_size,
        num_workers=workers_of(config, config.num_envs // ranks),
        accelerator=accelerator,
    )
    check_shares(placement, num_envs=config.num_envs, num_stages=stages, group_size=config.group_size)
    return solve(config, num_ranks=ranks, num_stages=stages, num_learners=len(placement.actor))


def workers_of(config: RunConfig, num_envs: int) -> int:
    """Worker processes that a rank with so many environments starts on this machine; 0 = none."""
    benchmark = benchmark_of(config)
    if benchmark.batched:
        return 0
    asked = config.env_options.get("num_workers")
    if asked is None:
        return 0 if benchmark.in_process else min(num_envs, num_cores())
    return min(int(asked), num_envs)


def memory_lines(config: RunConfig, plan: BatchPlan) -> list[str]:
    """What one rank needs, where the policy can be counted."""
    lines = needs(plan, config, workers_of(config, plan.envs_per_rank))
    counted = any(line.where == "device" for line in lines)
    note = "" if counted else f" (weights of '{config.policy}' are not counted)"
    roles = "" if config.placement == ALL else " with every role"
    return [f"memory       of one rank{roles}{note}:", *need_lines(lines)]


def arithmetic_lines(config: RunConfig, plan: BatchPlan) -> list[str]:
    """Decisions, steps, minibatches and updates of the run, one line each; "at most" where episodes may end early."""
    tasks = benchmark_of(config).tasks
    trials = sum(task.num_trials for task in tasks)
    if config.algo == "grpo":
        episodes = plan.num_envs * plan.rounds
        rollout = f"{episodes // plan.group_size} groups of {plan.group_size} episodes"
    else:
        rollout = f"{plan.num_envs} envs x {plan.decisions_per_env} decisions"
    lines = [
        f"environment  {config.env}: {len(tasks)} tasks, {trials} start states",
        f"decision     up to {plan.chunk} simulator steps",
        f"rollout      {rollout}: at most {plan.decisions} decisions, {plan.simulator_steps} simulator steps",
        f"update       {plan.n_epochs} epochs x at most {plan.minibatches} minibatches of {plan.batch_size} decisions"
        f"{_portions(plan)}",
        f"run          {config.n_timesteps} simulator steps: at least "
        f"{-(-config.n_timesteps // plan.simulator_steps)} updates",
    ]
    if max(plan.num_ranks, plan.num_learners) > 1:
        lines.append(
            f"ranks        {plan.num_ranks} x {plan.envs_per_rank} envs "
            f"({plan.envs_per_rank // plan.group_size} groups of {plan.group_size}); {plan.num_learners} x "
            f"{plan.batch_size / plan.num_learners:g} decisions of each minibatch"
        )
    if plan.num_stages > 1:
        lines.append(f"stages       {plan.num_stages} x {plan.envs_per_stage} envs of each rank")
    return lines


def _portions(plan: BatchPlan) -> str:
    return f", {plan.micro_batch_size} at a time" if plan.micro_batch_size else ""
