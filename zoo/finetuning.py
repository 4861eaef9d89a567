"""A supervised fine-tuning run: dataset to policy, then its evaluation, into a run folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed
from torch import Tensor

from vla_gym import VLAVectorEnv, make_vec
from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from zoo.checkpoint import save_best
from zoo.config import RunConfig
from zoo.demonstrations import Demonstration
from zoo.devices import check_device
from zoo.evaluation import Episode, choose_cells, evaluate, overall_rate
from zoo.imitation import Frames, ImitationScorer, batches, frames_of
from zoo.learner import Learner
from zoo.lerobot_reader import read_dataset
from zoo.ranks import launched_processes
from zoo.results import evaluation_record, evaluation_table, protocol_line
from zoo.runs import EVALUATION_FILE, RunFolder, create_run_folder, describe_run
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
    """Frames per update."""
    micro_batch_size: int | None
    """Frames in the network at a time, gradients gathered; None = all of an update's."""
    learning_rate: float
    """At the start; goes down to 0 in a straight line."""
    max_grad_norm: float
    """Gradients longer than this are cut."""
    log_folder: Path
    """Where the run folder goes."""
    command: Sequence[str]
    """The command line, for `command.txt`."""
    args: Mapping[str, Any]
    """Its parsed flags, for `args.yml`."""


def finetune(request: FinetuningRequest, say: Callable[[str], None]) -> RunFolder:
    """Run it; `say` gets each line for the screen. Returns the run folder, its policy in `best/`."""
    if launched_processes() > 1:
        raise BadValue("zoo.sft trains in one process; start it with python -m zoo.sft")
    config = request.config
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = check_device(config.device)
    shown = read_dataset(request.dataset, request.episodes)
    set_random_seed(config.seed)
    with ExitStack() as cleanup:
        envs = make_vec(
            config.env,
            config.num_envs,
            autoreset_mode="disabled",
            on_worker_error="restart",
            **config.env_options,
        )
        cleanup.callback(envs.close)
        policy = _make_policy(request, envs).to(device)
        frames = frames_of(shown, envs.chunk)
        check_fits(shown, policy, request.dataset)
        run = create_run_folder(request.log_folder, "sft", config.env)
        describe_run(run, config=config, args=request.args, command=request.command, protocol=envs.protocol())
        logger = Logger(folder=str(run.path), output_formats=[JsonLines(run.path), TensorBoard(run.path)])
        cleanup.callback(logger.close)
        say(
            f"SFT on {config.env} with {config.policy}: {len(shown)} episodes, {len(frames)} frames, chunks of "
            f"{envs.chunk}, {config.n_timesteps} updates of {request.batch_size}, seed {config.seed} -> {run.path}"
        )
        imitate(policy, frames, request, logger, say)
        policy.set_training_mode(False)
        success = _evaluate(policy, envs, request, run, say) if config.eval_episodes else 0.0
        save_best(policy, run.best, success=success, num_timesteps=0)
    say(
        f"policy      {run.best}\nnext:\n"
        f"  python -m zoo.train --algo ppo --env {config.env} --policy {run.best}\n"
        f"  python -m zoo.evaluate -i {run.path}"
    )
    return run


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
    logger: Logger,
    say: Callable[[str], None],
) -> None:
    """The updates: every frame once in random order, then once more, at a rate that falls to 0."""
    total, began = request.config.n_timesteps, time.perf_counter()
    learner = Learner(ImitationScorer(policy), policy.optimizer, request.max_grad_norm)
    generator = torch.Generator().manual_seed(request.config.seed)
    policy.set_training_mode(True)
    for update, index_B in zip(
        range(total), batches(len(frames), request.batch_size, generator), strict=False
    ):
        rate = request.learning_rate * (1.0 - update / total)
        for group in policy.optimizer.param_groups:
            group["lr"] = rate
        loss, norm = _step(learner, frames, index_B, request.micro_batch_size, policy)
        done = update + 1
        logger.record("train/loss", loss)
        logger.record("train/actor/grad_norm", norm)
        logger.record("train/actor/lr", rate)
        logger.dump(done)
        if done % max(1, total // _LINES) == 0 or done == total:
            say(f"{done:>8} of {total}   loss {loss:.3f}   {time.perf_counter() - began:.0f} s")


def _step(
    learner: Learner, frames: Frames, index_B: Tensor, micro_batch_size: int | None, policy: VLAPolicy
) -> tuple[float, float]:
    """One optimiser step on frames `index_B`, in parts: the loss of all, and the gradient's norm before it is cut."""
    parts = index_B.split(micro_batch_size or len(index_B))
    num_actions, loss = frames.mask_BK[index_B].sum(), 0.0
    learner.begin()
    for number, part_B in enumerate(parts, start=1):
        with learner.part(last=number == len(parts)):
            # A part's loss is the mean over its actions; weighed so, all parts give the mean over the update's.
            share = float(frames.mask_BK[part_B].sum() / num_actions)
            scored: Any = learner.score(frames.pick(part_B, policy.device)) * share
            learner.backward(scored)
        loss += scored.item()
    return loss, float(learner.apply()[0])


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


def _evaluate(
    policy: VLAPolicy,
    envs: VLAVectorEnv,
    request: FinetuningRequest,
    run: RunFolder,
    say: Callable[[str], None],
) -> float:
    config, tasks = request.config, envs.benchmark.tasks
    episodes: list[Episode] = evaluate(policy, envs, choose_cells(tasks, config.eval_episodes))
    line = protocol_line(config.env, episodes, tasks, chunk=envs.chunk, deterministic=True)
    say(evaluation_table(episodes, tasks, line))
    record = evaluation_record(
        episodes,
        tasks,
        env_id=config.env,
        protocol=envs.protocol(),
        updates=config.n_timesteps,
        dataset=str(request.dataset),
        deterministic=True,
        summary=line,
    )
    (run.path / EVALUATION_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return overall_rate(episodes).mean
