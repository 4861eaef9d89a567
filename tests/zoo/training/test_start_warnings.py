"""A run that is not likely to do what its user expects says so before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.zoo.stand_ins import toy_config
from zoo.config.run_config import RunConfig
from zoo.training import start_warnings as module
from zoo.training.run_plan import RunPlan
from zoo.training.start_warnings import hopeless_start, short_of_a_rollout, short_of_memory, start_warnings


def config(**changes: Any) -> RunConfig:
    settings = {"env": "MetaWorld/reach", "n_timesteps": 4096, "num_envs": 4, "device": "cpu"}
    return toy_config(**{**settings, "algo_kwargs": {"n_steps": 8}, "env_options": {"chunk": 4}, **changes})


def test_fresh_weights_on_a_robot_that_is_paid_for_success_alone() -> None:
    said = hopeless_start(config())
    assert said is not None
    assert said.startswith("'nano' means fresh weights, and MetaWorld/reach pays for success alone")
    assert "-params 'env_kwargs:{task_reward: dense}'" in said
    assert "zoo.collect --expert" in said


def test_an_agent_that_knows_the_task_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "agents_for", lambda env: ["agents/ppo/A", "agents/sft/A"])
    assert "--policy agents/sft/A" in (hopeless_start(config()) or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"env": "Toy-Reach"},
        {"policy": "some/folder"},
        {"env_options": {"chunk": 4, "task_reward": "dense"}},
        {"policy": "openvla-oft"},
    ],
    ids=["solved by chance", "trained", "paid for progress", "published weights"],
)
def test_others_may_well_learn(changes: dict[str, Any]) -> None:
    assert hopeless_start(config(**changes)) is None


def test_fewer_steps_than_a_rollout() -> None:
    # 4 environments x 8 decisions of 4 steps are 128.
    said = short_of_a_rollout(RunPlan.resolve(config(n_timesteps=127)), 0)
    assert said is not None
    assert said.startswith("127 simulator steps are less than one rollout: the run makes a whole one, of up to 128.")
    assert short_of_a_rollout(RunPlan.resolve(config(n_timesteps=128)), 0) is None
    assert short_of_a_rollout(RunPlan.resolve(config(n_timesteps=300)), 200) is not None
    # All was done: what is left is its last evaluation.
    assert short_of_a_rollout(RunPlan.resolve(config(n_timesteps=300)), 300) is None
    assert short_of_a_rollout(RunPlan.resolve(config(n_timesteps=300)), 320) is None


def test_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = RunPlan.resolve(config())
    said = short_of_memory(plan, 2**20)
    assert said is not None
    assert "this machine has 0.0 GiB" in said
    assert short_of_memory(plan, 2**36) is None
    # Ranks of one machine share its memory.
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1024")
    assert short_of_memory(plan, 2**36) is not None


def test_a_run_that_goes_on_is_not_told_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    plan = RunPlan.resolve(config())
    assert len(start_warnings(plan, None)) == 1
    assert start_warnings(plan, SimpleNamespace(step=1024)) == []  # type: ignore[arg-type]
