"""One training run: environments, algorithm, run folder; `zoo.training.trainer` then trains."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import torch

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.errors import BadValue, LostRank, VLAZooError, WorkerRestarted
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.algorithms.training_warnings import TrainingWarning
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.gym_packages import packages_of
from zoo.config.run_config import RunConfig
from zoo.config.schedules import build_schedule
from zoo.distributed.devices import check_device
from zoo.distributed.fsdp import sharding_asked
from zoo.distributed.placement import parse_placement
from zoo.distributed.process_group import ProcessGroup, join
from zoo.distributed.shares import training_share
from zoo.files import quoted
from zoo.runs.folder import ARGS_FILE, RunFolder, create_run_folder, describe_run, locked
from zoo.runs.progress import silent
from zoo.training.checkpoint import load_checkpoint
from zoo.training.run_plan import arithmetic_lines, memory_lines, plan_of
from zoo.training.trainer import Session, TrainingRequest

_logger = logging.getLogger(__name__)

ENV_DEFAULTS: dict[str, Any] = {"on_worker_error": "restart"}
"""What training asks of its environments where the run does not say: days of work outlive a simulator's death."""


def train(request: TrainingRequest) -> RunFolder | None:
    """Run it. Returns the run folder to the rank that writes (and alone logs), None to others.

    A user's mistake that shows only while starting leaves no run folder behind. SIGTERM, Ctrl-C and the
    loss of a simulator leave a checkpoint to resume from.
    """
    if request.config.num_threads is not None:
        torch.set_num_threads(request.config.num_threads)
    # Processes that cannot share the work out say so before they meet.
    plan = plan_of(request.config, accelerator=check_device(request.config.device).type != "cpu")
    process_group, device = join(request.config.device)
    # Where the seed was drawn every rank has drawn its own.
    config = replace(request.config, seed=process_group.broadcast_object(request.config.seed))
    request = replace(request, config=config)
    placement = parse_placement(config.placement, process_group.size)
    if not placement.everywhere:
        from zoo.training.roles import train_placed

        return train_placed(request, placement, plan, process_group, device)
    with ExitStack() as cleanup:
        cleanup.enter_context(silent(on=not process_group.is_first))
        cleanup.enter_context(warnings_as_lines())
        _logger.info("\n".join([*arithmetic_lines(config, plan), *memory_lines(config, plan)]))
        envs = make_vec(
            config.env,
            seed=config.seed,
            pipeline_stages=plan.num_stages,
            **{**ENV_DEFAULTS, **config.env_options, **training_share(config, process_group)},
        )
        cleanup.callback(envs.close)
        weights = request.resume.checkpoint if request.resume is not None else None
        model = make_model(config, envs, device, weights=weights)
        if weights is not None:
            load_checkpoint(model, weights)
        run = open_run_folder(request, envs, process_group, cleanup)
        with removed_if_untrained(run, request, model):
            Session(request, model, envs, run).learn()
    return run if process_group.is_first else None


def make_model(
    config: RunConfig, envs: VLAVectorEnv, device: torch.device, *, weights: Path | None = None
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
    request: TrainingRequest, envs: VLAVectorEnv, process_group: ProcessGroup, cleanup: ExitStack
) -> RunFolder:
    """A new folder, or the resumed run's own; described either way, by rank 0 for all, and locked until `cleanup`.

    Raises `BadValue` where another process trains in it.
    """
    path = str(_describe_folder(request, envs, cleanup).path) if process_group.is_first else None
    return RunFolder(Path(process_group.broadcast_object(path)))


def _describe_folder(request: TrainingRequest, envs: VLAVectorEnv, cleanup: ExitStack) -> RunFolder:
    config, instead = request.config, ""
    if request.resume is not None and request.resume.in_place:
        run = request.resume.run
        instead = f", or start a new run from a checkpoint with -i {quoted(request.resume.checkpoint)}"
    else:
        run = create_run_folder(request.log_folder, config.algo, config.env)
    cleanup.enter_context(locked(run, instead))
    args = dict(request.args)
    if request.resume is not None:
        # From one checkpoint: the new run's environment needs the former's packages.
        former = packages_of(request.resume.run.path / ARGS_FILE)
        args["gym_packages"] = list(dict.fromkeys([*former, *args.get("gym_packages", ())]))
    describe_run(run, config=config, args=args, command=request.command, protocol=envs.protocol())
    return run


@contextmanager
def removed_if_untrained(
    run: RunFolder, request: TrainingRequest, model: VLAOnPolicyAlgorithm
) -> Iterator[None]:
    """A new run that fails before its first simulator step leaves no folder; whatever came of one stays."""
    try:
        yield
    except LostRank:
        raise
    except (VLAZooError, OSError):
        empty = model.num_timesteps == 0 and not run.best.exists() and not run.saved_steps()
        if model.process_group.is_first and request.resume is None and empty:
            shutil.rmtree(run.path)
        raise


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
