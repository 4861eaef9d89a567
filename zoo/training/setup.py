"""The parts of a training run: algorithm, policy, run folder, warnings as lines."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import torch

from vla_gym import VLAVectorEnv
from vla_gym.errors import BadValue, WorkerRestarted
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.algorithms.training_warnings import TrainingWarning
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.gym_packages import packages_of
from zoo.config.run_config import RunConfig
from zoo.config.schedules import build_schedule
from zoo.distributed.fsdp import sharding_asked
from zoo.distributed.process_group import ProcessGroup
from zoo.files import quoted
from zoo.runs.folder import ARGS_FILE, RunFolder, create_run_folder, describe_run, locked
from zoo.training.trainer import TrainJob

_logger = logging.getLogger(__name__)

ENV_DEFAULTS: dict[str, Any] = {"on_worker_error": "restart"}
"""What training asks of its environments where the run does not say: days of work outlive a simulator's death."""


def make_model(
    config: RunConfig,
    envs: VLAVectorEnv,
    device: torch.device,
    process_group: ProcessGroup,
    *,
    weights: Path | None = None,
) -> VLAOnPolicyAlgorithm:
    """The algorithm with its policy, seeded; `weights` is a checkpoint that stands in for `config.policy`.

    Raises `UnknownName` or `BadValue` for settings that the policy or the algorithm refuses.
    """
    module, _, name = ALGORITHMS[config.algo].implementation.partition(":")
    algorithm = getattr(import_module(module), name)
    settings = {
        name: build_schedule(value, name) if isinstance(value, Mapping) else value
        for name, value in config.algo_kwargs.items()
    }
    model: VLAOnPolicyAlgorithm = algorithm(
        "VLAPolicy",
        envs,
        seed=config.seed,
        device=device,
        policy_kwargs=policy_arguments(config, envs, weights),
        process_group=process_group,
        **settings,
    )
    if config.offload_idle and sharding_asked():
        raise BadValue(
            "--offload-idle moves whole optimisers; for FSDP set fsdp_offload_params: true instead"
        )
    model.offload_idle = config.offload_idle
    return model


def policy_arguments(config: RunConfig, envs: VLAVectorEnv, weights: Path | None) -> dict[str, Any]:
    """Keyword arguments of `VLAPolicy`; `weights` is a checkpoint that stands in for `config.policy`."""
    options = dict(config.policy_kwargs)
    if weights is not None:
        # What a checkpoint says of itself, even when the folder its first weights came from is gone.
        for name in ("backbone_kwargs", "unnorm_key", "revision"):
            options.pop(name, None)
    suites = {task.suite for task in envs.benchmark.tasks}
    return {
        "backbone": config.policy if weights is None else str(weights),
        "action_spec": envs.benchmark.action_spec,
        "suite": suites.pop() if len(suites) == 1 else None,
        **options,
    }


def open_run_folder(
    job: TrainJob, envs: VLAVectorEnv, process_group: ProcessGroup, cleanup: ExitStack
) -> RunFolder:
    """A new folder, or the resumed run's own; described either way, by rank 0 for all, and locked until `cleanup`.

    Raises `BadValue` where another process trains in it.
    """
    path = str(_describe_folder(job, envs, cleanup).path) if process_group.is_first else None
    return RunFolder(Path(process_group.broadcast_object(path)))


def _describe_folder(job: TrainJob, envs: VLAVectorEnv, cleanup: ExitStack) -> RunFolder:
    config, instead, args = job.config, "", dict(job.args)
    if job.resume is not None and job.resume.in_place:
        run = job.resume.run
        if config.algo != "sft":
            instead = f", or start a new run from a checkpoint with -i {quoted(job.resume.checkpoint)}"
    else:
        run = create_run_folder(job.log_folder, config.algo, config.env)
    cleanup.enter_context(locked(run, instead))
    if job.resume is not None:
        # From one checkpoint: the new run's environment needs the former's packages.
        former = packages_of(job.resume.run.path / ARGS_FILE)
        args["gym_packages"] = list(dict.fromkeys([*former, *args.get("gym_packages", ())]))
    describe_run(run, config=config, args=args, command=job.command, protocol=envs.protocol())
    return run


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Context manager that logs a training warning, or a worker's restart, as one line without a source position."""
    former = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, TrainingWarning | WorkerRestarted):
            _logger.warning("warning: %s", message)
        else:
            former(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        # The alarms limit their own rate.
        warnings.simplefilter("always", TrainingWarning)
        warnings.simplefilter("always", WorkerRestarted)
        warnings.showwarning = show
        yield
