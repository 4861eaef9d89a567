from __future__ import annotations

import numpy as np
from scripted_simulator import Scripted, scripted_benchmark

from vla_gym.observation import ObservationLayout
from vla_gym.pool import LocalPool, SlotCommand, SlotSetup
from vla_gym.rewards import RewardRule
from vla_gym.slot_memory import MemoryLayout
from vla_gym.specs import StartState


def make_pool() -> LocalPool:
    benchmark = scripted_benchmark()
    layout = ObservationLayout(cameras=("image",), image_size=8, state_dim=1)
    return LocalPool(
        SlotSetup(
            env_id=benchmark.id,
            simulator=benchmark.simulator,
            simulator_kwargs=benchmark.simulator_kwargs,
            tasks=benchmark.tasks,
            rule=RewardRule(),
            memory=MemoryLayout(num_slots=2, chunk=4, action_dim=2, observation=layout),
        )
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
