"""A supervised fine-tuning run: dataset to policy, then its evaluation, into a run folder."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed

from vla_gym import VLAVectorEnv
from vla_gym.errors import BadValue
from vla_gym.specs import Benchmark, StartState
from vla_policies import VLAPolicy
from zoo.algorithms.training_warnings import TrainingWarning
from zoo.config.algorithm_configs import SFTConfig
from zoo.config.batch_plan import benchmark_of, check_dealing
from zoo.config.gym_packages import packages_flag, packages_of
from zoo.config.run_config import RunConfig, sft_config
from zoo.demonstrations.lerobot_reader import check_dataset, read_dataset
from zoo.demonstrations.recorder import Demonstration
from zoo.distributed.fsdp import check_precision
from zoo.distributed.process_group import ProcessGroup, join, launched_processes
from zoo.files import quoted
from zoo.imitation.checkpoint import FinetuningCheckpoints, load_finetuning
from zoo.imitation.finetuning_loop import FinetuningLoop
from zoo.imitation.objective import Frames, frames_of
from zoo.runs.folder import ARGS_FILE, RunFolder, create_run_folder, describe_run, locked
from zoo.runs.loggers import JsonLines, TensorBoard
from zoo.runs.lookup import ResumePoint
from zoo.runs.progress import silent
from zoo.training.best_keeper import BestKeeper
from zoo.training.callbacks import Stopped, StopSignals
from zoo.training.evaluation import make_evaluation_envs, own_cells
from zoo.training.setup import policy_arguments, warnings_as_lines

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FinetuningRequest:
    """Everything a fine-tuning run is told."""

    config: RunConfig
    """Environment, policy, seed, device, `SFTConfig`; what counts steps elsewhere counts updates here."""
    log_folder: Path
    """Where a new run folder goes."""
    command: Sequence[str]
    """The command line, for `command.txt`."""
    args: Mapping[str, Any]
    """Its parsed flags, for `args.yml`."""
    resume: ResumePoint | None = None
    """Where to go on from, in place."""

    @property
    def settings(self) -> SFTConfig:
        """What it learns, and how."""
        return sft_config(self.config)

    @property
    def done(self) -> int | None:
        """Updates made before; None for a new run."""
        return None if self.resume is None else self.resume.step


def finetune(request: FinetuningRequest) -> RunFolder | None:
    """Run it.

    Returns the run folder, its policy in `best/`, to the rank that writes (and alone logs), None to others. Raises
    `BadValue` for a dataset that does not fit the environment or the policy, and for frames that ranks cannot share
    evenly. SIGTERM, SIGUSR1 and Ctrl-C, which raises `KeyboardInterrupt`, leave a checkpoint to go on from.
    """
    settings = request.settings
    check_dealing(settings.batch_size, launched_processes())
    if request.config.num_threads is not None:
        torch.set_num_threads(request.config.num_threads)
    process_group, device = join(request.config.device)
    # Where the seed was drawn every rank has drawn its own.
    config = replace(request.config, seed=process_group.broadcast_object(request.config.seed))
    request = replace(request, config=config)
    groups = {folder: read_dataset(folder, settings.episodes) for folder in settings.folders}
    check_alike(groups)
    set_random_seed(config.seed)
    with ExitStack() as cleanup:
        cleanup.enter_context(silent(on=not process_group.is_first))
        cleanup.enter_context(warnings_as_lines())
        benchmark = benchmark_of(config)
        for folder in groups:
            check_rate(folder, benchmark)
        cells = own_cells(config, benchmark.tasks, process_group)
        envs = make_evaluation_envs(config, cells, process_group)
        cleanup.callback(envs.close)
        policy = _make_policy(request, envs).to(device)
        check_precision(policy)
        for folder in groups:
            check_fits(groups[folder], policy, folder)
        frames = frames_of([one for group in groups.values() for one in group], envs.chunk)
        num_episodes = sum(map(len, groups.values()))
        groups.clear()  # the frames hold all of it, which may be large
        if request.resume is not None:
            load_finetuning(policy, request.resume.checkpoint, frames)
        keeper = _keeper(request, policy, envs, cells, process_group, cleanup)
        cleanup.callback(keeper.logger.close)
        run = keeper.run
        _logger.info(_headline(request, run, num_episodes, frames))
        checkpoints = FinetuningCheckpoints(run, policy, process_group, frames)
        _learn(FinetuningLoop(frames, keeper, checkpoints, done=request.done or 0))
    return run if process_group.is_first else None


def _learn(loop: FinetuningLoop) -> None:
    """To the end or to a signal, and say what came of it."""
    keeper = loop.keeper
    run, env = keeper.run, keeper.config.env
    with StopSignals(loop.stop) as stop:
        try:
            loop.learn()
        except Stopped:
            _logger.info(f"stopped and saved; go on with: python -m zoo.sft -i {quoted(run.path)}")
            if stop.by_ctrl_c:
                raise KeyboardInterrupt from None
            return
    if keeper.config.eval_episodes and keeper.process_group.is_first:
        _logger.info(keeper.table())
    flag = packages_flag(packages_of(run.path / ARGS_FILE)) if keeper.process_group.is_first else ""
    _logger.info(
        f"policy      {run.best}\nnext:\n"
        f"  python -m zoo.train{flag} --algo ppo --env {env} --policy {quoted(run.best)}\n"
        f"  python -m zoo.evaluate -i {quoted(run.path)}"
    )


def check_alike(groups: Mapping[Path, Sequence[Demonstration]]) -> None:
    """Raise `BadValue` unless all datasets have the same cameras, picture sizes, and numbers in states and actions."""

    def shapes(group: Sequence[Demonstration]) -> dict[str, tuple[int, ...]]:
        columns = {**group[0].images, "state": group[0].state_TS, "action": group[0].action_TA}
        return {name: column.shape[1:] for name, column in columns.items()}

    (first, wanted), *others = ((folder, shapes(group)) for folder, group in groups.items())
    for folder, got in others:
        if got != wanted:
            raise BadValue(
                f"'{folder}' and '{first}' cannot be learned together: one has {_said(got)}, the other {_said(wanted)}"
            )


def _said(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())


def check_rate(folder: Path, benchmark: Benchmark) -> None:
    """Warn when the dataset has other steps in a second than the environment: its actions may be of another length."""
    fps = check_dataset(folder).fps
    if round(fps) != round(benchmark.control_hz):
        warnings.warn(
            f"'{folder}' has {fps:g} frames per second, the environment {benchmark.control_hz:g} steps: each action "
            "becomes one step",
            TrainingWarning,
            stacklevel=2,
        )


def check_fits(shown: Sequence[Demonstration], policy: VLAPolicy, where: Path) -> None:
    """Raise `BadValue` when the demonstrations are of another arm, or lack what the policy reads."""
    wanted, one = policy.conventions, shown[0]
    if one.action_TA.shape[1] != wanted.action_dim:
        raise BadValue(
            f"'{where}' has actions of {one.action_TA.shape[1]} numbers, the environment takes {wanted.action_dim}"
        )
    if wanted.state_dim and one.state_TS.shape[1] != wanted.state_dim:
        raise BadValue(
            f"'{where}' has states of {one.state_TS.shape[1]} numbers, the policy reads {wanted.state_dim}"
        )
    missing = [camera for camera in wanted.cameras if camera not in one.images]
    if missing:
        raise BadValue(f"'{where}' has no camera '{missing[0]}', which the policy looks at")
    highest = max(float(abs(each.action_TA).max()) for each in shown)
    if highest > 1.0 + 1e-4:
        raise BadValue(
            f"'{where}' has actions up to {highest:.3g}; they must lie in [-1, 1], as the environment's do"
        )


def _make_policy(request: FinetuningRequest, envs: VLAVectorEnv) -> VLAPolicy:
    weights = None if request.resume is None else request.resume.checkpoint
    return VLAPolicy(
        envs.layout.bytes_space(),
        envs.single_action_space,
        lambda _: request.settings.learning_rate,
        **policy_arguments(request.config, envs, weights),
    )


def _keeper(
    request: FinetuningRequest,
    policy: VLAPolicy,
    envs: VLAVectorEnv,
    cells: Sequence[StartState],
    process_group: ProcessGroup,
    cleanup: ExitStack,
) -> BestKeeper:
    """What evaluates and writes, with its run folder."""
    run = _open_run_folder(request, envs, process_group, cleanup)
    outputs = [JsonLines, TensorBoard] if process_group.is_first else []
    formats = [one(run.path, keep_until=request.done) for one in outputs]
    return BestKeeper(
        config=request.config,
        dataset=", ".join(map(str, request.settings.folders)),
        policy=policy,
        envs=envs,
        cells=cells,
        process_group=process_group,
        run=run,
        logger=Logger(folder=None, output_formats=formats),
        keep_until=request.done,
    )


def _headline(request: FinetuningRequest, run: RunFolder, num_episodes: int, frames: Frames) -> str:
    config, chunk = request.config, frames.action_BKA.shape[1]
    start = f", going on at {request.done}" if request.done else ""
    return (
        f"SFT on {config.env} with {config.policy}: {num_episodes} episodes, {len(frames)} frames, chunks of {chunk}, "
        f"{config.n_timesteps} updates of {request.settings.batch_size}{start}, seed {config.seed} -> {run.path}"
    )


def _open_run_folder(
    request: FinetuningRequest, envs: VLAVectorEnv, process_group: ProcessGroup, cleanup: ExitStack
) -> RunFolder:
    """A new folder, or that of the run that goes on; described either way, by rank 0 for all, held until `cleanup`."""
    path = None
    if process_group.is_first:
        if request.resume is not None:
            run = request.resume.run
        else:
            run = create_run_folder(request.log_folder, "sft", request.config.env)
        cleanup.enter_context(locked(run))
        describe_run(
            run, config=request.config, args=request.args, command=request.command, protocol=envs.protocol()
        )
        path = str(run.path)
    return RunFolder(Path(process_group.broadcast_object(path)))
