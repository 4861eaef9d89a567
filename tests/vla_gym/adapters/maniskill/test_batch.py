"""The batch of `physics="gpu"` on CPU physics, which hold one slot, against the CPU adapter. No GPU is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vla_gym
from vla_gym.adapters.maniskill.tasks import maniskill_benchmark
from vla_gym.errors import BadValue
from vla_gym.specs import StartState

pytest.importorskip("mani_skill")
pytestmark = pytest.mark.sim

SIZE = 48


def pair(name: str, **options: Any) -> tuple[Any, Any]:
    """The CPU adapter, and a batch of one slot that draws its start states in this process."""
    from vla_gym.adapters.maniskill.batch import ManiSkillBatch
    from vla_gym.adapters.maniskill.simulator import ManiSkillSimulator

    made = maniskill_benchmark(f"ManiSkill/{name}", **options)
    alone = ManiSkillSimulator(made.tasks, SIZE, ("image",), **made.simulator_kwargs)
    batch = ManiSkillBatch(
        made.tasks, SIZE, ("image",), num_envs=1, num_workers=0, sim_backend="physx_cpu", **made.simulator_kwargs
    )
    return alone, batch


def restless(count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1.0, 1.0, (count, 7)).astype(np.float32)


def state_of(simulator: Any) -> np.ndarray:
    return np.array(simulator._env.get_state()[0].numpy())


@pytest.mark.parametrize(
    "name",
    [
        "PlugCharger",
        pytest.param("PickCube", marks=pytest.mark.thorough),
        pytest.param("PegInsertionSide", marks=pytest.mark.thorough),
    ],
)
def test_the_same_actions_lead_to_the_cpu_adapters_states(name: str) -> None:
    """Also after another trial; PegInsertionSide has other shapes in each. Tolerance: a root's pose is rounded to
    1.5e-8 m when it is written, which a second of free motion makes at most some 1e-5 of."""
    alone, batch = pair(name)
    try:
        for trial in (3, 5):
            start = StartState(task_id=0, trial_id=trial)
            assert batch.reset({0: start}) == {0: alone.reset(start)}
            np.testing.assert_allclose(state_of(batch), state_of(alone), rtol=0, atol=1e-7)
            for action_A in restless(6):
                expected, found = alone.step(action_A), batch.step(action_A[None])
                assert bool(found.success_N[0]) == expected.success
                assert float(found.reward_N[0]) == expected.reward
            if name != "PlugCharger" or trial == 5:  # the others touch something: small differences grow
                np.testing.assert_allclose(state_of(batch), state_of(alone), rtol=0, atol=2e-4)
            seen, drawn = alone.observe(), batch.observe()
            np.testing.assert_allclose(drawn["state"][0], seen["state"], atol=2e-3)
            assert np.abs(drawn["image"][0].astype(int) - seen["image"]).mean() < 1.0
        if name == "PlugCharger":  # its success is judged by a pose that upstream keeps
            kept, there = batch._env.goal_pose, alone._env.goal_pose
            np.testing.assert_allclose(kept.raw_pose.numpy(), there.raw_pose.numpy(), atol=1e-6)
    finally:
        alone.close()
        batch.close()


def test_a_saved_slot_is_put_back_with_what_its_task_remembers() -> None:
    """RollBall's dense reward remembers that the ball was reached."""
    alone, batch = pair("RollBall", task_reward="dense")
    try:
        start = StartState(task_id=0, trial_id=0)
        alone.reset(start)
        batch.reset({0: start})
        for action_A in restless(3):
            paid = float(batch.step(action_A[None]).reward_N[0])
            assert paid == pytest.approx(alone.step(action_A).reward, abs=1e-4)
            assert paid > 0.0
        batch._env.reached_status[:] = 1.0
        before, saved = state_of(batch), batch.save([0])
        for action_A in restless(3):
            batch.step(action_A[None])
        batch._env.reached_status[:] = 0.0
        assert np.abs(state_of(batch) - before).max() > 0.01
        batch.restore([([0], saved)])
        np.testing.assert_allclose(state_of(batch), before, rtol=0, atol=1e-6)
        assert batch._env.reached_status.tolist() == [1.0]
        batch.reset({0: start})
        assert batch._env.reached_status.tolist() == [0.0]
    finally:
        alone.close()
        batch.close()


class Written:
    """As much of upstream's environment as a batch writes to, with its rules: N slots, states `[N, 2]`."""

    def __init__(self, num_envs: int) -> None:
        import torch

        self.num_envs, self.device = num_envs, torch.device("cpu")
        self.state = torch.zeros(num_envs, 2)
        self.seeds: list[list[int]] = []

    def get_state(self) -> Any:
        return self.state.clone()

    def reset(self, seed: list[int] | None = None, options: Any = None) -> None:
        import torch

        if options.get("reconfigure"):
            assert seed is not None
            assert len(seed) == self.num_envs
            assert "env_idx" not in options
            self.seeds.append(seed)
            self.state[:] = -1.0
            return
        assert seed is None  # would seed all slots anew
        mask_N = torch.zeros(self.num_envs, dtype=torch.bool)
        mask_N[options["env_idx"]] = True
        self.state[mask_N] = options["reset_to_env_states"]["env_states"]  # in the order of the slots

    def step(self, action: Any) -> Any:
        self.state += 0.25
        return {}, None, None, None, {"success": self.state[:, 1] > 7.0}

    def close(self) -> None:
        pass


class WrittenStarts:
    def __init__(self, task: Any, **options: Any) -> None:
        pass

    def rows(self, trials: Any) -> list[tuple[str, np.ndarray]]:
        return [(f"{trial:02x}", np.array([trial, 0.1 * trial], dtype=np.float32)) for trial in trials]

    def close(self) -> None:
        pass


def written(monkeypatch: pytest.MonkeyPatch, name: str, num_envs: int) -> tuple[Any, Written]:
    from vla_gym.adapters.maniskill import batch as maniskill_batch

    env = Written(num_envs)
    monkeypatch.setattr(maniskill_batch, "make_env", lambda task, image_size, **options: env)
    monkeypatch.setattr(maniskill_batch, "StartTable", WrittenStarts)
    made = maniskill_benchmark(f"ManiSkill/{name}", task_seed=100)
    batch = maniskill_batch.ManiSkillBatch(
        made.tasks, SIZE, ("image",), num_envs=num_envs, num_workers=1, **made.simulator_kwargs
    )
    return batch, env


def starts(trials: dict[int, int]) -> dict[int, StartState]:
    return {slot: StartState(task_id=0, trial_id=trial) for slot, trial in trials.items()}


def test_rows_go_to_their_slots_and_leave_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, env = written(monkeypatch, "PickCube", 4)
    assert batch.reset(starts({0: 7, 1: 7, 2: 9, 3: 9})) == {0: "07", 1: "07", 2: "09", 3: "09"}
    assert (env.state[0] == env.state[1]).all()  # a group, bit for bit
    assert env.state[:, 0].tolist() == [7, 7, 9, 9]
    assert batch.step(np.zeros((4, 7), dtype=np.float32)).success_N.tolist() == [False] * 4
    saved = batch.save([1, 2])
    batch.reset(starts({1: 80, 3: 5}))
    assert env.state[:, 0].tolist() == [7.25, 80, 9.25, 5]
    outcome = batch.step(np.zeros((4, 7), dtype=np.float32))
    assert outcome.success_N.tolist() == outcome.terminated_N.tolist() == [False, True, False, False]
    assert outcome.reward_N.tolist() == [0, 1, 0, 0]
    batch.restore([([1, 2], saved)])
    assert env.state[:, 0].tolist() == [7.5, 7.25, 9.25, 5.25]
    assert env.seeds == []


def test_random_shapes_are_built_from_every_slot_s_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots 1 and 2 keep shapes and states while slot 0 gets others; the same shapes are not built again."""
    batch, env = written(monkeypatch, "PegInsertionSide", 3)
    batch.reset(starts({0: 4, 1: 4, 2: 6}))
    assert env.seeds == [[104, 104, 106]]
    batch.step(np.zeros((3, 7), dtype=np.float32))
    batch.reset(starts({0: 5}))
    assert env.seeds[1:] == [[105, 104, 106]]
    assert env.state[:, 0].tolist() == [5, 4.25, 6.25]
    batch.reset(starts({0: 5, 2: 6}))
    assert len(env.seeds) == 2


def test_gpu_physics_need_a_worker_for_their_start_states() -> None:
    from vla_gym.adapters.maniskill.batch import ManiSkillBatch

    made = maniskill_benchmark("ManiSkill/PickCube", physics="gpu")
    with pytest.raises(BadValue, match=r"num_workers must be >= 1 with physics='gpu'.*got 0"):
        ManiSkillBatch(made.tasks, SIZE, ("image",), num_envs=2, num_workers=0, first_seed=0)


@pytest.mark.parametrize(
    ("device", "physics", "names"),
    [
        ("cuda:3", "physx_cuda", ("physx_cuda:3", "sapien_cuda:3")),
        ("cuda:3", "physx_cpu", ("physx_cpu", "sapien_cuda:3")),
        ("cuda", "physx_cuda", ("physx_cuda", "sapien_cuda")),
        ("cpu", "physx_cpu", ("physx_cpu", "sapien_cpu")),
    ],
)
def test_physics_and_pictures_are_on_the_rank_s_own_gpu(
    device: str, physics: str, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vla_gym.adapters.maniskill import simulator

    class Asked(Exception):
        pass

    def make(env_id: str, **options: Any) -> None:
        raise Asked(options["sim_backend"], options["render_backend"])

    monkeypatch.setenv("VLA_ZOO_SAPIEN_DEVICE", device)
    monkeypatch.setattr(simulator.gym, "make", make)
    with pytest.raises(Asked) as asked:
        simulator.make_env("PickCube", SIZE, sim_backend=physics)
    assert asked.value.args == names


@pytest.fixture
def envs(monkeypatch: pytest.MonkeyPatch) -> Iterator[vla_gym.VLAVectorEnv]:
    """What `make_vec(..., physics="gpu")` makes, but for the physics, its start states drawn in a worker."""
    from vla_gym.system import vulkan
    from vla_gym.workers import process_pool as worker_environment

    monkeypatch.setattr(worker_environment, "gpu_physics_environment", vulkan.sapien_environment)
    asked = maniskill_benchmark("ManiSkill/PickCube", physics="gpu")
    cpu = {**asked.simulator_kwargs, "sim_backend": "physx_cpu"}
    made = vla_gym.make_vec(
        dataclasses.replace(asked, simulator_kwargs=cpu),
        1,
        chunk=8,
        num_workers=1,
        image_size=SIZE,
        schedule="grid",
        autoreset_mode="same_step",
    )
    yield made
    made.close()


def test_episodes_follow_each_other_through_make_vec(envs: vla_gym.VLAVectorEnv) -> None:
    _, first = envs.reset()
    assert first["trial_id"].tolist() == [0]
    for _ in range(6):
        obs, _, terminated, truncated, _ = envs.step(restless(8)[None])
        assert not (terminated | truncated).any()
    obs, _, _, truncated, infos = envs.step(restless(8)[None])  # 6 * 8 = 48 of 50 steps were done
    assert truncated.all()
    assert infos["final_info"]["executed"].tolist() == [2]
    assert infos["trial_id"].tolist() == [1]
    assert infos["start_state"][0] != first["start_state"][0]
    assert obs["image"].shape == (1, SIZE, SIZE, 3)
    assert np.abs(obs["state"] - infos["final_obs"][0]["state"]).max() > 0.01
    assert "GPU" in envs.protocol()["constants"]["physics"]
