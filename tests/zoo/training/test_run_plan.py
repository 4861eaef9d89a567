from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.stand_ins import toy_config
from vla_gym.errors import BadValue, MissingDependency
from zoo.config.run_config import RunConfig
from zoo.training.run_plan import RunPlan, arithmetic_lines, check_startable, dry_run_text, hopeless_start, memory_lines


@pytest.mark.parametrize(
    ("rank", "eval_episodes", "needed"),
    [(0, 0, True), (1, 0, False), (2, 0, False), (1, 4, False), (2, 4, True)],
    ids=["simulates", "decides", "learns", "decides, others evaluate", "learns and evaluates"],
)
def test_simulators_are_asked_for_where_they_run(
    rank: int, eval_episodes: int, needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "metaworld", None)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", str(rank))
    config = toy_config(
        env="MetaWorld/reach",
        n_timesteps=100,
        num_envs=2,
        device="cpu",
        eval_episodes=eval_episodes,
        placement="env=0,rollout=1,actor=2",
    )
    if not needed:
        return check_startable(RunPlan.resolve(config))
    with pytest.raises(MissingDependency, match="MetaWorld/reach needs metaworld, not installed here"):
        check_startable(RunPlan.resolve(config))
    return None


def test_what_a_run_would_imitate_is_looked_for_before_it_starts(tmp_path: Path) -> None:
    imitated = {"bc_coef": 0.1, "bc_dataset": [str(tmp_path / "demos")], "batch_size": 9}
    plan = RunPlan.resolve(toy_config(num_envs=6, device="cpu", algo_kwargs=imitated), num_ranks=3)
    assert f"imitation    of 9 frames of {tmp_path}/demos in every optimiser step" in arithmetic_lines(plan)
    with pytest.raises(BadValue, match=r"no folder '.*demos'\. Collect demonstrations with"):
        check_startable(plan)
    with pytest.raises(BadValue, match="9 cannot be dealt evenly to 2 ranks"):
        RunPlan.resolve(plan.config, num_ranks=2)


def test_the_memory_of_a_sharded_run_is_that_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy_config(n_timesteps=100, num_envs=2, device="cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    plan = RunPlan.resolve(config)
    ddp, shards = "gradients on their way to other ranks (DDP)", "shard of masters, gradients, moments, 1/2"
    for said in ("\n".join(memory_lines(plan)), dry_run_text(plan, None)):
        assert ddp in said
        assert shards not in said
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    for said in ("\n".join(memory_lines(plan)), dry_run_text(plan, None)):
        assert shards in said
        assert ddp not in said


# Warnings ---------------------------------------------------------------------------------------------


def config(**changes: Any) -> RunConfig:
    settings = {"env": "MetaWorld/reach", "n_timesteps": 4096, "num_envs": 4, "device": "cpu"}
    return toy_config(**{**settings, "algo_kwargs": {"n_steps": 8}, "env_options": {"chunk": 4}, **changes})


def test_fresh_weights_on_a_robot_that_is_paid_for_success_alone() -> None:
    said = hopeless_start(config())
    assert said is not None
    assert said.startswith("'nano' means fresh weights, and MetaWorld/reach pays for success alone")
    assert "-params 'env_kwargs:{task_reward: dense}'" in said
    assert "vla-zoo collect --expert" in said


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
