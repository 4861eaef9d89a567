"""One batch for all slots must be told from slots on their own by nothing; `test_vector` writes those out by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scripted_batch import ScriptedBatch, batched_benchmark
from scripted_simulator import scripted_benchmark

from vla_gym import VLAVectorEnv
from vla_gym.checks import check_vla_env
from vla_gym.errors import WorkerFailed
from vla_gym.registry import find_benchmark

Make = Callable[..., VLAVectorEnv]
STILL = np.zeros((3, 5, 2), dtype=np.float32)


def batch_of(envs: VLAVectorEnv) -> ScriptedBatch:
    return envs.pool._stages[0]._batch  # type: ignore[attr-defined, no-any-return]


def plain(value: Any) -> Any:
    """Arrays as lists, dicts without clock readings, so that `==` compares everything."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if not key.endswith("seconds")}
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.dtype == object else value.tolist()
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("schedule", ["grid", "random"])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_batch_says_what_slots_on_their_own_say(make: Make, mode: str, schedule: str, stages: int) -> None:
    """Tasks of 3, 7 and 12 steps, K = 5: slots end in the middle of chunks, at different times, and begin anew."""
    options: dict[str, Any] = {"chunk": 5, "schedule": schedule, "autoreset_mode": mode, "reward": "step_penalty"}
    alone = make(scripted_benchmark(horizon=11), 3, **options)
    batch = make(batched_benchmark(horizon=11), 3, **options, pipeline_stages=stages)
    assert plain(batch.reset(seed=4)) == plain(alone.reset(seed=4))
    for decision in range(9):
        assert plain(batch.step(STILL)) == plain(alone.step(STILL)), decision
        if mode == "disabled" and alone.finished.any():
            again = {"reset_mask": alone.finished}
            assert plain(batch.reset(options=again)) == plain(alone.reset(options=again))


def test_slots_that_wait_are_put_back_at_once(make: Make) -> None:
    envs = make(batched_benchmark(), 3, chunk=12)
    envs.reset()
    envs.step(np.zeros((3, 12, 2), dtype=np.float32))  # over after 3, 7 and 12 steps
    assert batch_of(envs).restores == 1


def test_a_stage_that_fails_ends_all_of_them(make: Make) -> None:
    envs = make(batched_benchmark(failure="raise"), 3, chunk=5, pipeline_stages=3)
    envs.reset()
    with pytest.raises(WorkerFailed, match="ZeroDivisionError: the arm fell off"):
        envs.step(np.ones((3, 5, 2), dtype=np.float32))
    assert all(stage._batch.closed for stage in envs.pool._stages)  # type: ignore[attr-defined]


def test_a_decision_draws_once_after_everything(make: Make) -> None:
    envs = make(batched_benchmark(), 3, chunk=5, schedule="grid", autoreset_mode="next_step")
    envs.reset()
    envs.step(STILL)
    batch_of(envs).calls.clear()
    envs.step(STILL)  # slot 0 begins anew, after the others' steps, so that it has not moved when it is drawn
    assert batch_of(envs).calls == [*["step"] * 5, "reset", "observe"]


def test_a_state_is_reached_again_by_slots_of_different_ages(make: Make) -> None:
    options: dict[str, Any] = {"chunk": 5, "schedule": "grid", "autoreset_mode": "same_step"}
    envs = make(batched_benchmark(), 3, **options)
    envs.reset()
    for _ in range(2):
        obs, *_ = envs.step(STILL)
    assert envs.idle.tolist() == [True, False, False]
    assert obs["state"][1:, 0].tolist() == [0, 10]  # slot 1 has just begun anew
    other = make(batched_benchmark(), 3, **options)
    found, _ = other.load_state_dict(envs.state_dict())
    assert found["state"][1:].tolist() == obs["state"][1:].tolist()
    assert plain(other.step(STILL)[1:4]) == plain(envs.step(STILL)[1:4])


def test_the_whole_contract_holds() -> None:
    toy = find_benchmark("Toy-Reach")
    check_vla_env(dataclasses.replace(toy, simulator="benchmarks.sleeping_toy:ToyBatch", batched=True))
