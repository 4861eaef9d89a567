"""A PPO or GRPO run from its job to its end, on every process that a launcher has started."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace

import torch

from vla_gym import make_vec
from zoo.distributed.agreement import check_same_command, check_same_weights
from zoo.distributed.process_group import check_device, join, training_share
from zoo.runs.folder import RunFolder
from zoo.runs.progress import silent
from zoo.training.checkpoint import load_checkpoint
from zoo.training.run_plan import RunPlan, starting_line
from zoo.training.setup import ENV_DEFAULTS, RLTrainer, make_model, open_run_folder, warnings_as_lines
from zoo.training.start_warnings import start_warnings
from zoo.training.trainer import TrainJob

_logger = logging.getLogger(__name__)


def train(job: TrainJob) -> RunFolder | None:
    """Run it. Returns the run folder to the rank that writes (and alone logs), None to others.

    A user's mistake that shows only while starting leaves no run folder behind. SIGTERM, Ctrl-C and the
    loss of a simulator leave a checkpoint to resume from.
    """
    if job.config.num_threads is not None:
        torch.set_num_threads(job.config.num_threads)
    # Processes that cannot share the work out say so before they meet.
    plan = RunPlan.resolve(job.config, accelerator=check_device(job.config.device).type != "cpu")
    process_group, device = join(job.config.device)
    check_same_command(job.config, None if job.resume is None else job.resume.step, process_group)
    # Where the seed was drawn every rank has drawn its own.
    config = replace(job.config, seed=process_group.broadcast_object(job.config.seed))
    # Machines differ in cores and GPUs: the first rank that decides chooses the stages for all.
    stages = process_group.all_gather_object(plan.batch.num_stages)[plan.placement.rollout[0]]
    job = replace(job, config=config)
    plan = replace(plan, config=config, batch=replace(plan.batch, num_stages=stages))
    if not plan.placement.everywhere:
        from zoo.training.roles import train_placed

        return train_placed(job, plan, process_group, device)
    with ExitStack() as cleanup:
        cleanup.enter_context(silent(on=not process_group.is_first))
        cleanup.enter_context(warnings_as_lines())
        _logger.info("\n".join(plan.lines()))
        for sentence in start_warnings(plan, job.resume):
            _logger.warning("warning: %s", sentence)
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
