"""Loads a planned policy, or connects with its server, and starts its simulators; imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from gymnasium import spaces

import vla_gym
from vla_gym.make import make_pool
from vla_gym.specs import Benchmark
from vla_gym.system.extras import check_installed
from vla_gym.vector.protocol import EnvConfig, observation_layout
from vla_gym.vector.vector_env import VLAVectorEnv
from vla_gym.workers.pool import Pool
from vla_policies.policy import VLAPolicy
from zoo.cli.agent import RolloutPlan
from zoo.distributed.process_group import use_device
from zoo.evaluation.evaluator import EpisodeRecord, EvaluationEnv, Frame, Predictor, evaluate

if TYPE_CHECKING:
    from zoo.serving.client import RemotePolicy


def open_rollout(
    plan: RolloutPlan, *, every_step: bool = False, privileged: bool = False
) -> tuple[VLAPolicy | RemotePolicy, VLAVectorEnv]:
    """Load the policy, or connect with its server, then start the simulators; the caller closes the environment.

    A policy that cannot act as planned raises before any simulator starts. With `every_step` the environment is
    stepped by single actions, whatever the policy's chunk; with `privileged` it shows what experts read, too.
    """
    torch.manual_seed(plan.seed)
    if plan.num_threads is not None:
        torch.set_num_threads(plan.num_threads)
    device = use_device(plan.device)
    options = {**plan.env_options, **({"chunk": 1} if every_step else {}), "privileged": privileged}
    if plan.server is not None:
        from zoo.serving.client import RemotePolicy

        envs = vla_gym.make_vec(plan.env, plan.num_envs, autoreset_mode="disabled", **options)
        return RemotePolicy(plan.server.address, plan.server.declaration), envs
    loaded: list[VLAPolicy] = []

    def pool_after_policy(benchmark: Benchmark, config: EnvConfig) -> Pool:
        check_installed(benchmark)
        policy = VLAPolicy.from_pretrained(
            plan.policy,
            suite=plan.suite,
            action_spec=benchmark.action_spec,
            observation_space=observation_layout(benchmark, config).bytes_space(),
            action_space=spaces.Box(-1.0, 1.0, (plan.env_options.get("chunk", 1), benchmark.action_dim)),
            device=device,
            to_act=True,
            **plan.policy_kwargs,
        )
        policy.set_training_mode(False)
        loaded.append(policy)
        return make_pool(benchmark, config)

    envs = vla_gym.make_vec(plan.env, plan.num_envs, autoreset_mode="disabled", pool=pool_after_policy, **options)
    (policy,) = loaded
    return policy, envs


def play(
    plan: RolloutPlan,
    policy: Predictor,
    envs: EvaluationEnv,
    *,
    on_frame: Callable[[Frame], None] | None = None,
    on_episode: Callable[[EpisodeRecord], None] | None = None,
) -> list[EpisodeRecord]:
    """Play the plan's episodes by its protocol with the policy and the environment that `open_rollout` returned."""
    return evaluate(
        policy,
        envs,
        plan.start_states,
        deterministic=not plan.protocol.sample,
        rounds=plan.protocol.rounds,
        seed=plan.seed,
        on_frame=on_frame,
        on_episode=on_episode,
    )
