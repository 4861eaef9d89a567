from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from vla_gym.plugins.vla_eval_names import action_parts, state_format, vla_eval_observation
from vla_gym.specs import ActionSpec


def test_names() -> None:
    obs = {"image": 1, "wrist_image": 2, "state": 3, "instruction": "go"}
    named = {"images": {"agentview": 1, "wrist": 2}, "states": 3, "task_description": "go"}
    assert vla_eval_observation(obs) == named
    assert vla_eval_observation({"image": 1, "instruction": "go"}) == {
        "images": {"agentview": 1},
        "task_description": "go",
    }
    assert state_format("joint positions") == "raw"
    opens = ActionSpec(rotation="euler_xyz", gripper="plus_one_opens", frame="delta")
    assert [part["format"] for part in action_parts(opens, 7).values()] == [
        "delta_xyz",
        "euler_xyz",
        "binary_close_negative",
    ]


class IdlePolicy:
    """Stands where vla-eval's connection to a model server stands."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def start_episode(self, payload: dict[str, Any]) -> None: ...

    async def end_episode(self, result: dict[str, Any]) -> None: ...

    async def act(self, obs: dict[str, Any]) -> dict[str, Any]:
        self.seen.append(obs)
        return {"actions": np.zeros(2, np.float32)}


@pytest.mark.thorough
def test_vla_evals_runner_plays_an_episode() -> None:
    runner = pytest.importorskip("vla_eval.runners.sync_runner", reason="vla-eval has an environment of its own")
    from vla_gym.plugins.vla_eval import VLAGymBenchmark

    benchmark, policy = VLAGymBenchmark("Toy-Reach", send_state=True), IdlePolicy()
    task = {**benchmark.get_tasks()[2], "episode_idx": 51}
    assert (task["name"], task["suite"]) == ("reach the blue block", "toy_reach")
    assert benchmark.get_metadata()["max_episodes_per_task"] == 50
    assert set(benchmark.get_observation_spec()) == {"agentview", "state", "language"}
    assert benchmark.get_action_spec()["actions"].dims == 2
    run = runner.SyncEpisodeRunner().run_episode(
        benchmark, task, policy, max_steps=benchmark.get_metadata()["max_steps"]
    )
    result = asyncio.run(run)
    assert (result["steps"], result["metrics"]) == (12, {"success": False})
    assert len(policy.seen) == 12
    assert policy.seen[0]["images"]["agentview"].shape == (32, 32, 3)
    assert policy.seen[0]["states"].shape == (2,)
    benchmark.cleanup()
