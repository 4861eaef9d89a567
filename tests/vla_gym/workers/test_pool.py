from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from scripted_simulator import Scripted, scripted_benchmark

from vla_gym import VLAVectorEnv
from vla_gym.errors import WorkerRestarted
from vla_gym.make import sub_env_setup
from vla_gym.observation import ObservationLayout
from vla_gym.specs import Benchmark, RewardRule, StartState
from vla_gym.vector.protocol import EnvConfig
from vla_gym.workers.messages import Command, MemoryLayout, SubEnvSetup
from vla_gym.workers.pool import AbsentPool, LocalPool, OnWorkerError, Pool


def make_pool(*, failure: str = "", on_worker_error: OnWorkerError = "raise") -> LocalPool:
    benchmark = scripted_benchmark(failure=failure)
    layout = ObservationLayout(cameras=("image",), image_size=8, state_dim=1)
    return LocalPool(
        SubEnvSetup(
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
    return [env._simulator for env in pool._envs]  # type: ignore[misc]


def command(slot: int, kind: str) -> Command:
    action_KA = np.zeros((4, 2), dtype=np.float32) if kind == "step" else None
    start = StartState(task_id=1, trial_id=slot)
    return Command(slot=slot, start=start, kind=kind, action_TA=action_KA)  # type: ignore[arg-type]


def disaster(slot: int) -> Command:
    """A step that sets off the simulator's failure."""
    return dataclasses.replace(command(slot, "step"), action_TA=np.ones((4, 2), dtype=np.float32))


def test_each_command_renders_its_slot_once_and_no_other() -> None:
    pool = make_pool()
    reports = pool.run([command(1, "reset"), command(0, "reset")])
    assert [report.start_state for report in reports] == ["0101", "0100"]
    pool.run([command(1, "step")])
    assert [simulator.renders for simulator in simulators(pool)] == [1, 2]
    assert pool.memory.observation["state"].tolist() == [[0], [4]]
    assert (pool.memory.observation["image"][1] == 4).all()


@pytest.mark.parametrize("close_fails", [False, True])
def test_a_simulator_that_is_replaced_is_closed(close_fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def close(simulator: Scripted) -> None:
        simulator.closed = True
        if close_fails and simulator is failed:
            raise RuntimeError("nothing works any more")

    monkeypatch.setattr(Scripted, "close", close)
    pool = make_pool(failure="raise", on_worker_error="restart")
    failed, other = simulators(pool)
    pool.run([command(0, "reset"), command(1, "reset")])
    with pytest.warns(WorkerRestarted, match="the arm fell off"):
        (report,) = pool.run([disaster(0)])
    assert report.lost
    assert failed.closed
    assert simulators(pool)[1] is other
    assert [simulator.closed for simulator in simulators(pool)] == [False, False]
    pool.run([command(0, "reset")])
    assert pool.memory.observation["state"].tolist() == [[0], [0]]


def absent(benchmark: Benchmark, config: EnvConfig) -> Pool:
    return AbsentPool(sub_env_setup(benchmark, config).memory)


def test_it_begins_the_episodes_that_others_play(make: Callable[..., VLAVectorEnv]):
    # A simulator that cannot be built is never asked for.
    benchmark = scripted_benchmark(failure="unbuildable")
    envs, played = make(benchmark, 3, seed=4, pool=absent), make(scripted_benchmark(), 3, seed=4)
    obs, infos = envs.reset()
    assert obs["image"].shape == (3, 8, 8, 3)
    assert not obs["image"].any()
    assert infos["task_id"].tolist() == played.reset()[1]["task_id"].tolist()
    envs.load_state_dict(envs.state_dict())
    with pytest.raises(AssertionError, match="stepped elsewhere"):
        envs.step(np.zeros((3, 2)))
