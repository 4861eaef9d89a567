"""A PPO or GRPO run from its job to its end, on every process that a launcher has started."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace

from vla_gym import make_vec
from zoo.distributed.agreement import check_same_weights
from zoo.distributed.process_group import check_device, training_share
from zoo.runs.folder import RunFolder
from zoo.training.checkpoint import load_checkpoint
from zoo.training.rl_trainer import RLTrainer
from zoo.training.run_plan import RunPlan, starting_line
from zoo.training.setup import ENV_DEFAULTS, join_run, make_model, open_run_folder, run_log
from zoo.training.start_warnings import log_plan
from zoo.training.trainer import TrainJob

_logger = logging.getLogger(__name__)


def train(job: TrainJob) -> RunFolder | None:
    """Run it. Returns the run folder to the rank that writes (and alone logs), None to others.

    A user's mistake that shows only while starting leaves no run folder behind. SIGTERM, Ctrl-C and the
    loss of a simulator leave a checkpoint to resume from.
    """
    # Processes that cannot share the work out say so before they meet.
    plan = RunPlan.resolve(job.config, accelerator=check_device(job.config.device).type != "cpu")
    job, process_group, device = join_run(job)
    config = job.config
    # Machines differ in cores and GPUs: the first rank that decides chooses the stages for all.
    stages = process_group.all_gather_object(plan.batch.num_stages)[plan.placement.rollout[0]]
    plan = replace(plan, config=config, batch=replace(plan.batch, num_stages=stages))
    if not plan.placement.everywhere:
        from zoo.training.roles import train_placed

        return train_placed(job, plan, process_group, device)
    with ExitStack() as cleanup:
        cleanup.enter_context(run_log(writes=process_group.is_first))
        log_plan(plan, job.resume)
        _logger.info(starting_line(plan))
        envs = make_vec(
            config.env,
            seed=config.seed,
            pipeline_stages=plan.batch.num_stages,
            **{**ENV_DEFAULTS, **config.env_options, **training_share(config, process_group)},
        )
        cleanup.callback(envs.close)
        model = make_model(config, envs, device, process_group, weights=job.checkpoint)
        check_same_weights(model.policy, process_group)
        if job.checkpoint is not None:
            load_checkpoint(model, job.checkpoint)
        run = open_run_folder(job, envs, process_group, cleanup)
        RLTrainer(job, model, envs, run).learn()
    return run if process_group.is_first else None
