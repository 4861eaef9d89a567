"""Meta-World through `make_vec`, in worker processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vla_gym

pytest.importorskip("metaworld")
pytestmark = pytest.mark.sim


def test_a_group_sees_the_same_bytes_in_different_workers() -> None:
    envs = vla_gym.make_vec(
        "MetaWorld-MT10",
        num_envs=2,
        group_size=2,
        chunk=4,
        image_size=48,
        num_workers=2,
        render_quality="fast",
        seed=1,
    )
    try:
        observation, infos = envs.reset()
        assert len(envs.worker_pids) == 2
        rng = np.random.default_rng(0)
        first = observation["image"][0]
        for _ in range(3):
            assert infos["start_state"][0] == infos["start_state"][1]
            assert infos["task_id"][0] == infos["task_id"][1]
            for key in ("image", "state"):
                np.testing.assert_array_equal(observation[key][0], observation[key][1])
            assert observation["instruction"][0] == envs.benchmark.tasks[infos["task_id"][0]].instruction
            action = rng.uniform(-1, 1, (4, 4)).astype(np.float32)
            observation, _, _, _, infos = envs.step(np.stack([action, action]))
            assert infos["executed"].tolist() == [4, 4]
        assert first.std() > 10
        assert (first != observation["image"][0]).any()
        assert envs.protocol()["constants"]["render_quality"] == "fast"
        assert envs.protocol()["versions"]["metaworld"]
    finally:
        envs.close()


def test_success_ends_the_episode_and_time_truncates_it() -> None:
    envs = vla_gym.make_vec(
        "MetaWorld/drawer-close",
        chunk=50,
        image_size=32,
        num_workers=1,
        render_quality="fast",
        autoreset_mode="disabled",
    )
    try:
        envs.reset(options={"task_id": 0, "trial_id": 0})
        still = np.zeros((1, 50, 4), dtype=np.float32)
        _, _, terminated, truncated, infos = envs.step(still)
        assert not terminated[0]
        assert not truncated[0]
        _, _, terminated, truncated, infos = envs.step(still)
        assert not terminated[0]
        assert truncated[0]
        assert infos["episode"]["length"][0] == 100
        assert not infos["episode"]["success_once"][0]
        envs.reset(options={"task_id": 0, "trial_id": 0})
        down = still.copy()
        down[..., 2] = -0.6  # the hand is above the drawer's handle and pushes it in on its way
        _, rewards, terminated, truncated, infos = envs.step(down)
        assert terminated[0]
        assert not truncated[0]
        assert rewards[0] == 1.0
        assert 0 < infos["executed"][0] < 50
        assert infos["episode"]["success_once"][0]
    finally:
        envs.close()


def test_more_start_states_are_played_and_the_usual_ones_stay() -> None:
    def played(trials: list[int], **options: Any) -> list[str]:
        envs = vla_gym.make_vec("MetaWorld/reach", image_size=32, num_workers=1, render_quality="fast", **options)
        try:
            return [envs.reset(options={"task_id": 0, "trial_id": k})[1]["start_state"][0] for k in trials]
        finally:
            envs.close()

    usual, more = played([0, 49]), played([0, 49, 50, 59], sampled_starts=60)
    assert more[:2] == usual
    unseen = played([0, 49, 50, 59], sampled_starts=60, split="test")
    assert len({*more, *unseen}) == 8
