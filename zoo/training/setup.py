"""The parts of a training run: processes, environments, algorithm, policy, run folder, log."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from gymnasium.vector import VectorWrapper

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.errors import BadValue, WorkerRestarted
from vla_gym.observation import encode_instruction
from vla_policies import VLAPolicy
from vla_policies.actions.noise import SlotNoise
from vla_policies.resolver import PolicyRef
from zoo.config.advice import TrainingWarning
from zoo.config.algorithm_configs import ALGORITHMS
from zoo.config.gym_packages import asked_packages, built, import_parts
from zoo.config.run_config import RunConfig
from zoo.config.settings import build_schedule
from zoo.distributed.fsdp import fsdp_requested, launch_in_words, will_shard
from zoo.distributed.process_group import (
    ProcessGroup,
    check_same_command,
    join,
)
from zoo.files import quoted, read_json, recover_folders
from zoo.runs.evaluations import policy_line
from zoo.runs.folder import PROTOCOL_FILE, RunFolder, create_run_folder, describe_machine, describe_run, locked
from zoo.runs.progress import silent
from zoo.training.run_plan import RunPlan, TrainJob
from zoo.training.start_weights import start_record

_logger = logging.getLogger(__name__)

HALF_PAYS, DECISIONS_MEASURED = 0.8, 6
"""See `splitting_pays`: the first decisions of a size load kernels and record them."""
ENV_DEFAULTS: dict[str, Any] = {"on_worker_error": "restart"}
"""Options of training's environments where the run gives none: days of work outlive a simulator's death."""


def join_run(job: TrainJob) -> tuple[TrainJob, ProcessGroup, torch.device]:
    """Meet the run's other processes; return the job with rank 0's seed, where each may have drawn its own."""
    if job.config.num_threads is not None:
        torch.set_num_threads(job.config.num_threads)
    process_group, device = join(job.config.device, timedelta(minutes=job.config.rank_timeout))
    check_same_command(job.config, None if job.resume is None else job.resume.step, process_group)
    config = replace(job.config, seed=process_group.broadcast_object(job.config.seed))
    return replace(job, config=config), process_group, device


def training_share(config: RunConfig, process_group: ProcessGroup) -> dict[str, Any]:
    """Arguments of `make_vec` for this rank: whole groups, equally many on every rank, one schedule over all."""
    groups = config.num_envs // config.group_size // process_group.size
    return {
        "num_envs": groups * config.group_size,
        "group_offset": process_group.rank * groups,
        "num_groups": process_group.size * groups,
    }


def make_envs(config: RunConfig, cleanup: ExitStack, **options: Any) -> VLAVectorEnv:
    """Return the run's environments with `options` over its own; `cleanup` closes them."""
    envs = make_vec(config.env, seed=config.seed, **{**ENV_DEFAULTS, **config.env_options, **options})
    cleanup.callback(envs.close)
    return envs


def make_model(job: TrainJob, envs: VLAVectorEnv, device: torch.device, process_group: ProcessGroup) -> Any:
    """Return the algorithm with the policy that the run starts from, seeded.

    Raises `UnknownName` or `BadValue` for settings that the policy or the algorithm refuses.
    """
    config = job.config
    if config.offload_idle and fsdp_requested():
        raise BadValue("--offload-idle moves whole optimisers; for FSDP set fsdp_offload_params: true instead")
    module, _, class_name = ALGORITHMS[config.algo].implementation.partition(":")
    algorithm = getattr(import_module(module), class_name)
    settings = {name: build_schedule(value) for name, value in config.algo_kwargs.items()}
    wrapped: Any = envs
    for wrapper in import_parts(config.env_wrapper, "env_wrapper"):
        wrapped = built(wrapper, "env_wrapper", VectorWrapper, wrapped)
    model: Any = algorithm(
        "VLAPolicy",
        wrapped,
        seed=config.seed,
        device=device,
        policy_kwargs=policy_arguments(config, job.policy),
        process_group=process_group,
        **settings,
    )
    model.offload_idle = config.offload_idle
    if job.checkpoint is None:
        model.check_reference_at_start()
    return model


def splitting_pays(policy: VLAPolicy, num_envs: int) -> bool:
    """Whether the policy decides for half of `num_envs` at most in `HALF_PAYS` of the time that it takes for all.

    In one part the environments wait for that, in two only for a half's decision while they would simulate: else all
    that two parts bring is twice the decisions.
    """

    def seconds(num: int) -> float:
        obs = {name: np.zeros((num, *space.shape), space.dtype) for name, space in spaces.items()}
        obs["instruction"][:] = encode_instruction("pick up the block and place it on the plate")
        took = []
        for _ in range(DECISIONS_MEASURED):
            start = time.perf_counter()
            policy.predict_with_noise(obs, SlotNoise(0, (0, 0), np.arange(num)))
            took.append(time.perf_counter() - start)
        return min(took)

    spaces: Any = policy.observation_space
    return seconds(num_envs // 2) <= HALF_PAYS * seconds(num_envs)


def keep_stages_that_pay(model: Any) -> None:
    """Step the environments in one part where `splitting_pays` measures that two do not pay; every rank of the model's
    group must call it."""
    envs, group = model.envs, model.process_group
    if envs.config.pipeline_stages > 1:
        pays = group.is_first and splitting_pays(model.policy, envs.num_envs)
        if not group.broadcast_object(pays):
            envs.config = replace(envs.config, pipeline_stages=1)
            _logger.info("stages       1, as deciding for half of them takes as long")


def use_memory(model: Any, plan: RunPlan, free: int) -> None:
    """Choose what the run does not say itself for a GPU that had `free` bytes before the model came: decisions scored
    at once and whether activations are computed again, the same on every rank, and room for kept features."""
    free, backbone = min(model.process_group.all_gather_object(free)), model.policy.backbone
    choice = plan.chosen(free, sharded=will_shard())
    if choice is None:
        return
    model.micro_batch_size = choice.micro_batch_size
    for on in choice.options.values():
        backbone.set_recompute(bool(on))
    if not will_shard():
        backbone.keep_features(max(0, free - choice.size))
    _logger.info(f"chosen       by the GPU's free memory: {choice.words()}")


def policy_arguments(config: RunConfig, policy: PolicyRef) -> dict[str, Any]:
    """Return keyword arguments of `VLAPolicy`; how the policy's folder is read, `policy` says instead of them."""
    benchmark = config.benchmark
    policy = policy.reading(suite=benchmark.suite, action_spec=benchmark.action_spec)
    return {**config.policy_kwargs, "backbone": policy}


def open_run_folder(job: TrainJob, envs: VLAVectorEnv, process_group: ProcessGroup, cleanup: ExitStack) -> RunFolder:
    """A new folder, or the resumed run's own; described either way, by rank 0 for all, and locked until `cleanup`.

    Raises `BadValue` where another process trains in it.
    """
    path = str(_describe_folder(job, envs, cleanup).path) if process_group.is_first else None
    return RunFolder(Path(process_group.broadcast_object(path)))


def _describe_folder(job: TrainJob, envs: VLAVectorEnv, cleanup: ExitStack) -> RunFolder:
    config, instead, args = job.config, "", dict(job.args)
    own = job.resume if job.resume is not None and job.resume.in_place else None
    if own is not None:
        run = own.run
        if config.algo != "sft":
            instead = f", or start a new run from a checkpoint with -i {quoted(own.checkpoint)}"
    else:
        run = create_run_folder(job.log_folder, config.algo, config.env)
    alone = cleanup.enter_context(locked(run, instead))
    for parent in (run.path, run.checkpoints):
        recover_folders(parent, alone=alone)
    if own is not None and run.saved_steps()[-1:] != [own.step]:
        raise BadValue(f"another process went on with '{run.path}' while this one began; repeat the command")
    if job.resume is not None:
        # From one checkpoint: the new run's environment needs the former's packages, if it was to import them.
        args["gym_packages"] = asked_packages()
    machine, evaluation = describe_machine(config.device), {"env": config.eval_env, **config.evaluation.to_json()}
    protocol = envs.protocol() | {"machine": machine, "launch": launch_in_words(), "evaluation": evaluation}
    protocol["versions"] |= {"torch": torch.__version__}
    read_as = start_record(config, job.policy)
    _logger.info(policy_line(read_as))
    former = read_json(run.path / PROTOCOL_FILE) if own is not None else {}
    protocol["read_as"] = former.get("read_as", read_as)
    describe_run(run, config=config, args=args, command=job.command, protocol=protocol)
    return run


@contextmanager
def run_log(*, writes: bool) -> Iterator[None]:
    """Context manager in which the rank that `writes` logs, and the others are silent.

    A training warning, or a worker's restart, is logged as one line without a source position.
    """
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

    with silent(on=not writes), warnings.catch_warnings():
        # The training warnings limit their own rate.
        warnings.simplefilter("always", TrainingWarning)
        warnings.simplefilter("always", WorkerRestarted)
        warnings.showwarning = show
        yield
