"""Memory estimates against what is really allocated, and against sums by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from vla_gym import VLAVectorEnv, make_vec
from zoo import PPO
from zoo.config.batch_plan import benchmark_of, solve
from zoo.config.memory_plan import GIB, Need, need_lines, policy_needs, rollout_needs, simulator_needs, total
from zoo.config.run_config import RunConfig

TOY = RunConfig(
    algo="ppo",
    env="Toy-Reach",
    policy="nano",
    n_timesteps=1000,
    num_envs=4,
    seed=0,
    env_options={"chunk": 4, "image_size": 32},
    policy_kwargs={"backbone_kwargs": {"size": "tiny"}},
    algo_kwargs={"n_steps": 3, "batch_size": 12, "n_epochs": 1},
)


@pytest.fixture
def envs() -> Iterator[VLAVectorEnv]:
    made = make_vec("Toy-Reach", 4, chunk=4, image_size=32, seed=0)
    yield made
    made.close()


def test_the_rollout_buffer_and_the_policy_are_as_large_as_estimated(envs: VLAVectorEnv):
    model = PPO(
        "VLAPolicy",
        envs,
        **TOY.algo_kwargs,
        seed=0,
        policy_kwargs={"backbone": "nano", "backbone_kwargs": {"size": "tiny"}},
    )
    model.learn(1)
    buffer = model.chunk_buffer
    plan, benchmark = solve(TOY), benchmark_of(TOY)
    held = [one for one in vars(buffer).values() if isinstance(one, torch.Tensor)]
    held += [*buffer.obs.values(), *buffer.record.values()]
    real = sum(one.numel() * one.element_size() for one in held)
    assert total(rollout_needs(plan, TOY, benchmark), "host") == pytest.approx(real, rel=0.01)
    parameters = sum(one.numel() for one in model.policy.parameters())
    assert total(policy_needs(plan, TOY, benchmark), "device") == 16 * parameters


def test_grpo_that_resamples_holds_one_round_more():
    def held(**algo_kwargs: object) -> int:
        options = {"chunk": 4, "image_size": 32, "group_size": 2}
        kwargs = {"rollouts_per_update": 3, "batch_size": 12, **algo_kwargs}
        config = RunConfig(**{**_fields(TOY), "algo": "grpo", "env_options": options, "algo_kwargs": kwargs})
        return total(rollout_needs(solve(config), config, benchmark_of(config)), "host")

    # Three rounds are kept; a fourth is where new groups are tried.
    assert 3 * held(resample_dead_groups=2) == 4 * held()


def test_simulators_are_counted_by_worker():
    config = RunConfig(
        algo="ppo",
        env="LIBERO-Spatial",
        policy="nano",
        n_timesteps=1,
        num_envs=8,
        seed=0,
        env_options={"chunk": 8},
    )
    plan = solve(config)
    # Two workers of 2.2 GB with a slot, and six further slots of 0.4 GB.
    (need,) = simulator_needs(plan, benchmark_of(config), 2)
    assert need == Need("host", "8 simulators in 2 workers", round(2 * 2.2e9 + 6 * 0.4e9))
    assert simulator_needs(solve(TOY), benchmark_of(TOY), 0) == []


def test_an_openvla_with_lora_is_counted_and_a_published_folder_is_not():
    oft = {"backbone_kwargs": {"size": "tiny", "lora": {"rank": 4}}}
    config = RunConfig(
        algo="ppo",
        env="LIBERO-Spatial",
        policy="openvla-oft",
        n_timesteps=1,
        num_envs=8,
        seed=0,
        env_options={"chunk": 8},
        policy_kwargs=oft,
        algo_kwargs={"n_steps": 4, "batch_size": 16},
    )
    lines = policy_needs(solve(config, num_ranks=4), config, benchmark_of(config))
    assert any("rank 4" in line.what for line in lines)
    # A rank's share of a minibatch, 4 decisions, is what its passes hold.
    assert np.all([line.where == "device" for line in lines])
    assert policy_needs(solve(TOY), RunConfig(**{**_fields(TOY), "policy": "some/folder"}), benchmark_of(TOY)) == []


def test_lines_end_with_the_sums_of_each_place():
    lines = need_lines([Need("device", "a", GIB), Need("host", "b", 2 * GIB), Need("device", "c", GIB // 2)])
    assert [line.split() for line in lines[-2:]] == [
        ["1.500", "GiB", "device", "in", "all"],
        ["2.000", "GiB", "host", "in", "all"],
    ]


def _fields(config: RunConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in RunConfig.__dataclass_fields__}
