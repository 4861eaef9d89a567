from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scripted_simulator import Scripted, scripted_benchmark

from vla_gym.errors import WorkerRestarted
from vla_gym.observation import ObservationLayout
from vla_gym.pool import LocalPool, OnWorkerError, SlotCommand, SlotSetup
from vla_gym.rewards import RewardRule
from vla_gym.slot_memory import MemoryLayout
from vla_gym.specs import StartState


def make_pool(*, fate: str = "", on_worker_error: OnWorkerError = "raise") -> LocalPool:
    benchmark = scripted_benchmark(fate=fate)
    layout = ObservationLayout(cameras=("image",), image_size=8, state_dim=1)
    return LocalPool(
        SlotSetup(
            env_id=benchmark.id,
            simulator=benchmark.simulator,
            simulator_kwargs=benchmark.simulator_kwargs,
            tasks=benchmark.tasks,
            rule=RewardRule(),
            memory=MemoryLayout(num_slots=2, chunk=4, action_dim=2, observation=layout),
        ),
        on_worker_error=on_worker_error,
    )


def simulators(pool: LocalPool) -> list[Scripted]:
    return [slot._simulator for slot in pool._slots]  # type: ignore[misc]


def command(slot: int, kind: str) -> SlotCommand:
    action_KA = np.zeros((4, 2), dtype=np.float32) if kind == "step" else None
    start = StartState(task_id=1, trial_id=slot)
    return SlotCommand(slot=slot, start=start, kind=kind, action_TA=action_KA)  # type: ignore[arg-type]


def test_each_command_renders_its_slot_once_and_no_other() -> None:
    pool = make_pool()
    reports = pool.run([command(1, "reset"), command(0, "reset")])
    assert [report.fingerprint for report in reports] == ["0101", "0100"]
    pool.run([command(1, "step")])
    assert [simulator.renders for simulator in simulators(pool)] == [1, 2]
    assert pool.memory.observation["state"].tolist() == [[0], [4]]
    assert (pool.memory.observation["image"][1] == 4).all()


def test_close_frees_the_simulators_once() -> None:
    pool = make_pool()
    made = simulators(pool)
    pool.close()
    pool.close()
    assert all(simulator.closed for simulator in made)
    assert pool.pids() == []


@pytest.mark.parametrize("close_fails", [False, True])
def test_a_simulator_that_is_replaced_is_closed(close_fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def close(simulator: Scripted) -> None:
        simulator.closed = True
        if close_fails and simulator is failed:
            raise RuntimeError("nothing works any more")

    monkeypatch.setattr(Scripted, "close", close)
    pool = make_pool(fate="raise", on_worker_error="restart")
    failed, other = simulators(pool)
    pool.run([command(0, "reset"), command(1, "reset")])
    disaster = dataclasses.replace(command(0, "step"), action_TA=np.ones((4, 2), dtype=np.float32))
    with pytest.warns(WorkerRestarted, match="the arm fell off"):
        (report,) = pool.run([disaster])
    assert report.lost
    assert failed.closed
    assert simulators(pool)[1] is other
    assert [simulator.closed for simulator in simulators(pool)] == [False, False]
    pool.run([command(0, "reset")])
    assert pool.memory.observation["state"].tolist() == [[0], [0]]
