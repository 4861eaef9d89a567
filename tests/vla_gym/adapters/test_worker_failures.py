"""A real simulator that is killed in the middle of a run."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from vla_gym import WorkerRestarted, make_vec

pytestmark = [pytest.mark.sim, pytest.mark.thorough]
pytest.importorskip("metaworld")


def test_a_killed_simulator_is_started_anew_and_its_start_state_played_again() -> None:
    envs = make_vec(
        "MetaWorld-MT50",
        2,
        chunk=4,
        image_size=32,
        num_workers=2,
        schedule="grid",
        autoreset_mode="same_step",
        on_worker_error="restart",
    )
    quiet = np.zeros((2, 4, 4), dtype=np.float32)
    try:
        first, infos = envs.reset()
        start_state = infos["start_state"][1]
        envs.step(quiet)
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        with pytest.warns(WorkerRestarted, match=r"SIGKILL.*MetaWorld-MT50, slot 1, task 25 \(.*\), trial 0"):
            obs, _, _, truncated_N, infos = envs.step(quiet)
        assert truncated_N.tolist() == [False, True]
        assert infos["final_info"]["lost"].tolist() == [False, True]
        assert "episode" not in infos["final_info"]
        # The same start state, from the same state and with the same picture, in a new process.
        assert (infos["task_id"][1], infos["trial_id"][1]) == (25, 0)
        assert infos["start_state"][1] == start_state
        np.testing.assert_array_equal(obs["image"][1], first["image"][1])
        assert not infos["lost"].any()
        assert envs.step(quiet)[4]["executed"].tolist() == [4, 4]
    finally:
        envs.close()
