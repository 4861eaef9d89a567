"""`make_vec`: the only place that puts benchmark, start states, pool and vector environment together."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, get_args

from gymnasium.vector import AutoresetMode

from vla_gym.errors import BadValue, check_integer, check_known, shown
from vla_gym.observation import LARGEST_IMAGE, SMALLEST_IMAGE, check_instruction
from vla_gym.registry import find_benchmark, option_names
from vla_gym.specs import LONGEST_WAIT, Benchmark, RewardKind, RewardRule
from vla_gym.system.extras import check_installed
from vla_gym.system.limits import num_cores
from vla_gym.vector.protocol import EnvConfig, Instructions, changed_instructions, observation_layout, with_instructions
from vla_gym.vector.start_states import make_schedule
from vla_gym.vector.vector_env import VLAVectorEnv
from vla_gym.workers.batch_pool import BatchPool
from vla_gym.workers.messages import MemoryLayout, SubEnvSetup
from vla_gym.workers.pool import LocalPool, OnWorkerError, Pool
from vla_gym.workers.process_pool import (
    ProcessPool,
    simulator_environment,
    worker_environment,
)

AUTORESET_MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


def make_vec(
    env_id: str | Benchmark,
    num_envs: int = 1,
    *,
    chunk: int = 1,
    group_size: int = 1,
    split: str | None = None,
    schedule: str = "random",
    image_size: int | None = None,
    wrist_camera: bool = False,
    state: bool = True,
    privileged: bool = False,
    instructions: Instructions | None = None,
    seed: int = 0,
    num_workers: int | None = None,
    pipeline_stages: int = 1,
    autoreset_mode: str | AutoresetMode = "next_step",
    reward: RewardKind = "sparse",
    reward_scale: float = 1.0,
    group_offset: int = 0,
    num_groups: int | None = None,
    on_worker_error: OnWorkerError = "raise",
    step_timeout: float = 120.0,
    reset_timeout: float = 600.0,
    draw_every: int = 1,
    render_mode: str | None = None,
    pool: Callable[[Benchmark, EnvConfig], Pool] | None = None,
    **family_options: Any,
) -> VLAVectorEnv:
    """Make `num_envs` environments of an id (see `list_envs`) as one vector environment.

    Args:
        env_id: for example "LIBERO-Spatial", "LIBERO-Spatial/3" (one task) or "Toy-Reach"; or a
            `Benchmark`, which has its split and its family's options already.
        num_envs: N.
        chunk: K, simulator steps that one `step` (one decision) may run.
        group_size: G adjacent environments always share their start state; must divide `num_envs`.
        split: which start states; "train" by default.
        schedule: "random" draws every episode's (task, trial) uniformly; "grid" plays all of them exactly
            once (once per member with `group_size`), then environments are idle.
        image_size: side of the square images, pixels; the benchmark's own by default.
        wrist_camera: add `wrist_image`.
        state: include `state`, where the benchmark has one.
        privileged: add `privileged`, the whole state as scripted experts read it, where the benchmark has it.
        instructions: other words for some tasks, `{task name: text}` or a function of the `Task`; recorded in
            `protocol()`.
        seed: of the schedule; `reset(seed=...)` starts it anew.
        num_workers: worker processes, at most `num_envs`. Default: one per CPU core, or none (everything runs in
            this process) for a benchmark so cheap that processes would slow it down. 0 means none.
        pipeline_stages: equal parts of the environments, groups whole, that can be stepped independently
            (`envs.stages`), so that one simulates while the policy decides for another; every worker has some of each.
        autoreset_mode: "next_step", "same_step" or "disabled", or Gymnasium's enum.
        reward: "sparse", "differenced" or "step_penalty"; see `vla_gym.specs.RewardRule`.
        reward_scale: factor of the benchmark's reward.
        group_offset: global number of this rank's first group; ranks share one schedule by it.
        num_groups: groups over all ranks; needed for a grid with a `group_offset`.
        on_worker_error: "raise" `WorkerFailed`, or "restart" the worker and mark its episodes `lost`.
        step_timeout: seconds a worker may take for one chunk before it counts as hung.
        reset_timeout: seconds it may take to start, to reset or to replay.
        draw_every: simulator steps of an episode from one drawn observation to the next; between them all of it but
            `privileged` stays as it was. For experts, who do without images. GPU physics draws every one.
        render_mode: None or "rgb_array", which `render()` always gives.
        pool: starts the pool that runs the environments; by default `make_pool`, on this machine.
        family_options: the benchmark's own options, such as LIBERO's `protocol`.

    Raises:
        UnknownName: for an id, option or choice that does not exist; names the nearest one.
        BadValue: for a number outside what is allowed.
        MissingDependency: when the simulator is not installed or cannot render here.
        WorkerFailed: when a worker does not start.
    """
    check_known("render mode", render_mode or "rgb_array", ("rgb_array",))
    check_known("on_worker_error", on_worker_error, get_args(OnWorkerError))
    check_known("reward", reward, get_args(RewardKind))
    if not isinstance(autoreset_mode, AutoresetMode):
        check_known("autoreset mode", autoreset_mode, AUTORESET_MODES)
        autoreset_mode = AUTORESET_MODES[autoreset_mode]
    for name, flag in (("state", state), ("privileged", privileged), ("wrist_camera", wrist_camera)):
        if not isinstance(flag, bool):
            raise BadValue(f"{name} must be True or False, got {shown(flag)}")
    check_integer("num_envs", num_envs, 1)
    check_integer("chunk", chunk, 1)
    own = _benchmark(env_id, split, family_options)
    benchmark = own if instructions is None else with_instructions(own, instructions)
    if privileged and not benchmark.privileged_dim:
        raise BadValue(f"{benchmark.id} gives no privileged observation; docs/demonstrations.md lists what does")
    if wrist_camera and "wrist_image" not in benchmark.cameras:
        raise BadValue(f"{benchmark.id} has no wrist camera; it has {', '.join(benchmark.cameras)}")
    if reward == "differenced" and benchmark.pays_differences:
        raise BadValue(
            f"{benchmark.id} pays the change of its reward already; reward must be 'sparse' or 'step_penalty', "
            f"got '{reward}'"
        )
    benchmark = dataclasses.replace(
        benchmark,
        state_dim=benchmark.state_dim * state,
        privileged_dim=benchmark.privileged_dim * privileged,
    )
    if image_size is None:
        image_size = benchmark.default_image_size
    if num_workers is None:
        num_workers = 0 if benchmark.in_process else num_cores()
    starts = make_schedule(
        schedule,
        benchmark.tasks,
        num_envs=num_envs,
        group_size=group_size,
        group_offset=group_offset,
        num_groups=num_groups,
        seed=seed,
    )
    config = EnvConfig(
        num_envs=num_envs,
        chunk=chunk,
        group_size=group_size,
        group_offset=group_offset,
        split=benchmark.split,
        schedule=schedule,
        image_size=check_integer("image_size", image_size, SMALLEST_IMAGE, LARGEST_IMAGE, note="pixels"),
        cameras=tuple(name for name in benchmark.cameras if wrist_camera or name != "wrist_image"),
        num_workers=min(check_integer("num_workers", num_workers, 0, note="0: no processes"), num_envs),
        pipeline_stages=check_stages(pipeline_stages, num_envs=num_envs, group_size=group_size),
        autoreset_mode=autoreset_mode,
        reward=RewardRule(kind=reward, scale=_positive("reward_scale", reward_scale)),
        on_worker_error=on_worker_error,
        step_timeout=_positive("step_timeout", step_timeout, LONGEST_WAIT),
        reset_timeout=_positive("reset_timeout", reset_timeout, LONGEST_WAIT),
        draw_every=check_integer("draw_every", draw_every, 1),
        options=dict(family_options),
        own_instructions=changed_instructions(own, benchmark),
    )
    return VLAVectorEnv(benchmark, config, starts, (pool or make_pool)(benchmark, config))


def sub_env_setup(benchmark: Benchmark, config: EnvConfig) -> SubEnvSetup:
    """Setup of every sub-environment."""
    return SubEnvSetup(
        env_id=benchmark.id,
        simulator=benchmark.simulator,
        simulator_kwargs=benchmark.simulator_kwargs,
        tasks=benchmark.tasks,
        rule=config.reward,
        draw_every=config.draw_every,
        memory=MemoryLayout(
            num_slots=config.num_envs,
            chunk=config.chunk,
            action_dim=benchmark.action_dim,
            observation=observation_layout(benchmark, config),
        ),
    )


def make_pool(benchmark: Benchmark, config: EnvConfig) -> Pool:
    """Start the pool on this machine: in this process, in one batch, or in worker processes."""
    check_installed(benchmark)
    for task in benchmark.tasks:
        check_instruction(task.instruction)
    setup = sub_env_setup(benchmark, config)
    if benchmark.batched or config.num_workers == 0:
        os.environ.update(simulator_environment(benchmark, os.environ))
        if benchmark.batched:
            return BatchPool(setup, num_workers=config.num_workers, num_stages=config.pipeline_stages)
        return LocalPool(setup, on_worker_error=config.on_worker_error)
    environments = [
        worker_environment(benchmark, os.environ, worker=worker, num_workers=config.num_workers)
        for worker in range(config.num_workers)
    ]
    return ProcessPool(
        setup,
        environments,
        step_timeout=config.step_timeout,
        reset_timeout=config.reset_timeout,
        on_worker_error=config.on_worker_error,
        num_stages=config.pipeline_stages,
    )


def known_options(env_id: str) -> set[str]:
    """Names of the arguments of `make_vec` for an id, its family's options among them; raises as `find_benchmark`."""
    return {*inspect.signature(make_vec).parameters, *option_names(env_id)} - {"family_options"}


def _benchmark(env_id: str | Benchmark, split: str | None, options: Mapping[str, Any]) -> Benchmark:
    if isinstance(env_id, str):
        known = known_options(env_id)
        for option in options:
            check_known(f"option of {env_id}", option, known)
        return find_benchmark(env_id, split="train" if split is None else split, **options)
    if not isinstance(env_id, Benchmark):
        raise BadValue(f"env_id must be an environment id such as 'Toy-Reach', or a Benchmark, got {shown(env_id)}")
    if options:
        raise BadValue(f"{env_id.id} was given as a Benchmark, which takes no {', '.join(sorted(options))}")
    if split not in (None, env_id.split):
        raise BadValue(
            f"{env_id.id} was given as a Benchmark of split '{env_id.split}', so split must be left out, got "
            f"{shown(split)}; vla_gym.find_benchmark({env_id.id!r}, split=...) makes another"
        )
    return env_id


def check_stages(stages: int, *, num_envs: int, group_size: int) -> int:
    """Return `stages` if so many equal parts cut no group, else raise `BadValue`."""
    check_integer("pipeline_stages", stages, 1)
    part = stages * group_size
    if num_envs % part:
        near = max(part, round(num_envs / part) * part)
        fitting = [count for count in range(1, num_envs // group_size + 1) if num_envs % (count * group_size) == 0]
        raise BadValue(
            f"num_envs={num_envs} is not a multiple of pipeline_stages x group_size = {stages} x {group_size}: stages "
            f"are of equal size and keep groups whole. Nearest allowed: num_envs={near}, or pipeline_stages="
            f"{min(fitting, key=lambda count: abs(count - stages))}"
        )
    return stages


def _positive(name: str, value: float, most: float = sys.float_info.max) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 < value <= most:
        raise BadValue(f"{name} must be a number > 0, at most {most:g}, got {shown(value)}")
    return float(value)
