"""Loads a planned policy and starts its simulators; imports torch."""

from __future__ import annotations

import torch
from gymnasium import spaces

import vla_gym
from vla_gym.vector.vector_env import VLAVectorEnv
from vla_policies.policy import VLAPolicy
from zoo.cli.agent import RolloutPlan
from zoo.distributed.process_group import check_device


def open_rollout(
    plan: RolloutPlan, *, device: str, num_threads: int | None, seed: int, every_step: bool = False
) -> tuple[VLAPolicy, VLAVectorEnv]:
    """Make the environment and load the policy; the caller closes the environment.

    With `every_step` the environment is stepped by single actions, whatever the policy's chunk.
    """
    torch.manual_seed(seed)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    where = check_device(device)
    options = {**plan.env_options, **({"chunk": 1} if every_step else {})}
    envs = vla_gym.make_vec(plan.env, plan.num_envs, autoreset_mode="disabled", **options)
    shape_KA = (plan.env_options.get("chunk", 1), envs.benchmark.action_dim)
    try:
        policy = VLAPolicy.from_pretrained(
            plan.policy,
            unnorm_key=plan.unnorm_key,
            suite=plan.suite,
            action_spec=envs.benchmark.action_spec,
            observation_space=envs.as_sb3().observation_space,
            action_space=spaces.Box(-1.0, 1.0, shape_KA),
            device=where,
        )
    except BaseException:
        envs.close()
        raise
    policy.set_training_mode(False)
    return policy, envs
