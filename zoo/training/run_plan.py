"""A run as it was asked for, and its plan: roles, batch arithmetic, memory, and warnings."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from vla_gym.errors import BadValue
from vla_gym.system.extras import check_installed
from vla_gym.system.limits import num_cores
from vla_policies.registry import FAMILIES, family_class
from vla_policies.resolver import PolicyRef, resolve_policy
from zoo.config.algorithm_configs import OffPolicyConfig
from zoo.config.batch_plan import BatchPlan, choose_stages, solve
from zoo.config.memory_plan import (
    ROLES,
    Fit,
    Rank,
    check_quantization,
    chosen_settings,
    need_lines,
    needs,
    policy_footprint,
)
from zoo.config.run_config import RunConfig, to_plain
from zoo.config.tracking import Tracking
from zoo.distributed.placement import Placement, check_shares, check_staleness, parse_placement
from zoo.runs.folder import ADAPTER_CONFIG_FILE
from zoo.runs.lookup import PREFIX, ResumePoint, agents_for

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """A training run as its command was asked for it."""

    config: RunConfig
    policy: PolicyRef
    """The policy that it starts from: of a run that goes on, its checkpoint."""
    log_folder: Path
    """Where a new run folder goes."""
    command: Sequence[str]
    """The command line, for `command.txt`."""
    args: Mapping[str, Any]
    """Its parsed flags, for `args.yml`."""
    resume: ResumePoint | None = None
    """Where to go on from."""
    tensorboard_log: Path | None = None
    """Parent of the TensorBoard folder; None puts events into the run folder."""
    progress: bool | None = False
    """Show a progress bar; None: where stderr is a terminal."""
    tracking: Tracking = field(default_factory=Tracking)
    """Trackers that follow the run."""
    video_freq: int = 0
    """Simulator steps between videos of training episodes; 0 = none."""
    video_folder: Path | None = None
    """Parent of the videos' folder; None = in the run folder."""
    evaluation_video: bool = True
    """Whether the last evaluation is recorded."""

    @property
    def checkpoint(self) -> Path | None:
        """Folder of the checkpoint to go on from."""
        return None if self.resume is None else self.resume.checkpoint


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run of PPO or GRPO with its arithmetic on the processes it has."""

    config: RunConfig
    placement: Placement
    batch: BatchPlan
    """Decisions, minibatches and updates."""
    num_workers: int
    """Worker processes that a rank which collects starts on its machine; 0 = none."""
    policy: PolicyRef | None = None
    """The policy that the run starts from, for its memory; None where it goes on, or the configuration says all."""

    @classmethod
    def resolve(cls, config: RunConfig, num_ranks: int | None = None, policy: PolicyRef | None = None) -> RunPlan:
        """Return the plan on the processes that a launcher has started, or on `num_ranks`.

        Pipeline stages of "auto" are one, see `with_stages`. Raises `BadValue` with the nearest numbers when it does
        not work out.
        """
        size = int(os.environ.get("WORLD_SIZE", "1")) if num_ranks is None else num_ranks
        placement = parse_placement(config.placement, size)
        check_staleness(placement, config.max_staleness, config.algo)
        if not placement.everywhere and isinstance(config.algorithm, OffPolicyConfig):
            raise BadValue(f"--algo {config.algo} collects where it learns, on every process; leave out --placement")
        if not placement.everywhere and config.algo_kwargs.get("rounds_per_update") is not None:
            raise BadValue(
                "rounds_per_update: PPO's rounds are collected where they are learned; leave out --placement, or give "
                "n_steps instead of rounds_per_update"
            )
        ranks = len(placement.rollout)
        num_workers = _num_workers(config, config.num_envs // ranks)
        stages = 1 if config.pipeline_stages == "auto" else int(config.pipeline_stages)
        check_shares(placement, num_envs=config.num_envs, num_stages=stages, group_size=config.group_size)
        batch = solve(config, num_ranks=ranks, num_stages=stages, num_learners=len(placement.actor))
        return cls(config=config, placement=placement, batch=batch, num_workers=num_workers, policy=policy)

    def with_stages(self, *, accelerator: bool) -> RunPlan:
        """Return the plan with the pipeline stages that suit a policy on an `accelerator`, where they are "auto"."""
        stages = choose_stages(
            self.config.pipeline_stages,
            num_envs=self.batch.envs_per_rank,
            group_size=self.batch.group_size,
            num_workers=self.num_workers,
            accelerator=accelerator,
        )
        return replace(self, batch=replace(self.batch, num_stages=stages))

    def chosen(self, size: float, *, sharded: bool) -> Fit | None:
        """Return what a rank that learns takes of a GPU with `size` free bytes, see `chosen_settings`."""
        rank = next(rank for _, rank in ranks(self, sharded=sharded) if "actor" in rank.roles)
        return chosen_settings(self.batch, self.config, self.num_workers, rank, size, self.policy)


def checkpoint_policy(config: RunConfig, checkpoint: Path) -> PolicyRef:
    """Return the policy in a checkpoint of the run, which says itself what `config` says of the first weights.

    It does so even when the folder they came from is gone.
    """
    own = ("backbone_kwargs", "unnorm_key", "revision")
    # Its hashes are compared with the rest of the checkpoint's; an adapter's base here.
    given = {"verify": (checkpoint / ADAPTER_CONFIG_FILE).is_file(), **config.policy_kwargs}
    return resolve_policy(checkpoint, {name: v for name, v in given.items() if name not in own})


def dry_run_text(plan: RunPlan, resume: ResumePoint | None, start: Sequence[str] = ()) -> str:
    """Return the configuration as YAML, then what it means in decisions, simulator steps, updates and memory.

    `start` are the lines about the weights, of `zoo.training.start_weights`.
    """
    config = yaml.safe_dump(to_plain(plan.config), sort_keys=False).rstrip()
    end = "dry run      nothing was started or written"
    return "\n".join([config, "", *start, *arithmetic_lines(plan, resume), end, *memory_lines(plan)])


def log_plan(plan: RunPlan, resume: ResumePoint | None) -> None:
    """Log what the run comes to, and what is unusual about it."""
    if resume is None and plan.config.policy.startswith(f"{PREFIX}/"):
        _logger.info(f"start        {plan.config.policy}, trained already; --policy nano is fresh weights")
    _logger.info("\n".join([*arithmetic_lines(plan), *memory_lines(plan)]))
    if resume is None and (sentence := hopeless_start(plan.config)) is not None:
        _logger.warning("warning: %s", sentence)


def check_startable(plan: RunPlan) -> None:
    """Raise for what this process of the run would refuse before its simulators start, or for want of them."""
    config, rank = plan.config, int(os.environ.get("RANK", "0"))
    if rank in plan.placement.env or (config.eval_episodes and rank in plan.placement.actor):
        check_installed(config.benchmark)

    from zoo.distributed.process_group import check_device

    check_device(config.device)
    check_quantization(config)
    if config.algorithm.bc_folders:
        from zoo.demonstrations.lerobot_reader import check_dataset

        for folder in config.algorithm.bc_folders:
            check_dataset(folder)


def _num_workers(config: RunConfig, num_envs: int) -> int:
    benchmark = config.benchmark
    if benchmark.batched:
        return 0
    asked = config.env_options.get("num_workers")
    if asked is None:
        return 0 if benchmark.in_process else min(num_envs, num_cores())
    return min(int(asked), num_envs)


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
            Rank(roles=roles, num_learners=learners, sharded=sharded and learners > 1, passes=passes),
        )
        for roles, found in kinds
    ]


_DOES = {"env": "simulate", "rollout": "decide", "actor": "learn"}


def memory_lines(plan: RunPlan, *, sharded: bool | None = None, passes: bool = False) -> list[str]:
    """Return what each kind of rank needs, as far as the policy can be counted.

    :param sharded: whether FSDP2 cuts what learns over the ranks; None: as this process was launched.
    :param passes: count also what acting and updates hold at their peak, which takes seconds.
    """
    from zoo.distributed.fsdp import will_shard

    config, lines = plan.config, []
    sharded = will_shard() if sharded is None else sharded
    for name, rank in ranks(plan, sharded=sharded, passes=passes):
        found = needs(plan.batch, config, plan.num_workers, rank, plan.policy)
        counted = rank.roles == {"env"} or policy_footprint(config, plan.policy) is not None
        note = "" if counted else f" (weights of '{config.policy}' are not counted)"
        if counted and not passes:
            note = " (passes come on top, vla-zoo plan counts them)"
        lines += [f"memory       of {name}{note}:", *need_lines(found)]
    return lines


def arithmetic_lines(plan: RunPlan, resume: ResumePoint | None = None) -> list[str]:
    """Return decisions, steps and updates of the run, one line each; "at most" where episodes may end early."""
    config, batch = plan.config, plan.batch
    tasks = config.benchmark.tasks
    trials = sum(task.num_trials for task in tasks)
    if config.algo == "grpo":
        episodes = batch.num_envs * batch.rounds
        rollout = f"{episodes // batch.group_size} groups of {batch.group_size} episodes"
    else:
        rounds = f"{batch.rounds} rounds of " if batch.rounds > 1 else ""
        rollout = f"{rounds}{batch.num_envs} envs x {batch.decisions_per_env} decisions"
    portions = f", {batch.micro_batch_size} at a time" if batch.micro_batch_size else ""
    settings = config.algorithm
    steps = f"{batch.n_epochs} epochs x at most {batch.minibatches} minibatches"
    if isinstance(settings, OffPolicyConfig):
        steps = f"about {settings.updates_of(batch.decisions)} minibatches"
    lines = [
        f"environment  {config.env}: {len(tasks)} tasks, {trials} start states",
        f"decision     up to {batch.chunk} simulator steps",
        f"rollout      {rollout}: at most {batch.decisions} decisions, {batch.simulator_steps} simulator steps",
        f"update       {steps} of {batch.batch_size} decisions{portions}",
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
    if resume is not None:
        where = "in place" if resume.in_place else "in a new run folder"
        lines.append(f"resumes      from {resume.checkpoint} at {resume.step} simulator steps, {where}")
    return lines


def hopeless_start(config: RunConfig) -> str | None:
    """Return the warning for fresh weights on a simulated robot that pays for success alone; None for other runs."""
    benchmark = config.benchmark
    if config.policy not in FAMILIES or benchmark.extra is None:
        return None  # Toy-Reach, and benchmarks from elsewhere, may well be solved by chance
    if not family_class(config.policy).wants_fresh(config.backbone_kwargs):
        return None
    options = benchmark.simulator_kwargs
    if options.get("task_reward") == "dense":
        return None
    remedies = ["demonstrations (vla-zoo collect --expert, then vla-zoo sft)"]
    if agents := agents_for(config.env):
        agent = next((agent for agent in agents if "/sft/" in agent), agents[0])
        remedies.insert(0, f"a trained agent (--policy {agent})")
    pays = " Or pay for progress: -params 'env_kwargs:{task_reward: dense}'." if "task_reward" in options else ""
    return (
        f"'{config.policy}' means fresh weights, and {config.env} pays for success alone, which chance hardly ever "
        f"reaches there: expect 0 %. Start from {' or '.join(remedies)}.{pays}"
    )
