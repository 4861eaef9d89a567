"""How a run's numbers multiply: environments x ranks x stages x groups x minibatches. Pure; imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vla_gym.errors import BadValue
from zoo.config.algorithm_configs import GRPOConfig, OffPolicyConfig, PPOConfig
from zoo.config.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Counts of one update; upper bounds where an episode may end early."""

    num_envs: int
    """N, environments of all ranks together."""
    group_size: int
    """G, adjacent environments that share start states."""
    chunk: int
    """K, simulator steps of a decision."""
    num_ranks: int
    """Processes that collect, each with its own environments."""
    num_learners: int
    """Processes that learn; each takes a shard of every minibatch."""
    num_stages: int
    """Parts of a rank's environments, one of which simulates while the policy decides for another."""
    rounds: int
    """Episodes of each environment in an update; 1 for PPO without `rounds_per_update`."""
    decisions_per_env: int
    """T, decisions of one environment in one round, at most."""
    steps_per_decision: float
    """Simulator steps of a decision on average, at most K (the last chunk of an episode may be cut by its horizon)."""
    batch_size: int
    """Decisions of a minibatch, all ranks together."""
    micro_batch_size: int | None
    """Decisions scored at once by one rank; None = as many as the rank has of a minibatch."""
    n_epochs: int
    """Passes over the rollout."""

    @property
    def envs_per_rank(self) -> int:
        """Environments of one rank."""
        return self.num_envs // self.num_ranks

    @property
    def envs_per_stage(self) -> int:
        """Environments that step together."""
        return self.envs_per_rank // self.num_stages

    @property
    def buffer_width(self) -> int:
        """Episodes or parts of them that one rank's rollout buffer holds side by side: N x rounds."""
        return self.envs_per_rank * self.rounds

    @property
    def decisions(self) -> int:
        """Decisions of an update, all ranks together, at most."""
        return self.num_envs * self.rounds * self.decisions_per_env

    @property
    def simulator_steps(self) -> int:
        """Simulator steps of an update, all ranks together, at most."""
        return round(self.decisions * self.steps_per_decision)

    @property
    def minibatches(self) -> int:
        """Optimiser steps of one pass, at most."""
        return -(-self.decisions // self.batch_size)

    @property
    def batch_share(self) -> int:
        """Decisions of a minibatch that one rank scores, at most."""
        return -(-self.batch_size // self.num_learners)

    @property
    def scored_at_once(self) -> int:
        """Decisions of one forward and backward pass of one rank, at most."""
        return min(self.batch_share, self.micro_batch_size or self.batch_share)


def solve(config: RunConfig, *, num_ranks: int = 1, num_stages: int = 1, num_learners: int | None = None) -> BatchPlan:
    """Return the counts of `config` on so many ranks, which all learn unless `num_learners` says otherwise.

    Raises `BadValue` with the nearest numbers that fit.
    """
    benchmark = config.benchmark
    check_division(config.num_envs, num_ranks=num_ranks, num_stages=num_stages, group_size=config.group_size)
    settings = config.algorithm
    if settings.bc_coef:
        check_dealing(settings.batch_size, num_learners or num_ranks, "batch_size of demonstrations")
    whole = None
    if isinstance(settings, GRPOConfig):
        whole = settings.rollouts_per_update
    elif isinstance(settings, PPOConfig):
        whole = settings.rounds_per_update
    if isinstance(settings, OffPolicyConfig):
        check_dealing(settings.batch_size, num_learners or num_ranks, "batch_size")
    if whole is not None:
        horizon = max(task.horizon for task in benchmark.tasks)
        rounds, decisions_per_env = whole, math.ceil(horizon / config.chunk)
        steps_per_decision = horizon / decisions_per_env
    else:
        assert not isinstance(settings, GRPOConfig)
        rounds, decisions_per_env = 1, settings.n_steps
        steps_per_decision = float(config.chunk)
    return BatchPlan(
        num_envs=config.num_envs,
        group_size=config.group_size,
        chunk=config.chunk,
        num_ranks=num_ranks,
        num_learners=num_ranks if num_learners is None else num_learners,
        num_stages=num_stages,
        rounds=rounds,
        decisions_per_env=decisions_per_env,
        steps_per_decision=steps_per_decision,
        batch_size=min(settings.batch_size, config.num_envs * rounds * decisions_per_env)
        if not isinstance(settings, OffPolicyConfig)
        else settings.batch_size,
        micro_batch_size=settings.micro_batch_size,
        n_epochs=settings.n_epochs,
    )


def check_division(num_envs: int, *, num_ranks: int, num_stages: int, group_size: int) -> None:
    """Raise `BadValue` unless ranks get equal shares, and stages equal parts of those, without cutting a group."""
    unit = num_ranks * num_stages * group_size
    if num_envs % unit:
        raise BadValue(
            f"num_envs={num_envs} is not a multiple of ranks x pipeline stages x group_size = {num_ranks} x "
            f"{num_stages} x {group_size} = {unit}: ranks and stages get equal shares, "
            f"and a group stays together. Nearest allowed: --num-envs {nearest_multiples(num_envs, unit)} for a new "
            f"run, or ranks x stages that divide {num_envs // group_size}"
        )


def check_dealing(batch_size: int, num_ranks: int, setting: str = "--batch-size") -> None:
    """Raise `BadValue` unless every rank gets as many frames of an update; `setting` counts them."""
    if batch_size % num_ranks:
        raise BadValue(
            f"{setting} {batch_size} cannot be dealt evenly to {num_ranks} ranks. Nearest allowed: "
            f"{setting} {nearest_multiples(batch_size, num_ranks)} for a new run, or ranks that divide {batch_size}"
        )


def nearest_multiples(wanted: int, unit: int) -> str:
    """Return the multiples of `unit` on both sides of `wanted`, in words: "56 or 64"; without 0."""
    below, above = wanted // unit * unit, -(-wanted // unit) * unit
    return f"{below} or {above}" if below else f"{above}"


def choose_stages(asked: int | str, *, num_envs: int, group_size: int, num_workers: int, accelerator: bool) -> int:
    """Return the stages of one rank's `num_envs` environments: `asked`, or for "auto" 1 or 2.

    Two stages pay where inference and simulation do not compete: the policy is on an accelerator and the environments
    run in other processes (`num_workers` > 0). While one half simulates, the policy then decides for the other.
    """
    if asked != "auto":
        return int(asked)
    return 2 if accelerator and num_workers > 0 and num_envs % (2 * group_size) == 0 else 1
