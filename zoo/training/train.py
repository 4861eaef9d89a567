"""The set-up of a PPO or GRPO run: from its plan to the trainer of this process."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace

from zoo.config.batch_plan import benchmark_of
from zoo.distributed.process_group import check_same_weights
from zoo.training.checkpoint import load_checkpoint
from zoo.training.rl_trainer import RLTrainer
from zoo.training.roles import SupportingRank, set_up_roles
from zoo.training.run_plan import RunPlan, TrainJob, log_plan
from zoo.training.setup import join_run, make_envs, make_model, open_run_folder, run_log, training_share

_logger = logging.getLogger(__name__)

_FIRST_TIME = {"libero": " (a task met for the first time on this machine is compiled, 2 to 10 s each)"}
"""Extra -> what its simulators do once."""


def set_up(job: TrainJob, plan: RunPlan, cleanup: ExitStack) -> RLTrainer | SupportingRank:
    """Meet the run's other processes and return this one's part of the run, whose parts `cleanup` ends.

    A user's mistake that shows only here leaves no run folder behind.
    """
    job, process_group, device = join_run(job)
    # Machines differ in cores and GPUs: the first rank that decides chooses the stages for all.
    plan = replace(plan, config=job.config).with_stages(accelerator=device.type != "cpu")
    stages = process_group.all_gather_object(plan.batch.num_stages)[plan.placement.rollout[0]]
    plan = replace(plan, batch=replace(plan.batch, num_stages=stages))
    if not plan.placement.everywhere:
        return set_up_roles(job, plan, process_group, device, cleanup)
    cleanup.enter_context(run_log(writes=process_group.is_first))
    log_plan(plan, job.resume)
    config, benchmark = plan.config, benchmark_of(plan.config)
    where = f"{plan.num_workers} processes" if plan.num_workers else "this process"
    wait = _FIRST_TIME.get(benchmark.extra or "", "")
    _logger.info(f"starting     {plan.batch.envs_per_rank} simulators in {where}{wait}")
    envs = make_envs(config, cleanup, pipeline_stages=stages, **training_share(config, process_group))
    model = make_model(config, envs, device, process_group, weights=job.checkpoint)
    check_same_weights(model.policy, process_group)
    if job.checkpoint is not None:
        load_checkpoint(model, job.checkpoint)
    run = open_run_folder(job, envs, process_group, cleanup)
    return RLTrainer(job, plan, model, envs, run)
