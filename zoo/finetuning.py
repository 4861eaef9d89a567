"""A supervised fine-tuning run: dataset to policy, then its evaluation, into a run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed
from torch import Tensor

from vla_gym import VLAVectorEnv
from vla_gym.errors import BadValue
from vla_gym.specs import StartState
from vla_policies import VLAPolicy
from vla_policies.noise import Noise, SlotNoise
from zoo.augmentation import augmented
from zoo.batch_plan import benchmark_of, check_dealing
from zoo.best_keeper import BestKeeper
from zoo.config import RunConfig
from zoo.demonstrations import Demonstration
from zoo.evaluator import make_evaluation_envs, own_cells
from zoo.imitation import Frames, ImitationScorer, batches, frames_of
from zoo.learner import Learner
from zoo.lerobot_reader import read_dataset
from zoo.ranks import Ranks, join, launched_processes
from zoo.runs import RunFolder, create_run_folder, describe_run
from zoo.shares import own_block
from zoo.training import say_nothing, warnings_as_lines
from zoo.writers import JsonLines, TensorBoard

_LINES = 20
"""Losses shown on the screen."""


@dataclass(frozen=True, kw_only=True)
class FinetuningRequest:
    """Everything a fine-tuning run is told."""

    config: RunConfig
    """Environment, policy, seed, device; `n_timesteps` counts updates here."""
    dataset: Path
    """LeRobotDataset folder."""
    episodes: int | None
    """How many of its episodes; None = all."""
    batch_size: int
    """Frames per update, all ranks together."""
    micro_batch_size: int | None
    """Frames in the network at a time, gradients gathered; None = all of an update's."""
    learning_rate: float
    """At the start; goes down to 0 in a straight line."""
    max_grad_norm: float
    """Gradients longer than this are cut."""
    augment: bool
    """Change pictures at random, see `zoo.augmentation`?"""
    log_folder: Path
    """Where the run folder goes."""
    command: Sequence[str]
    """The command line, for `command.txt`."""
    args: Mapping[str, Any]
    """Its parsed flags, for `args.yml`."""


def finetune(request: FinetuningRequest, say: Callable[[str], None]) -> RunFolder | None:
    """Run it; `say` gets each line for the screen.

    Returns the run folder, its policy in `best/`, to the rank that writes, None to others. Raises `BadValue` for a
    dataset that does not fit the environment or the policy, and for frames that ranks cannot share evenly.
    """
    check_dealing(request.batch_size, launched_processes())
    if request.config.num_threads is not None:
        torch.set_num_threads(request.config.num_threads)
    ranks, device = join(request.config.device)
    # Where the seed was drawn every rank has drawn its own.
    config = replace(request.config, seed=ranks.firsts(request.config.seed))
    request = replace(request, config=config)
    say = say if ranks.is_first else say_nothing
    shown = read_dataset(request.dataset, request.episodes)
    set_random_seed(config.seed)
    with ExitStack() as cleanup:
        cleanup.enter_context(warnings_as_lines(say))
        cells = own_cells(config, benchmark_of(config).tasks, ranks)
        envs = make_evaluation_envs(config, cells, ranks)
        cleanup.callback(envs.close)
        policy = _make_policy(request, envs).to(device)
        frames = frames_of(shown, envs.chunk)
        check_fits(shown, policy, request.dataset)
        keeper = _keeper(request, policy, envs, cells, ranks, say)
        cleanup.callback(keeper.logger.close)
        run = keeper.run
        say(
            f"SFT on {config.env} with {config.policy}: {len(shown)} episodes, {len(frames)} frames, chunks of "
            f"{envs.chunk}, {config.n_timesteps} updates of {request.batch_size}, seed {config.seed} -> {run.path}"
        )
        imitate(policy, frames, request, keeper)
        if keeper.best:
            say(keeper.table())
    say(
        f"policy      {run.best}\nnext:\n"
        f"  python -m zoo.train --algo ppo --env {config.env} --policy {run.best}\n"
        f"  python -m zoo.evaluate -i {run.path}"
    )
    return run if ranks.is_first else None


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


def imitate(
    policy: VLAPolicy,
    frames: Frames,
    request: FinetuningRequest,
    keeper: BestKeeper,
) -> None:
    """The updates: every frame once in random order, then once more, at a rate that falls to 0."""
    total, began = request.config.n_timesteps, time.perf_counter()
    learner = Learner(ImitationScorer(policy), policy.optimizer, request.max_grad_norm)
    order = batches(len(frames), request.batch_size, torch.Generator().manual_seed(request.config.seed))
    for update in range(total):
        rate = request.learning_rate * (1.0 - update / total)
        for group in learner.raw_optimizer.param_groups:
            group["lr"] = rate
        loss, norm = _step(learner, policy, _Batch(frames, next(order), update), request, keeper.ranks)
        done = update + 1
        keeper.logger.record("train/loss", loss)
        keeper.logger.record("train/actor/grad_norm", norm)
        keeper.logger.record("train/actor/lr", rate)
        if done % max(1, total // _LINES) == 0 or done == total:
            keeper.say(f"{done:>8} of {total}   loss {loss:.3f}   {time.perf_counter() - began:.0f} s")
        if keeper.is_due(done):
            learner.hand_over()
            keeper.look(done)
        keeper.logger.dump(done)


@dataclass(frozen=True)
class _Batch:
    """The frames of one update, of all ranks."""

    frames: Frames
    """The whole dataset."""
    index_B: Tensor
    """Which of them."""
    update: int
    """Number of the update."""

    def part(self, place_P: Tensor, request: FinetuningRequest, policy: VLAPolicy) -> tuple[Frames, Noise]:
        """The frames at some places of the batch, on the policy's device, and what their losses draw from.

        What is drawn follows from (seed, update, place), so neither ranks nor parts change it.
        """
        noise = SlotNoise(request.config.seed, (self.update, 0), place_P.numpy())
        picked = self.frames.pick(self.index_B[place_P], policy.device)
        if request.augment:
            picked = replace(picked, obs=augmented(picked.obs, policy.conventions.cameras, noise))
        return picked, noise


def _step(
    learner: Learner, policy: VLAPolicy, batch: _Batch, request: FinetuningRequest, ranks: Ranks
) -> tuple[float, float]:
    """One optimiser step on the batch, this rank's block of it in parts.

    Returns the loss of the whole batch, and the gradient's norm before it is cut.
    """
    size = len(batch.index_B)
    own_P = torch.arange(size)[own_block(size, ranks)]
    parts = own_P.split(request.micro_batch_size or size)
    mask_BK = batch.frames.mask_BK[batch.index_B]
    learner.policy.set_training_mode(True)  # type: ignore[operator]
    learner.begin()
    loss = 0.0
    for number, place_P in enumerate(parts, start=1):
        with learner.part(last=number == len(parts)):
            # A part's loss is the mean over its actions; weighed so, all parts give the mean over the update's.
            share = float(mask_BK[place_P].sum() / mask_BK.sum())
            scored: Any = learner.score(*batch.part(place_P, request, policy)) * share
            # Gradients are averaged over ranks, not summed.
            learner.backward(scored * ranks.size)
        loss += scored.item()
    return float(ranks.total(torch.tensor([loss]))), float(learner.apply()[0])


def _make_policy(request: FinetuningRequest, envs: VLAVectorEnv) -> VLAPolicy:
    config = request.config
    suites = {task.suite for task in envs.benchmark.tasks}
    return VLAPolicy(
        envs.layout.bytes_space(),
        envs.single_action_space,
        lambda _: request.learning_rate,
        **{
            "backbone": config.policy,
            "action_spec": envs.benchmark.action_spec,
            "suite": suites.pop() if len(suites) == 1 else None,
            **config.policy_kwargs,
        },
    )


def _keeper(
    request: FinetuningRequest,
    policy: VLAPolicy,
    envs: VLAVectorEnv,
    cells: Sequence[StartState],
    ranks: Ranks,
    say: Callable[[str], None],
) -> BestKeeper:
    """What evaluates and writes, with a new run folder."""
    run = _open_run_folder(request, envs, ranks)
    outputs = [JsonLines(run.path), TensorBoard(run.path)] if ranks.is_first else []
    return BestKeeper(
        config=request.config,
        dataset=request.dataset,
        policy=policy,
        envs=envs,
        cells=cells,
        ranks=ranks,
        run=run,
        logger=Logger(folder=None, output_formats=outputs),
        say=say,
    )


def _open_run_folder(request: FinetuningRequest, envs: VLAVectorEnv, ranks: Ranks) -> RunFolder:
    """A new folder, described, by rank 0 for all."""
    path = None
    if ranks.is_first:
        run = create_run_folder(request.log_folder, "sft", request.config.env)
        describe_run(
            run, config=request.config, args=request.args, command=request.command, protocol=envs.protocol()
        )
        path = str(run.path)
    return RunFolder(Path(ranks.firsts(path)))
