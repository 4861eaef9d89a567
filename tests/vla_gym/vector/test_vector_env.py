"""Autoreset sequences are written out: three slots, tasks of 3, 7 and 12 steps, K = 5, two trials each."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from scripted_simulator import scripted_benchmark

import vla_gym
from vla_gym import VLAVectorEnv
from vla_gym.adapters.toy import ToyReach
from vla_gym.errors import WorkerFailed
from vla_gym.simulator import SimStep

Make = Callable[..., VLAVectorEnv]
ACTION = np.zeros((3, 5, 2), dtype=np.float32)


def scripted(make: Make, mode: str, **options: Any) -> VLAVectorEnv:
    return make(None, 3, chunk=5, schedule="grid", autoreset_mode=mode, **options)


def seen(envs: VLAVectorEnv, action: np.ndarray = ACTION) -> dict[str, Any]:
    """One step, as lists: steps done in each picture, reward, flags, and the infos that matter here."""
    obs, reward, terminated, truncated, infos = envs.step(action)
    assert obs in envs.observation_space
    assert (obs["image"] == obs["image"][:, :1, :1]).all()
    return {
        "count": obs["image"][:, 0, 0, 0].tolist(),
        "reward": reward.tolist(),
        "terminated": terminated.tolist(),
        "truncated": truncated.tolist(),
        **{key: infos[key].tolist() for key in ("executed", "trial_id", "success", "idle")},
        "ended": infos["_episode"].tolist() if "episode" in infos else [False] * 3,
        "infos": infos,
        "told": obs["instruction"],
    }


def expect(got: dict[str, Any], **wanted: list[Any]) -> None:
    assert {key: got[key] for key in wanted} == wanted


def test_reset(make: Make) -> None:
    envs = scripted(make, "next_step")
    obs, infos = envs.reset()
    assert obs["instruction"] == ("do thing 0", "do thing 1", "do thing 2")
    assert obs["state"].tolist() == [[0.0], [0.0], [0.0]]
    assert infos["task_id"].tolist() == [0, 1, 2]
    assert infos["trial_id"].tolist() == [0, 0, 0]
    assert infos["start_state"].tolist() == ["0000", "0100", "0200"]
    assert infos["executed"].tolist() == [0, 0, 0]
    assert "episode" not in infos
    assert all(infos[f"_{key}"].all() for key in ("task_id", "start_state", "executed", "success"))


def test_next_step(make: Make) -> None:
    envs = scripted(make, "next_step")
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    envs.reset()
    got = seen(envs)
    expect(got, count=[3, 5, 5], reward=[1, 0, 0], terminated=[True, False, False], executed=[3, 5, 5])
    expect(got, ended=[True, False, False], success=[True, False, False], trial_id=[0, 0, 0])
    got = seen(envs)  # slot 0 begins anew and ignores its action; slot 1 ends
    expect(got, count=[0, 7, 10], reward=[0, 1, 0], terminated=[False, True, False], executed=[0, 2, 5])
    expect(got, ended=[False, True, False], success=[False, True, False], trial_id=[1, 0, 0])
    got = seen(envs)
    expect(got, count=[3, 0, 12], reward=[1, 0, 1], terminated=[True, False, True], executed=[3, 0, 2])
    expect(got, ended=[True, False, True], trial_id=[1, 1, 0])
    got = seen(envs)  # slot 0 has used up its two cells
    expect(got, count=[3, 5, 0], reward=[0, 0, 0], terminated=[False] * 3, executed=[0, 5, 0])
    expect(got, idle=[True, False, False], trial_id=[-1, 1, 1], ended=[False] * 3)
    assert got["told"] == ("idle", "do thing 1", "do thing 2")
    assert got["infos"]["start_state"].tolist() == [None, "0101", "0201"]


def test_same_step(make: Make) -> None:
    envs = scripted(make, "same_step")
    envs.reset()
    got = seen(envs)
    expect(got, count=[0, 5, 5], reward=[1, 0, 0], terminated=[True, False, False], executed=[0, 5, 5])
    expect(got, trial_id=[1, 0, 0], success=[False] * 3, ended=[False] * 3)
    infos = got["infos"]
    assert infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [True, False, False]
    assert infos["final_obs"][1] is None
    assert infos["final_obs"][0] in envs.single_observation_space
    assert (infos["final_obs"][0]["image"] == 3).all()
    final = infos["final_info"]
    assert final["executed"].tolist() == [3, 0, 0]
    assert final["_executed"].tolist() == [True, False, False]
    assert final["start_state"].tolist() == ["0000", None, None]
    assert final["step_rewards"][0].tolist() == [0, 0, 1, 0, 0]
    assert final["episode"]["length"].tolist() == [3, 0, 0]
    assert final["_episode"].tolist() == [True, False, False]

    got = seen(envs)
    expect(got, count=[3, 0, 10], reward=[1, 1, 0], terminated=[True, True, False], executed=[0, 0, 5])
    expect(got, trial_id=[-1, 1, 0], idle=[True, False, False])
    assert got["infos"]["final_info"]["executed"].tolist() == [3, 2, 0]
    assert got["infos"]["final_info"]["trial_id"].tolist() == [1, 0, 0]
    got = seen(envs)
    expect(got, reward=[0, 0, 1], terminated=[False, False, True], executed=[0, 5, 0])
    got = seen(envs)
    expect(got, reward=[0, 1, 0], terminated=[False, True, False], executed=[0, 0, 5])
    expect(got, trial_id=[-1, -1, 1], idle=[True, True, False])
    assert got["infos"]["final_info"]["executed"].tolist() == [0, 2, 0]
    assert "final_obs" not in seen(envs)["infos"]  # slot 2: step 10 of 12


def test_disabled_holds_what_has_ended(make: Make) -> None:
    envs = scripted(make, "disabled")
    envs.reset()
    expect(seen(envs), count=[3, 5, 5], terminated=[True, False, False], executed=[3, 5, 5])
    got = seen(envs)
    expect(got, count=[3, 7, 10], reward=[0, 1, 0], terminated=[True, True, False], executed=[0, 2, 5])
    expect(got, ended=[False, True, False], success=[False, True, False])
    got = seen(envs)
    expect(got, count=[3, 7, 12], reward=[0, 0, 1], terminated=[True] * 3, executed=[0, 0, 2])
    expect(got, success=[False, False, True])
    got = seen(envs)
    expect(got, count=[3, 7, 12], reward=[0, 0, 0], terminated=[True] * 3, executed=[0, 0, 0])
    expect(got, success=[False] * 3)
    assert envs.finished.all()

    obs, infos = envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert not infos["success"].any()
    assert obs["image"][:, 0, 0, 0].tolist() == [3, 0, 12]
    assert infos["trial_id"].tolist() == [0, 1, 0]
    assert envs.finished.tolist() == [True, False, True]
    expect(seen(envs), count=[3, 5, 12], executed=[0, 5, 0], terminated=[True, False, True])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_grid_walk_ends_with_every_cell_seen_once(make: Make, num_workers: int) -> None:
    envs = make(None, 4, chunk=5, schedule="grid", num_workers=num_workers, autoreset_mode="same_step")
    _, infos = envs.reset()
    starts = infos["start_state"].tolist()
    lengths = []
    while not envs.idle.all():
        *_, infos = envs.step(np.zeros((4, 5, 2)))
        ended = infos.get("_final_info", np.zeros(4, dtype=bool))
        starts += infos["start_state"][ended & ~infos["idle"]].tolist()
        if ended.any():
            lengths += infos["final_info"]["episode"]["length"][ended].tolist()
    assert sorted(starts) == ["0000", "0001", "0100", "0101", "0200", "0201"]
    assert sorted(lengths) == [3, 3, 7, 7, 12, 12]


def test_groups_share_start_states_whatever_their_timing(make: Make) -> None:
    envs = make(scripted_benchmark((0,), num_trials=40, horizon=6), 4, group_size=2, seed=5)
    begun: list[list[str]] = [[], [], [], []]
    _, infos = envs.reset()
    for _ in range(40):
        for slot, (start, executed) in enumerate(zip(infos["start_state"], infos["executed"])):
            if executed == 0:
                begun[slot].append(start)
        *_, infos = envs.step(np.zeros((4, 2)))
    assert begun[0] == begun[1]
    assert begun[2] == begun[3]
    assert begun[0] != begun[2]
    assert len(set(begun[0])) > 1


def test_groups_share_start_states_after_a_reset_in_the_middle(make: Make) -> None:
    envs = make(scripted_benchmark((0,), num_trials=400, horizon=6), 4, group_size=2, seed=5)
    envs.reset()
    for _ in range(40):
        *_, infos = envs.step(np.zeros((4, 2)))
    _, infos = envs.reset()
    starts = infos["start_state"].tolist()
    assert starts[0] == starts[1]
    assert starts[2] == starts[3]
    assert starts[0] != starts[2]
    # A new seed begins the schedule for all, also for those that play on.
    envs.reset(seed=7, options={"reset_mask": np.array([True, False, True, False])})
    _, infos = envs.reset(options={"reset_mask": np.array([False, True, False, True])})
    starts = infos["start_state"].tolist()
    assert starts[0] == starts[1]
    assert starts[2] == starts[3]


def test_weights_hold_for_the_episodes_that_begin_after_them(make: Make) -> None:
    envs = make(scripted_benchmark((0, 0), num_trials=3, horizon=6), 4, group_size=2, seed=5)
    envs.set_start_weights(np.array([0, 1, 0, 0, 0, 0]))
    _, infos = envs.reset()
    assert (infos["task_id"].tolist(), infos["trial_id"].tolist()) == ([0] * 4, [1] * 4)
    envs.set_start_weights(np.array([0, 0, 0, 0, 0, 1]))
    *_, infos = envs.step(np.zeros((4, 2)))
    assert infos["task_id"].tolist() == [0] * 4, "the present episodes go on"
    _, infos = envs.reset(options={"reset_mask": np.array([False, False, True, True])})
    assert (infos["task_id"].tolist(), infos["trial_id"].tolist()) == ([0, 0, 1, 1], [1, 1, 2, 2])
    _, infos = envs.reset(seed=6)
    assert infos["trial_id"].tolist() == [2] * 4
    envs.set_start_weights(None)
    assert envs.reset(seed=5)[1]["start_state"].tolist() == (
        make(scripted_benchmark((0, 0), num_trials=3, horizon=6), 4, group_size=2, seed=5)
        .reset()[1]["start_state"]
        .tolist()
    )


def test_observations_are_fresh_arrays(make: Make) -> None:
    envs = scripted(make, "next_step")
    first, _ = envs.reset()
    kept = first["image"].copy()
    second, *_ = envs.step(ACTION)
    assert np.array_equal(first["image"], kept)
    assert not np.shares_memory(first["image"], second["image"])
    frames = envs.render()
    assert len(frames) == 3
    assert np.array_equal(np.stack(frames), second["image"])
    frames[0][:] = 99
    assert np.array_equal(np.stack(envs.render()), second["image"])


def test_order_of_calls(make: Make) -> None:
    envs = scripted(make, "next_step")
    with pytest.raises(gym.error.ResetNeeded):
        envs.step(ACTION)
    with pytest.raises(gym.error.ResetNeeded):
        envs.reset(options={"reset_mask": np.array([True, False, False])})
    envs.close()
    envs.close()
    with pytest.raises(gym.error.ClosedEnvironmentError):
        envs.reset()


def test_garbage_collection_ends_the_workers(alive: Callable[[int], bool]) -> None:
    from vla_gym import make_vec

    envs = make_vec(scripted_benchmark(), 2, num_workers=2)
    pids = envs.worker_pids
    assert len(pids) == 2
    assert all(map(alive, pids))
    del envs
    gc.collect()
    assert not any(map(alive, pids))


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e300])
def test_a_reward_that_is_not_finite_is_named_where_it_begins(reward: float, monkeypatch: pytest.MonkeyPatch) -> None:
    step = ToyReach.step

    def odd(self: ToyReach, action_A: np.ndarray) -> SimStep:
        return dataclasses.replace(step(self, action_A), reward=reward)

    monkeypatch.setattr(ToyReach, "step", odd)
    envs = vla_gym.make_vec("Toy-Reach", num_envs=2, chunk=2, num_workers=0, on_worker_error="restart")
    envs.reset(seed=0)
    with pytest.raises(WorkerFailed, match=r"reward is .* in step 0 of a decision \[Toy-Reach, slot 0, task \d"):
        envs.step(np.zeros((2, 2, 2), np.float32))
    envs.close()


def test_an_observation_that_is_not_finite_is_named_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    observe = ToyReach.observe

    def odd(self: ToyReach) -> dict[str, np.ndarray]:
        return {**observe(self), "state": np.array([0.0, np.nan], np.float32)}

    monkeypatch.setattr(ToyReach, "observe", odd)
    envs = vla_gym.make_vec("Toy-Reach", num_envs=2, num_workers=0)
    with pytest.raises(WorkerFailed, match=r"observation 'state'\[1\] is nan \[Toy-Reach, slot 0, task \d"):
        envs.reset(seed=0)
    assert envs.closed
