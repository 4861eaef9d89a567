"""Whole iterations of PPO, random weights: where their seconds go, and what the card does in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import vla_gym
import zoo
from benchmarks.gpu.card import wait
from benchmarks.gpu.models import backbone_options
from benchmarks.gpu.policies import GIB, act_flop
from benchmarks.gpu.settings import Figures, Settings, Skipped
from vla_gym.errors import MissingDependency
from vla_gym.registry import find_benchmark
from vla_policies.footprint import Footprint
from vla_policies.registry import family_class

ENVS = {"LIBERO": "LIBERO-Spatial/0", "ManiSkill": "ManiSkill/PickCube"}
ITERATIONS = 3
"""The first one loads kernels, records graphs and has its arithmetic counted; the figures are the others' means."""
NEVER = 1000
"""Iterations between lines of the log, which would read the clock."""
ENOUGH_MEMORY = 60.0
"""GiB of a card on which activations of OpenVLA-OFT are kept."""


def training(family: str, settings: Settings) -> Figures:
    """Three iterations of PPO on LIBERO, then on ManiSkill."""
    figures: Figures = {}
    for name, env_id in ENVS.items():
        try:
            found = _iterations(family, env_id, settings)
        except MissingDependency as error:
            figures[name] = f"skipped: {error}"
            continue
        figures |= {f"{name}, {what}": value for what, value in found.items()}
    if all(isinstance(value, str) for value in figures.values()):
        raise Skipped("; ".join(map(str, figures.values())))
    return figures


def _iterations(family: str, env_id: str, settings: Settings) -> Figures:
    full, cuda = settings.size == "full", settings.device.type == "cuda"
    own = family_class(family).default_conventions
    envs = vla_gym.make_vec(
        env_id,
        settings.num_envs,
        chunk=8 if full else 4,
        image_size=own.image_size if full else 64,
        num_workers=settings.num_envs,
        wrist_camera="wrist_image" in {*own.cameras} & {*find_benchmark(env_id).cameras},
    )
    memory = settings.memory or (torch.cuda.get_device_properties(settings.device).total_memory / GIB if cuda else 0.0)
    options = backbone_options(family, settings.size, recompute=memory < ENOUGH_MEMORY)
    if "cameras" in options:
        options["cameras"] = list(envs.layout.cameras)
    rows = -(-settings.update_batch // settings.num_envs)
    decisions = rows * settings.num_envs
    try:
        with settings.device:  # seven billion random numbers are drawn where they stay
            model = zoo.PPO(
                "VLAPolicy",
                envs.as_sb3(),
                n_steps=rows,
                batch_size=decisions,
                micro_batch_size=settings.micro_batch,
                n_epochs=1,
                policy_kwargs={"backbone": family, "backbone_kwargs": options},
                seed=0,
                device=settings.device,
            )
        synced = [0.0]
        model.learner.sync_weights = _timed(model.learner.sync_weights, synced)  # type: ignore[method-assign]
        if cuda:
            torch.cuda.reset_peak_memory_stats(settings.device)
        with _counted_update(model) as counter:
            first = _seconds(lambda: model.learn(1, log_interval=NEVER), settings.device)
        model.clock.read(decisions=0, sim_steps=0)
        steps, synced[0] = model.num_timesteps, 0.0

        def rest() -> None:
            for _ in range(ITERATIONS - 1):
                model.learn(1, log_interval=NEVER, reset_num_timesteps=False)

        took = _seconds(rest, settings.device) / (ITERATIONS - 1)
        control = (model.num_timesteps - steps) / (ITERATIONS - 1)
        clock = model.clock.read(decisions=decisions, sim_steps=0)
        policy = model.policy
        flop = rows * act_flop(policy, dict(model._last_obs)) + counter.get_total_flops()
        figures: Figures = {
            "simulators": settings.num_envs,
            "decisions": decisions,
            "first iteration, s": first,
            "iteration, s": took,
            **{
                f"{what}, s": clock.get(f"time/{phase}_seconds", 0.0) / (ITERATIONS - 1)
                for what, phase in (("simulate", "env"), ("act", "policy"), ("update", "update"))
            },
            "sync, s": synced[0] / (ITERATIONS - 1),
            "control steps/s": control / took,
            "FLOP/s": flop / took,
        }
        counted = Footprint(family, policy.conventions, options)
        update = counted.update(settings.micro_batch, accumulates=True) + counted.act(settings.num_envs)
        planned = counted.frozen + 4 * counted.trained + max(update, counted.step())
        figures["planned peak, GiB"] = planned / GIB
        if cuda:
            figures["peak, GiB"] = torch.cuda.max_memory_allocated(settings.device) / GIB
        return figures
    finally:
        envs.close()


@contextmanager
def _counted_update(model: Any) -> Iterator[FlopCounterMode]:
    """Context manager in which the operations of the model's updates are counted."""
    counter, train = FlopCounterMode(display=False), model.train

    def counted() -> None:
        with counter:
            train()

    model.train = counted
    try:
        yield counter
    finally:
        del model.train


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    action()
    wait(device)
    return time.perf_counter() - start


def _timed(function: Callable[[], None], total: list[float]) -> Callable[[], None]:
    def timed() -> None:
        start = time.perf_counter()
        function()
        total[0] += time.perf_counter() - start

    return timed
