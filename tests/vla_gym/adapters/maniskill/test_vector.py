"""ManiSkill through `make_vec`, in worker processes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import vla_gym

pytest.importorskip("mani_skill")
pytestmark = pytest.mark.sim

CHUNK = 4


@pytest.fixture(scope="module")
def envs() -> Iterator[vla_gym.VLAVectorEnv]:
    """One group of four slots, two in each of two workers."""
    made = vla_gym.make_vec(
        "ManiSkill/PokeCube",  # of the tasks whose resets in place are not exact upstream
        num_envs=4,
        group_size=4,
        chunk=CHUNK,
        image_size=48,
        num_workers=2,
        autoreset_mode="disabled",
        seed=1,
    )
    yield made
    made.close()


def test_time_truncates_in_simulator_steps_and_a_chunk_stops_there(envs: vla_gym.VLAVectorEnv) -> None:
    envs.reset(seed=3)
    still = np.zeros((4, CHUNK, 7), dtype=np.float32)
    for _ in range(12):
        _, _, terminated, truncated, _ = envs.step(still)
        assert not (terminated | truncated).any()
    _, _, terminated, truncated, infos = envs.step(still)  # 12 * 4 = 48 of 50 steps are done
    assert truncated.all()
    assert not terminated.any()
    assert infos["executed"].tolist() == [2] * 4
    assert infos["episode"]["length"].tolist() == [50] * 4
    assert not infos["episode"]["success_once"].any()
