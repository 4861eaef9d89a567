from __future__ import annotations

from typing import Any

import numpy as np

from vla_gym.vector.step import EnvStep, joined_steps
from vla_gym.workers.sub_env import EpisodeStats

STATS = EpisodeStats(total_reward=2.5, length=7, success_once=True, success_at_end=False, seconds=0.5)
EPISODE = {"return": 2.5, "length": 7, "success_once": True, "success_at_end": False, "seconds": 0.5}


def env_step(**changes: Any) -> EnvStep:
    """Two rows; the second ends after two of three steps."""
    fields: dict[str, Any] = {
        "obs": {"state": np.eye(2, dtype=np.float32), "instruction": ("one", "two")},
        "reward_n": np.array([0.0, 0.75]),
        "terminated_n": np.array([False, True]),
        "truncated_n": np.array([False, False]),
        "executed_n": np.array([3, 2]),
        "success_n": np.array([False, True]),
        "lost_n": np.array([False, False]),
        "idle_n": np.array([False, False]),
        "task_id_n": np.array([4, 5]),
        "trial_id_n": np.array([0, 1]),
        "start_state_n": np.array(["a", "b"], dtype=object),
        "step_reward_nK": np.array([[0, 0, 0], [0.25, 0.5, 0]], dtype=np.float32),
        "episodes": [None, STATS],
    }
    return EnvStep(**{**fields, **changes})


def test_batched_infos_hold_a_mask_beside_each_key() -> None:
    infos = env_step().infos()
    assert infos["executed"].tolist() == [3, 2]
    assert infos["_executed"].tolist() == [True, True]
    assert infos["_episode"].tolist() == [False, True]
    assert infos["episode"]["return"].tolist() == [0.0, 2.5]
    assert infos["episode"]["success_once"].tolist() == [False, True]
    assert infos["episode"]["_length"].tolist() == [False, True]
    assert "episode" not in env_step(episodes=[None, None]).infos()


def test_masked_rows_are_blank() -> None:
    step = env_step()
    infos = step.infos(np.array([True, False]))
    assert infos["executed"].tolist() == [3, 0]
    assert infos["start_state"].tolist() == ["a", None]
    assert infos["_start_state"].tolist() == [True, False]
    assert step.executed_n.tolist() == [3, 2]


def test_one_row_as_plain_values() -> None:
    first, second = env_step().info(0), env_step().info(1)
    assert type(first["executed"]) is int
    assert first["step_rewards"].tolist() == [0, 0, 0]
    assert "episode" not in first
    assert second["episode"] == EPISODE


def test_rows_taken_apart_join_to_the_whole() -> None:
    step = env_step()
    joined = joined_steps([step.of(np.array([0])), step.of(np.array([1]))])
    assert joined.obs["instruction"] == ("one", "two")
    assert joined.obs["state"].tolist() == step.obs["state"].tolist()
    assert joined.start_state_n.tolist() == ["a", "b"]
    assert joined.episodes == [None, STATS]


def test_a_reset_takes_the_place_of_the_rows_it_began() -> None:
    begun = env_step(task_id_n=np.array([4, 6]))
    after = env_step().followed_by(begun, np.array([False, True]))
    assert after.task_id_n.tolist() == [4, 6]
    assert after.executed_n.tolist() == [3, 0]
    assert after.success_n.tolist() == [False, False]
    assert not after.step_reward_nK.any()
    assert after.episodes == [None, None]
