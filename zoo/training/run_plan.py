"""The plan of a run, printed before it starts and by `--dry-run` alone: its batch arithmetic, its memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from vla_gym.errors import BadValue
from vla_gym.system.extras import check_installed
from vla_gym.system.limits import num_cores
from zoo.config.batch_plan import BatchPlan, benchmark_of, choose_stages, solve
from zoo.config.memory_plan import ROLES, Rank, need_lines, needs
from zoo.config.policy_shape import check_network, check_quantization, policy_footprint
from zoo.config.run_config import RunConfig, to_plain
from zoo.demonstrations.lerobot_reader import check_dataset
from zoo.distributed.placement import Placement, check_shares, check_staleness, parse_placement
from zoo.runs.lookup import ResumePoint
from zoo.runs.trained_tasks import trained_tasks


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run of PPO or GRPO with its arithmetic on the processes it has."""

    config: RunConfig
    """What to compute."""
    placement: Placement
    """Roles of the ranks."""
    batch: BatchPlan
    """Decisions, minibatches and updates."""
    num_workers: int
    """Worker processes that a rank which collects starts on its machine; 0 = none."""

    @classmethod
    def resolve(cls, config: RunConfig, num_ranks: int | None = None, *, accelerator: bool = False) -> RunPlan:
        """Return the plan on the processes that a launcher has started, or on `num_ranks`.

        Raises `BadValue` with the nearest numbers when it does not work out.
        """
        size = int(os.environ.get("WORLD_SIZE", "1")) if num_ranks is None else num_ranks
        placement = parse_placement(config.placement, size)
        check_staleness(placement, config.max_staleness, config.algo)
        if not placement.everywhere and config.algo_kwargs.get("rounds_per_update") is not None:
            raise BadValue(
                "rounds_per_update: PPO's rounds are collected where they are learned; leave out --placement, or give "
                "n_steps instead of rounds_per_update"
            )
        ranks = len(placement.rollout)
        num_workers = _num_workers(config, config.num_envs // ranks)
        stages = choose_stages(
            config.pipeline_stages,
            num_envs=config.num_envs // ranks,
            group_size=config.group_size,
            num_workers=num_workers,
            accelerator=accelerator,
        )
        check_shares(placement, num_envs=config.num_envs, num_stages=stages, group_size=config.group_size)
        batch = solve(config, num_ranks=ranks, num_stages=stages, num_learners=len(placement.actor))
        return cls(config=config, placement=placement, batch=batch, num_workers=num_workers)

    def arithmetic(self, resume: ResumePoint | None = None) -> list[str]:
        """Return what the run comes to, and from where it goes on."""
        return [*arithmetic_lines(self), *knowledge_lines(self.config), *resume_lines(resume)]


def dry_run_text(plan: RunPlan, resume: ResumePoint | None, start: Sequence[str] = ()) -> str:
    """Return the configuration as YAML, then what it means in decisions, simulator steps, updates and memory.

    `start` are the lines about the weights, of `zoo.training.start_weights`.
    """
    config = yaml.safe_dump(to_plain(plan.config), sort_keys=False).rstrip()
    end = "dry run      nothing was started or written"
    return "\n".join([config, "", *start, *plan.arithmetic(resume), end, *memory_lines(plan)])


def resume_lines(resume: ResumePoint | None) -> list[str]:
    """From where the run goes on, and into which folder; nothing of a fresh run."""
    if resume is None:
        return []
    where = "in place" if resume.in_place else "in a new run folder"
    return [f"resumes      from {resume.checkpoint} at {resume.step} simulator steps, {where}"]


def knowledge_lines(config: RunConfig) -> list[str]:
    """Return the tasks of the run that its policy was trained on before, where those are some of them."""
    trained = trained_tasks(config.policy)
    return [] if trained is None else trained.lines(benchmark_of(config).tasks)


def check_startable(plan: RunPlan) -> None:
    """Raise for what this process of the run would refuse before its simulators start, or for want of them."""
    config, rank = plan.config, int(os.environ.get("RANK", "0"))
    if rank in plan.placement.env or (config.eval_episodes and rank in plan.placement.actor):
        check_installed(benchmark_of(config))

    from zoo.distributed.fsdp import fsdp_requested
    from zoo.distributed.process_group import check_device

    check_device(config.device)
    check_quantization(config, sharded=fsdp_requested())
    check_network(config)
    for folder in config.algorithm.bc_folders:
        check_dataset(folder)


def _num_workers(config: RunConfig, num_envs: int) -> int:
    benchmark = benchmark_of(config)
    if benchmark.batched:
        return 0
    asked = config.env_options.get("num_workers")
    if asked is None:
        return 0 if benchmark.in_process else min(num_envs, num_cores())
    return min(int(asked), num_envs)


def starting_line(plan: RunPlan) -> str:
    """Return what begins now and may take a while."""
    benchmark = benchmark_of(plan.config)
    where = f"{plan.num_workers} processes" if plan.num_workers else "this process"
    wait = _FIRST_TIME.get(benchmark.extra or "", "")
    return f"starting     {plan.batch.envs_per_rank} simulators in {where}{wait}"


_FIRST_TIME = {"libero": " (a task met for the first time on this machine is compiled, 2 to 10 s each)"}
"""Extra -> what its simulators do once."""


def ranks(plan: RunPlan, *, sharded: bool = False, passes: bool = True) -> list[tuple[str, Rank]]:
    """Return the kinds of ranks of a run, each as (its name, what it does), those with most roles first."""
    placement, learners = plan.placement, len(plan.placement.actor)
    if placement.everywhere:
        return [("one rank", Rank(num_learners=learners, sharded=sharded and learners > 1, passes=passes))]
    members: dict[frozenset[str], list[int]] = {}
    for rank in range(placement.size):
        roles = frozenset(role for role in ROLES if rank in getattr(placement, role))
        members.setdefault(roles, []).append(rank)
    kinds = sorted(members.items(), key=lambda item: -len(item[0]))
    return [
        (
            f"each of {len(found)} ranks that {' and '.join(_DOES[role] for role in ROLES if role in roles)}",
            Rank(roles=roles, num_learners=learners, passes=passes),
        )
        for roles, found in kinds
    ]


_DOES = {"env": "simulate", "rollout": "decide", "actor": "learn"}


def memory_lines(plan: RunPlan, *, sharded: bool | None = None, passes: bool = False) -> list[str]:
    """What each kind of rank needs, as far as the policy can be counted.

    :param sharded: whether FSDP2 cuts what learns over the ranks; None: as this process was launched.
    :param passes: count also what acting and updates hold at their peak, which takes seconds.
    """
    from zoo.distributed.fsdp import will_shard

    config, lines = plan.config, []
    sharded = will_shard() if sharded is None else sharded
    for name, rank in ranks(plan, sharded=sharded, passes=passes):
        found = needs(plan.batch, config, plan.num_workers, rank)
        counted = rank.roles == {"env"} or policy_footprint(config) is not None
        note = "" if counted else f" (weights of '{config.policy}' are not counted)"
        if counted and not passes:
            note = " (passes come on top, vla-zoo plan counts them)"
        lines += [f"memory       of {name}{note}:", *need_lines(found)]
    return lines


def arithmetic_lines(plan: RunPlan) -> list[str]:
    """Decisions, steps, minibatches and updates of the run, one line each; "at most" where episodes may end early."""
    config, batch = plan.config, plan.batch
    tasks = benchmark_of(config).tasks
    trials = sum(task.num_trials for task in tasks)
    if config.algo == "grpo":
        episodes = batch.num_envs * batch.rounds
        rollout = f"{episodes // batch.group_size} groups of {batch.group_size} episodes"
    else:
        rounds = f"{batch.rounds} rounds of " if batch.rounds > 1 else ""
        rollout = f"{rounds}{batch.num_envs} envs x {batch.decisions_per_env} decisions"
    portions = f", {batch.micro_batch_size} at a time" if batch.micro_batch_size else ""
    lines = [
        f"environment  {config.env}: {len(tasks)} tasks, {trials} start states",
        f"decision     up to {batch.chunk} simulator steps",
        f"rollout      {rollout}: at most {batch.decisions} decisions, {batch.simulator_steps} simulator steps",
        f"update       {batch.n_epochs} epochs x at most {batch.minibatches} minibatches of {batch.batch_size} "
        f"decisions{portions}",
        f"run          {config.n_timesteps} simulator steps, in whole rollouts: at least "
        f"{-(-config.n_timesteps // batch.simulator_steps)} updates",
    ]
    if config.algorithm.bc_coef:
        folders = ", ".join(map(str, config.algorithm.bc_folders))
        lines.append(f"imitation    of {batch.batch_size} frames of {folders} in every optimiser step")
    if max(batch.num_ranks, batch.num_learners) > 1:
        lines.append(
            f"ranks        {batch.num_ranks} x {batch.envs_per_rank} envs, {batch.num_envs} in all "
            f"({batch.envs_per_rank // batch.group_size} groups of {batch.group_size}); {batch.num_learners} x "
            f"{batch.batch_size / batch.num_learners:g} decisions of each minibatch"
        )
    if batch.num_stages > 1:
        lines.append(f"stages       {batch.num_stages} x {batch.envs_per_stage} envs of each rank")
    return lines
