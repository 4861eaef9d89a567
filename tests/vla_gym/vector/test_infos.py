from __future__ import annotations

import numpy as np

from vla_gym.vector.infos import Decision, episode_info, masked, single_info
from vla_gym.workers.sub_env import EpisodeStats, Report

STATS = EpisodeStats(total_reward=2.5, length=7, success_once=True, success_at_end=False, seconds=0.5)


def test_masked_blanks_what_is_not_told() -> None:
    fields = {"executed": np.array([3, 4]), "start_state": np.array(["a", "b"], dtype=object)}
    infos = masked(fields, np.array([True, False]))
    assert infos["executed"].tolist() == [3, 0]
    assert infos["start_state"].tolist() == ["a", None]
    assert infos["_executed"].tolist() == infos["_start_state"].tolist() == [True, False]
    assert fields["executed"].tolist() == [3, 4]


def test_episode_info_exists_only_when_one_ended() -> None:
    assert episode_info([None, None]) == {}
    infos = episode_info([None, STATS])
    assert infos["_episode"].tolist() == [False, True]
    assert infos["episode"]["return"].tolist() == [0.0, 2.5]
    assert infos["episode"]["length"].tolist() == [0, 7]
    assert infos["episode"]["success_once"].tolist() == [False, True]
    assert infos["episode"]["success_at_end"].tolist() == [False, False]
    assert infos["episode"]["_length"].tolist() == [False, True]


def test_one_slot_of_everything() -> None:
    fields = {"executed": np.array([3, 4]), "step_rewards": np.eye(2, dtype=np.float32)}
    infos = masked(fields, np.array([True, True])) | episode_info([None, STATS])
    first, second = single_info(infos, 0), single_info(infos, 1)
    assert set(first) == {"executed", "step_rewards"}
    assert first["executed"] == 3
    assert type(first["executed"]) is int
    assert first["step_rewards"].tolist() == [1, 0]
    assert second["episode"] == {
        "return": 2.5,
        "length": 7,
        "success_once": True,
        "success_at_end": False,
        "seconds": 0.5,
    }


def test_decisions_collect_and_clear() -> None:
    decision = Decision(2, 3)
    decision.enter(1, Report(step_rewards=(0.25, 0.5), success=True, episode=STATS))
    assert decision.reward_N.tolist() == [0, 0.75]
    assert decision.executed_N.tolist() == [0, 2]
    assert decision.success_N.tolist() == [False, True]
    assert decision.step_reward_NK.tolist() == [[0, 0, 0], [0.25, 0.5, 0]]
    cleared = decision.cleared(np.array([False, True]))
    assert cleared.reward_N.tolist() == [0, 0]
    assert cleared.executed_N.tolist() == [0, 0]
    assert cleared.success_N.tolist() == [False, False]
    assert not cleared.step_reward_NK.any()
    assert cleared.episodes == [None, None]
    assert decision.episodes == [None, STATS]
